"""Text for a terminal: nothing in it is obeyed."""

from __future__ import annotations

import pytest

from localspec.cli.screen import error_lines, printable
from localspec.errors import LocalspecError


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
