"""`localspec bench`"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from localspec import prompts as questions
from localspec.bench import Bench, Comparison, run_bench
from localspec.cli.bars import readable_bytes
from localspec.cli.options import PairOptions, pair_options
from localspec.cli.plot import check_plot, write_plot
from localspec.cli.prompt_tokens import prompt_tokens
from localspec.cli.screen import printable
from localspec.cli.stats_object import stats_as_object
from localspec.engine import Engine

_DEFAULT_TOKENS = 128
_SLOWER, _FASTER = 0.97, 1.03  # times plain: between them it is neither


@click.command()
@click.option(
    "--prompts",
    metavar="FILE|builtin",
    default="builtin",
    show_default=True,
    help="Prompts, one a line.",
)
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One object with everything measured.")
@click.option("--plot", type=Path, metavar="FILE.png|.html", help="Draw costs and speed-ups.")
@pair_options
def bench(
    options: PairOptions, *, prompts: str, rounds: int, as_json: bool, plot: Path | None
) -> None:
    """Measure how much faster than plain decoding it is: your pair, your machine.

    Plain and speculative answers to the same prompts, in turn. What is learned about costs
    is kept for later runs.

    \b
        localspec bench
        localspec bench --target T.gguf --draft D.gguf --plot costs.png
    """
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

            found = run_bench(
                engine,
                tokens,
                num_rounds=rounds,
                max_tokens=options.max_tokens or _DEFAULT_TOKENS,
                progress=show,
            )
        click.echo(json.dumps(_as_object(found)) if as_json else _as_text(found, engine))
    if plot is not None:
        write_plot(found, plot)


def _as_text(found: Bench, engine: Engine) -> str:
    lines = [engine.description, ""]
    for comparison in found.comparisons:
        lines += _comparison_lines(comparison)
    ratios = "  ".join(f"{n}: {ratio:.2f}" for n, ratio in enumerate(found.costs.ratios, 1))
    lines.append(f"A decode of n tokens, in plain steps:  {ratios}")
    plain_s = found.costs.target_s[0]
    lines.append(f"A plain step: {1000 * plain_s:.2f} ms")
    if found.costs.draft_token_s is not None:
        lines.append(
            f"A draft token: {1000 * found.costs.draft_token_s:.2f} ms, "
            f"{found.costs.draft_token_s / plain_s:.2f} plain steps"
        )
        edge = found.break_even
        lines.append(
            "No acceptance would pay."
            if edge is None
            else f"It pays from an acceptance of {edge:.2f}."
        )
    if found.sweep:
        each = "  ".join(f"K {k}: {ratio:.2f}" for k, ratio in found.sweep.items())
        lines.append(f"A fixed number of draft tokens, greedy, times plain:  {each}")
    lines += [
        f"Peak memory: {readable_bytes(found.peak_memory_bytes)}",
        "",
        verdict(found.comparisons),
    ]
    return printable("\n".join(lines))


def _comparison_lines(found: Comparison) -> list[str]:
    lengths = ", ".join(
        f"{k}: {count}" for k, count in enumerate(found.steps_per_length) if count
    )
    lines = [
        f"{found.name.capitalize()}: {found.speedup:.2f} times plain "
        f"({min(found.ratios):.2f} to {max(found.ratios):.2f} in {len(found.ratios)} rounds)"
    ]
    for name, side in (("plain", found.plain), ("speculative", found.speculative)):
        rates = sorted(side.tokens_per_s)
        lines.append(
            f"  {name:<12}{rates[len(rates) // 2]:8.1f} tokens/s ({rates[0]:.1f} to "
            f"{rates[-1]:.1f}), first token after {1000 * side.time_to_first_token_s:.0f} ms"
        )
    lines.append(
        f"  {found.acceptance_rate:.0%} of drafted tokens accepted; steps by number of draft "
        f"tokens: {lengths}"
    )
    return [*lines, ""]


def verdict(comparisons: Sequence[Comparison]) -> str:
    """What to do about it; no advice where the rounds contradict each other."""
    names = " and ".join(f"{c.name} {c.speedup:.2f} times" for c in comparisons)
    if any(min(c.ratios) < _SLOWER and max(c.ratios) >= _FASTER for c in comparisons):
        return (
            f"Verdict: the rounds disagree too much to tell ({names}): close other programs, "
            "or take more --rounds."
        )
    speedup = min(comparison.speedup for comparison in comparisons)
    if speedup >= _FASTER:
        return f"Verdict: faster ({names}): keep drafting."
    if speedup >= _SLOWER:
        return f"Verdict: nothing to gain here ({names}): drafting stays out of the way."
    return f"Verdict: slower ({names}): use --no-draft, and please report this."


def _as_object(found: Bench) -> dict[str, Any]:
    return {
        "comparisons": [
            {
                "name": comparison.name,
                "speedup": comparison.speedup,
                "ratios": comparison.ratios,
                "acceptance_rate": comparison.acceptance_rate,
                "steps_per_length": comparison.steps_per_length,
                **{
                    name: {
                        "tokens_per_s": side.tokens_per_s,
                        "time_to_first_token_s": side.time_to_first_token_s,
                        "answers": [stats_as_object(stats) for stats in side.stats],
                    }
                    for name, side in (
                        ("plain", comparison.plain),
                        ("speculative", comparison.speculative),
                    )
                },
            }
            for comparison in found.comparisons
        ],
        "costs": {**dataclasses.asdict(found.costs), "ratios": found.costs.ratios},
        "break_even": found.break_even,
        "sweep": found.sweep,
        "peak_memory_bytes": found.peak_memory_bytes,
    }
