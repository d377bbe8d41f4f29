"""The output of `localspec bench` and `localspec verify`: the verdict, then the evidence."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from localspec.cli.screen import PROPOSER_NAMES, counted, duration, fitted, pays_from
from localspec.evaluation.bench import NARROW, Bench, KindSpeed, Outcome
from localspec.evaluation.identity import ENOUGH_ACCEPTED
from localspec.evaluation.lossless_check import Finding, Report
from localspec.evaluation.prompts import KindOfText
from localspec.evaluation.ratio_estimate import RatioEstimate
from localspec.evaluation.time_limit import EndedBy
from localspec.speculative.metrics import WHY_OFF

_LONGEST_LIMIT_S = 3600.0  # nobody is advised to wait longer
# If nothing measured says how long a verdict takes, advise this limit, or this multiple of the
# time so far.
_LEAST_LIMIT_S = 60.0
_MUCH_LONGER = 4


def bench_text(found: Bench) -> str:
    """The measurement as text."""
    lines = [*verdict(found), "", *_why(found), _what_ended(found)]
    return fitted("\n".join(lines))


def verdict(found: Bench) -> list[str]:
    """The result over all in one line, the results by kind, then advice."""
    known: list[KindSpeed] = []
    too_short: list[str] = []
    too_little: list[str] = []
    for speed in found.kinds:
        if speed.outcome is not Outcome.TOO_LITTLE:
            known.append(speed)
        elif speed.is_too_short:
            too_short.append(speed.kind)
        else:
            too_little.append(speed.kind)
    lines = [_bench_headline(found, known)]
    if len(known) > 1:
        lines += ["", *map(_kind_line, known), ""]
    if too_short:
        lines.append(f"Answers too short to time both sides: {', '.join(too_short)}.")
    if too_little:
        lines.append(f"Too little text so far: {', '.join(too_little)}.")
    lines += _left_out(found)
    if found.outcome is Outcome.SLOWER:
        lines.append("Drafting costs more than it gains here: use --no-draft.")
    if found.outcome is Outcome.NOTHING_DRAFTED:
        lines.append(_nothing_drafted(found))
    is_missing = bool(too_little) or not found.kinds
    return [*lines, *_more_seconds(found, is_missing=is_missing)]


def _bench_headline(found: Bench, known: Sequence[KindSpeed]) -> str:
    """The result over all.

    Args:
        known: The kinds with enough text.
    """
    if found.over_all is None:
        return "Not enough text for a verdict."
    outcome = _outcome(found.outcome, found.over_all)
    if len(known) > 1:
        return f"{outcome} over all."
    return f"{outcome} for {known[0].kind} text."


def _left_out(found: Bench) -> Iterator[str]:
    """The prompts that were left out, and why."""
    if found.too_long:
        yield f"Left out: {_prompts(found.too_long)}, longer than the context (--ctx)."
    without_tools = Counter(found.left_out) - Counter(found.too_long)
    if without_tools:
        yield f"Left out: {_prompts(without_tools)}: this model cannot call tools."


def _nothing_drafted(found: Bench) -> str:
    reason = ""
    if found.draft_off is not None:
        reason = f" ({WHY_OFF[found.draft_off]})"
    return f"No tokens were drafted{reason}: both sides are plain decoding."


def _more_seconds(found: Bench, *, is_missing: bool) -> list[str]:
    """How much more time would probably be enough, unless all intervals are narrow.

    Args:
        is_missing: Whether a kind has too little text for an interval, and can have more.
    """
    needed = found.seconds_needed
    if found.ended_by is None or (needed is None and not is_missing):
        return []
    if needed is None:
        limit = _limit_above(max(_LEAST_LIMIT_S, _MUCH_LONGER * found.time_s))
        why = "How long that takes is not known yet: no stretch of text was timed."
        return [f"{why} Try --seconds {limit}."]
    about = f"about {duration(needed)} here"
    if needed <= _LONGEST_LIMIT_S:
        what = "Telling the sides apart"
        if is_missing:
            what = "Enough text"
        return [f"{what} probably takes {about}: --seconds {_limit_above(needed)}."]
    if is_missing:
        return [f"Enough text would take {about}: use a smaller model, or fewer --prompts."]
    return [
        f"Telling the sides apart would take {about}. Their difference is too small for this "
        "machine, or other programs disturb the measurement."
    ]


def _outcome(outcome: Outcome, estimate: RatioEstimate) -> str:
    """The result in words."""
    if _is_open(outcome, estimate):
        interval = f"anywhere from {estimate.low:.2f} to {estimate.high:.2f}"
        return f"Inconclusive: {estimate.value:.2f} times plain, but {interval}"
    return f"{outcome.value.capitalize()}: {_times(estimate)}"


def _is_open(outcome: Outcome, estimate: RatioEstimate) -> bool:
    """Whether the interval holds 1, and is too wide to show that there is no difference."""
    return outcome is Outcome.NO_DIFFERENCE and estimate.reach > NARROW


def _prompts(counts: Mapping[KindOfText, int]) -> str:
    """The numbers of prompts, by kind of text."""
    return ", ".join(counted(count, f"{kind} prompt") for kind, count in counts.items())


def _times(estimate: RatioEstimate) -> str:
    """The speed-up, with its interval in brackets."""
    return f"{estimate.value:.2f} times plain ({estimate.low:.2f} to {estimate.high:.2f})"


def _kind_line(found: KindSpeed) -> str:
    estimate = found.estimate
    assert estimate is not None
    outcome = found.outcome.value
    if _is_open(found.outcome, estimate):
        outcome = "inconclusive"
    line = f"  {found.kind:<11} {outcome:<19} {_times(estimate)}"
    if found.acceptance_rate is None:
        return line
    return f"{line}, {found.acceptance_rate:.0%} accepted"


def _why(found: Bench) -> list[str]:
    """The costs of decodes, and the acceptance rate from which drafting pays."""
    if found.costs is None:
        return []
    if not found.costs.are_steady:
        return [
            "The machine was busy, so the cost of decodes is not known: close other programs."
        ]
    ratios = [f"{n}: {ratio:.2f}" for n, ratio in enumerate(found.costs.ratios, 1)]
    lines = [f"Time of a decode of n tokens, relative to one token:  {'  '.join(ratios)}"]
    for kind, rate in found.break_even.items():
        most = counted(len(found.costs.ratios) - 1, "draft token")
        pays = f"never pays with up to {most} a step"
        if rate is not None:
            pays = pays_from(rate)
        share = found.costs.shares.get(kind, 0.0)
        lines.append(f"So {PROPOSER_NAMES[kind]} (at {share:.2f} per token) {pays}.")
    return lines


def _what_ended(found: Bench) -> str:
    num_tokens = 0
    for speed in found.kinds:
        num_tokens += sum(stats.completion_tokens for stats in speed.answers)
    after = f"{duration(found.time_s)}, {counted(num_tokens, 'token')}"
    if found.ended_by is EndedBy.INTERRUPT:
        return f"Stopped after {after}. For more: --json."
    why = "all intervals are narrow"
    if found.ended_by is EndedBy.TIME:
        why = "the time limit"
    return f"Measured in {after}: {why}. For more: --json."


def report_text(report: Report) -> str:
    """The report as text."""
    rounding = report.rounding
    lines = [_headline(report)]
    if rounding.num_rows:
        lines.append(
            f"Equal to the bit: {rounding.num_equal} of {rounding.num_rows} rows of logits, "
            f"whether tokens are decoded alone or 2 to {rounding.largest_size} at once."
        )
    lines.append(_identity_line(report))
    lines += [f"Bug: {line}" for line in report.bugs]
    if report.finding is Finding.NOT_ENOUGH:
        lines.append(_seconds_needed(report))
    lines.append("For rounding and counts: --json.")
    return fitted("\n".join(lines))


def _headline(report: Report) -> str:
    if report.finding is Finding.LOSSLESS:
        return (
            f"Lossless: {_identical(report)}, as far as {report.time_s:.0f} s of checking can "
            "see."
        )
    if report.finding is Finding.NOT_LOSSLESS:
        return "NOT lossless: please report this."
    after = "after"
    if report.ended_by is EndedBy.INTERRUPT:
        after = "stopped after"
    known = _identical(report) or "no drafted token was compared yet"
    return f"Not enough evidence for a verdict, {after} {duration(report.time_s)}: {known}."


def _identical(report: Report) -> str:
    """How many drafted tokens are right, if there is no bug; empty if none was compared."""
    num_accepted = report.greedy.num_accepted + report.seeded.num_accepted
    num_identical = report.greedy.num_identical + report.seeded.num_identical
    if num_accepted == 0:
        return ""
    words = f"{num_identical} of {num_accepted} drafted tokens are the target's own"
    num_near_ties = num_accepted - num_identical
    if num_near_ties > 0:
        words += f" (near ties, which rounding decides: {num_near_ties})"
    return words


def _identity_line(report: Report) -> str:
    greedy = report.greedy
    seeded = report.seeded
    line = (
        f"Identity: {report.finding.value}. {greedy.num_accepted} greedy and "
        f"{seeded.num_accepted} seeded tokens were drafted, kept and compared"
    )
    if report.finding is Finding.NOT_LOSSLESS:
        return f"{line}, and texts differ."
    if report.finding is Finding.NOT_ENOUGH:
        return f"{line}; a verdict needs {ENOUGH_ACCEPTED} of each."
    return f"{line}; an error in {report.smallest_fault:.1%} of them would have been seen."


def _seconds_needed(report: Report) -> str:
    """How much time a verdict probably needs."""
    if report.is_hopeless:
        return (
            "No time limit would be enough: too few draft tokens are proposed or accepted. Use "
            "other --prompts, or a better draft or head."
        )
    if report.seconds_needed is None:
        limit = _limit_above(max(_LEAST_LIMIT_S, _MUCH_LONGER * report.time_s))
        return (
            "How long a verdict takes is not known yet: the target has not finished a text. "
            f"Try --seconds {limit}."
        )
    needed = duration(report.seconds_needed)
    limit = _limit_above(report.seconds_needed)
    if report.seconds_needed > _LONGEST_LIMIT_S:
        return (
            f"A verdict would take about {needed} here (--seconds {limit}). It takes less with "
            "a better draft, or with --prompts where more of its tokens are accepted."
        )
    return f"A verdict needs about {needed} here: --seconds {limit}."


def _limit_above(seconds: float) -> int:
    """A round number of seconds, as a person would type it, that is not less."""
    step = 10
    if seconds > 2 * 60:
        step = 60
    if seconds > 20 * 60:
        step = 600
    return step * math.ceil(seconds / step)
