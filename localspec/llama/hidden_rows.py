"""The hidden rows of a target's latest tokens, which a trained head reads."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from localspec.llama.handle import Handle
from localspec.llama.library import llama_cpp
from localspec.llama.model_options import NUM_KEPT_ROWS
from localspec.llama.quirks.nextn import require_nextn_functions

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on

# Rows are left out in pauses longer than this number of tokens. Rows take 10 % of a token's
# time on a GPU, but libllama plans its graphs again for each change
_LONG_PAUSE = 64
_LEAST_READ = 32  # before a head proposes again, it gets the rows of this number of tokens

Rows = NDArray[np.float32]


def products(matrix: Rows, rows: Rows, out: Rows | None = None) -> Rows:
    """Each row of a matrix (n, width) times each of some rows (…, width): (…, n).

    Computed by NumPy without BLAS: the threads of BLAS spin while they wait for more work, on
    the processors that libllama's next decode needs, which then took up to a third longer.
    """
    made: Rows = np.einsum(
        "vw,...w->...v",
        matrix,
        rows,
        out=out,
    )
    return made


class HiddenRows:
    """A ring of the last `capacity` rows of `width` float32 each, by position in the text.

    It has rows first … end - 1. A row is the target's result at a token that it has cached; a
    token that leaves the cache leaves the ring.

    Args:
        width: Numbers of a row.
        capacity: Rows.
    """

    is_wanted = True
    """Whether the ring gets more rows."""

    def __init__(self, width: int, capacity: int) -> None:
        self.first = 0
        self.end = 0
        self.width = width
        self.capacity = capacity
        self._ring: Rows = np.empty((capacity, width), dtype=np.float32)

    def pause(self, num_tokens: int) -> None:
        """Skip rows that no head will read.

        Args:
            num_tokens: Tokens until a head proposes again.
        """
        if num_tokens > _LONG_PAUSE:
            self.is_wanted = False
        elif num_tokens <= _LEAST_READ:
            self.is_wanted = True

    def sibling(self) -> Self:
        """A ring for another sequence of the same context."""
        other = copy.copy(self)
        other.first = 0
        other.end = 0
        other._ring = np.empty((self.capacity, self.width), dtype=np.float32)
        return other

    def copied(self) -> Self:
        """A copy of the present rows."""
        other = copy.copy(self)
        other._ring = self._ring.copy()
        return other

    def take_over(self, other: HiddenRows, num_cached: int) -> None:
        """Copy the rows of another ring, up to those of the first num_cached tokens."""
        self.first = other.first
        self.end = other.end
        self._ring = other._ring.copy()
        self.truncate(num_cached)
        if self.end < num_cached:
            self.resume_at(num_cached)

    def put(self, position: int, *sides: Rows) -> None:
        """Add the rows of n tokens.

        Args:
            position: The position of the first token; not before the last row.
            sides: Parts of the rows, side by side: each (n, a part of the width).
        """
        end = position + len(sides[0])
        if position != self.end:
            self.first = position
        self.first = max(self.first, end - self.capacity)
        count = min(len(sides[0]), self.capacity)
        for part, in_ring in self._parts(end - count, count):
            begin = 0
            for rows in sides:
                columns = slice(begin, begin + rows.shape[1])
                self._ring[in_ring, columns] = rows[-count:][part]
                begin = columns.stop
        self.end = end

    def copy_to(self, out: Rows, position: int) -> None:
        """Fill `out` (n, width) with the rows from a position on; the ring has all of them."""
        for part, in_ring in self._parts(position, len(out)):
            out[part] = self._ring[in_ring]

    def truncate(self, num_cached: int) -> None:
        """Forget the rows of tokens that are no longer cached."""
        self.end = min(self.end, num_cached)
        self.first = min(self.first, self.end)

    def resume_at(self, position: int) -> None:
        """Forget all rows; the next row has that position."""
        self.first = position
        self.end = position

    def _parts(self, position: int, count: int) -> list[tuple[slice, slice]]:
        """Slices of `count` rows from a position on, each with its slice of the ring."""
        begin = position % self.capacity
        before_edge = min(count, self.capacity - begin)
        return [
            (slice(0, before_edge), slice(begin, begin + before_edge)),
            (slice(before_edge, count), slice(0, count - before_edge)),
        ]


class TargetRows(HiddenRows):
    """The hidden rows of a context, copied after each of its decodes.

    Args:
        handle: The context.
        layers: Numbers of layers whose inputs a row has side by side. The number of all layers
            stands for the output of the last layer, and so does an empty tuple.
    """

    def __init__(self, handle: Handle, layers: tuple[int, ...]) -> None:
        model = handle.model
        self._last: int = llama_cpp.llama_model_n_layer(model)
        self._layers = layers or (self._last,)
        self._width_out: int = llama_cpp.llama_model_n_embd_out(model)
        self._width: int = llama_cpp.llama_model_n_embd(model)
        width = 0
        for layer in self._layers:
            width += self._width_out if layer == self._last else self._width
        super().__init__(width, NUM_KEPT_ROWS)
        self._functions = require_nextn_functions(reads_layers=bool(layers))
        self._handle = handle
        # libllama's setting, None while it is unknown. A list, since all sequences share it.
        self._taken: list[bool | None] = [False]

    def wants(self, _count: int, _num_logits: int, num_to_come: int) -> bool:
        """Whether to take the rows of a decode that num_to_come tokens follow.

        Except at its end, the rows of a long prompt would leave the ring before a head reads
        them, and libllama would compute the whole last layer for them.
        """
        return self.is_wanted and num_to_come < self.capacity

    def begin_decode(self, *, is_taken: bool) -> None:
        """Set whether libllama gives the rows of the next decode."""
        was_taken = self._taken[0]
        self._taken[0] = None
        context = self._handle.context
        for layer in self._layers:
            if layer == self._last:
                is_masked = not is_taken  # then only the few rows with logits are computed
                self._functions.set_embeddings_nextn(context, is_taken, is_masked)
            elif is_taken != was_taken:  # a change makes libllama plan all graphs again
                self._functions.set_embeddings_layer_inp(context, layer, is_taken)
        self._taken[0] = is_taken

    def add(self, position: int, count: int, before: int = 0) -> None:
        """Take the rows of tokens that were decoded.

        Args:
            position: The position of the first token.
            count: The number of tokens.
            before: Tokens of other texts, which come first in that decode.
        """
        sides = [self._layer_rows(layer, before + count)[before:] for layer in self._layers]
        self.put(position, *sides)

    def _layer_rows(self, layer: int, count: int) -> Rows:
        """A layer's rows of the last decode: a view until the next one."""
        context = self._handle.context
        if layer == self._last:
            rows = self._functions.get_embeddings_nextn(context)
            return np.ctypeslib.as_array(rows, (count, self._width_out))
        rows = self._functions.get_embeddings_layer_inp(context, layer)
        return np.ctypeslib.as_array(rows, (count, self._width))


class OutputRows(HiddenRows):
    """The inputs of the output layer, if all tokens of a decode have logits.

    If asked for these rows, libllama computes logits of every token of a decode. So the rows of
    a prompt are not taken, and there are none before the first step after it.
    """

    def __init__(self, handle: Handle) -> None:
        super().__init__(llama_cpp.llama_model_n_embd_out(handle.model), NUM_KEPT_ROWS)
        self._handle = handle

    def wants(self, count: int, num_logits: int, _num_to_come: int) -> bool:
        """Whether to take the rows of a decode of count tokens."""
        return self.is_wanted and num_logits == count

    def begin_decode(self, *, is_taken: bool) -> None:
        """Set whether libllama gives the rows of the next decode."""
        llama_cpp.llama_set_embeddings(self._handle.context, is_taken)

    def add(self, position: int, count: int, before: int = 0) -> None:
        """Take rows as `TargetRows.add` does."""
        given = llama_cpp.llama_get_embeddings(self._handle.context)
        rows = np.ctypeslib.as_array(given, (before + count, self.width))
        self.put(position, rows[before:])
