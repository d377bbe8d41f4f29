"""A constraint over a handful of tokens, by a function of what was said: for exact tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from localspec.constraints.after_boundary import AfterBoundary, Start
from localspec.constraints.spelling import Spelling
from localspec.errors import ConstraintError


class ToyConstraint:
    """Allows, behind a history, what `allowed(history)` gives: a set of tokens.

    end: the token that ends an answer; it may come where it is in that set, like any other.
    """

    is_done = False

    def __init__(
        self,
        vocab_size: int,
        allowed: Callable[[tuple[int, ...]], set[int]],
        end: int | None,
        *,
        history: tuple[int, ...] = (),
    ) -> None:
        self._vocab_size, self.allowed, self._end = vocab_size, allowed, end
        self.history = history

    @property
    def has_ended(self) -> bool:
        return bool(self.history) and self.history[-1] == self._end

    def mask(self):
        if self.has_ended:
            return None
        mask = np.zeros(self._vocab_size, dtype=np.bool_)
        mask[list(self.allowed(self.history))] = True
        return mask

    def validate(self, tokens: Sequence[int]) -> int:
        state = self.copy()
        for index, token in enumerate(tokens):
            if state.has_ended:
                return len(tokens)
            if token not in state.allowed(state.history):
                return index
            state.history = (*state.history, token)
        return len(tokens)

    def commit(self, tokens: Sequence[int]) -> None:
        if self.validate(tokens) < len(tokens):
            raise ConstraintError(f"{tokens} after {self.history}")
        self.history += tuple(tokens)

    def copy(self) -> ToyConstraint:
        return ToyConstraint(
            self._vocab_size,
            self.allowed,
            self._end,
            history=self.history,
        )

    def forced(self) -> list[int]:
        """The lowest of the tokens, wherever there are no more than two: as bytes can be."""
        state, tokens = self.copy(), []
        while not state.has_ended and len(tokens) < 8:
            allowed = state.allowed(state.history)
            if len(allowed) > 2:
                break
            tokens.append(min(allowed))
            state.history = (*state.history, tokens[-1])
        return tokens


class ToyVocabulary:
    """Tokens by their texts, which are tokenised one character each."""

    def __init__(self, texts: Sequence[str], end: int) -> None:
        self.texts, self.size, self.eos = list(texts), len(texts), end

    def tokenize(self, text, *, parse_special, after=None):
        return [self.texts.index(character) for character in text]

    def spelled_out(self):
        return [text.encode() for text in self.texts]

    def control_ids(self):
        return [self.eos]

    def ends(self):
        return [self.eos]


def behind(inner, boundary, vocabulary, marks, *, opening=None, between=(), may_end=False):
    """A constraint that begins behind a boundary of a toy's text."""
    spelling = Spelling(vocabulary, vocabulary.size)
    start = Start(opening, frozenset(between), may_end)
    return AfterBoundary(inner, boundary, spelling, spelling.crossing(marks), start)
