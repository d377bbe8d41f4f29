"""A bound on the numbers of a JSON text, where a small model writes digits without end."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from localspec.constraints.spelling import DIGITS, Spelling
from localspec.errors import ConstraintError
from localspec.sampling.constraint import Constraint, Mask
from localspec.tools.partial_text import JsonReader

MOST_DIGITS = 32  # in a row; a double has 17 that count, a whole number of 64 bits 20


class _Digits(JsonReader):
    """Counts the digits at the end of a JSON text, but for those in strings."""

    count = 0

    def push(self, text: str) -> None:
        for each in text:
            is_counted = not self.is_quoted(each) and each in DIGITS
            self.count = self.count + 1 if is_counted else 0


class NumberBound:
    """A `Constraint` for a JSON text: `inner` with at most MOST_DIGITS digits in a row.

    More may come where `inner` allows nothing else, as in a constant.
    """

    def __init__(self, inner: Constraint, spelling: Spelling) -> None:
        self._inner = inner
        self._spelling = spelling
        self._digits = _Digits()

    @property
    def is_done(self) -> bool:
        return self._inner.is_done

    def copy(self) -> NumberBound:
        other = copy.copy(self)
        other._inner, other._digits = self._inner.copy(), copy.copy(self._digits)
        return other

    def mask(self) -> Mask | None:
        mask = self._inner.mask()
        if mask is None or not self._digits.count:
            return mask
        kept: Mask = mask & (self._spelling.leading_digits + self._digits.count <= MOST_DIGITS)
        return kept if kept.any() else mask

    def validate(self, tokens: Sequence[int]) -> int:
        num_valid, digits = self._inner.validate(tokens), copy.copy(self._digits)
        for index, token in enumerate(tokens[:num_valid]):
            if token in self._spelling.ends:
                break
            if self._is_long(token, digits):
                here = self.copy()
                here.commit(tokens[:index])
                if not here._may_come(token):
                    return index
            digits.push(self._spelling.texts[token])
        return num_valid

    def _is_long(self, token: int, digits: _Digits) -> bool:
        return bool(
            digits.count and self._spelling.leading_digits[token] + digits.count > MOST_DIGITS
        )

    def _may_come(self, token: int) -> bool:
        mask = self.mask()
        return mask is None or bool(mask[token])

    def commit(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if self._is_long(token, self._digits) and not self._may_come(token):
                raise ConstraintError(
                    f"token {token} makes a number too long",
                    "Ask again: this answer has gone wrong.",
                )
            self._inner.commit([token])
            self._digits.push(self._spelling.texts[token])

    def forced(self) -> list[int]:
        return self._inner.forced()
