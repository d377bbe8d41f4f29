"""A constraint that begins after a boundary in the answer: its thoughts' end, or a trigger.

The boundary can be at any place in the tokens that a step drafts, also within a token. Texts
have one character for each byte here (latin-1), because a token can end within a character.
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
    """Reads an answer up to the boundary, after which its constraint begins."""

    @property
    def partial_boundary(self) -> str:
        """The end of the text so far that may be the beginning of the boundary."""

    @property
    def has_other_state(self) -> bool:
        """Whether the results of `push` depend on more than `partial_boundary`."""

    def push(self, text: str) -> str | None:
        """Read more text. Returns its part after the boundary; None before the boundary."""

    def copy(self) -> Self:
        """An independent copy."""


class Trigger:
    """The boundary that ends with the first occurrence of one of some texts, the triggers."""

    has_other_state = False

    def __init__(self, triggers: Sequence[str]) -> None:
        self.partial_boundary = ""
        self._triggers = triggers

    def push(self, text: str) -> str | None:
        """Read more text. Returns its part after the trigger; None before the trigger."""
        text = self.partial_boundary + text
        ends = []
        for trigger in self._triggers:
            if trigger in text:
                ends.append(text.find(trigger) + len(trigger))
        if ends:
            return text[min(ends) :]
        self.partial_boundary = _partial_trigger(self._triggers, text)
        return None

    def copy(self) -> Trigger:
        return copy.copy(self)


def _partial_trigger(triggers: Sequence[str], text: str) -> str:
    """The longest suffix of the text that is a proper prefix of a trigger; "" if there is none.

    A proper prefix is shorter than the trigger.
    """
    longest = max(map(len, triggers)) - 1  # of the proper prefixes
    first = max(len(text) - longest, 0)
    for begin in range(first, len(text)):
        suffix = text[begin:]
        for trigger in triggers:
            if trigger.startswith(suffix) and trigger != suffix:
                return suffix
    return ""


class Start(NamedTuple):
    """How an answer reaches its boundary, and how its constrained part begins.

    The free part is the text before the boundary, and the boundary.
    """

    opening: frozenset[int] | None
    """Tokens with which the free part begins. An answer that begins with another token has no
    free part. None: the answer begins in the free part."""

    between: frozenset[int]
    """Tokens of which one may follow the boundary directly, without belonging to the
    constrained text."""

    may_end: bool
    """Whether the answer may end in the free part."""


class _Stage(enum.Enum):
    """The part of the answer to which the next token belongs."""

    START = enum.auto()  # the first token: free or constrained
    FREE = enum.auto()  # before the boundary
    BETWEEN = enum.auto()  # the first token after the boundary: see `Start.between`
    AFTER = enum.auto()  # the constrained part
    ENDED = enum.auto()  # after the end of an answer that ended in the free part


# Masks of the free part that are cached, one for each partial boundary.
_MAX_MASKS = 16


def _never() -> bool:
    return False


class AfterBoundary:
    """A `Constraint` that allows everything up to a boundary, and what `inner` allows after it.

    A token that contains the boundary and text after it is allowed if `inner` allows that text.

    Args:
        inner: The constraint of the text after the boundary.
        boundary: Reads the answer up to the boundary.
        spelling: The model's tokens.
        crossing: The tokens that may contain an end of the boundary and text after it.
        start: How the answer reaches the boundary, and how its constrained part begins.
        is_cancelled: Whether the answer was cancelled. It is called while a mask is computed,
            and then `mask` raises Interrupted.
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
        # Shared by all copies: masks by the partial boundary, and whether `inner` allows a text
        # directly after the boundary. Neither changes, since `inner` has no text before it.
        self._masks: dict[str, Mask | None] = {}
        self._verdicts: dict[str, bool] = {}
        self._stage = _Stage.START
        if start.opening is None:
            self._stage = _Stage.FREE

    @property
    def is_done(self) -> bool:
        """Whether only a token that ends the answer may come next."""
        if self._stage is _Stage.ENDED:
            return True
        if self._stage in (_Stage.BETWEEN, _Stage.AFTER):
            return self._inner.is_done
        return False

    def copy(self) -> AfterBoundary:
        other = copy.copy(self)
        other._inner = self._inner.copy()
        other._boundary = self._boundary.copy()
        return other

    @property
    def _exempt(self) -> frozenset[int]:
        """Tokens that may come next whether `inner` allows them or not."""
        if self._stage is _Stage.START:
            return self._start.opening or frozenset()
        if self._stage is _Stage.BETWEEN:
            return self._start.between
        return frozenset()

    def mask(self) -> Mask | None:
        """(num_logits,) True for tokens that may come next; None if all may."""
        if self._stage is _Stage.ENDED:
            return None
        if self._stage is _Stage.FREE:
            cached_mask = self._free_mask()
            if cached_mask is None:
                return None
            return cached_mask.copy()
        # START, BETWEEN and AFTER have the mask of `inner`: an answer that does not begin with
        # an opening is constrained from its first token.
        mask = self._inner.mask()
        if mask is not None:
            mask[list(self._exempt)] = True
        return mask

    def _free_mask(self) -> Mask | None:
        """`_new_free_mask`, cached where possible. The mask must not be changed."""
        if self._boundary.has_other_state:
            return self._new_free_mask()
        partial_boundary = self._boundary.partial_boundary
        if partial_boundary not in self._masks:
            if len(self._masks) == _MAX_MASKS:
                self._masks.clear()
            self._masks[partial_boundary] = self._new_free_mask()
        return self._masks[partial_boundary]

    def _new_free_mask(self) -> Mask | None:
        """Compute the mask in the free part; None if every token may come.

        Raises Interrupted once the answer is cancelled.
        """
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
        """Tokens in the free part that may contain the boundary and text after it."""
        whole, ends = self._crossing
        if self._boundary.partial_boundary:
            return whole | ends
        return whole

    def _may_pass(self, token: int) -> bool:
        """Whether a token has no text after the boundary, or a text that `inner` allows."""
        text_after = self._boundary.copy().push(self._spelling.texts[token])
        return not text_after or self._may_follow(text_after)

    def _may_follow(self, text: str) -> bool:
        """Whether `inner` allows a text directly after the boundary. For the free part only."""
        is_allowed = self._verdicts.get(text)
        if is_allowed is None:
            is_allowed = self._is_valid(text)
            self._verdicts[text] = is_allowed
        return is_allowed

    def _is_valid(self, text: str) -> bool:
        """As `_may_follow`, without the cached verdict of this text."""
        # Most texts are refused for their first character. Few characters come first, so the
        # verdict is mostly cached. A character beyond ASCII has several bytes: it is not cut.
        first = text[0]
        if len(text) > 1 and first.isascii() and not self._may_follow(first):
            return False
        tokens = self._spelling.tokenize(text.encode("latin-1"))
        return self._inner.validate(tokens) == len(tokens)

    def validate(self, tokens: Sequence[int]) -> int:
        """How many of the tokens may come, counted from the first. The state stays."""
        if self._stage is _Stage.AFTER:
            return self._inner.validate(tokens)
        state = self.copy()
        for index, token in enumerate(tokens):
            if state._stage is _Stage.ENDED:
                return len(tokens)
            if state._stage is _Stage.AFTER:
                num_valid_after = state._inner.validate(tokens[index:])
                return index + num_valid_after
            if not state._may_come(token):
                return index
            state._advance(token)
        return len(tokens)

    def _may_come(self, token: int) -> bool:
        """Whether a token may come next. Not for the stage ENDED."""
        if self._stage is not _Stage.FREE:
            return token in self._exempt or self._inner.validate([token]) == 1
        if token in self._spelling.ends:
            return self._start.may_end
        return not self._is_candidate(token) or self._may_pass(token)

    def _is_candidate(self, token: int) -> bool:
        """Whether a token is among `_candidates`, without making that set."""
        whole, ends = self._crossing
        if token in whole:
            return True
        return bool(self._boundary.partial_boundary) and token in ends

    def _advance(self, token: int) -> None:
        """Continue after a token that may come."""
        if self._stage is _Stage.START:
            if token in self._exempt:
                self._stage = _Stage.FREE
            else:
                self._stage = _Stage.AFTER
        elif self._stage is _Stage.BETWEEN:
            self._stage = _Stage.AFTER
            is_constrained_text = self._inner.validate([token]) == 1
            if not is_constrained_text:  # a token of `Start.between`
                return
        if self._stage is _Stage.AFTER:
            self._inner.commit([token])
        elif token in self._spelling.ends:
            self._stage = _Stage.ENDED
        else:
            self._advance_to_boundary(token)

    def _advance_to_boundary(self, token: int) -> None:
        """Continue in the free part after a token, which may contain the boundary."""
        text_after = self._boundary.push(self._spelling.texts[token])
        if text_after is None:
            return
        self._stage = _Stage.BETWEEN
        if text_after:
            self._stage = _Stage.AFTER
            tokens = self._spelling.tokenize(text_after.encode("latin-1"))
            self._inner.commit(tokens)

    def commit(self, tokens: Sequence[int]) -> None:
        """Continue after these tokens. Raises ConstraintError if one may not come."""
        for token in tokens:
            if self._stage is _Stage.ENDED:
                return
            if not self._may_come(token):
                raise commit_error(f"token {token} is not allowed at this point of the answer")
            self._advance(token)

    def forced(self) -> list[int]:
        """As `Constraint.forced`; [] before the constrained part."""
        if self._stage is _Stage.AFTER:
            return self._inner.forced()
        return []
