"""`localspec verify`"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from localspec.checks.prompts import built_in_texts, check_lengths, read_prompts
from localspec.cli import exit_codes
from localspec.cli.flags import read_option_file
from localspec.cli.help import Command
from localspec.cli.json_output import json_option, write_json
from localspec.cli.options import PairOptions, model_argument, pair_options, shared
from localspec.cli.waiting import measured
from localspec.errors import ContextError
from localspec.vocabulary import with_bos

if TYPE_CHECKING:
    from localspec.engine.base import BaseEngine


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

    On your machine, with your models. Identity: greedy and seeded text must be the same with
    and without drafting, except at near ties that rounding decides. Statistics: sampled text
    must follow the target's own distributions. The check ends when both have enough evidence.
    Ctrl-C and the time limit print the results so far. Exit code 0: lossless, 1: not lossless,
    3: not enough evidence. MODEL: as for chat.

    \b
        localspec verify
        localspec verify T.gguf --draft D.gguf --seconds 600
        localspec verify --json-schema animal.json
    """
    # Imported here, because shell completion must not load an engine.
    from localspec.checks.limit import EndedBy
    from localspec.checks.selfcheck import Finding, check
    from localspec.cli.verify_report import report_text
    from localspec.streaming.options import AnswerOptions

    schema = None
    if json_schema is not None:
        schema = read_option_file("--json-schema", json_schema)
    texts = built_in_texts() if prompts is None else read_prompts(prompts)
    with options.open_engine(memory=False) as engine:
        tokens = _prompts(engine, options, texts, are_own=prompts is not None)
        report = measured(
            engine, check, tokens, seconds=seconds, options=AnswerOptions(json_schema=schema)
        )
        if as_json:
            write_json(report)
        else:
            click.echo(report_text(report))
    if report.ended_by is EndedBy.INTERRUPT:
        raise click.Abort
    if report.finding is Finding.NOT_LOSSLESS:
        raise click.exceptions.Exit(exit_codes.FAILED)
    if report.finding is Finding.NOT_ENOUGH:
        raise click.exceptions.Exit(exit_codes.NOT_ENOUGH_EVIDENCE)


def _prompts(
    engine: BaseEngine, options: PairOptions, texts: Sequence[str], *, are_own: bool
) -> list[list[int]]:
    """The token ids of the prompts. A built-in prompt that does not fit is left out.

    Raises ContextError if a prompt of the user's does not fit, or no prompt does.
    """
    found: list[list[int]] = []
    for text in texts:
        try:
            tokens = _tokens(engine, options, text)
            check_lengths([tokens], engine.context_length)
            found.append(tokens)
        except ContextError:
            if are_own or (text == texts[-1] and not found):
                raise
    return found


def _tokens(engine: BaseEngine, options: PairOptions, text: str) -> list[int]:
    """The token ids of a text, in the chat template if there is one."""
    if engine.chat_template is None and options.template_name is None:
        vocabulary = engine.vocabulary
        return with_bos(vocabulary.tokenize(text, parse_special=False), vocabulary)
    return engine.chat(system=options.system, template=options.template()).prompt_tokens(text)
