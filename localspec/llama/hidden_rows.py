"""The hidden rows of a target's latest tokens, which a trained head reads.

A hidden row is what the target computes for a token inside the network: the input of its output
layer, or the inputs of some of its layers side by side.
"""

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

# In pauses longer than this number of tokens the target gives no rows. Rows take 10 % of a
# token's time on a GPU, but libllama plans its graphs again whenever they are turned on or off.
_LONG_PAUSE = 64
_LEAST_READ = 32  # before a head proposes again, it gets the rows of this number of tokens

Rows = NDArray[np.float32]


def products(matrix: Rows, rows: Rows, out: Rows | None = None) -> Rows:
    """The dot product of each row with each row of a matrix.

    Computed by NumPy without BLAS: the threads of BLAS spin while they wait for more work, on
    the processors that libllama's next decode needs, which then took up to a third longer.

    Args:
        matrix: (n, width).
        rows: (…, width).
        out: An array for the result; a new one if None.

    Returns:
        (…, n).
    """
    result: Rows = np.einsum(
        "vw,...w->...v",
        matrix,
        rows,
        out=out,
    )
    return result


class HiddenRows:
    """The hidden rows of a text's latest tokens, in a ring buffer.

    It has the rows of the tokens at positions `first` to `end` - 1. All of these tokens are in
    the target's cache: when the cache is cut, the rows are cut with `truncate`.

    Args:
        width: The float32 numbers of a row.
        capacity: The most rows; older ones are overwritten.
    """

    is_wanted = True
    """Whether the target has to give rows: False in a long pause of the head."""

    def __init__(self, width: int, capacity: int) -> None:
        self.first = 0
        self.end = 0
        self.width = width
        self.capacity = capacity
        self._ring: Rows = np.empty((capacity, width), dtype=np.float32)

    def pause(self, num_tokens: int) -> None:
        """Stop taking rows at the start of a long pause of the head, and resume near its end.

        Args:
            num_tokens: Tokens until the head proposes again; 0 resumes at once.
        """
        if num_tokens > _LONG_PAUSE:
            self.is_wanted = False
        elif num_tokens <= _LEAST_READ:
            self.is_wanted = True

    def sibling(self) -> Self:
        """An empty ring for another sequence of the same context."""
        other = copy.copy(self)
        other.first = 0
        other.end = 0
        other._ring = np.empty_like(self._ring)
        return other

    def copy_rows(self) -> Self:
        """A copy of the present rows."""
        other = copy.copy(self)
        other._ring = self._ring.copy()
        return other

    def restore_copy(self, other: HiddenRows, num_cached: int) -> None:
        """Replace all rows by a copy of another ring's, for a text of num_cached tokens.

        Only rows of these tokens are taken. If the last of them has no row, the ring is empty,
        and continues with the next token's row.
        """
        self.first = other.first
        self.end = other.end
        self._ring = other._ring.copy()
        self.truncate(num_cached)
        if self.end < num_cached:
            self.resume_at(num_cached)

    def put(self, position: int, *sides: Rows) -> None:
        """Add the rows of n tokens.

        If they do not follow the last row, all earlier rows are forgotten.

        Args:
            position: The position of the first token; at least `end`.
            sides: Arrays that make up the rows side by side, each (n, a part of the width).
        """
        num_tokens = len(sides[0])
        end = position + num_tokens
        if position != self.end:
            self.first = position
        self.first = max(self.first, end - self.capacity)
        count = min(num_tokens, self.capacity)
        for part, in_ring in self._slices(end - count, count):
            begin = 0
            for side in sides:
                columns = slice(begin, begin + side.shape[1])
                latest = side[-count:]
                self._ring[in_ring, columns] = latest[part]
                begin = columns.stop
        self.end = end

    def copy_to(self, out: Rows, position: int) -> None:
        """Fill `out` (n, width) with the rows from a position on; the ring has all of them."""
        for part, in_ring in self._slices(position, len(out)):
            out[part] = self._ring[in_ring]

    def truncate(self, num_cached: int) -> None:
        """Keep the rows of the text's first num_cached tokens only."""
        self.end = min(self.end, num_cached)
        self.first = min(self.first, self.end)

    def resume_at(self, position: int) -> None:
        """Forget all rows; the next row has that position."""
        self.first = position
        self.end = position

    def _slices(self, position: int, count: int) -> list[tuple[slice, slice]]:
        """Where `count` rows from a position on lie in the ring, which may wrap around.

        Returns:
            The rows before the ring's edge and those after it, either of which may be none.
            Each as a slice of the `count` rows, and the slice of the ring that has them.
        """
        begin = position % self.capacity
        before_edge = min(count, self.capacity - begin)
        return [
            (slice(0, before_edge), slice(begin, begin + before_edge)),
            (slice(before_edge, count), slice(0, count - before_edge)),
        ]


