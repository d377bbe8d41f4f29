"""`localspec trace`: records what proposers would propose, in numbers."""

from __future__ import annotations

from pathlib import Path

import click

from localspec.checks import prompts as questions
from localspec.cli.completion import complete_file
from localspec.cli.help import Command, Group
from localspec.cli.measured import measured
from localspec.cli.model_options import model_argument
from localspec.cli.options import PairOptions, pair_options, seconds_option
from localspec.cli.quantities import counted
from localspec.errors import OptionError

_DEFAULT_TOKENS = 160
_NUM_COST_ROUNDS = 3


@click.group(cls=Group)
def trace() -> None:
    """Record answers as numbers, and compute what drafting would be worth.

    A trace says for each token of an answer what the draft, a head or the lookup would have
    proposed there, and how likely that would have been accepted. It holds lengths and
    probabilities, and nothing of the text.

    \b
        localspec trace record mine.jsonl MODEL --draft D.gguf --prompts mine.txt
    """


@trace.command(cls=Command)
@click.argument("file", type=Path, shell_complete=complete_file)
@model_argument
@click.option(
    "--prompts",
    metavar="FILE|builtin",
    default="builtin",
    show_default=True,
    shell_complete=complete_file,
    help="Prompts, one per line.",
)
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
