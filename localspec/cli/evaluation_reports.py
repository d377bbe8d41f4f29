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

_LONGEST_LIMIT_S = 3600.0  # no longer limit is advised
# The limit that is advised if it is not known how long a verdict takes: a multiple of the time
# so far, with a lower bound.
_MUCH_LONGER = 4
_LEAST_LIMIT_S = 60.0


def bench_text(bench: Bench) -> str:
    """The output of `localspec bench`: the verdict, the costs of decodes, and the time."""
    lines = [*verdict(bench), "", *_cost_lines(bench), _last_line(bench)]
    return fitted("\n".join(lines))


def verdict(bench: Bench) -> list[str]:
    """The verdict in lines: the result over all, that of each kind of text, and advice."""
    known: list[KindSpeed] = []
    too_short: list[str] = []
    too_little: list[str] = []
    for speed in bench.kinds:
        if speed.outcome is not Outcome.TOO_LITTLE:
            known.append(speed)
        elif speed.is_too_short:
            too_short.append(speed.kind)
        else:
            too_little.append(speed.kind)
    lines = [_bench_headline(bench, known)]
    if len(known) > 1:
        kind_lines = map(_kind_line, known)
        lines += ["", *kind_lines, ""]
    if too_short:
        lines.append(f"Answers too short to time both sides: {', '.join(too_short)}.")
    if too_little:
        lines.append(f"Too little text so far: {', '.join(too_little)}.")
    lines += _left_out_lines(bench)
    if bench.outcome is Outcome.SLOWER:
        lines.append("Drafting costs more than it gains here: use --no-draft.")
    if bench.outcome is Outcome.NOTHING_DRAFTED:
        lines.append(_nothing_drafted_line(bench))
    needs_text = bool(too_little) or not bench.kinds
    return lines + _time_advice(bench, needs_text=needs_text)


def _bench_headline(bench: Bench, known: Sequence[KindSpeed]) -> str:
    """The result over all, in one line.

    Args:
        known: The speeds of the kinds with enough text.
    """
    if bench.over_all is None:
        return "Not enough text for a verdict."
    result = _outcome_words(bench.outcome, bench.over_all)
    if len(known) > 1:
        return f"{result} over all."
    return f"{result} for {known[0].kind} text."


def _left_out_lines(bench: Bench) -> Iterator[str]:
    """How many prompts were left out, and why; nothing if there are none."""
    if bench.too_long:
        yield f"Left out: {_prompt_counts(bench.too_long)}, longer than the context (--ctx)."
    # `left_out` also counts the prompts that are too long.
    without_tools = Counter(bench.left_out) - Counter(bench.too_long)
    if without_tools:
        yield f"Left out: {_prompt_counts(without_tools)}: this model cannot call tools."


def _nothing_drafted_line(bench: Bench) -> str:
    """That no tokens were drafted, and why, if that is known."""
    reason = ""
    if bench.draft_off is not None:
        reason = f" ({WHY_OFF[bench.draft_off]})"
    return f"No tokens were drafted{reason}: both sides are plain decoding."


def _time_advice(bench: Bench, *, needs_text: bool) -> list[str]:
    """A line about the time that more certainty takes; [] if the time limit was long enough.

    Args:
        needs_text: Whether a kind has too little text for an interval, and can have more.
    """
    needed = bench.seconds_needed
    # If no kind needs text, None says that more time would gain nothing.
    if bench.ended_by is None or (needed is None and not needs_text):
        return []
    if needed is None:  # no text was timed yet, from which it could be estimated
        limit = _limit_above(max(_LEAST_LIMIT_S, _MUCH_LONGER * bench.time_s))
        why = "How long that takes is not known yet: no stretch of text was timed."
        return [f"{why} Try --seconds {limit}."]
    about = f"about {duration(needed)} here"
    if needed <= _LONGEST_LIMIT_S:
        goal = "Telling the sides apart"
        if needs_text:
            goal = "Enough text"
        return [f"{goal} probably takes {about}: --seconds {_limit_above(needed)}."]
    if needs_text:
        return [f"Enough text would take {about}: use a smaller model, or fewer --prompts."]
    return [
        f"Telling the sides apart would take {about}. Their difference is too small for this "
        "machine, or other programs disturb the measurement."
    ]


def _outcome_words(outcome: Outcome, estimate: RatioEstimate) -> str:
    """An outcome with the speed-up that was measured, as the beginning of a sentence."""
    if _is_inconclusive(outcome, estimate):
        interval = f"anywhere from {estimate.low:.2f} to {estimate.high:.2f}"
        return f"Inconclusive: {estimate.value:.2f} times plain, but {interval}"
    return f"{outcome.value.capitalize()}: {_speedup_words(estimate)}"


