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
    """Tokens that reach across the end of a mark: they contain it and text after it."""

    whole: frozenset[int]
    """Tokens that contain a whole mark, and text after it."""

    ends: frozenset[int]
    """Tokens that begin with the end of a mark, without its beginning, and continue."""


class Spelling:
    """What constraints need of a vocabulary. Each part is computed when it is first needed.

    Args:
        vocabulary: The model's vocabulary.
        num_logits: The width of a row of logits, which may be larger than the vocabulary.
    """

    def __init__(self, vocabulary: WholeVocabulary, num_logits: int) -> None:
        self.num_logits = num_logits
        self._vocabulary = vocabulary

    @cached_property
    def pieces(self) -> list[bytes]:
        """The bytes of every token, by its id; a control token has those of its entry."""
        return self._vocabulary.spelled_out()

    @cached_property
    def texts(self) -> list[str]:
        """The pieces as texts that have one character for each byte (latin-1)."""
        return [piece.decode("latin-1") for piece in self.pieces]

    @cached_property
    def controls(self) -> frozenset[int]:
        """The control tokens."""
        return frozenset(self._vocabulary.control_ids())

    @cached_property
    def ends(self) -> frozenset[int]:
        """Tokens that end an answer."""
        return frozenset(self._vocabulary.ends())

    @cached_property
    def usual_end(self) -> int:
        """The usual one of the tokens that end an answer: eos if it ends one."""
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
        """The first token that is no control token; None if there is none.

        A text after it is tokenised as in the middle of a text: some tokenizers add a space to
        the beginning of a text.
        """
        for token in range(self._vocabulary.size):
            if token not in self.controls:
                return token
        return None

    def tokenize(self, data: bytes) -> list[int]:
        """Tokens that spell bytes in the middle of a text, none of them a control token."""
        return self._vocabulary.tokenize(
            data.decode("utf-8", errors="replace"),
            parse_special=False,
            after=self._ordinary,
        )

    def single(self, texts: Sequence[str]) -> frozenset[int]:
        """The tokens of those texts that are one token, control tokens included."""
        single_tokens = set()
        for text in texts:
            tokens = self._vocabulary.tokenize(text, parse_special=True)
            if len(tokens) == 1:
                single_tokens.add(tokens[0])
        return frozenset(single_tokens)

    def crossing(self, marks: Sequence[str]) -> Crossing:
        """The tokens that contain one of the marks, or its end, and text after it.

        Args:
            marks: Texts with one character for each byte (latin-1).
        """
        mark_ends: set[str] = set()  # all proper suffixes of the marks
        for mark in marks:
            mark_ends.update(mark[begin:] for begin in range(1, len(mark)))
        ends_tuple = tuple(mark_ends)
        with_whole_mark = set()
        with_mark_end = set()
        for token, text in enumerate(self.texts):
            before_last_character = text[:-1]
            if any(mark in before_last_character for mark in marks):
                with_whole_mark.add(token)
            # A token that is an end itself counts if it begins with a shorter one: "##" may be
            # the end "#" of the mark "###", and a "#" after it.
            if before_last_character.startswith(ends_tuple):
                with_mark_end.add(token)
        return Crossing(frozenset(with_whole_mark), frozenset(with_mark_end))
