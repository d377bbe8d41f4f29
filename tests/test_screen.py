"""Text for a terminal: nothing in it is obeyed."""

from __future__ import annotations

import pytest

from localspec.cli.screen import error_lines, printable, status_line
from localspec.draft_length import DraftOff, Outlook, ProposerKind
from localspec.errors import LocalspecError
from localspec.metrics import Meter


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


@pytest.mark.parametrize(
    ("reason", "break_even", "said"),
    [
        (DraftOff.NO_DRAFT, 0.4, "no draft model"),
        (
            DraftOff.DOES_NOT_PAY,
            0.784,
            "draft off: break-even acceptance 0.78 here, this text gives 0.61",
        ),
        (DraftOff.DOES_NOT_PAY, None, "draft off: at what it costs here none would pay"),
        (DraftOff.DOES_NOT_PAY, 0.33, "draft off where it did not pay"),
        (
            DraftOff.OVER_BUDGET,
            0.33,
            "draft off for now: trying it would cost more time than it may lose "
            "(break-even acceptance 0.33 here, this text gives 0.61)",
        ),
        (
            DraftOff.OVER_BUDGET,
            0.784,
            "draft off for now: trying it would cost more time than it may lose",
        ),
    ],
)
def test_the_status_line_says_why_most_steps_did_not_draft(reason, break_even, said):
    """With the numbers of the answer's end, unless they say the opposite."""
    meter = Meter(1, 0, 0.0, num_steps=9, draft_off=reason, draft_off_steps={reason: 8})
    outlook = Outlook(ProposerKind.DRAFT, 0.612, break_even, 0.1, 0.01, 0.0)
    assert f" · {said} · " in status_line(meter.stats(1.0, outlook), 512)