def _is_inconclusive(outcome: Outcome, estimate: RatioEstimate) -> bool:
    """Whether the interval contains 1, but is too wide to show that there is no difference."""
    return outcome is Outcome.NO_DIFFERENCE and estimate.reach > NARROW


def _prompt_counts(counts: Mapping[KindOfText, int]) -> str:
    """The numbers of prompts, by kind of text."""
    return ", ".join(counted(count, f"{kind} prompt") for kind, count in counts.items())


def _speedup_words(estimate: RatioEstimate) -> str:
    """The speed-up, with its interval in brackets."""
    return f"{estimate.value:.2f} times plain ({estimate.low:.2f} to {estimate.high:.2f})"


def _kind_line(speed: KindSpeed) -> str:
    """A row of the table of kinds of text: the outcome, the speed-up, the acceptance rate."""
    estimate = speed.estimate
    assert estimate is not None
    outcome = speed.outcome.value
    if _is_inconclusive(speed.outcome, estimate):
        outcome = "inconclusive"
    line = f"  {speed.kind:<11} {outcome:<19} {_speedup_words(estimate)}"
    if speed.acceptance_rate is None:
        return line
    return f"{line}, {speed.acceptance_rate:.0%} accepted"


def _cost_lines(bench: Bench) -> list[str]:
    """The costs of decodes, and the acceptance rate from which drafting pays.

    Empty if no costs were measured.
    """
    costs = bench.costs
    if costs is None:
        return []
    if not costs.are_steady:
        return [
            "The machine was busy, so the cost of decodes is not known: close other programs."
        ]
    ratios = [f"{n}: {ratio:.2f}" for n, ratio in enumerate(costs.ratios, 1)]
    lines = [f"Time of a decode of n tokens, relative to one token:  {'  '.join(ratios)}"]
    for kind, rate in bench.break_even.items():
        most_drafted = len(costs.ratios) - 1  # a decode has one token more than its draft
        pays = f"never pays with up to {counted(most_drafted, 'draft token')} a step"
        if rate is not None:
            pays = pays_from(rate)
        share = costs.shares.get(kind, 0.0)  # of a draft token, relative to a plain step
        lines.append(f"So {PROPOSER_NAMES[kind]} (at {share:.2f} per token) {pays}.")
    return lines


def _last_line(bench: Bench) -> str:
    """How long the measurement took, and why it ended."""
    num_tokens = 0
    for speed in bench.kinds:
        num_tokens += sum(stats.completion_tokens for stats in speed.answers)
    spent = f"{duration(bench.time_s)}, {counted(num_tokens, 'token')}"
    if bench.ended_by is EndedBy.INTERRUPT:
        return f"Stopped after {spent}. For more: --json."
    reason = "all intervals are narrow"
    if bench.ended_by is EndedBy.TIME:
        reason = "the time limit"
    return f"Measured in {spent}: {reason}. For more: --json."


def report_text(report: Report) -> str:
    """The output of `localspec verify`."""
    rounding = report.rounding
    lines = [_report_headline(report)]
    if rounding.num_rows:
        lines.append(
            f"Equal to the bit: {rounding.num_equal} of {rounding.num_rows} rows of logits, "
            f"whether tokens are decoded alone or 2 to {rounding.largest_size} at once."
        )
    lines.append(_identity_line(report))
    lines += [f"Bug: {line}" for line in report.bugs]
    if report.finding is Finding.NOT_ENOUGH:
        lines.append(_time_needed_line(report))
    lines.append("For rounding and counts: --json.")
    return fitted("\n".join(lines))


def _report_headline(report: Report) -> str:
    """The verdict in one sentence."""
    if report.finding is Finding.LOSSLESS:
        return (
            f"Lossless: {_identical_count(report)}, as far as {report.time_s:.0f} s of "
            "checking can see."
        )
    if report.finding is Finding.NOT_LOSSLESS:
        return "NOT lossless: please report this."
    after = "after"
    if report.ended_by is EndedBy.INTERRUPT:
        after = "stopped after"
    known = _identical_count(report) or "no drafted token was compared yet"
    return f"Not enough evidence for a verdict, {after} {duration(report.time_s)}: {known}."


def _identical_count(report: Report) -> str:
    """How many of the accepted draft tokens are the target's own; "" if none was compared.

    Only for a report without bugs: its other accepted tokens are near ties.
    """
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
    """How many tokens were compared, and what that shows."""
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


def _time_needed_line(report: Report) -> str:
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
    """The seconds rounded up: to 10 s, over 2 minutes to a minute, over 20 to 10 minutes."""
    step = 10
    if seconds > 2 * 60:
        step = 60
    if seconds > 20 * 60:
        step = 600
    return step * math.ceil(seconds / step)
