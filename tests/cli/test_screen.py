"""Text for a terminal: nothing in it is obeyed."""

from __future__ import annotations

import dataclasses
import os
import re
import struct
import sys

import pytest

from localspec.cli.screen import error_lines, note, printable, stats_lines, status_line
from localspec.errors import LocalspecError
from localspec.speculative.metrics import Meter, Provenance
from localspec.speculative.policy_api import DraftOff, PolicyEstimate, ProposerKind, ThreadUse


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


@pytest.mark.parametrize("kind", ProposerKind)
def test_each_kind_of_proposer_has_a_name_in_the_statistics(kind):
    meter = Meter(1, 0, 0.0, num_steps=9, drafts={(kind, 1, 1): 4})
    lines = "\n".join(stats_lines(meter.stats(1.0, None, None), 512))
    assert re.search(r"^steps by proposer: [a-z ]+ in 4 of 9$", lines, re.M)


def stats_of(reason, break_even, **more):
    """Of an answer whose steps mostly did not draft."""
    meter = Meter(1, 0, 0.0, num_steps=9, draft_off=reason, draft_off_steps={reason: 8}, **more)
    estimate = PolicyEstimate(ProposerKind.DRAFT, 0.612, break_even, 0.1, 0.01, {})
    return meter.stats(1.0, estimate, None)


def test_the_status_line_counts_and_stats_explains():
    """How many tokens were drafted; of which share of the proposed, and what would come of the
    next one, are other things."""
    stats = stats_of(
        DraftOff.DOES_NOT_PAY,
        0.784,
        drafts={(ProposerKind.DRAFT, 1, 1): 3, (ProposerKind.DRAFT, 1, 0): 1},
    )
    line = status_line(stats, 512, 200)
    assert line == "0 tokens (3 drafted) · context 0% full · draft off where it did not pay"
    lines = "\n".join(stats_lines(stats, 512))
    assert "drafted 4, accepted 3 (75%)" in lines
    assert (
        "expected acceptance of the next draft token: 61%; drafting pays above 78% here"
        in lines
    )
    assert lines.startswith("prompt: 1 token, 0 of them cached, ")
    assert lines.endswith("\ncontext: 1 of 512 tokens")
    never = "\n".join(stats_lines(stats_of(DraftOff.DOES_NOT_PAY, None), 512))
    assert "drafting never pays here" in never


def test_the_status_line_is_one_line_whatever_the_window():
    """What matters least goes first, and it never has more than a hundred columns."""
    stats = dataclasses.replace(
        stats_of(DraftOff.OVER_BUDGET, 0.33, steps_per_threads={8: 9, 7: 81}),
        completion_tokens=123_456,
        num_draft_tokens=234_567,
        num_accepted=101_010,
        target_time_s=100.0,
        threads=ThreadUse(7, 8, True),
    )
    begin = "123456 tokens (101010 drafted)"
    rate = f"{begin} · 1235 tokens/s"
    full = "context 94% full"
    assert status_line(stats, 131_072, 500) == status_line(stats, 131_072, 101)
    assert {columns: status_line(stats, 131_072, columns) for columns in (20, 40, 50, 80)} == {
        20: begin,
        40: begin,
        50: rate,
        80: f"{rate} · {full}",
    }
    for columns in range(101, 300):
        assert status_line(stats, 131_072, columns) == f"{rate} · {full} · draft off for now"
    lines = "\n".join(stats_lines(stats, 131_072))
    assert "draft off for now: trying it would cost more time than is allowed" in lines
    assert "machine is busy" in lines


@pytest.mark.parametrize(
    ("steps", "use", "said"),
    [
        ({8: 9, 7: 81}, ThreadUse(7, 8, True), "7 of 8 threads: the machine is busy"),
        ({8: 81, 7: 9}, ThreadUse(7, 8, True), None),
        ({}, ThreadUse(8, 8, False), None),
    ],
)
def test_threads_are_named_where_most_steps_had_fewer(steps, use, said):
    stats = Meter(1, 0, 0.0, num_steps=90, steps_per_threads=steps).stats(1.0, None, use)
    for shown in (status_line(stats, 512, 200), "\n".join(stats_lines(stats, 512))):
        assert (said in shown) if said else ("thread" not in shown)


@pytest.mark.parametrize(
    ("slowdown", "said"),
    [
        (None, None),
        (1.0, None),
        (1.49, None),
        (1.5, "1.5 times slower than measured before"),
        (3.02, "3 times slower than measured before"),
    ],
)
def test_an_answer_that_was_clearly_slower_than_others_says_so(slowdown, said):
    """Also where all threads were used; a narrow window lacks the question behind it."""
    use = ThreadUse(8, 8, is_busy=False, slowdown=slowdown)
    meter = Meter(20, 0, 0.0, num_steps=90, steps_per_threads={8: 90}, target_time_s=10.0)
    meter.tokens[Provenance.PLAIN] = 300
    stats = meter.stats(1.0, None, use)
    if said is None:
        narrow = wide = "context 62% full"
    else:
        narrow = said
        wide = f"{said}: is the machine busy?"
    assert status_line(stats, 512, 80) == f"300 tokens · 30 tokens/s · {narrow}"
    assert status_line(stats, 512, 100) == f"300 tokens · 30 tokens/s · {wide}"
    lines = stats_lines(stats, 512)
    assert (f"{said}: is the machine busy?" in lines) is (said is not None)


def test_a_note_fits_the_terminal_on_stderr_when_stdout_is_a_pipe(monkeypatch):
    pty, termios, fcntl = map(pytest.importorskip, ("pty", "termios", "fcntl"))
    reader, writer = pty.openpty()
    size = struct.pack("4H", 24, 40, 0, 0)
    fcntl.ioctl(writer, termios.TIOCSWINSZ, size)
    monkeypatch.delenv("COLUMNS", raising=False)
    with open(writer, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        note("word " * 30)
        lines = os.read(reader, 4000).decode().splitlines()
    os.close(reader)
    assert len(lines) > 3
    assert max(map(len, lines)) < 50  # 39 columns, and what dims them
