"""Conversations as token rows: rendered as ChatML, masked, packed, batched."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from .corpus.conversation import USUAL, Message, conversation_at
from .tokenizer import IM_END, IM_START

SEED = 20
HELD_OUT_EVERY = 50  # one conversation in fifty is never trained on
LONG = (16, 24, 32, 40)  # turns of the conversations that fill a row of 2048
COMMON = 800  # ids below are bytes, letters and the most common words
SHORT = 24  # tokens of an answer that counts as short
_CHUNK = 512


def render(messages: list[Message]) -> str:
    """The conversation as the chat template writes it."""
    return "".join(f"{IM_START}{m.role}\n{m.text}{IM_END}\n" for m in messages)


@dataclass(frozen=True)
class Batch:
    """Token rows with what may be learned from them; all arrays are (rows, length)."""

    tokens: NDArray[np.int64]
    targets: NDArray[np.int64]
    learned: NDArray[np.bool_]  # True where the target is part of an answer
    weights: NDArray[np.float32]  # how much the target counts; 0 outside of answers
    segments: NDArray[np.int64]  # conversation number in the row; 0 is padding


def answer_mask(
    ids: NDArray[np.int64], assistant: int, start: int, end: int
) -> NDArray[np.bool_]:
    """True at the tokens that an assistant wrote, its end mark included; (len,)."""
    mask = np.zeros(len(ids), dtype=bool)
    starts = np.flatnonzero((ids[:-1] == start) & (ids[1:] == assistant)) + 3
    ends = np.flatnonzero(ids == end)
    for first in starts:
        # An answer that was cut off goes on to the end of the row.
        closing = ends[np.searchsorted(ends, first) :]
        mask[first : closing[0] + 1 if len(closing) else None] = True
    return mask


def importance(
    ids: NDArray[np.int64], mask: NDArray[np.bool_], digits: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Weight of each answer token; (len,).

    Most words of an answer could have been others. Those that could not count more: words that
    were said before (who a story is about, a name), digits, and all of a short answer.
    """
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    said = (first[inverse] < np.arange(len(ids))) & (ids >= COMMON)
    weights = np.where(said | np.isin(ids, digits), 2.5, 1.0) * mask
    edges = np.flatnonzero(np.diff(np.concatenate(([0], mask, [0]))))
    for begin, end in edges.reshape(-1, 2):
        if end - begin <= SHORT:
            weights[begin:end] *= 1.5
    return weights.astype(np.float32)


class Dataset:
    """An endless stream of batches from one split; knows how many tokens it gave out."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        held_out: bool = False,
        turns: tuple[int, ...] = USUAL,
        seed: int = SEED,
    ) -> None:
        self.tokenizer = tokenizer
        self.held_out = held_out
        self.turns = turns
        self.seed = seed
        self._assistant = tokenizer.token_to_id("assistant")
        if self._assistant is None:
            raise ValueError(
                "the word 'assistant' must be one token: train on rendered conversations"
            )
        self._start = tokenizer.token_to_id(IM_START)
        self._end = tokenizer.token_to_id(IM_END)
        self._digits = np.array([tokenizer.token_to_id(digit) for digit in "0123456789"])

    def encoded(self) -> Iterator[NDArray[np.int64]]:
        """Token ids of one conversation after another."""
        texts = []
        for index in itertools.count():
            if (index % HELD_OUT_EVERY == 0) is not self.held_out:
                continue
            texts.append(render(conversation_at(self.seed, index, self.turns)))
            if len(texts) == _CHUNK:
                for encoding in self.tokenizer.encode_batch(texts):
                    yield np.array(encoding.ids, dtype=np.int64)
                texts = []

    def batches(self, rows: int, length: int) -> Iterator[Batch]:
        """Batches of `rows` rows; whole conversations are packed, best fit first."""
        waiting: list[NDArray[np.int64]] = []
        source = self.encoded()
        while True:
            packed = []
            for _ in range(rows):
                free = length + 1
                row = []
                while free > 16:
                    while len(waiting) < 256:
                        waiting.append(next(source)[: length + 1])
                    fitting = [i for i, ids in enumerate(waiting) if len(ids) <= free]
                    if not fitting:
                        break
                    # The first one is taken as it comes, so that every length keeps its share.
                    at = 0 if not row else max(fitting, key=lambda i: len(waiting[i]))
                    row.append(waiting.pop(at))
                    free -= len(row[-1])
                packed.append(row)
            yield self._batch(packed, length)

    def _batch(self, packed: list[list[NDArray[np.int64]]], length: int) -> Batch:
        shape = (len(packed), length + 1)
        tokens = np.zeros(shape, dtype=np.int64)
        segments = np.zeros(shape, dtype=np.int64)
        learned = np.zeros(shape, dtype=bool)
        weights = np.zeros(shape, dtype=np.float32)
        for r, row in enumerate(packed):
            at = 0
            for number, ids in enumerate(row, 1):
                span = slice(at, at + len(ids))
                tokens[r, span] = ids
                segments[r, span] = number
                mask = answer_mask(ids, self._assistant, self._start, self._end)
                learned[r, span], weights[r, span] = mask, importance(ids, mask, self._digits)
                at += len(ids)
        return Batch(
            tokens[:, :-1], tokens[:, 1:], learned[:, 1:], weights[:, 1:], segments[:, :-1]
        )
