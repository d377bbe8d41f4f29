"""`localspec trace`: records what proposers would propose, in numbers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from localspec.checks import prompts as questions
from localspec.cli.completion import complete_file
from localspec.cli.flags import json_option
from localspec.cli.help import Command, Group
from localspec.cli.json_output import write_json
from localspec.cli.model_options import model_argument
from localspec.cli.options import (
    PROMPTS_OPTION,
    PairOptions,
    pair_options,
    seconds_option,
)
from localspec.cli.quantities import counted
from localspec.cli.screen import printable
from localspec.errors import OptionError
from localspec.speculative.policy_api import MAX_DRAFT_TOKENS

if TYPE_CHECKING:
    from localspec.checks.what_if import WhatIf

_DEFAULT_TOKENS = 160
_NUM_COST_ROUNDS = 3
_NUMBERS = (1, 2, 3, 4, 5, 7, 10, 15)  # draft tokens per step


@click.group(cls=Group)
def trace() -> None:
    """Record answers as numbers, and compute what drafting would be worth.

    A trace says for each token of an answer what the draft, a head or the lookup would have
    proposed there, and how likely that would have been accepted. It holds lengths and
    probabilities, and nothing of the text.

    \b
        localspec trace record mine.jsonl MODEL --draft D.gguf --prompts mine.txt
        localspec trace what-if mine.jsonl
        localspec trace what-if mine.jsonl --flat-to 8
    """


@trace.command(cls=Command)
@click.argument("file", type=Path, shell_complete=complete_file)
@model_argument
@PROMPTS_OPTION
@seconds_option(default=None)
@pair_options
def record(options: PairOptions, *, file: Path, prompts: str, seconds: float | None) -> None:
    """Record traces of your own answers into FILE.

    Each prompt is answered without drafting, while every proposer says what it would have
    proposed. That takes as long as plain decoding and a token of each proposer. The costs of
    decodes on this machine are measured first and kept in the file as well. Ctrl-C and the
    time limit keep the whole answers so far. MODEL: as for chat.
    """
    # Imported here, because shell completion must not load an engine.
    from localspec.checks.trace import write_recording
    from localspec.checks.trace_recorder import record_traces
    from localspec.cli.measured import measured
    from localspec.cli.sampling_options import changed_sampling

    if not file.parent.is_dir():
        raise OptionError(f"there is no folder {file.parent}", "Make it, or name another.")
    is_own = prompts != "builtin"
    tasks = questions.own_tasks(Path(prompts)) if is_own else questions.built_in_tasks()
    with options.open_engine(memory=False) as engine:
        if engine.drafting.is_off:
            raise OptionError("nothing may propose here", "Leave out --no-draft.")
        template = options.template()
        found = measured(
            engine,
            record_traces,
            [task for task in tasks if task.suits(engine, template)],
            seconds=seconds,
            asking={"system": options.system, "template": template},
            samplings=[changed_sampling(engine, options.sampling_changes)],
            max_tokens=options.max_tokens or _DEFAULT_TOKENS,
            num_cost_rounds=_NUM_COST_ROUNDS,
        )
    write_recording(file, found)
    num_tokens = sum(one.num_tokens for one in found.traces)
    click.echo(
        f"{file}: {counted(len(found.traces), 'answer')}, {counted(num_tokens, 'token')}"
    )


@trace.command("what-if", cls=Command)
@click.argument("file", type=Path, shell_complete=complete_file)
@click.option(
    "--costs",
    type=Path,
    metavar="FILE",
    shell_complete=complete_file,
    help="The costs of another machine: a file of 'trace record', or of 'bench --json', made "
    "there. [default: those in FILE]",
)
@click.option(
    "--flat-to",
    type=click.IntRange(1, MAX_DRAFT_TOKENS + 1),
    metavar="N",
    help="Costs as on many GPUs: up to N tokens in a decode cost as much as one.",
)
@json_option("array with everything computed")
def what_if(*, file: Path, costs: Path | None, flat_to: int | None, as_json: bool) -> None:
    """Say how fast drafting would have been in the recorded answers of FILE.

    For each proposer and fixed number of tokens: the speed-up over plain decoding, computed
    from the probabilities in FILE and from what decodes cost. No model runs. The draft's
    reading of the prompt is not counted.
    """
    # Imported here, because they load NumPy, and shell completion must not wait for that.
    from localspec.checks import what_if as reckoning
    from localspec.checks.trace import read_recording

    recording = read_recording(file)
    if costs is not None and flat_to is not None:
        raise OptionError("--costs and --flat-to are both given", "Choose one of them.")
    if flat_to is not None:
        chosen = reckoning.flat_costs(flat_to, recording.shares)
    else:
        chosen = reckoning.read_costs(file if costs is None else costs)
    found = reckoning.what_if(recording, chosen, _NUMBERS)
    if as_json:
        write_json([_as_json(one) for one in found])
        return
    num_tokens = sum(one.num_tokens for one in recording.traces)
    answers = counted(len(recording.traces), "answer")
    click.echo(printable(f"{recording.pair}: {answers}, {counted(num_tokens, 'token')}"))
    click.echo("Speed-up over plain decoding, by tokens drafted per step:")
    click.echo(_row("", (str(number) for number in _NUMBERS)))
    for one in found:
        cells = (one.speedups.get(number) for number in _NUMBERS)
        click.echo(_row(one.proposer.value, ("" if x is None else f"{x:.2f}" for x in cells)))
    for kind in dict.fromkeys(answer.kind for answer in recording.traces):
        best = max(found, key=lambda one: one.of_kinds[kind][1])
        number, speedup = best.of_kinds[kind]
        text = f"Best for {kind}: {best.proposer.value}, {number} per step: {speedup:.2f}"
        click.echo(printable(text))


def _row(name: str, cells: Iterable[str]) -> str:
    return f"{name:<8}" + "".join(f"{cell:>7}" for cell in cells)


def _as_json(one: WhatIf) -> dict[str, Any]:
    return {
        "proposer": one.proposer.value,
        "speedups": {str(number): speedup for number, speedup in one.speedups.items()},
        "best_of_kinds": {
            kind: {"draft_tokens": number, "speedup": speedup}
            for kind, (number, speedup) in one.of_kinds.items()
        },
    }