class TargetRows(HiddenRows):
    """A target's hidden rows, taken from libllama after each decode.

    Args:
        handle: The target's context.
        layers: The layers whose inputs make up a row, side by side. The number of all layers
            stands for the output of the last layer, and so does an empty tuple.
    """

    def __init__(self, handle: Handle, layers: tuple[int, ...]) -> None:
        model = handle.model
        self._num_layers: int = llama_cpp.llama_model_n_layer(model)
        self._layers = layers or (self._num_layers,)
        self._output_width: int = llama_cpp.llama_model_n_embd_out(model)
        self._input_width: int = llama_cpp.llama_model_n_embd(model)
        width = 0
        for layer in self._layers:
            if layer == self._num_layers:
                width += self._output_width
            else:
                width += self._input_width
        super().__init__(width, NUM_KEPT_ROWS)
        self._functions = require_nextn_functions(reads_layers=bool(layers))
        self._handle = handle
        # What `set_output` has set; None while it is unknown. A list with one entry, since the
        # setting is the context's, and `sibling` copies the reference to the list.
        self._is_output_on: list[bool | None] = [False]

    def wants(self, _count: int, _num_logits: int, num_to_come: int) -> bool:
        """Whether to take the rows of a decode.

        Not those of a long prompt, except at its end: they would leave the ring before a head
        reads them, and libllama would compute the whole last layer for them.

        Args:
            _count: Unused, as is _num_logits: see `OutputRows.wants`.
            _num_logits: Unused.
            num_to_come: Tokens of the text that are to be decoded right after it.
        """
        return self.is_wanted and num_to_come < self.capacity

    def set_output(self, *, is_on: bool) -> None:
        """Set whether libllama gives the rows of the next decode."""
        was_on = self._is_output_on[0]
        self._is_output_on[0] = None
        context = self._handle.context
        for layer in self._layers:
            if layer == self._num_layers:
                is_masked = not is_on  # then only the few rows with logits are computed
                self._functions.set_embeddings_nextn(context, is_on, is_masked)
            elif is_on != was_on:  # a change makes libllama plan all graphs again
                self._functions.set_embeddings_layer_inp(context, layer, is_on)
        self._is_output_on[0] = is_on

    def add(self, position: int, count: int, before: int = 0) -> None:
        """Copy the rows of a text's tokens from the last decode into the ring.

        Args:
            position: The position of the first token in its text.
            count: The number of tokens.
            before: Tokens of other texts that come before them in that decode.
        """
        sides = [self._layer_rows(layer, before + count)[before:] for layer in self._layers]
        self.put(position, *sides)

    def _layer_rows(self, layer: int, count: int) -> Rows:
        """(count, width) a layer's first rows of the last decode: a view until the next."""
        context = self._handle.context
        if layer == self._num_layers:
            rows = self._functions.get_embeddings_nextn(context)
            return np.ctypeslib.as_array(rows, (count, self._output_width))
        rows = self._functions.get_embeddings_layer_inp(context, layer)
        return np.ctypeslib.as_array(rows, (count, self._input_width))


class OutputRows(HiddenRows):
    """Hidden rows that are the inputs of the output layer, for Medusa's heads.

    With these rows libllama computes the logits of every token of a decode, which is slow. So
    only decodes that need all logits anyway give rows: steps, but not prompts.
    """

    def __init__(self, handle: Handle) -> None:
        super().__init__(llama_cpp.llama_model_n_embd_out(handle.model), NUM_KEPT_ROWS)
        self._handle = handle

    def wants(self, count: int, num_logits: int, _num_to_come: int) -> bool:
        """Whether to take the rows of a decode: only if all its tokens have logits.

        Args:
            count: The tokens of the decode.
            num_logits: Those whose logits it returns.
            _num_to_come: Unused: see `TargetRows.wants`.
        """
        return self.is_wanted and num_logits == count

    def set_output(self, *, is_on: bool) -> None:
        """Set whether libllama gives the rows of the next decode."""
        llama_cpp.llama_set_embeddings(self._handle.context, is_on)

    def add(self, position: int, count: int, before: int = 0) -> None:
        """Copy rows of the last decode into the ring, as `TargetRows.add` does."""
        pointer = llama_cpp.llama_get_embeddings(self._handle.context)
        rows = np.ctypeslib.as_array(pointer, (before + count, self.width))
        self.put(position, rows[before:])
