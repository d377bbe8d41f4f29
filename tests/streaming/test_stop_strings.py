"""Bytes of tokens become whole characters, and never a part of a stop string."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.streaming.answer_text import AnswerText, StopSearch
from localspec.streaming.thinking import Part, Thoughts
from prompts import Spelled


def stream(pieces: list[bytes], stop: tuple[str, ...] = ()) -> tuple[list[str], bool]:
    """What comes out after each piece, then at the end; and whether a stop string did."""
    text = AnswerText(Spelled(pieces), Thoughts(), stop, None)
    out = []
    for token in range(len(pieces)):
        out.append("".join(part.text for part in text.push(token)))
        if text.has_stopped:
            return out, True
    out.append("".join(part.text for part in text.finish(is_cut=False)))
    return out, text.has_stopped


@given(st.text(), st.data())
def test_characters_are_whole_wherever_tokens_split_them(text, data):
    """Every piece is valid text, and together they are the text."""
    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    out, _ = stream(pieces)
    assert "".join(out) == text
    assert "\ufffd" not in "".join(out).replace("\ufffd" * text.count("\ufffd"), "")


def test_bytes_that_are_no_text_are_replaced():
    """In the middle, and where the answer ends inside a character."""
    assert stream([b"a\xffb", b"\xe2\x82"])[0] == ["a\ufffdb", "", "\ufffd"]


@pytest.mark.parametrize(
    ("pieces", "stop", "shown", "stopped"),
    [
        ([b"one STOP two"], ("STOP",), "one ", True),
        ([b"one ST", b"OP two"], ("STOP",), "one ", True),
        ([b"S", b"T", b"O", b"P"], ("STOP",), "", True),
        ([b"one ST", b"ILL"], ("STOP",), "one STILL", False),
        ([b"one ST"], ("STOP",), "one ST", False),
        ([b"aab"], ("ab",), "a", True),
        ([b"aaa", b"ab"], ("aab",), "aa", True),
        ([b"x\n", b"\ny"], ("\n\n",), "x", True),
        ([b"late early"], ("early", "late"), "", True),
        ([b"caf\xc3", b"\xa9 bar"], ("é b",), "caf", True),
        ([b"aba", b"c"], ("abab", "ac"), "ab", True),
    ],
)
def test_stop_strings(pieces, stop, shown, stopped):
    """Found across pieces, held back while possible, cut with all that follows."""
    out, found = stream(pieces, stop)
    assert ("".join(out), found) == (shown, stopped)


@given(st.text("ab", max_size=20), st.text("ab", min_size=1, max_size=4), st.data())
def test_stopping_does_not_depend_on_where_pieces_end(text, stop, data):
    """The same answer as for the text in one piece: everything before the stop string."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b].encode() for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    out, found = stream(pieces, (stop,))
    assert "".join(out) == text.partition(stop)[0]
    assert found == (stop in text)


def test_nothing_waits_behind_a_stop_string():
    """A token that ends in the midst of a character leaves nothing to be shown."""
    text = AnswerText(Spelled([b"a STOP b \xe2"]), Thoughts(), ("STOP",), None)
    assert text.push(0) == [Part("a ", is_thought=False)]
    assert text.finish(is_cut=False) == []
    search = StopSearch(("STOP",))
    assert search.push("a STOP b S") == "a "
    assert search.push("T") + search.finish() == ""
