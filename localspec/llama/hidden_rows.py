"""The rows of a target that a trained head reads: those of its latest tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from localspec.llama.handle import Handle
from localspec.llama.library import llama_cpp
from localspec.llama.options import NUM_KEPT_ROWS
from localspec.llama.quirks.nextn import require_nextn_functions

Rows = NDArray[np.float32]


class HiddenRows:
    """A ring of the last `capacity` rows of `width` float32 each, by position in the text.

    Those of first … end - 1 are there. A row is what the target has computed at a token that
    it has cached; what leaves the cache leaves here.
    """

    def __init__(self, width: int, capacity: int) -> None:
        self.first = self.end = 0
        self.width = width
        self.capacity = capacity
        self._ring: Rows = np.empty((capacity, width), dtype=np.float32)

    def put(self, position: int, *sides: Rows) -> None:
        """The rows of n tokens from a position on, which is not before the last.

        sides: what stands side by side in them, (n, a part of the width) each.
        """
        end = position + len(sides[0])
        self.first = max(self.first if position == self.end else position, end - self.capacity)
        count = min(len(sides[0]), self.capacity)
        for part, place in self._parts(end - count, count):
            begin = 0
            for rows in sides:
                columns = slice(begin, begin + rows.shape[1])
                self._ring[place, columns] = rows[-count:][part]
                begin = columns.stop
        self.end = end

    def copy_to(self, out: Rows, position: int) -> None:
        """Fill `out` (n, width) with the rows from a position on, all of which are there."""
        for part, place in self._parts(position, len(out)):
            out[part] = self._ring[place]

    def truncate(self, num_cached: int) -> None:
        """Forget those of tokens that are not cached any more."""
        self.end = min(self.end, num_cached)
        self.first = min(self.first, self.end)

    def go_on_at(self, position: int) -> None:
        """Forget all of them: the next one is of that position."""
        self.first = self.end = position

    def _parts(self, position: int, count: int) -> list[tuple[slice, slice]]:
        """Where rows from a position on are in a list of them, and where in the ring."""
        begin = position % self.capacity
        before_edge = min(count, self.capacity - begin)
        return [
            (slice(0, before_edge), slice(begin, begin + before_edge)),
            (slice(before_edge, count), slice(0, count - before_edge)),
        ]


class TargetRows(HiddenRows):
    """The rows of a context, taken over after each of its decodes.

    layers: those whose inputs stand side by side in a row; the number of all layers stands
    for what comes out of the last one, and so do none.
    """

    def __init__(self, handle: Handle, layers: tuple[int, ...]) -> None:
        model = handle.model
        self._last: int = llama_cpp.llama_model_n_layer(model)
        self._layers = layers or (self._last,)
        self._width_out: int = llama_cpp.llama_model_n_embd_out(model)
        self._width: int = llama_cpp.llama_model_n_embd(model)
        widths = [
            self._width_out if layer == self._last else self._width for layer in self._layers
        ]
        super().__init__(sum(widths), NUM_KEPT_ROWS)
        self._functions = require_nextn_functions(reads_layers=bool(layers))
        self._handle = handle
        self._is_taken: bool | None = False  # None while it is not known what libllama was told

    def begin_decode(self, _count: int, _num_logits: int, num_to_come: int) -> None:
        """Tell libllama whether to give the rows of a decode that num_to_come tokens follow.

        Those of a long prompt, but for its end, would leave again before a head can read them;
        to give them, or in case, libllama computes all of the last layer.
        """
        was_taken, self._is_taken = self._is_taken, None
        is_taken = num_to_come < self.capacity
        context = self._handle.context
        for layer in self._layers:
            if layer == self._last:
                is_masked = not is_taken  # to the rows of logits, of which there are few
                self._functions.set_embeddings_nextn(context, is_taken, is_masked)
            elif is_taken != was_taken:  # it plans all graphs anew
                self._functions.set_embeddings_layer_inp(context, layer, is_taken)
        self._is_taken = is_taken

    def add(self, position: int, count: int) -> None:
        """So many tokens from a position on were decoded."""
        if self._is_taken:
            self.put(position, *(self._given(layer, count) for layer in self._layers))

    def _given(self, layer: int, count: int) -> Rows:
        context = self._handle.context
        if layer == self._last:
            rows = self._functions.get_embeddings_nextn(context)
            return np.ctypeslib.as_array(rows, (count, self._width_out))
        rows = self._functions.get_embeddings_layer_inp(context, layer)
        return np.ctypeslib.as_array(rows, (count, self._width))


class OutputRows(HiddenRows):
    """What the output layer reads, if all tokens of a decode have logits.

    Asked for these rows, libllama computes the logits of every token of a decode: so those of
    a prompt cannot be had, and there are none before the first step behind it.
    """

    def __init__(self, handle: Handle) -> None:
        super().__init__(llama_cpp.llama_model_n_embd_out(handle.model), NUM_KEPT_ROWS)
        self._handle = handle
        self._is_taken = False

    def begin_decode(self, count: int, num_logits: int, _num_to_come: int) -> None:
        """Tell libllama whether to give the rows of a decode of count tokens."""
        self._is_taken = num_logits == count
        llama_cpp.llama_set_embeddings(self._handle.context, self._is_taken)

    def add(self, position: int, count: int) -> None:
        """So many tokens from a position on were decoded."""
        if self._is_taken:
            rows = llama_cpp.llama_get_embeddings(self._handle.context)
            self.put(position, np.ctypeslib.as_array(rows, (count, self.width)))
