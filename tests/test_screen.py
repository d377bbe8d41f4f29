"""Text for a terminal: nothing in it is obeyed."""

from __future__ import annotations

import re

import pytest

from localspec.cli.screen import error_lines, printable, stats_lines, status_line
from localspec.errors import LocalspecError
from localspec.speculative.metrics import Meter
from localspec.speculative.policy_api import DraftOff, PolicyEstimate, ProposerKind
from localspec.speculative.thread_policy import ThreadUse


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, naïve, 日本語, 👩\u200d🚀, עברית\n\tnext", None),
        ("\x1b[31mred", "␛[31mred"),
        ("\x1b]0;title\x07", "␛]0;title␇"),
        ("over\rwrite\b\b", "over␍write␈␈"),
        ("\x00\x7f", "␀<U+007F>"),
        ("\x9b31m", "<U+009B>31m"),
        ("abc\u202edcba", "abc<U+202E>dcba"),
        ("\u2066x\u2069", "<U+2066>x<U+2069>"),
    ],
)
def test_controls_are_shown(text, shown):
    """C0, C1, DEL and what reorders text; letters of any script are left alone."""
    assert printable(text) == (text if shown is None else shown)


def test_errors_are_harmless_too():
    """A file name or a log line can hold anything."""
    assert (
        error_lines(LocalspecError("bad \x1b[2J", "do \x07")) == "Error: bad ␛[2J\nHint: do ␇"
    )


def stats_of(reason, break_even, **more):
    """Of an answer whose steps mostly did not draft."""
    meter = Meter(1, 0, 0.0, num_steps=9, draft_off=reason, draft_off_steps={reason: 8}, **more)
    estimate = PolicyEstimate(ProposerKind.DRAFT, 0.612, break_even, 0.1, 0.01)
    return meter.stats(1.0, estimate, None)


@pytest.mark.parametrize(
    ("reason", "break_even", "said"),
    [
        (DraftOff.NO_DRAFT, 0.4, "no draft model"),
        (DraftOff.NO_DRAFT, None, "no draft model"),
        (DraftOff.DOES_NOT_PAY, 0.784, "draft off where it did not pay"),
        (DraftOff.DOES_NOT_PAY, None, "draft off: at what it costs here none would pay"),
        (DraftOff.DOES_NOT_PAY, 0.33, "draft off where it did not pay"),
        (
            DraftOff.OVER_BUDGET,
            0.33,
            "draft off for now: trying it would cost more time than it may lose",
        ),
    ],
)
def test_the_status_line_says_why_most_steps_did_not_draft(reason, break_even, said):
    assert f" · {said} · " in status_line(stats_of(reason, break_even), 512)


def test_the_status_line_knows_one_acceptance_and_stats_explains_the_other():
    """That of the tokens that were drafted; what the next one would have is another thing."""
    stats = stats_of(
        DraftOff.DOES_NOT_PAY, 0.784, drafted=[4] + [0] * 15, accepted=[3] + [0] * 15
    )
    line = status_line(stats, 512)
    assert "75% of 4 drafted accepted" in line
    assert re.findall(r"\d+%|0\.\d+", line) == ["75%"]
    lines = "\n".join(stats_lines(stats))
    assert "accepted is counted of the tokens that were drafted" in lines
    assert "would be accepted with 61%, and drafting pays from 78% on here" in lines
    never = "\n".join(stats_lines(stats_of(DraftOff.DOES_NOT_PAY, None)))
    assert "drafting never pays here" in never


def test_stats_say_who_proposed():
    kinds = {ProposerKind.HEAD: 5, ProposerKind.DRAFT: 2, ProposerKind.LOOKUP: 1}
    stats = Meter(1, 0, 0.0, num_steps=9, proposers=kinds).stats(1.0, None, None)
    said = "steps by who proposed: the head in 5, the draft model in 2, lookup in 1 of 9"
    assert said in stats_lines(stats)
    assert "proposed" not in "\n".join(stats_lines(stats_of(DraftOff.NO_DRAFT, None)))


@pytest.mark.parametrize(
    ("steps", "use", "in_the_line", "in_stats"),
    [
        ({8: 90}, ThreadUse(8, 8, False), None, None),
        ({1: 90}, ThreadUse(1, 1, False), None, None),
        (
            {8: 9, 7: 81},
            ThreadUse(7, 8, True),
            "7 of 8 threads: the machine is busy",
            "7 in 90%",
        ),
        (
            {8: 9, 7: 81},
            ThreadUse(8, 8, False),
            "7 of 8 threads: the machine is busy",
            "8 in 10%",
        ),
        ({8: 81, 7: 9}, ThreadUse(7, 8, True), None, "8 in 90%, 7 in 10%"),
        ({8: 9, 7: 81}, ThreadUse(7, 8, False), None, "7 in 90%"),  # more are no faster
        ({}, ThreadUse(8, 8, False), None, None),
    ],
)
def test_threads_are_named_where_the_machine_is_busy(steps, use, in_the_line, in_stats):
    stats = Meter(1, 0, 0.0, num_steps=90, steps_per_threads=steps).stats(1.0, None, use)
    line, lines = status_line(stats, 512), "\n".join(stats_lines(stats))
    assert (in_the_line in line) if in_the_line else ("thread" not in line)
    assert (in_stats in lines) if in_stats else ("thread" not in lines)
