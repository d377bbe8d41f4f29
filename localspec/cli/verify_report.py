"""The output of `localspec verify`: first the finding, then the evidence."""

from __future__ import annotations

import math

from localspec.checks.identity import ENOUGH_ACCEPTED
from localspec.checks.limit import EndedBy
from localspec.checks.selfcheck import Finding, Report
from localspec.checks.step_law import ENOUGH_PLACES
from localspec.cli.screen import duration, fitted


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
