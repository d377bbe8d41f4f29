"""The output of `localspec bench` and `localspec verify`: the verdict, then the evidence."""

from __future__ import annotations

import math

from localspec.checks.bench import Bench, KindSpeed, Outcome
from localspec.checks.identity import ENOUGH_ACCEPTED
from localspec.checks.limit import EndedBy
from localspec.checks.ratio_estimate import RatioEstimate
from localspec.checks.selfcheck import Finding, Report
from localspec.checks.step_law import ENOUGH_PLACES
from localspec.cli.screen import PROPOSER_NAMES, counted, duration, fitted, pays_from
from localspec.speculative.metrics import WHY_OFF


def bench_text(found: Bench) -> str:
    """The measurement as text."""
    return fitted("\n".join((*verdict(found), "", *_why(found), _what_ended(found))))


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
        reason = "" if found.draft_off is None else f" ({WHY_OFF[found.draft_off]})"
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
        share = found.costs.shares.get(kind, 0.0)
        lines.append(f"So {PROPOSER_NAMES[kind]} ({share:.2f} a token) {pays}.")
    return lines


def _what_ended(found: Bench) -> str:
    num_tokens = sum(stats.completion_tokens for each in found.kinds for stats in each.answers)
    after = f"{duration(found.time_s)}, {counted(num_tokens, 'token')}"
    if found.ended_by is EndedBy.INTERRUPT:
        return f"Stopped after {after}. For more: --json."
    why = "the time limit" if found.ended_by is EndedBy.TIME else "all intervals are narrow"
    return f"Measured in {after}: {why}. For more: --json."


def report_text(report: Report) -> str:
    """The report as text."""
    rounding, lines = report.rounding, [_headline(report)]
    if rounding.num_rows:
        lines.append(
            f"Equal to the bit: {rounding.num_equal} of {rounding.num_rows} rows of logits, if "
            f"tokens are decoded alone or 2 to {rounding.largest_size} at once."
        )
    lines += [_identity_line(report), _distribution_line(report)]
    lines += [f"Bug: {line}" for line in report.bugs]
    if report.finding is Finding.NOT_ENOUGH:
        lines.append(_seconds_needed(report))
    return fitted("\n".join((*lines, "For rounding and counts: --json.")))


def _headline(report: Report) -> str:
    if report.finding is Finding.LOSSLESS:
        return (
            f"Lossless: {_identical(report)}, and sampled steps have its distribution, as far "
            f"as {report.time_s:.0f} s of checking can see."
        )
    if report.finding is Finding.NOT_LOSSLESS:
        return "NOT lossless: please report this."
    after = "stopped after" if report.ended_by is EndedBy.INTERRUPT else "after"
    known = _identical(report) or "no drafted token was compared yet"
    return f"Not enough evidence for a verdict, {after} {duration(report.time_s)}: {known}."


def _identical(report: Report) -> str:
    """How many drafted tokens are right; empty if none was compared."""
    both = (report.greedy, report.seeded)
    num_accepted = sum(found.num_accepted for found in both)
    num_identical = sum(found.num_identical for found in both)
    if num_accepted == 0:
        return ""
    return f"{num_identical} of {num_accepted} drafted tokens are the target's own"


def _identity_line(report: Report) -> str:
    greedy, seeded = report.greedy, report.seeded
    line = (
        f"Identity: {report.identity.value}. {greedy.num_accepted} greedy and "
        f"{seeded.num_accepted} seeded tokens were drafted, kept and compared"
    )
    if report.identity is Finding.NOT_LOSSLESS:
        return f"{line}, and texts differ."
    if report.identity is Finding.NOT_ENOUGH:
        return f"{line}; a verdict needs {ENOUGH_ACCEPTED} of each."
    return f"{line}; an error in {report.smallest_fault:.1%} of them would have been seen."


def _distribution_line(report: Report) -> str:
    law = report.step_law
    line = f"Distribution: {report.distribution.value}. "
    if report.distribution is Finding.NOT_LOSSLESS:
        return f"{line}Sampled text does not follow the target's distribution."
    line += f"The probabilities of all {law.num_outcomes} outcomes of a step were computed at "
    line += f"{law.num_places} places"
    if report.distribution is Finding.NOT_ENOUGH:
        return f"{line}; a verdict needs {ENOUGH_PLACES} places."
    return f"{line}: none is off by more than {law.largest_difference:.1g}."


def _seconds_needed(report: Report) -> str:
    if report.is_hopeless:
        return (
            "No time limit would be enough: too few draft tokens are proposed or accepted. Use "
            "other --prompts, or a better draft or head."
        )
    needed = report.seconds_needed
    tens = 10 * math.ceil(report.time_s if needed is None else needed / 10)
    if needed is None:
        why = "How long a verdict takes is not known yet: too little was compared."
        return f"{why} Try --seconds {tens}."
    return f"A verdict needs about {duration(needed)} here: --seconds {tens}."
