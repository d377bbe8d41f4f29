"""llama.cpp's GBNF, written so that llguidance's converter gets nothing of it wrong."""

from __future__ import annotations

import re

# The converter's time grows with the square of it: seconds for the worst of this size.
MAX_GBNF_BYTES = 32 << 10
_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
_PART = re.compile(
    r'(?P<text>"(?:\\.|[^"\\])*")|(?P<set>\[(?:\\.|[^\]\\])*\])|\#[^\n]*|(?P<any>\.)', re.DOTALL
)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([\[\]])|.)", re.DOTALL)
# Characters that mean something else in a character set of Rust's.
_SIGN = re.compile(r"(?P<first>\A\[\^?)-|(?P<twice>[&~-])(?P=twice)")


def is_gbnf(grammar: str) -> bool:
    """Whether a grammar has a rule of GBNF: name ::= …"""
    return _RULE.search(grammar) is not None


def for_converter(gbnf: str) -> str:
    """The grammar without what the converter would give another meaning.

    Raises ValueError for an escape that is not a character.
    """
    readable = _PART.sub(_readable_part, gbnf)
    readable.encode()  # an escape may spell half a character
    return readable


def _readable_part(found: re.Match[str]) -> str:
    part = found[0]
    if found["any"]:
        return r"[^\x00]"  # its own "." does not match the end of a line
    if found["text"]:
        return _ESCAPE.sub(lambda escape: escape[3] or _character(escape), part)
    if found["set"]:
        return _SIGN.sub(_plain_sign, _ESCAPE.sub(_character, part))
    return part


def _character(escape: re.Match[str]) -> str:
    """A character whose zeros the converter would drop, written otherwise."""
    digits = escape[1] or escape[2]
    if digits is None:
        return escape[0]
    code = int(digits, 16)
    return f"\\x{code:02x}" if code < 0x100 else chr(code)


def _plain_sign(found: re.Match[str]) -> str:
    if found["twice"]:
        return f"{found['twice']}\\x{ord(found['twice']):02x}"
    return rf"{found['first']}\x2d"
