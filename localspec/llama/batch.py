"""A batch of libllama, with tokens of one text or several, in NumPy arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from localspec.llama.library import llama_cpp

_MOST_SEQUENCES = 16  # as many as `LlamaOptions.num_sequences` may be
_TEXT_PARTS = 3  # parts of a position that equal a text token's position; the fourth is 0


class TextPart(NamedTuple):
    """Tokens of one text in a batch."""

    sequence: int
    """The number of the text's sequence in the context."""

    position: int
    """The position of the first token."""

    tokens: Sequence[int]
    num_logits: int
    """Tokens at the end whose logits are computed; padding has none."""

    num_padding: int = 0
    """Copies of the last token that follow the tokens, only to reach a size."""

    @property
    def size(self) -> int:
        """Tokens that the part takes in a batch."""
        return len(self.tokens) + self.num_padding


class TokenBatch:
    """A reusable llama_batch with space for `size` tokens or rows.

    The C structure points into arrays of this object, so it is valid until the next call of a
    method, and as long as this object.

    Args:
        size: The most tokens.
        width: The float32 numbers of a row that each token has beside its id; 0 without rows.
        rows_alone: Whether libllama gets the rows and no ids of tokens.
    """

    def __init__(self, size: int, width: int = 0, *, rows_alone: bool = False) -> None:
        self.size = size
        self._tokens = np.zeros(size, dtype=np.int32)
        # Each token has one position. A row alone may be a picture's, whose position has four
        # parts: the array has the first part of all rows, then the second, and so on.
        self._num_parts = 1
        if rows_alone:
            self._num_parts = 4
        self._positions = np.zeros(self._num_parts * size, dtype=np.int32)
        self._wants_logits = np.zeros(size, dtype=np.int8)
        # Each token is in one sequence, and has a pointer to that sequence's number.
        self._sequence_counts = np.ones(size, dtype=np.int32)
        self._numbers = np.arange(_MOST_SEQUENCES, dtype=np.int32)
        self._sequence: int | None = 0  # the sequence of all tokens; None if they differ
        self._number_pointers = np.full(size, self._numbers.ctypes.data, dtype=np.uintp)

        self.rows = np.zeros((size, width), dtype=np.float32)
        """(size, width) float32: the rows, to be set before `filled`."""

        int_pointer = ctypes.POINTER(ctypes.c_int32)
        int_pointers = ctypes.POINTER(int_pointer)
        float_pointer = ctypes.POINTER(ctypes.c_float)
        byte_pointer = ctypes.POINTER(ctypes.c_int8)
        self._batch = cast(Any, llama_cpp.llama_batch())  # its pointers are typed as arrays
        if not rows_alone:
            self._batch.token = self._tokens.ctypes.data_as(int_pointer)
        self._batch.pos = self._positions.ctypes.data_as(int_pointer)
        self._batch.n_seq_id = self._sequence_counts.ctypes.data_as(int_pointer)
        self._batch.seq_id = self._number_pointers.ctypes.data_as(int_pointers)
        if width:
            self._batch.embd = self.rows.ctypes.data_as(float_pointer)
        self._batch.logits = self._wants_logits.ctypes.data_as(byte_pointer)

    def filled(
        self,
        tokens: Sequence[int],
        position: int,
        num_logits: int,
        sequence: int = 0,
        num_padding: int = 0,
    ) -> Any:
        """The C batch with one text's tokens: at least one, at most `size` with padding.

        Arguments as the fields of `TextPart`; with rows alone only the number of tokens counts.
        """
        tokens_end = len(tokens)
        count = tokens_end + num_padding
        self._tokens[:tokens_end] = tokens
        self._tokens[tokens_end:count] = tokens[-1]
        positions = self._position_parts(count)
        positions[:_TEXT_PARTS] = np.arange(position, position + count)
        positions[_TEXT_PARTS:] = 0
        self._wants_logits[:count] = 0
        self._wants_logits[tokens_end - num_logits : tokens_end] = 1
        return self._c_batch(count, sequence)

    def filled_at(self, positions: NDArray[np.int32], sequence: int) -> Any:
        """The C batch with a picture's rows, without logits; only with rows_alone.

        Args:
            positions: (4, n) int32, the position of each of the first n rows.
            sequence: The number of the sequence.
        """
        count = positions.shape[1]
        self._position_parts(count)[:] = positions
        self._wants_logits[:count] = 0
        return self._c_batch(count, sequence)

    def _position_parts(self, count: int) -> NDArray[np.int32]:
        """(parts, count) int32, a view of the positions of a batch of `count` tokens."""
        return self._positions[: self._num_parts * count].reshape(-1, count)

    def _c_batch(self, count: int, sequence: int) -> Any:
        """Set the number of tokens and their sequence. Returns the C batch."""
        if sequence != self._sequence:
            self._sequence = sequence
            self._number_pointers[:] = self._numbers[sequence:].ctypes.data
        self._batch.n_tokens = count
        return self._batch

    def joined(self, parts: Sequence[TextPart]) -> Any:
        """The C batch with the tokens of several texts, at most `size` with padding."""
        self._sequence = None  # the texts have different ones
        begin = 0
        count = sum(part.size for part in parts)
        positions = self._position_parts(count)
        positions[_TEXT_PARTS:] = 0
        for part in parts:
            tokens_end = begin + len(part.tokens)
            end = begin + part.size
            self._tokens[begin:tokens_end] = part.tokens
            padding_token = 0  # any token serves for a text that has none here
            if part.tokens:
                padding_token = part.tokens[-1]
            self._tokens[tokens_end:end] = padding_token
            positions_end = part.position + part.size
            positions[:_TEXT_PARTS, begin:end] = np.arange(part.position, positions_end)
            self._number_pointers[begin:end] = self._numbers[part.sequence :].ctypes.data
            self._wants_logits[begin:end] = 0
            self._wants_logits[tokens_end - part.num_logits : tokens_end] = 1
            begin = end
        self._batch.n_tokens = count
        return self._batch
