"""What `localspec verify` says: first the finding, then the evidence."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from localspec.checks.distribution_check import ALPHA, BIAS, VIEWS
from localspec.checks.identity import ENOUGH_ACCEPTED
from localspec.checks.selfcheck import Finding, Report
from localspec.cli.screen import printable
from localspec.engine.base import BaseEngine


def as_text(report: Report, engine: BaseEngine, *, details: bool) -> str:
    """The report for people."""
    lines = [
        _headline(report),
        _identity_line(report),
        _statistics_line(report),
        *(f"Bug: {line}" for line in (*report.identity_bugs, *report.distribution_bugs)),
    ]
    if report.finding is Finding.NOT_ENOUGH:
        lines.append(_what_it_takes(report))
    if details:
        lines += ["", *_details(report, engine)]
    else:
        lines.append("Rounding, near ties and p-values: --details.")
    return printable("\n".join(lines))


def _headline(report: Report) -> str:
    if report.finding is Finding.LOSSLESS:
        return (
            "Lossless: with drafting the text is the target's own, as far as "
            f"{report.time_s:.0f} s of checking can see."
        )
    if report.finding is Finding.NOT_LOSSLESS:
        return "NOT lossless: please report this."
    return "Not enough evidence: nothing wrong was seen, but too little was looked at."


def _identity_line(report: Report) -> str:
    greedy, seeded = report.greedy, report.seeded
    line = (
        f"Identity: {report.identity.value}. {greedy.num_accepted} greedy and "
        f"{seeded.num_accepted} seeded tokens were drafted and kept"
    )
    if report.identity is Finding.NOT_LOSSLESS:
        return f"{line}, and texts differ."
    fault = max(greedy.smallest_fault, seeded.smallest_fault)
    line += (
        ""
        if fault == 1.0
        else f"; were {fault:.1%} of such tokens wrong, it would have been seen"
    )
    asked = f" ({ENOUGH_ACCEPTED} tokens of each are asked for)"
    return line + ("." if report.identity is Finding.LOSSLESS else f"{asked}.")


def _statistics_line(report: Report) -> str:
    num_tokens = sum(
        result.num_tokens for result in report.distributions if result.view == VIEWS[0]
    )
    line = f"Statistics: {report.statistics.value}. Of {num_tokens} sampled tokens "
    if report.statistics is Finding.NOT_LOSSLESS:
        return f"{line}some do not follow the target's distribution."
    bias = report.visible_bias
    line += f"{'no bias' if bias == 1.0 else f'a bias of {bias:.1%}'} would have been seen"
    asked = f" ({BIAS:.0%} is asked for)"
    line += "." if report.statistics is Finding.LOSSLESS else f"{asked}."
    if report.confirmations:
        num_more = sum(
            result.num_tokens for result in report.confirmations if result.view == VIEWS[0]
        )
        line += f" What looked suspect at first was not borne out by {num_more} more."
    return line


def _what_it_takes(report: Report) -> str:
    if report.seconds_needed is None:
        return (
            "No time is enough here: too few drafted tokens are kept. Give other --prompts, or "
            "a draft or a head that is right more often."
        )
    return f"It takes about --seconds {math.ceil(report.seconds_needed / 10) * 10}."


def _details(report: Report, engine: BaseEngine) -> list[str]:
    rounding, bound = report.rounding, report.rounding.bound
    lines = [
        engine.description,
        f"Vocabulary: {engine.shared_vocabulary or 'no draft model'}",
        f"Rounding: a batch of several tokens moves a logit by up to "
        f"{rounding.largest_difference:.2g}; the best token changed in "
        f"{rounding.num_argmax_changed} of {rounding.num_rows} rows (widest gap "
        f"{rounding.widest_gap_changed:.2g}).",
    ]
    for name, found in (("Greedy", report.greedy), ("Seeded", report.seeded)):
        near = len(found.divergences) - len(found.bugs(bound))
        lines.append(
            f"{name} text: {found.num_tokens} tokens in {found.num_texts} texts, "
            f"{found.num_accepted} of them drafted and kept; {near} near ties fell otherwise, "
            f"{len(found.bugs(bound))} differences beyond rounding."
        )
    for result in (*report.distributions, *report.confirmations):
        lines.append(
            f"Rule {result.rule}, by {result.view}: {result.num_tokens} tokens, "
            f"p = {result.p_value:.2g}; "
            f"a bias of {result.smallest_bias:.2%} would have been seen."
        )
    return lines


def as_object(report: Report) -> dict[str, Any]:
    """Everything found, as JSON has it."""
    whole = dataclasses.asdict(report)
    laws = whole.pop("distributions")
    return {
        **whole,
        "laws": laws,
        "finding": report.finding.value,
        "identity": report.identity.value,
        "statistics": report.statistics.value,
        "visible_bias": report.visible_bias,
        "rounding_bound": report.rounding.bound,
        "alpha": ALPHA,
        "views": VIEWS,
        "bugs": [*report.identity_bugs, *report.distribution_bugs],
    }
