"""A constraint that begins after a boundary in the answer: the end of its thoughts, or a word.

The boundary can be anywhere in the tokens that a step drafts, and in the middle of a token.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from localspec.constraints.spelling import Crossing, Spelling
from localspec.errors import Interrupted
from localspec.sampling.constraint import Constraint, Mask, commit_error

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on


class Boundary(Protocol):
    """Watches an answer for the position at which its constraint begins.

    Texts have one character per byte (latin-1).
    """

    @property
    def held(self) -> str:
        """The end of the text so far that may belong to the boundary."""

    @property
    def is_known_by_held(self) -> bool:
        """Whether the state depends on `held` alone, so that `push` does, too."""

    def push(self, text: str) -> str | None:
        """Add text; returns the text after the boundary, None if that has not come yet."""

    def copy(self) -> Self:
        """An independent copy."""


class Trigger:
    """A boundary: the first of some texts in the answer."""

    is_known_by_held = True

    def __init__(self, texts: Sequence[str], said: str = "") -> None:
        self.held = _begun(texts, said)
        self._texts = texts

    def push(self, text: str) -> str | None:
        said = self.held + text
        ends = []
        for trigger in self._texts:
            if trigger in said:
                ends.append(said.find(trigger) + len(trigger))
        if ends:
            return said[min(ends) :]
        self.held = _begun(self._texts, said)
        return None

    def copy(self) -> Trigger:
        return copy.copy(self)


def _begun(texts: Sequence[str], said: str) -> str:
    """The longest end of `said` with which one of the texts begins, but is not over."""
    longest = max(map(len, texts)) - 1
    for start in range(max(len(said) - longest, 0), len(said)):
        end = said[start:]
        if any(text.startswith(end) and text != end for text in texts):
            return end
    return ""


class Start(NamedTuple):
    """How an answer reaches its boundary, and leaves it."""

    opening: frozenset[int] | None
    """Tokens with which the free part begins; an answer that begins with another token is
    constrained from its beginning. None: the answer begins in the free part."""

    between: frozenset[int]
    """Tokens of which one may stand directly after the boundary, without being part of the
    constrained text."""

    may_end: bool
    """Whether the answer may end before the boundary."""


class _Stage(enum.Enum):
    START = enum.auto()  # nothing was said
    FREE = enum.auto()
    BETWEEN = enum.auto()  # directly after the boundary
    AFTER = enum.auto()
    ENDED = enum.auto()  # in the free part


# Masks of the free part that are kept, one for each beginning of the boundary.
_MAX_MASKS = 16


def _never() -> bool:
    return False


class AfterBoundary:
    """A `Constraint`: free up to a boundary, `inner` after it.

    Up to the boundary `inner` does not change, so its verdict on a text is asked once.

    Args:
        inner: The constraint of the text after the boundary.
        boundary: Watches for the boundary.
        spelling: The model's tokens.
        crossing: The tokens that may contain the boundary and text after it.
        start: How the answer reaches the boundary, and leaves it.
        is_cancelled: Whether the answer was cancelled. It is called while a mask is computed,
            which then raises Interrupted.
    """

    def __init__(
        self,
        inner: Constraint,
        boundary: Boundary,
        spelling: Spelling,
        crossing: Crossing,
        start: Start,
        is_cancelled: Callable[[], bool] = _never,
    ) -> None:
        self._inner = inner
        self._boundary = boundary
        self._spelling = spelling
        self._crossing = crossing
        self._start = start
        self._is_cancelled = is_cancelled
        # Shared by all copies: masks by the text that is held of the boundary, and whether a
        # text may follow it.
        self._masks: dict[str, Mask | None] = {}
        self._verdicts: dict[str, bool] = {}
        self._stage = _Stage.START
        if start.opening is None:
            self._stage = _Stage.FREE

    @property
    def is_done(self) -> bool:
        is_behind = self._stage in (_Stage.BETWEEN, _Stage.AFTER)
        return self._stage is _Stage.ENDED or (is_behind and self._inner.is_done)

    def copy(self) -> AfterBoundary:
        other = copy.copy(self)
        other._inner = self._inner.copy()
        other._boundary = self._boundary.copy()
        return other

    @property
    def _others(self) -> frozenset[int]:
        """Tokens that may come now although the inner constraint does not allow them."""
        if self._stage is _Stage.START:
            return self._start.opening or frozenset()
        if self._stage is _Stage.BETWEEN:
            return self._start.between
        return frozenset()

    def mask(self) -> Mask | None:
        if self._stage is _Stage.ENDED:
            return None
        if self._stage is _Stage.FREE:
            shared = self._free_mask()
            if shared is None:
                return None
            return shared.copy()
        # At the start, too: an answer that does not begin with an opening is constrained from
        # its first token.
        mask = self._inner.mask()
        if mask is not None:
            mask[list(self._others)] = True
        return mask

    def _free_mask(self) -> Mask | None:
        """The mask up to the boundary, which must not be changed."""
        if not self._boundary.is_known_by_held:
            return self._new_free_mask()
        held = self._boundary.held
        if held not in self._masks:
            if len(self._masks) == _MAX_MASKS:
                self._masks.clear()
            self._masks[held] = self._new_free_mask()
        return self._masks[held]

    def _new_free_mask(self) -> Mask | None:
        banned = []
        for token in self._candidates():
            if self._is_cancelled():
                raise Interrupted("a mask of the constraint was cancelled")
            if not self._may_pass(token):
                banned.append(token)
        if not self._start.may_end:
            banned += self._spelling.ends
        if not banned:
            return None
        allowed = np.ones(self._spelling.num_logits, dtype=np.bool_)
        allowed[banned] = False
        return allowed

    def _candidates(self) -> frozenset[int]:
        """Tokens that may contain the boundary here, and text after it."""
        whole, ends = self._crossing
        if self._boundary.held:
            return whole | ends
        return whole

    def _may_pass(self, token: int) -> bool:
        """Whether the text of a token after the boundary, if any, is allowed."""
        rest = self._boundary.copy().push(self._spelling.texts[token])
        return not rest or self._may_follow(rest)

    def _may_follow(self, text: str) -> bool:
        """Whether the constrained text may begin with this one. In the free part only."""
        known = self._verdicts.get(text)
        if known is None:
            # Most texts fail by their first character. One beyond ASCII is several here.
            first = text[0]
            if len(text) > 1 and first.isascii() and not self._may_follow(first):
                known = False
            else:
                known = self._is_valid(text)
            self._verdicts[text] = known
        return known

    def _is_valid(self, text: str) -> bool:
        tokens = self._spelling.tokenize(text.encode("latin-1"))
        return self._inner.validate(tokens) == len(tokens)

    def validate(self, tokens: Sequence[int]) -> int:
        if self._stage is _Stage.AFTER:
            return self._inner.validate(tokens)
        state = self.copy()
        for index, token in enumerate(tokens):
            if state._stage is _Stage.ENDED:
                return len(tokens)
            if state._stage is _Stage.AFTER:
                return index + state._inner.validate(tokens[index:])
            if not state._may_come(token):
                return index
            state._advance(token)
        return len(tokens)

    def _may_come(self, token: int) -> bool:
        if self._stage is not _Stage.FREE:
            return token in self._others or self._inner.validate([token]) == 1
        if token in self._spelling.ends:
            return self._start.may_end
        return not self._is_candidate(token) or self._may_pass(token)

    def _is_candidate(self, token: int) -> bool:
        whole, ends = self._crossing
        return token in whole or (bool(self._boundary.held) and token in ends)

    def _advance(self, token: int) -> None:
        if self._stage is _Stage.START:
            if token in self._others:
                self._stage = _Stage.FREE
            else:
                self._stage = _Stage.AFTER
        elif self._stage is _Stage.BETWEEN:
            self._stage = _Stage.AFTER
            if self._inner.validate([token]) == 0:
                return
        if self._stage is _Stage.AFTER:
            self._inner.commit([token])
        elif token in self._spelling.ends:
            self._stage = _Stage.ENDED
        else:
            rest = self._boundary.push(self._spelling.texts[token])
            if rest:
                self._stage = _Stage.AFTER
                tokens = self._spelling.tokenize(rest.encode("latin-1"))
                self._inner.commit(tokens)
            elif rest is not None:
                self._stage = _Stage.BETWEEN

    def commit(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if self._stage is _Stage.ENDED:
                return
            if not self._may_come(token):
                raise commit_error(f"token {token} is not allowed at this point of the answer")
            self._advance(token)

    def forced(self) -> list[int]:
        if self._stage is _Stage.AFTER:
            return self._inner.forced()
        return []
