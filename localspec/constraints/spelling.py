"""A model's tokens as the bytes that they spell in an answer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localspec.vocabulary import WholeVocabulary

DIGITS = "0123456789"


class Crossing(NamedTuple):
    """Tokens that contain a mark, or the end of one, and more text."""

    whole: frozenset[int]
    """Tokens with a whole mark and more text."""

    ends: frozenset[int]
    """Tokens that contain the end of a mark, and more text."""


class Spelling:
    """A vocabulary as constraints see it, read when it is needed.

    Args:
        vocabulary: The model's vocabulary.
        num_logits: The width of a row of logits, which may be more than the vocabulary has
            tokens.
    """

    def __init__(self, vocabulary: WholeVocabulary, num_logits: int) -> None:
        self.num_logits = num_logits
        self._vocabulary = vocabulary

    @cached_property
    def pieces(self) -> list[bytes]:
        """The bytes of every token, control tokens by their entries: (vocab,)."""
        return self._vocabulary.spelled_out()

    @cached_property
    def texts(self) -> list[str]:
        """The pieces with a character for each byte (latin-1)."""
        return [piece.decode("latin-1") for piece in self.pieces]

    @cached_property
    def controls(self) -> frozenset[int]:
        """Tokens that steer the model."""
        return frozenset(self._vocabulary.control_ids())

    @cached_property
    def ends(self) -> frozenset[int]:
        """Tokens that end an answer."""
        return frozenset(self._vocabulary.ends())

    @cached_property
    def usual_end(self) -> int:
        """The token that an answer most likely ends with."""
        eos = self._vocabulary.eos
        if eos in self.ends:
            return eos
        return min(self.ends)

    @cached_property
    def blanks(self) -> frozenset[int]:
        """Tokens that consist of blank space."""
        return frozenset(token for token, piece in enumerate(self.pieces) if piece.isspace())

    @cached_property
    def leading_digits(self) -> NDArray[np.int64]:
        """The number of digits that each token begins with: (num_logits,)."""
        counts = np.zeros(self.num_logits, dtype=np.int64)
        for token, text in enumerate(self.texts):
            counts[token] = len(text) - len(text.lstrip(DIGITS))
        return counts

    @cached_property
    def _ordinary(self) -> int | None:
        """The first token of text: after one, some tokenizers add no space."""
        for token in range(self._vocabulary.size):
            if token not in self.controls:
                return token
        return None

    def tokenize(self, data: bytes) -> list[int]:
        """Tokens that spell bytes in the middle of a text, none of which steers the model."""
        return self._vocabulary.tokenize(
            data.decode("utf-8", errors="replace"),
            parse_special=False,
            after=self._ordinary,
        )

    def single(self, texts: Sequence[str]) -> frozenset[int]:
        """The tokens each of which spells one of the texts."""
        single = set()
        for text in texts:
            tokens = self._vocabulary.tokenize(text, parse_special=True)
            if len(tokens) == 1:
                single.add(tokens[0])
        return frozenset(single)

    def crossing(self, marks: Sequence[str]) -> Crossing:
        """The tokens that contain one of the marks, or its end, and more text.

        Args:
            marks: Texts with a character for each byte.
        """
        all_ends = set()
        for mark in marks:
            all_ends |= {mark[begin:] for begin in range(1, len(mark))}
        ends = tuple(all_ends)
        whole = set()
        longer = set()
        for token, text in enumerate(self.texts):
            if any(mark in text[:-1] for mark in marks):
                whole.add(token)
            if text.startswith(ends) and text not in ends:
                longer.add(token)
        return Crossing(frozenset(whole), frozenset(longer))
