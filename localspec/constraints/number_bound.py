"""A bound on the numbers of a JSON text, where a small model writes digits without end."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from localspec.constraints.spelling import Spelling
from localspec.errors import ConstraintError
from localspec.sampling.constraint import Constraint, Mask

# Characters of a number, without signs. The longest that programs write for a double has 24
# (JavaScript's 1e-6 with 17 digits), for a whole number of 64 bits 20.
MOST_CHARACTERS = 32
MOST_OF_EXPONENT = 3  # digits, and as long as the number is finite


_BEGUN = re.compile(r"[0-9]+(\.[0-9]*)?(e[+-]?[0-9]*)?")


class _Place(NamedTuple):
    """A place in a JSON text.

    quoted: in a text; escaped: behind its backslash. number: as much as there is of one,
    without its sign.
    """

    quoted: bool = False
    escaped: bool = False
    number: str = ""

    @property
    def exponent(self) -> str | None:
        """The number's exponent so far; None in front of its letter."""
        _, letter, exponent = self.number.partition("e")
        return exponent if letter else None

    @property
    def room(self) -> int:
        """How many characters may come of the number, but for a third digit of an exponent."""
        exponent = self.exponent
        if exponent is None:
            return MOST_CHARACTERS - len(self.number)
        digits = exponent.lstrip("+-")
        room = MOST_CHARACTERS - len(self.number) + len(exponent) - len(digits)
        most = MOST_OF_EXPONENT - (not exponent.startswith("-"))
        return max(min(room, most - len(digits)), 0)

    def takes_last(self, digit: str) -> bool:
        """Whether it may be the third digit of an exponent, so that the number stays finite."""
        exponent = self.exponent or ""
        is_last = len(exponent.lstrip("+")) == MOST_OF_EXPONENT - 1
        return is_last and math.isfinite(float(self.number + digit))

    def behind(self, text: str) -> _Place:
        """The place behind more of the text."""
        place = self
        for character in text:
            place = place._in_text(character) if place.quoted else place._next(character)
        return place

    def _in_text(self, character: str) -> _Place:
        if self.escaped:
            return _IN_TEXT
        if character == "\\":
            return _ESCAPED
        return _OUTSIDE if character == '"' else self

    def _next(self, character: str) -> _Place:
        number = self.number + character.lower()
        if _BEGUN.fullmatch(number):
            return _Place(number=number)
        return _IN_TEXT if character == '"' else _OUTSIDE


_OUTSIDE, _IN_TEXT, _ESCAPED = _Place(), _Place(quoted=True), _Place(quoted=True, escaped=True)


class NumberBound:
    """A `Constraint` for a JSON text: as `inner`, but without numbers that are too long.

    If `inner` lets a number end nowhere else, it ends as soon as it can.
    """

    def __init__(self, inner: Constraint, spelling: Spelling) -> None:
        self._inner = inner
        self._spelling = spelling
        self._place = _OUTSIDE

    @property
    def is_done(self) -> bool:
        return self._inner.is_done

    def copy(self) -> NumberBound:
        other = copy.copy(self)
        other._inner = self._inner.copy()
        return other

    def mask(self) -> Mask | None:
        mask, place = self._inner.mask(), self._place
        lengths = self._spelling.number_lengths
        if mask is None or place.quoted or place.room >= lengths.longest:
            return mask
        kept: Mask = mask & (lengths.of <= place.room)
        digits = [token for token in lengths.digits if mask[token]]
        texts = self._spelling.texts
        kept[[token for token in digits if place.takes_last(texts[token])]] = True
        if not kept.any():
            kept[[token for token in digits if self._can_end(token)]] = True
        return kept if kept.any() else mask

    def _can_end(self, token: int) -> bool:
        """Whether a number may end behind a token."""
        behind = self._inner.copy()
        behind.commit([token])
        mask = behind.mask()
        return mask is None or bool((mask & (self._spelling.number_lengths.of == 0)).any())

    def validate(self, tokens: Sequence[int]) -> int:
        num_valid = self._inner.validate(tokens)
        place = self._place
        for index, token in enumerate(tokens[:num_valid]):
            if token in self._spelling.ends:
                break
            if self._is_long(token, place):
                here = copy.copy(self)
                here._inner, here._place = self._inner.copy(), place
                here._inner.commit(tokens[:index])
                mask = here.mask()
                if mask is not None and not mask[token]:
                    return index
            place = place.behind(self._spelling.texts[token])
        return num_valid

    def _is_long(self, token: int, place: _Place) -> bool:
        """Whether it may make a number too long."""
        return not place.quoted and bool(self._spelling.number_lengths.of[token] > place.room)

    def commit(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if self._is_long(token, self._place) and not self.validate([token]):
                raise ConstraintError(
                    f"token {token} makes a number too long",
                    "Ask again: this answer has gone wrong.",
                )
            self._inner.commit([token])
            self._place = self._place.behind(self._spelling.texts[token])

    def forced(self) -> list[int]:
        return self._inner.forced()
