"""`localspec bench`"""

from __future__ import annotations

from pathlib import Path

import click

from localspec.checks import prompts as questions
from localspec.cli import exit_codes
from localspec.cli.completion import complete_file
from localspec.cli.flags import json_option
from localspec.cli.help import Command
from localspec.cli.json_output import write_json
from localspec.cli.model_options import model_argument
from localspec.cli.options import PairOptions, pair_options, prompt_tokens, seconds_option

_DEFAULT_TOKENS = 128


@click.command(cls=Command)
@model_argument
@click.option(
    "--prompts",
    metavar="FILE|builtin",
    default="builtin",
    show_default=True,
    shell_complete=complete_file,
    help="Prompts, one per line.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="How often each side answers every prompt. One round does not show the noise; five "
    "are a compromise between time and precision. If no difference is seen, the verdict says "
    "how many rounds would show a smaller one.",
)
@seconds_option(default=None)
@click.option("--details", is_flag=True, help="Show all measurements, too.")
@json_option("object with everything measured")
@click.option(
    "--plot",
    type=Path,
    metavar="FILE.png|.html",
    shell_complete=complete_file,
    help="Plot costs and speed-ups into this file.",
)
@pair_options
def bench(  # noqa: PLR0913  each is an option of the command
    options: PairOptions,
    *,
    prompts: str,
    rounds: int,
    seconds: float | None,
    details: bool,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Measure the speed-up over plain decoding.

    On your machine, with your pair: plain and speculative decoding take turns answering the
    same prompts. A round is one answer of each side to every prompt, and gives one ratio of
    their speeds. The interval in brackets contains the true ratio 95 times in 100. If it
    contains 1, no difference was seen; more rounds make it narrower. The measured costs are
    kept for later runs. Ctrl-C and the time limit print the results so far. MODEL: as for
    chat.

    \b
        localspec bench
        localspec bench T.gguf --draft D.gguf --plot costs.png
        localspec bench --seconds 60
    """
    # Imported here, because shell completion must not load an engine.
    from localspec.checks.bench import run_bench
    from localspec.checks.limit import EndedBy
    from localspec.cli.bench_report import bench_json, bench_text, check_plot, write_plot
    from localspec.cli.measured import measured

    if plot is not None:
        check_plot(plot)
    texts = (
        questions.QUESTIONS if prompts == "builtin" else questions.read_prompts(Path(prompts))
    )
    with options.open_engine() as engine:
        tokens = [prompt_tokens(engine, options, text) for text in texts]
        found = measured(
            engine,
            run_bench,
            tokens,
            seconds=seconds,
            num_rounds=rounds,
            max_tokens=_DEFAULT_TOKENS if options.max_tokens is None else options.max_tokens,
        )
        if as_json:
            write_json(bench_json(found))
        else:
            click.echo(bench_text(found, engine, details=details))
    if plot is not None:
        write_plot(found, plot)
    if found.ended_by is EndedBy.INTERRUPT:
        raise click.Abort
    if not found.comparisons:
        raise click.exceptions.Exit(exit_codes.NOT_ENOUGH_EVIDENCE)
