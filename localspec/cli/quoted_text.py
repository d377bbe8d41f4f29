"""Texts of several lines between quotes, as in Ollama's chat.

A text that begins with three quotes ends only with three quotes. It is a message, even if it
looks like a command, and its lines are not changed.
"""

from __future__ import annotations

from collections.abc import Iterator

from localspec.errors import OptionError

QUOTES = '"""'


def is_unclosed(text: str) -> bool:
    """Whether a text begins with the quotes, and does not end with them yet."""
    if not text.startswith(QUOTES):
        return False
    inside = text.removeprefix(QUOTES).rstrip()
    return not inside.endswith(QUOTES)


def unquoted(text: str) -> str | None:
    """The text between the quotes; None for a text that does not begin and end with them."""
    if not text.startswith(QUOTES) or is_unclosed(text):
        return None
    inside = text.removeprefix(QUOTES).rstrip().removesuffix(QUOTES)
    return inside.removeprefix("\n").removesuffix("\n")


def quoted_together(lines: Iterator[str]) -> Iterator[str]:
    """Join the lines of each quoted text into one text, with its quotes.

    Every other line is a text of its own, without blanks around it; blank lines are left out.
    Raises OptionError if the input ends within quotes.
    """
    for line in lines:
        text = line.strip()
        if is_unclosed(text):
            text = _with_following(text, lines)
        if text:
            yield text


def _with_following(first: str, lines: Iterator[str]) -> str:
    """An unclosed text with the lines that follow it, up to the end of its quotes.

    Raises OptionError if the input ends before.
    """
    joined = [first]
    for line in lines:
        joined.append(line)
        # Only this line is looked at: to look at the whole text each time would take long.
        if line.rstrip().endswith(QUOTES):
            return "\n".join(joined)
    text = "\n".join(joined)
    raise OptionError(
        f"the input ends within the text that begins with {text:.40}",
        f"End that text with {QUOTES}.",
    )
