"""`localspec bench`"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from localspec.checks.prompts import built_in_tasks, own_tasks
from localspec.cli import exit_codes
from localspec.cli.help import Command
from localspec.cli.json_output import json_option, write_json
from localspec.cli.options import PairOptions, model_argument, pair_options, shared
from localspec.cli.waiting import measured

_DEFAULT_TOKENS = 128


@click.command(cls=Command)
@model_argument
@shared("prompts")
@shared("seconds", default=90)
@json_option("object with everything measured")
@pair_options
def bench(options: PairOptions, *, prompts: Path | None, seconds: float, as_json: bool) -> None:
    """Measure the speed-up over plain decoding, by kind of text.

    On your machine, with your pair: code, chat, editing, arithmetic, JSON, calls of tools,
    summaries. Plain and speculative decoding take turns every few tokens of the same answers.
    The interval in brackets contains the true ratio 95 times in 100. If it contains 1, no
    difference was seen; more --seconds make it narrower. It ends when all intervals are
    narrow, or with the time limit or Ctrl-C, which print the results so far. The measured
    costs are kept for later runs. MODEL: as for chat.

    \b
        localspec bench
        localspec bench T.gguf --draft D.gguf
        localspec bench --prompts mine.txt --temperature 0 --seconds 180
    """
    # Imported here, because shell completion must not load an engine.
    from localspec.checks.bench import Outcome, run_bench
    from localspec.checks.limit import EndedBy
    from localspec.cli.bench_report import bench_text

    tasks = built_in_tasks() if prompts is None else own_tasks(prompts)
    if options.max_tokens is None:
        options = replace(options, max_tokens=_DEFAULT_TOKENS)
    with options.open_engine(memory=False) as engine:
        found = measured(
            engine,
            run_bench,
            tasks,
            {
                "options": options.for_answer(engine),
                "system": options.system,
                "template": options.template(),
            },
            seconds=seconds,
        )
        if as_json:
            write_json(found)
        else:
            click.echo(bench_text(found))
    if found.ended_by is EndedBy.INTERRUPT:
        raise click.Abort
    if found.outcome is Outcome.TOO_LITTLE:
        raise click.exceptions.Exit(exit_codes.NOT_ENOUGH_EVIDENCE)
