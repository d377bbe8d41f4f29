"""The output of `localspec bench`: the verdict, then the measurements, and their plot."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path

from localspec.checks.bench import Bench, KindSpeed, Outcome
from localspec.checks.limit import EndedBy
from localspec.checks.ratio_estimate import RatioEstimate
from localspec.cli.screen import (
    PROPOSER_NAMES,
    counted,
    duration,
    fitted,
    pays_from,
    readable_bytes,
)
from localspec.engine.base import BaseEngine
from localspec.errors import OptionError
from localspec.speculative.metrics import why_off


def bench_text(found: Bench, engine: BaseEngine, *, details: bool) -> str:
    """The measurement as text."""
    lines = [*verdict(found), "", *_why(found), _what_ended(found)]
    if details:
        lines += ["", *_details(found, engine)]
    return fitted("\n".join(lines))


def verdict(found: Bench) -> list[str]:
    """The result over all in one line, that of each kind, then advice."""
    known = [each for each in found.kinds if each.outcome is not Outcome.TOO_LITTLE]
    if found.over_all is None:
        headline = "Not enough text for a verdict: use more --seconds."
    else:
        headline = f"{found.outcome.value.capitalize()}: {_times(found.over_all)}"
        headline += " over all." if len(known) > 1 else f", {known[0].kind} text."
    lines = [headline]
    if len(known) > 1:
        lines += ["", *map(_kind_line, known), ""]
    if missing := [each.kind for each in found.kinds if each not in known]:
        lines.append(f"Too little text so far, use more --seconds: {', '.join(missing)}.")
    if found.left_out:
        counts = [counted(count, f"{kind} prompt") for kind, count in found.left_out.items()]
        why = "this model cannot call tools, or its context is too short"
        lines.append(f"Left out: {', '.join(counts)}, since {why}.")
    if found.outcome is Outcome.SLOWER:
        lines.append("Drafting costs more than it gains here: use --no-draft.")
    if found.outcome is Outcome.NOTHING_DRAFTED:
        reason = "" if found.draft_off is None else f" ({why_off(found.draft_off)})"
        lines.append(f"No tokens were drafted{reason}: both sides are plain decoding.")
    return lines


def _times(estimate: RatioEstimate) -> str:
    """The speed-up, with its interval in brackets."""
    return f"{estimate.value:.2f} times plain ({estimate.low:.2f} to {estimate.high:.2f})"


def _kind_line(found: KindSpeed) -> str:
    estimate = found.estimate
    assert estimate is not None
    line = f"  {found.kind:<11} {found.outcome.value:<19} {_times(estimate)}"
    if found.acceptance_rate is None:
        return line
    return f"{line}, {found.acceptance_rate:.0%} accepted"


def _why(found: Bench) -> list[str]:
    """Costs of decodes, and the acceptance from which drafting pays."""
    if found.costs is None:
        return []
    if not found.costs.are_steady:
        return ["The machine was busy, so what decodes cost is not known: end other programs."]
    ratios = "  ".join(f"{n}: {ratio:.2f}" for n, ratio in enumerate(found.costs.ratios, 1))
    lines = [f"Time of a decode of n tokens, in decodes of one token:  {ratios}"]
    for kind, edge in found.break_even.items():
        pays = f"never pays with up to {len(found.costs.ratios) - 1} a step"
        if edge is not None:
            pays = pays_from(edge)
        share = found.costs.shares[kind]
        lines.append(f"So {PROPOSER_NAMES[kind]} ({share:.2f} a token) {pays}.")
    return lines


def _what_ended(found: Bench) -> str:
    num_tokens = sum(stats.completion_tokens for each in found.kinds for stats in each.answers)
    after = f"{duration(found.time_s)}, {counted(num_tokens, 'token')}"
    if found.ended_by is EndedBy.INTERRUPT:
        return f"Stopped after {after}. For more: --details."
    why = "the time limit" if found.ended_by is EndedBy.TIME else "all intervals are narrow"
    return f"Measured in {after}: {why}. For more: --details."


def _details(found: Bench, engine: BaseEngine) -> list[str]:
    lines = [engine.description]
    for each in found.kinds:
        lines += _kind_details(each)
    if found.costs is not None and found.costs.are_steady:
        lines.append(f"A target-only step: {1000 * found.costs.target_s[0]:.2f} ms")
        for seconds in found.costs.proposer_s.values():
            lines.append(f"A draft token: {1000 * seconds:.2f} ms")
    return [*lines, f"Peak memory: {readable_bytes(found.peak_memory_bytes)}"]


def _kind_details(found: KindSpeed) -> list[str]:
    if not found.stretches:
        return [f"{found.kind.capitalize()}: nothing that both sides wrote in turn"]
    ratios = "  ".join(f"{each.plain_s / each.drafting_s:.2f}" for each in found.stretches)
    lines = [
        f"{found.kind.capitalize()}: times plain by stretch:  {ratios}",
        f"  {found.plain_tokens_per_s:.1f} tokens/s plain, "
        f"{found.tokens_per_s:.1f} with drafts",
    ]
    for kind, rate in found.acceptance_by_proposer.items():
        lines.append(f"  {rate:.0%} of the tokens of {PROPOSER_NAMES[kind]} accepted")
    lengths = [f"{k}: {count}" for k, count in enumerate(found.steps_per_length) if count]
    return [*lines, f"  steps by number of draft tokens: {', '.join(lengths)}"]


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
    ratios = found.costs.ratios if found.costs and found.costs.are_steady else ()
    costs.plot(range(1, len(ratios) + 1), ratios, marker="o")
    costs.set(title="What a step costs", xlabel="tokens in a step", ylabel="target-only steps")
    known = {each.kind: each.estimate for each in found.kinds if each.estimate is not None}
    reaches = [(e.value - e.low, e.high - e.value) for e in known.values()]
    values = [estimate.value for estimate in known.values()]
    gains.errorbar(list(known), values, yerr=list(zip(*reaches, strict=True)) or None, fmt="o")
    gains.axhline(1.0, color="grey")
    gains.set(title="What it gains", ylabel="times plain")
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
