"""`localspec bench` and `localspec verify`: measurements of an engine, shown with a verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from localspec.cli import exit_codes
from localspec.cli.flags import read_option_file
from localspec.cli.help import Command
from localspec.cli.json_output import json_option, write_json
from localspec.cli.progress_line import ProgressLine, waiting
from localspec.cli.screen import note
from localspec.cli.shared_options import PairOptions, model_argument, pair_options, shared
from localspec.cli.signal_handlers import cancel_on_interrupt
from localspec.errors import ContextError
from localspec.evaluation.prompts import (
    built_in_tasks,
    built_in_texts,
    check_lengths,
    own_tasks,
    read_prompts,
)
from localspec.streaming.cancellation import Watch
from localspec.system.call_thread import CallThread
from localspec.vocabulary import with_bos

if TYPE_CHECKING:
    from localspec.engine.base import BaseEngine

_DEFAULT_TOKENS = 128  # of an answer of bench
_POLL_S = 0.2  # between two checks whether a measurement has ended
_PIPE_S = 5.0  # between two lines of progress, if they are not shown in a terminal


@click.command(cls=Command)
@model_argument
@shared("prompts")
@shared("seconds", default=90)
@json_option("object with everything measured")
@pair_options
def bench(
    options: PairOptions,
    *,
    prompts: Path | None,
    seconds: float,
    as_json: bool,
) -> None:
    """Measure the speed-up over plain decoding, by kind of text.

    On your machine, with your pair: code, chat, editing, arithmetic, JSON, tool calls,
    summaries. Plain and speculative decoding take turns every few tokens of the same answers.
    The interval in brackets contains the true ratio 95 times in 100. If it contains 1, no
    difference was seen; more --seconds make it narrower. It ends when all intervals are narrow,
    or with the time limit or Ctrl-C, which print the results so far. The measured costs are
    kept for later runs. MODEL: as for chat.

    \b
        localspec bench
        localspec bench T.gguf --draft D.gguf
        localspec bench --prompts mine.txt --temperature 0 --seconds 180
    """
    # Imported here, because shell completion must not load an engine.
    from localspec.cli.evaluation_reports import bench_text
    from localspec.evaluation.bench import Outcome, run_bench

    if prompts is None:
        tasks = built_in_tasks()
    else:
        tasks = own_tasks(prompts)
    if options.max_tokens is None:
        options = replace(options, max_tokens=_DEFAULT_TOKENS)
    with options.open_engine(memory=False) as engine:
        _note_adapters(engine)
        answer_arguments = {
            "options": options.answer_options(engine),
            "system": options.system,
            "template": options.template(),
        }
        result = _measure(
            engine,
            run_bench,
            tasks,
            answer_arguments,
            seconds=seconds,
        )
        _print_result(result, bench_text, as_json=as_json)
    if result.outcome is Outcome.TOO_LITTLE:
        raise click.exceptions.Exit(exit_codes.NOT_ENOUGH_EVIDENCE)


@click.command(cls=Command)
@model_argument
@shared("prompts")
@shared("seconds", default=180)
@shared("json_schema", help="Check answers constrained to the JSON schema in this file.")
@json_option("object with everything found")
@pair_options
def verify(
    options: PairOptions,
    *,
    prompts: Path | None,
    seconds: float,
    json_schema: Path | None,
    as_json: bool,
) -> None:
    """Check that drafting does not change the output.

    On your machine, with your models: greedy and seeded text must be the same with and without
    drafting, except at near ties that rounding decides. How much decodes round is measured. The
    check ends when there is enough evidence. Ctrl-C and the time limit print the results so
    far. Exit code 0: lossless, 1: not lossless, 3: not enough evidence. MODEL: as for chat.

    \b
        localspec verify
        localspec verify T.gguf --draft D.gguf --seconds 600
        localspec verify --json-schema animal.json
    """
    # Imported here, because shell completion must not load an engine.
    from localspec.cli.evaluation_reports import report_text
    from localspec.evaluation.lossless_check import Finding, check
    from localspec.streaming.answer_options import AnswerOptions

    schema = None
    if json_schema is not None:
        schema = read_option_file("--json-schema", json_schema)
    if prompts is None:
        texts = built_in_texts()
    else:
        texts = read_prompts(prompts)
    with options.open_engine(memory=False) as engine:
        _note_adapters(engine)
        tokens = _prompt_tokens(
            engine,
            options,
            texts,
            are_own=prompts is not None,
        )
        answer_options = AnswerOptions(json_schema=schema)
        report = _measure(
            engine,
            check,
            tokens,
            options=answer_options,
            seconds=seconds,
        )
        _print_result(report, report_text, as_json=as_json)
    if report.finding is Finding.NOT_LOSSLESS:
        raise click.exceptions.Exit(exit_codes.FAILED)
    if report.finding is Finding.NOT_ENOUGH:
        raise click.exceptions.Exit(exit_codes.NOT_ENOUGH_EVIDENCE)


def _note_adapters(engine: BaseEngine) -> None:
    """Note which adapters the engine has, and that they change the target alone."""
    names = []
    for adapter in engine.adapters:
        name = Path(str(adapter.file)).name
        names.append(f"{name} ({adapter.scale:g})")
    if names:
        note(
            f"Adapters, on the target alone: {', '.join(names)}. What drafts keeps its own "
            "weights; plain decoding has the adapters, too."
        )


def _measure(
    engine: BaseEngine,
    function: Callable[..., Any],
    *arguments: Any,
    seconds: float,
    **keywords: Any,
) -> Any:
    """Call a function that measures an engine, and show its progress.

    Returns its result; after Ctrl-C or the time limit, the result so far.

    Args:
        engine: the engine.
        function: called with the engine, the arguments, the keywords, `watch` and `seconds`.
        arguments: other arguments of the function.
        seconds: the time limit.
        keywords: other keywords of the function.
    """
    line = ProgressLine(seconds, time.monotonic)
    watch = Watch(line.report)
    keywords |= {"watch": watch, "seconds": seconds}
    # In another thread, so that this one can handle Ctrl-C even during a long decode.
    thread = CallThread(lambda: engine._measure(function, *arguments, **keywords))
    with cancel_on_interrupt(watch.cancellation.request), waiting(line.text, _PIPE_S):
        thread.start()
        while thread.is_alive():  # on Windows Ctrl-C does not end a join without a timeout
            thread.join(_POLL_S)
    return thread.result()


def _print_result(result: Any, text_of: Callable[[Any], str], *, as_json: bool) -> None:
    """Print a result as text or JSON. Raises click.Abort if Ctrl-C ended the measurement."""
    from localspec.evaluation.time_limit import EndedBy

    if as_json:
        write_json(result)
    else:
        click.echo(text_of(result))
    if result.ended_by is EndedBy.INTERRUPT:
        raise click.Abort


def _prompt_tokens(
    engine: BaseEngine,
    options: PairOptions,
    texts: Sequence[str],
    *,
    are_own: bool,
) -> list[list[int]]:
    """The token ids of each prompt. A built-in prompt that does not fit is left out.

    Raises ContextError if one of the user's prompts does not fit, or if no prompt fits.

    Args:
        are_own: whether the texts are the user's prompts.
    """
    prompts: list[list[int]] = []
    for text in texts:
        try:
            tokens = _tokens(engine, options, text)
            check_lengths([tokens], engine.context_length)
            prompts.append(tokens)
        except ContextError:
            does_none_fit = text == texts[-1] and not prompts
            if are_own or does_none_fit:
                raise
    return prompts


def _tokens(engine: BaseEngine, options: PairOptions, text: str) -> list[int]:
    """The token ids of a text, in the chat template if there is one."""
    if engine.chat_template is None and options.template_name is None:
        vocabulary = engine.vocabulary
        tokens = vocabulary.tokenize(text, parse_special=False)
        return with_bos(tokens, vocabulary)
    chat = engine.chat(system=options.system, template=options.template())
    return chat.prompt_tokens(text)
