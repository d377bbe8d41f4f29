"""`localspec bench`"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from localspec.checks import prompts as questions
from localspec.cli.completion import complete_file
from localspec.cli.help import Command
from localspec.cli.options import PairOptions, model_argument, pair_options, prompt_tokens
from localspec.cli.plot import check_plot, write_plot

_DEFAULT_TOKENS = 128


@click.command(cls=Command)
@model_argument
@click.option(
    "--prompts",
    metavar="FILE|builtin",
    default="builtin",
    show_default=True,
    shell_complete=complete_file,
    help="Prompts, one a line.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="How often each prompt is answered by either side. One round says nothing of its "
    "noise, and each takes its time: five are a compromise. Where no difference was seen, the "
    "verdict says how many rounds would show a smaller one.",
)
@click.option("--details", is_flag=True, help="Show what was measured as well.")
@click.option("--json", "as_json", is_flag=True, help="One object with everything measured.")
@click.option(
    "--plot",
    type=Path,
    metavar="FILE.png|.html",
    shell_complete=complete_file,
    help="Draw costs and speed-ups.",
)
@pair_options
def bench(
    options: PairOptions,
    *,
    prompts: str,
    rounds: int,
    details: bool,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Measure how much faster than plain decoding it is.

    With your pair, on your machine: plain and speculative answers to the same prompts, in
    turn. A round is one answer of either side to each prompt, and gives one ratio of their
    speeds. In brackets stands the interval that holds the true ratio 95 times in 100; if it
    holds 1, no difference was seen, and more rounds narrow it. What is learned about costs is
    kept for later runs. MODEL: as for chat.

    \b
        localspec bench
        localspec bench T.gguf --draft D.gguf --plot costs.png
    """
    # Late, as everything that needs an engine: completion loads none.
    from localspec.checks.bench import run_bench
    from localspec.cli.bench_report import as_object, as_text
    from localspec.engine.measuring import measure

    if plot is not None:
        check_plot(plot)
    texts = (
        questions.BUILT_IN if prompts == "builtin" else questions.read_prompts(Path(prompts))
    )
    with options.open_engine() as engine:
        tokens = [prompt_tokens(engine, options, text) for text in texts]
        with click.progressbar(length=1000, file=sys.stderr) as bar:

            def show(stage: str, share: float) -> None:
                bar.label = f"Measuring {stage}"
                bar.update(round(share * 1000) - bar.pos)

            found = measure(
                engine,
                run_bench,
                tokens,
                num_rounds=rounds,
                max_tokens=_DEFAULT_TOKENS
                if options.max_tokens is None
                else options.max_tokens,
                progress=show,
            )
        if as_json:
            click.echo(json.dumps(as_object(found)))
        else:
            click.echo(as_text(found, engine, details=details))
    if plot is not None:
        write_plot(found, plot)
