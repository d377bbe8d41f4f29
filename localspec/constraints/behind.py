"""A constraint that begins once an answer has said something: its thoughts, or a word.

That place can be anywhere in what a step drafts, and in the middle of a token.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from localspec.constraints.spelling import Crossing, Spelling
from localspec.errors import ConstraintError
from localspec.sampling.constraint import Constraint, Mask

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on


class Boundary(Protocol):
    """Watches an answer for the place where its constraint begins.

    Texts have a byte a character (latin-1).
    """

    @property
    def held(self) -> str:
        """The end of what was said that may be the beginning of what it waits for."""

    @property
    def is_late(self) -> bool:
        """Whether what it waits for is to come with the next token: it has waited long."""

    def push(self, text: str) -> str | None:
        """The text after the boundary, if that has come; else None."""

    def copy(self) -> Self:
        """One that watches by itself from here."""


class Trigger:
    """A boundary: the first of some texts that the answer says."""

    is_late = False

    def __init__(self, texts: Sequence[str], said: str = "") -> None:
        self.held = said[1 - max(map(len, texts)) :] if max(map(len, texts)) > 1 else ""
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
    """How an answer comes to its boundary, and leaves it.

    opening: tokens that begin, in the very first place, what ends at the boundary; with any
    other the answer is behind it from its beginning. None: it is in front of it from there.
    between: tokens that may stand once behind the boundary, and belong to nothing. may_end:
    whether the answer may end without having come there. late: the only tokens that may come
    when the boundary is late; empty for any.
    """

    opening: frozenset[int] | None
    between: frozenset[int]
    may_end: bool
    late: frozenset[int] = frozenset()


class Behind:
    """See `Constraint`. Free up to a boundary; behind it, `inner`."""

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
        self._has_begun = start.opening is None
        self._is_behind = False
        self._may_be_between = False  # the next token
        self._has_ended = False

    @property
    def is_done(self) -> bool:
        return self._has_ended or (self._is_behind and self._inner.is_done)

    def copy(self) -> Behind:
        other = copy.copy(self)
        other._inner, other._boundary = self._inner.copy(), self._boundary.copy()
        return other

    def mask(self) -> Mask | None:
        if self._has_ended:
            return None
        if not self._has_begun:
            return self._with(self._inner.mask(), self._start.opening or ())
        if self._is_behind:
            return self._with(
                self._inner.mask(), self._start.between if self._may_be_between else ()
            )
        if self._start.late and self._boundary.is_late:
            late = np.zeros(self._spelling.num_logits, dtype=np.bool_)
            late[list(self._start.late)] = True
            return late
        banned = [token for token in self._candidates() if not self._may_pass(token)]
        if not self._start.may_end:
            banned += self._spelling.ends
        if not banned:
            return None
        allowed = np.ones(self._spelling.num_logits, dtype=np.bool_)
        allowed[banned] = False
        return allowed

    def _with(self, mask: Mask | None, tokens: Collection[int]) -> Mask | None:
        if mask is not None and tokens:
            mask[list(tokens)] = True
        return mask

    def _candidates(self) -> frozenset[int]:
        """Tokens that may pass the boundary here, and go on."""
        whole, ends = self._crossing
        return whole | ends if self._boundary.held else whole

    def _may_pass(self, token: int) -> bool:
        rest = self._boundary.copy().push(self._spelling.texts[token])
        if not rest:
            return True
        tokens = self._spelling.tokenize(rest.encode("latin-1"))
        return self._inner.validate(tokens) == len(tokens)

    def validate(self, tokens: Sequence[int]) -> int:
        if self._is_behind and not self._may_be_between:
            return self._inner.validate(tokens)
        state = self.copy()
        for index, token in enumerate(tokens):
            if state._has_ended:
                return len(tokens)
            if state._is_behind and not state._may_be_between:
                return index + state._inner.validate(tokens[index:])
            if not state._may_come(token):
                return index
            state._go_on(token)
        return len(tokens)

    def _may_come(self, token: int) -> bool:
        if not self._has_begun or self._is_behind:
            apart = self._start.opening if not self._has_begun else self._start.between
            is_apart = token in (apart or ()) and (not self._is_behind or self._may_be_between)
            return is_apart or self._inner.validate([token]) == 1
        if self._start.late and self._boundary.is_late:
            return token in self._start.late
        if token in self._spelling.ends:
            return self._start.may_end
        return token not in self._candidates() or self._may_pass(token)

    def _go_on(self, token: int) -> None:
        """Go on behind a token that may come."""
        if not self._has_begun:
            self._has_begun = True
            self._is_behind = token not in (self._start.opening or ())
        elif self._may_be_between:
            self._may_be_between = False
            if self._inner.validate([token]) == 0:
                return
        if self._is_behind:
            self._inner.commit([token])
        elif token in self._spelling.ends:
            self._has_ended = True
        else:
            rest = self._boundary.push(self._spelling.texts[token])
            self._is_behind = rest is not None
            self._may_be_between = rest == ""
            if rest:
                self._inner.commit(self._spelling.tokenize(rest.encode("latin-1")))

    def commit(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if self._has_ended:
                return
            if not self._may_come(token):
                raise ConstraintError(
                    f"token {token} is not what the answer may go on with",
                    "Ask again: this answer has gone wrong.",
                )
            self._go_on(token)

    def forced(self) -> list[int]:
        is_free = not self._is_behind or self._may_be_between
        return [] if is_free else self._inner.forced()
