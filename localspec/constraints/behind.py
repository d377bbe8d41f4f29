"""A constraint that begins after a boundary in the answer: the end of its thoughts, or a word.

The boundary can be anywhere in what a step drafts, and in the middle of a token.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from localspec.constraints.spelling import Crossing, Spelling
from localspec.sampling.constraint import Constraint, Mask, gone_wrong

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on


class Boundary(Protocol):
    """Watches an answer for the position at which its constraint begins.

    Texts have one character per byte (latin-1).
    """

    @property
    def held(self) -> str:
        """The end of the text so far, as far as it may belong to the boundary."""

    def push(self, text: str) -> str | None:
        """The text after the boundary; None if that has not come yet."""

    def copy(self) -> Self:
        """An independent copy."""


class Trigger:
    """A boundary: the first of some texts in the answer."""

    def __init__(self, texts: Sequence[str], said: str = "") -> None:
        self.held = said[max(len(said) + 1 - max(map(len, texts)), 0) :]
        self._texts = texts

    def push(self, text: str) -> str | None:
        said = self.held + text
        ends = [said.find(each) + len(each) for each in self._texts if each in said]
        if ends:
            return said[min(ends) :]
        self.held = Trigger(self._texts, said).held
        return None

    def copy(self) -> Trigger:
        return Trigger(self._texts, self.held)


class Start(NamedTuple):
    """How an answer reaches its boundary, and leaves it.

    opening: tokens with which the free part begins; an answer that begins with another token is
    constrained from there on. None: the answer begins in the free part. between: tokens of
    which one may stand directly behind the boundary, without being part of the constrained
    text. may_end: whether the answer may end before the boundary.
    """

    opening: frozenset[int] | None
    between: frozenset[int]
    may_end: bool


class _Stage(enum.Enum):
    START = enum.auto()  # nothing was said
    FREE = enum.auto()
    BETWEEN = enum.auto()  # directly behind the boundary
    BEHIND = enum.auto()
    ENDED = enum.auto()  # in the free part


class Behind:
    """A `Constraint`: free up to a boundary, `inner` behind it."""

    def __init__(
        self,
        inner: Constraint,
        boundary: Boundary,
        spelling: Spelling,
        crossing: Crossing,
        start: Start,
    ) -> None:
        self._inner = inner
        self._boundary = boundary
        self._spelling = spelling
        self._crossing = crossing
        self._start = start
        self._stage = _Stage.FREE if start.opening is None else _Stage.START

    @property
    def is_done(self) -> bool:
        is_behind = self._stage in (_Stage.BETWEEN, _Stage.BEHIND)
        return self._stage is _Stage.ENDED or (is_behind and self._inner.is_done)

    def copy(self) -> Behind:
        other = copy.copy(self)
        other._inner, other._boundary = self._inner.copy(), self._boundary.copy()
        return other

    @property
    def _others(self) -> frozenset[int]:
        """Tokens that may come now although the inner constraint does not allow them."""
        if self._stage is _Stage.START:
            return self._start.opening or frozenset()
        return self._start.between if self._stage is _Stage.BETWEEN else frozenset()

    def mask(self) -> Mask | None:
        if self._stage is _Stage.ENDED:
            return None
        if self._stage is not _Stage.FREE:
            mask = self._inner.mask()
            if mask is not None:
                mask[list(self._others)] = True
            return mask
        banned = [token for token in self._candidates() if not self._may_pass(token)]
        if not self._start.may_end:
            banned += self._spelling.ends
        if not banned:
            return None
        allowed = np.ones(self._spelling.num_logits, dtype=np.bool_)
        allowed[banned] = False
        return allowed

    def _candidates(self) -> frozenset[int]:
        """Tokens that may contain the boundary here, and text behind it."""
        whole, ends = self._crossing
        return whole | ends if self._boundary.held else whole

    def _may_pass(self, token: int) -> bool:
        rest = self._boundary.copy().push(self._spelling.texts[token])
        if not rest:
            return True
        tokens = self._spelling.tokenize(rest.encode("latin-1"))
        return self._inner.validate(tokens) == len(tokens)

    def validate(self, tokens: Sequence[int]) -> int:
        if self._stage is _Stage.BEHIND:
            return self._inner.validate(tokens)
        state = self.copy()
        for index, token in enumerate(tokens):
            if state._stage is _Stage.ENDED:
                return len(tokens)
            if state._stage is _Stage.BEHIND:
                return index + state._inner.validate(tokens[index:])
            if not state._may_come(token):
                return index
            state._go_on(token)
        return len(tokens)

    def _may_come(self, token: int) -> bool:
        if self._stage is not _Stage.FREE:
            return token in self._others or self._inner.validate([token]) == 1
        if token in self._spelling.ends:
            return self._start.may_end
        return token not in self._candidates() or self._may_pass(token)

    def _go_on(self, token: int) -> None:
        if self._stage is _Stage.START:
            is_opening = token in self._others
            self._stage = _Stage.FREE if is_opening else _Stage.BEHIND
        elif self._stage is _Stage.BETWEEN:
            self._stage = _Stage.BEHIND
            if self._inner.validate([token]) == 0:
                return
        if self._stage is _Stage.BEHIND:
            self._inner.commit([token])
        elif token in self._spelling.ends:
            self._stage = _Stage.ENDED
        else:
            rest = self._boundary.push(self._spelling.texts[token])
            if rest is not None:
                self._stage = _Stage.BEHIND if rest else _Stage.BETWEEN
            if rest:
                self._inner.commit(self._spelling.tokenize(rest.encode("latin-1")))

    def commit(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if self._stage is _Stage.ENDED:
                return
            if not self._may_come(token):
                raise gone_wrong(f"token {token} is not what the answer may go on with")
            self._go_on(token)

    def forced(self) -> list[int]:
        return self._inner.forced() if self._stage is _Stage.BEHIND else []
