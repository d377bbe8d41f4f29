"""The output of `localspec bench`: the verdict, then the measurements, and their plot."""

from __future__ import annotations

import importlib.util
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from localspec.checks.bench import Bench, Comparison, Outcome
from localspec.checks.limit import EndedBy
from localspec.checks.step_bench import StepCosts
from localspec.cli.json_output import to_json
from localspec.cli.quantities import counted, duration, readable_bytes
from localspec.cli.screen import printable
from localspec.engine.base import BaseEngine
from localspec.errors import OptionError
from localspec.speculative.reasons import why_off

_MORE_ROUNDS = "Use --rounds 2 or more: one round does not show the noise."
_SIZES = (0.1, 0.05, 0.02, 0.01)  # differences for which the number of rounds is worked out


def bench_text(found: Bench, engine: BaseEngine, *, details: bool) -> str:
    """The measurement as text."""
    more = _MORE_ROUNDS if found.ended_by is None else _more_time(found)
    lines = verdict(found.comparisons, more)
    if found.ended_by is not None:
        lines.append(_what_ended(found))
    if details:
        lines += ["", *_details(found, engine)]
    elif found.ended_by is None:
        num_rounds = counted(len(found.comparisons[0].ratios), "round")
        lines.append(f"Measured in {num_rounds}. For costs and more: --details.")
    return printable("\n".join(lines))


def _what_ended(found: Bench) -> str:
    """Why the measurement ended early, and what was measured by then."""
    parts = [
        f"{c.name} {c.num_prompts} of {c.num_prompts + c.missing_prompts} prompts"
        if c.missing_prompts
        else f"{c.name} {len(c.ratios)} of {counted(found.num_rounds, 'round')}"
        for c in found.comparisons
    ]
    after = duration(found.time_s)
    why = (
        f"The time limit of {after} was reached"
        if found.ended_by is EndedBy.TIME
        else f"Stopped after {after}"
    )
    known = f"{why}: {', '.join(parts)} answered by both sides." if parts else f"{why}."
    return f"{known} For costs and more: --details."


def _more_time(found: Bench) -> str:
    if found.round_s is None:
        return "How long a round takes is not known yet: use more --seconds."
    seconds = math.ceil((found.time_s + 2 * found.round_s) / 10) * 10
    return (
        f"A verdict needs at least two rounds, about {duration(found.round_s)} each here: "
        f"--seconds {seconds}."
    )


def verdict(comparisons: Sequence[Comparison], more: str = _MORE_ROUNDS) -> list[str]:
    """The result in one line, then advice.

    more: the advice if there is too little data for a verdict.
    """
    if not comparisons:
        return ["Nothing to compare yet: no prompt was answered by both sides.", more]
    outcomes = {c.outcome: c for c in comparisons}
    if len(outcomes) == 1:
        [outcome] = outcomes
        ratios = ", ".join(f"{c.name} {_times(c)}" for c in comparisons)
        headline = f"{outcome.value.capitalize()}: {ratios}."
    else:
        headline = " ".join(
            f"{c.name.capitalize()}: {c.outcome.value}, {_times(c)}." for c in comparisons
        )
    advice = [_advice(outcome, comparison, more) for outcome, comparison in outcomes.items()]
    if len(outcomes) > 1:  # each piece of advice concerns one of them
        names = [comparison.name.capitalize() for comparison in outcomes.values()]
        advice = [
            f"{name}: {said}" if said else "" for name, said in zip(names, advice, strict=True)
        ]
    if Outcome.NO_DIFFERENCE in outcomes:
        advice.append(_what_it_takes(comparisons))
    return [headline, *filter(None, advice)]


def _times(found: Comparison) -> str:
    """The speed-up, with its interval in brackets if there is one."""
    estimate = found.estimate
    interval = "" if estimate is None else f" ({estimate.low:.2f} to {estimate.high:.2f})"
    return f"{found.speedup:.2f} times plain{interval}"


def _advice(outcome: Outcome, found: Comparison, more: str) -> str:
    if outcome is Outcome.SLOWER:
        return "Drafting costs more than it gains here: use --no-draft."
    if outcome in (Outcome.ONE_ROUND, Outcome.PART_OF_A_ROUND):
        return more
    if outcome is Outcome.NOTHING_DRAFTED:
        reason = "" if found.draft_off is None else f" ({why_off(found.draft_off)})"
        return f"No tokens were drafted{reason}: both sides are plain decoding."
    return ""


