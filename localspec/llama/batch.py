"""A batch of libllama, with tokens of one text or several; it points into NumPy arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from localspec.llama.library import llama_cpp

_MOST_SEQUENCES = 16


class TextPart(NamedTuple):
    """Tokens of one text, from a position on, with logits of the last num_logits."""

    sequence: int
    position: int
    tokens: Sequence[int]
    num_logits: int
    num_padding: int = 0
    """Copies of the last token after the tokens, only to reach a size."""

    @property
    def size(self) -> int:
        """Tokens that the part takes in a batch."""
        return len(self.tokens) + self.num_padding


class TokenBatch:
    """Space for `size` tokens, each with a row of `width` floats if that is not 0.

    Args:
        size: Tokens.
        width: Floats of a row.
        rows_alone: Whether libllama gets the rows and no tokens.

    Attributes:
        rows: (size, width) float32, to be filled before `filled`.
    """

    def __init__(self, size: int, width: int = 0, *, rows_alone: bool = False) -> None:
        self.size = size
        self._tokens = np.zeros(size, dtype=np.int32)
        self._num_positions = 1
        if rows_alone:
            # A row may have a position of four parts, of which a text needs the first three.
            self._num_positions = 4
        self._positions = np.zeros(self._num_positions * size, dtype=np.int32)
        self._wants_logits = np.zeros(size, dtype=np.int8)
        self._sequence_counts = np.ones(size, dtype=np.int32)
        pointer = ctypes.POINTER(ctypes.c_int32)
        self._numbers = np.arange(_MOST_SEQUENCES, dtype=np.int32)
        self._sequence: int | None = 0  # the sequence of all tokens; None if they differ
        self._sequences = np.full(size, self._numbers.ctypes.data, dtype=np.uintp)
        self.rows = np.zeros((size, width), dtype=np.float32)
        self._batch = cast(Any, llama_cpp.llama_batch())  # its pointers are typed as arrays
        if not rows_alone:
            self._batch.token = self._tokens.ctypes.data_as(pointer)
        self._batch.pos = self._positions.ctypes.data_as(pointer)
        self._batch.n_seq_id = self._sequence_counts.ctypes.data_as(pointer)
        self._batch.seq_id = self._sequences.ctypes.data_as(ctypes.POINTER(pointer))
        if width:
            self._batch.embd = self.rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        self._batch.logits = self._wants_logits.ctypes.data_as(ctypes.POINTER(ctypes.c_int8))

    def filled(
        self,
        tokens: Sequence[int],
        position: int,
        num_logits: int,
        sequence: int = 0,
        num_padding: int = 0,
    ) -> Any:
        """The C batch of one text's tokens, of up to `size`: see `TextPart`."""
        own_end = len(tokens)
        count = len(tokens) + num_padding
        self._tokens[:own_end] = tokens
        self._tokens[own_end:count] = tokens[-1]
        positions = self._positions[: self._num_positions * count].reshape(-1, count)
        positions[:3] = np.arange(position, position + count)
        positions[3:] = 0
        self._wants_logits[:count] = 0
        self._wants_logits[own_end - num_logits : own_end] = 1
        return self._c_batch(count, sequence)

    def filled_at(self, positions: NDArray[np.int32], sequence: int) -> Any:
        """The C batch of rows alone at these positions, (4, n), without logits."""
        count = positions.shape[1]
        self._positions[: 4 * count] = positions.reshape(-1)
        self._wants_logits[:count] = 0
        return self._c_batch(count, sequence)

    def _c_batch(self, count: int, sequence: int) -> Any:
        """The C batch of `count` tokens of one sequence."""
        if sequence != self._sequence:
            self._sequence = sequence
            self._sequences[:] = self._numbers[sequence:].ctypes.data
        self._batch.n_tokens = count
        return self._batch

    def joined(self, parts: Sequence[TextPart]) -> Any:
        """The C batch of several texts' tokens, of up to `size` in all: see `TextPart`."""
        self._sequence = None  # they differ
        begin = 0
        count = sum(part.size for part in parts)
        positions = self._positions[: self._num_positions * count].reshape(-1, count)
        positions[3:] = 0
        for sequence, position, tokens, num_logits, num_padding in parts:
            own_end = begin + len(tokens)
            end = own_end + num_padding
            self._tokens[begin:own_end] = tokens
            padding = 0  # any token serves where the text has none here
            if tokens:
                padding = tokens[-1]
            self._tokens[own_end:end] = padding
            num_placed = end - begin
            positions[:3, begin:end] = np.arange(position, position + num_placed)
            self._sequences[begin:end] = self._numbers[sequence:].ctypes.data
            self._wants_logits[begin:end] = 0
            self._wants_logits[own_end - num_logits : own_end] = 1
            begin = end
        self._batch.n_tokens = begin
        return self._batch
