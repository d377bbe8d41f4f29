"""`localspec verify`"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import click

from localspec import prompts as questions
from localspec.cli import exit_codes
from localspec.cli.options import PairOptions, pair_options
from localspec.cli.prompt_tokens import prompt_tokens
from localspec.cli.screen import printable
from localspec.engine import Engine
from localspec.law_check import ALPHA, VIEWS
from localspec.selfcheck import Report, check


@click.command()
@click.option("--prompts", type=Path, metavar="FILE", help="Prompts of your own, one a line.")
@click.option(
    "--samples",
    type=click.IntRange(min=100),
    metavar="N",
    help="Stop at N sampled tokens per rule. [default: what the time allows]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    default=180,
    show_default=True,
    help="Time to spend.",
)
@click.option("--json", "as_json", is_flag=True, help="One object with everything found.")
@pair_options
def verify(
    options: PairOptions,
    *,
    prompts: Path | None,
    samples: int | None,
    seconds: float,
    as_json: bool,
) -> None:
    """Check that the draft changes nothing: on your pair, on your machine.

    Greedy and seeded text with the draft must be the text without it, up to near ties that
    rounding decides; sampled text must follow the target's own laws. Exit code 0 only if
    all of it holds.

    \b
        localspec verify
        localspec verify --target T.gguf --draft D.gguf --seconds 600
    """
    texts = questions.BUILT_IN if prompts is None else questions.read_prompts(prompts)
    with options.open_engine() as engine:
        tokens = [prompt_tokens(engine, options, text) for text in texts]
        with click.progressbar(length=1000, file=sys.stderr) as bar:

            def show(stage: str, share: float) -> None:
                bar.label = f"Checking {stage}"
                bar.update(round(share * 1000) - bar.pos)

            report = check(engine, tokens, budget_s=seconds, max_samples=samples, progress=show)
        click.echo(json.dumps(_as_object(report)) if as_json else _as_text(report, engine))
    if not report.holds:
        raise click.exceptions.Exit(exit_codes.FAILED)


def _as_text(report: Report, engine: Engine) -> str:
    rounding, bound = report.rounding, report.rounding.bound
    lines = [
        engine.description,
        f"Vocabulary: {engine.shared_vocabulary or 'no draft'}",
        f"Rounding: a batch of several tokens moves a logit by up to "
        f"{rounding.largest_difference:.2g}; the best token changed in "
        f"{rounding.num_argmax_changed} of {rounding.num_rows} rows (widest gap "
        f"{rounding.widest_gap_changed:.2g}).",
    ]
    for name, found in (("Greedy", report.greedy), ("Seeded", report.seeded)):
        near = len(found.divergences) - len(found.bugs(bound))
        lines.append(
            f"{name} text: {found.num_tokens} tokens in {found.num_texts} texts, "
            f"{found.num_accepted} of them the draft's; {near} near ties fell otherwise, "
            f"{len(found.bugs(bound))} differences beyond rounding."
        )
    for law in (*report.laws, *report.confirmations):
        lines.append(
            f"Rule {law.rule}, by {law.view}: {law.num_tokens} tokens, p = {law.p_value:.2g}; "
            f"a bias of {law.smallest_bias:.2%} would have been seen."
        )
    lines += [f"Bug: {line}" for line in report.bugs]
    lines.append(
        f"Verdict: lossless here, as far as {report.time_s:.0f} s of checking can see."
        if report.holds
        else "Verdict: NOT lossless. Please report the lines above."
    )
    return printable("\n".join(lines))


def _as_object(report: Report) -> dict[str, Any]:
    return {
        **dataclasses.asdict(report),
        "rounding_bound": report.rounding.bound,
        "alpha": ALPHA,
        "views": VIEWS,
        "bugs": report.bugs,
        "holds": report.holds,
    }
