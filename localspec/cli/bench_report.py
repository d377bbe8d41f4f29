"""What `localspec bench` says: first the verdict, then what was measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from localspec.checks.bench import Bench, Comparison, Outcome
from localspec.cli.bars import readable_bytes
from localspec.cli.screen import printable
from localspec.cli.stats_object import stats_as_object
from localspec.engine.base import BaseEngine
from localspec.speculative.ratio_estimate import RatioEstimate
from localspec.speculative.reasons import why_off

_SIZES = (0.1, 0.05, 0.02, 0.01)  # of differences, to say what it takes to see one


def as_text(found: Bench, engine: BaseEngine, *, details: bool) -> str:
    """The measurement for people."""
    lines = verdict(found.comparisons)
    if details:
        lines += ["", *_details(found, engine)]
    else:
        num_rounds = len(found.comparisons[0].ratios)
        rounds = "1 round" if num_rounds == 1 else f"{num_rounds} rounds"
        lines.append(f"Measured in {rounds}. Costs and the rest: --details.")
    return printable("\n".join(lines))


def verdict(comparisons: Sequence[Comparison]) -> list[str]:
    """What the measurement says, at first; then what to do about it."""
    outcomes = {c.outcome: c for c in comparisons}
    if len(outcomes) == 1:
        [outcome] = outcomes
        ratios = ", ".join(f"{c.name} {_times(c)}" for c in comparisons)
        headline = f"{outcome.value.capitalize()}: {ratios}."
    else:
        headline = " ".join(
            f"{c.name.capitalize()}: {c.outcome.value}, {_times(c)}." for c in comparisons
        )
    advice = [_advice(outcome, comparison) for outcome, comparison in outcomes.items()]
    if len(outcomes) > 1:  # it then is of one of them
        names = [comparison.name.capitalize() for comparison in outcomes.values()]
        advice = [
            f"{name}: {said}" if said else "" for name, said in zip(names, advice, strict=True)
        ]
    if Outcome.NO_DIFFERENCE in outcomes:
        advice.append(_what_it_takes(comparisons))
    return [headline, *filter(None, advice)]


def _times(found: Comparison) -> str:
    """With the interval in brackets, where there is one."""
    estimate = found.estimate
    interval = "" if estimate is None else f" ({estimate.low:.2f} to {estimate.high:.2f})"
    return f"{found.speedup:.2f} times plain{interval}"


def _advice(outcome: Outcome, found: Comparison) -> str:
    if outcome is Outcome.SLOWER:
        return "Drafting costs more than it gains here: --no-draft decodes plainly."
    if outcome is Outcome.ONE_ROUND:
        return "Take two --rounds or more: one says nothing of its noise."
    if outcome is Outcome.NOTHING_DRAFTED:
        reason = "" if found.draft_off is None else f" ({why_off(found.draft_off)})"
        return f"Without draft tokens{reason} both sides are plain decoding."
    return ""


def _what_it_takes(comparisons: Sequence[Comparison]) -> str:
    """To see a smaller difference than could have been seen."""
    unclear = [
        c.estimate for c in comparisons if c.outcome is Outcome.NO_DIFFERENCE and c.estimate
    ]
    noisiest = max(unclear, key=lambda estimate: estimate.visible)
    aim = next((size for size in _SIZES if size < noisiest.visible), _SIZES[-1])
    num_rounds = noisiest.rounds_to_see(aim)
    seconds = num_rounds * sum(comparison.round_s for comparison in comparisons)
    return (
        f"A difference of {noisiest.visible:.0%} would have been seen 9 times in 10; to see "
        f"one of {aim:.0%} take --rounds {num_rounds}, about {_duration(seconds)}."
    )


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"


def _details(found: Bench, engine: BaseEngine) -> list[str]:
    lines = [engine.description, ""]
    for comparison in found.comparisons:
        lines += _comparison_lines(comparison)
    ratios = "  ".join(f"{n}: {ratio:.2f}" for n, ratio in enumerate(found.costs.ratios, 1))
    lines.append(f"A decode of n tokens, in target-only steps:  {ratios}")
    target_only_s = found.costs.target_s[0]
    lines.append(f"A target-only step: {1000 * target_only_s:.2f} ms")
    if found.costs.draft_token_s is not None:
        lines.append(
            f"A draft token: {1000 * found.costs.draft_token_s:.2f} ms, "
            f"{found.costs.draft_token_s / target_only_s:.2f} target-only steps"
        )
        edge = found.break_even
        lines.append(
            "No acceptance would pay at these costs."
            if edge is None
            else f"At these costs it pays from an acceptance of {edge:.2f}."
        )
    if found.sweep:
        each = "  ".join(f"K {k}: {ratio:.2f}" for k, ratio in found.sweep.items())
        lines.append(
            f"A fixed number of draft tokens, greedy, times plain, by one answer each:  {each}"
        )
    return [*lines, f"Peak memory: {readable_bytes(found.peak_memory_bytes)}"]


def _comparison_lines(found: Comparison) -> list[str]:
    lengths = ", ".join(
        f"{k}: {count}" for k, count in enumerate(found.steps_per_length) if count
    )
    rounds = "  ".join(f"{ratio:.2f}" for ratio in found.ratios)
    lines = [f"{found.name.capitalize()}: {_times(found)}; by round:  {rounds}"]
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


def as_object(found: Bench) -> dict[str, Any]:
    """Everything measured, as JSON has it."""
    return {
        "comparisons": [
            {
                "name": comparison.name,
                "outcome": comparison.outcome.value,
                "speedup": comparison.speedup,
                "estimate": _estimate_as_object(comparison.estimate),
                "round_s": comparison.round_s,
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


def _estimate_as_object(estimate: RatioEstimate | None) -> dict[str, Any] | None:
    """rounds_to_see: how many rounds it takes, by the size of a difference."""
    if estimate is None:
        return None
    return {
        **dataclasses.asdict(estimate),
        "visible": estimate.visible,
        "rounds_to_see": {size: estimate.rounds_to_see(size) for size in _SIZES},
    }