def _what_it_takes(comparisons: Sequence[Comparison]) -> str:
    """How many rounds would show a smaller difference."""
    unclear = [
        c.estimate for c in comparisons if c.outcome is Outcome.NO_DIFFERENCE and c.estimate
    ]
    noisiest = max(unclear, key=lambda estimate: estimate.visible)
    aim = next((size for size in _SIZES if size < noisiest.visible), _SIZES[-1])
    num_rounds = noisiest.rounds_to_see(aim)
    seconds = num_rounds * sum(comparison.round_s for comparison in comparisons)
    return (
        f"A difference of {noisiest.visible:.0%} would have been seen 9 times in 10. To see "
        f"one of {aim:.0%}: --rounds {num_rounds}, about {duration(seconds)}."
    )


def _details(found: Bench, engine: BaseEngine) -> list[str]:
    lines = [engine.description, ""]
    for comparison in found.comparisons:
        lines += _comparison_lines(comparison)
    if found.costs is not None:
        lines += _cost_lines(found.costs, found.break_even)
    if found.sweep:
        each = "  ".join(f"K {k}: {ratio:.2f}" for k, ratio in found.sweep.items())
        lines.append(
            f"Speed-up with a fixed number K of draft tokens, greedy, one answer each:  {each}"
        )
    return [*lines, f"Peak memory: {readable_bytes(found.peak_memory_bytes)}"]


def _cost_lines(costs: StepCosts, edge: float | None) -> list[str]:
    ratios = "  ".join(f"{n}: {ratio:.2f}" for n, ratio in enumerate(costs.ratios, 1))
    target_only_s = costs.target_s[0]
    lines = [
        f"Cost of decoding n tokens, in target-only steps:  {ratios}",
        f"A target-only step: {1000 * target_only_s:.2f} ms",
    ]
    if costs.draft_token_s is None:
        return lines
    pays = (
        "At these costs drafting never pays."
        if edge is None
        else f"At these costs drafting pays from an acceptance of {edge:.2f}."
    )
    draft = (
        f"A draft token: {1000 * costs.draft_token_s:.2f} ms, "
        f"{costs.draft_token_s / target_only_s:.2f} target-only steps"
    )
    return [*lines, draft, pays]


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


def bench_json(found: Bench) -> dict[str, Any]:
    """Everything measured, for --json.

    partial: whether the measurement ended before it was complete; ended_by: by what.
    rounds_to_see: how many rounds show a difference of each size.
    """
    written: dict[str, Any] = to_json(found) | {"partial": found.ended_by is not None}
    for comparison, each in zip(found.comparisons, written["comparisons"], strict=True):
        if estimate := comparison.estimate:
            rounds = {size: estimate.rounds_to_see(size) for size in _SIZES}
            each["estimate"]["rounds_to_see"] = rounds
    return written


def check_plot(path: Path) -> None:
    """Raise OptionError, before anything is measured, if the plot could not be written."""
    if path.suffix not in (".png", ".html"):
        raise OptionError(f"--plot {path} is neither .png nor .html", "Choose one of them.")
    if not path.absolute().parent.is_dir():
        raise OptionError(f"--plot {path}: the folder does not exist", "Create it first.")
    if importlib.util.find_spec("matplotlib") is None:
        raise OptionError(
            "--plot needs matplotlib", "Install it: python -m pip install 'localspec[plot]'."
        )


def write_plot(found: Bench, path: Path) -> None:
    """Write two charts into one file. Raises OptionError if that fails."""
    from matplotlib.figure import Figure  # an extra

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    costs, gains = figure.subplots(1, 2)
    ratios = () if found.costs is None else found.costs.ratios
    costs.plot(range(1, len(ratios) + 1), ratios, marker="o")
    costs.set(title="What a step costs", xlabel="tokens in a step", ylabel="target-only steps")
    acceptance = found.comparisons[0].acceptance_rate if found.comparisons else 0.0
    if predicted := found.predicted(acceptance):
        label = f"predicted at acceptance {acceptance:.2f}"
        gains.plot(list(predicted), list(predicted.values()), label=label)
    if found.sweep:
        gains.plot(list(found.sweep), list(found.sweep.values()), "o", label="measured")
    for comparison in found.comparisons:
        gains.axhline(
            comparison.speedup, linestyle="--", label=f"{comparison.name}, as it drafts"
        )
    gains.axhline(1.0, color="grey")
    gains.set(title="What it gains", xlabel="draft tokens", ylabel="times plain")
    if found.comparisons:
        gains.legend()
    try:
        if path.suffix == ".png":
            figure.savefig(path, format="png", dpi=150)
            return
        drawing = io.StringIO()
        figure.savefig(drawing, format="svg")
        svg = drawing.getvalue()
        page = f'<!doctype html>\n<meta charset="utf-8">\n<title>localspec bench</title>\n{svg}'
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise OptionError(f"--plot {path}: {error}", "Choose another place.") from error
