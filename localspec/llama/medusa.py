"""Medusa heads, computed here from the inputs of their target's output layer.

Cai et al., Medusa (arXiv 2401.10774), section 2.1; the heads are frozen beside the target
(Medusa-1), and what they propose is verified by the loop's rules, not by "typical acceptance",
which changes the distribution.
"""

from __future__ import annotations

import copy
from math import prod

import numpy as np
from numpy.typing import NDArray

from localspec.gguf_file.content import FileStates
from localspec.gguf_file.header import Header, Tensor
from localspec.gguf_file.medusa import medusa_tensors
from localspec.gguf_file.own_tokens import own_tokens
from localspec.gguf_file.tensor_types import BF16, F16, F32, INT64
from localspec.llama.hidden_rows import HiddenRows, products
from localspec.llama.joint import Computing
from localspec.llama.lane_time import LaneTime
from localspec.llama.model import LlamaModel
from localspec.sampling.distribution import Logits

_TYPES = {F32: "<f4", F16: "<f2", BF16: "<u2", INT64: "<i8"}


class MedusaHeads:
    """The heads of one target. Implements `speculative.medusa.RowHeads`.

    They have no cache: each reads the row of one token and nothing else. name: of the file.
    num_weight_bytes: read to draft one token.
    """

    def __init__(self, header: Header, target: LlamaModel) -> None:
        self.name = header.path.name
        self.content: str | None = None  # of the file, in words; None if nobody knows
        self.mapped: FileStates = {}  # it is copied
        self._target = target
        self.num_sequences = target.num_sequences
        self._weights = _Weights(header)
        self._rows: HiddenRows = target.keep_output_rows()
        self._row = np.empty(self._rows.width, dtype=np.float32)
        self._logits: Logits = np.full(target.vocab_size, -np.inf, dtype=np.float32)
        self.num_heads = len(self._weights.heads)
        self.num_threads = 1  # every model has a number
        self.num_weight_bytes = self._weights.num_bytes // self.num_heads

    @property
    def identity(self) -> str | None:
        return self.content

    @property
    def rows_at(self) -> range:
        return range(self._rows.first, self._rows.end)

    def logits(self, head: int, position: int) -> Logits:
        self.require_open()
        self._rows.copy_to(self._row[np.newaxis], position)
        row = self._row
        residuals, output = self._weights.heads[head]
        for weight, bias in residuals:
            inner = products(weight, row) + bias
            row = row + inner / (1.0 + np.exp(-inner))
        if self._weights.tokens is None:
            products(output, row, out=self._logits)
        else:
            self._logits[:] = -np.inf  # a view that may have been written to
            self._logits[self._weights.tokens] = products(output, row)
        return self._logits

    def share(self, _computing: Computing, _lane: LaneTime) -> None:
        """Nothing to do: NumPy computes, from rows that are its own."""

    def beside(self, _number: int, target: LlamaModel) -> MedusaHeads:
        """The same heads beside the target at another sequence."""
        other = copy.copy(self)
        other._target, other._rows = target, target.kept_rows
        other._row, other._logits = self._row.copy(), self._logits.copy()
        return other

    def copied(self) -> HiddenRows:
        """The rows that it reads on with. From any thread."""
        with self._target._alone(lane=LaneTime()):
            return self._rows.copied()

    def take_over(self, other: HiddenRows, num_cached: int) -> None:
        """As that of `LlamaHead`."""
        self._rows.take_over(other, num_cached)

    def require_open(self) -> None:
        """Raise EngineError if its target was closed, or this is a fork."""
        self._target.require_open()

    def begin(self) -> None:
        """Nothing to do: the target allows its decodes again."""

    def interrupt(self) -> None:
        """Nothing to do: computing a row takes milliseconds."""

    def close(self) -> None:
        """Nothing to do: NumPy frees the arrays."""


class _Weights:
    """Those of all heads, as float32. tokens: the id of each row of outputs; None if all."""

    def __init__(self, header: Header) -> None:
        data = np.memmap(header.path, dtype=np.uint8, mode="r")
        width = header.number("medusa.embedding_length")
        no_bias = np.zeros(width, dtype=np.float32)
        shared: dict[str, NDArray[np.float32]] = {}

        def floats(tensor: Tensor | None) -> NDArray[np.float32]:
            if tensor is None:
                return no_bias
            if tensor.name not in shared:
                shared[tensor.name] = _floats(data, tensor)
            return shared[tensor.name]

        self.heads = [
            ([(floats(weight), floats(bias)) for weight, bias in residuals], floats(output))
            for residuals, output in medusa_tensors(header)
        ]
        self.num_bytes = sum(array.nbytes for array in shared.values())
        known = own_tokens(header)
        self.tokens = None if known is None else _values(data, known)


def _values(data: NDArray[np.uint8], tensor: Tensor) -> NDArray[np.generic]:
    """A copy in NumPy's order: (rows, columns)."""
    kind = np.dtype(_TYPES[tensor.kind])
    end = tensor.offset + prod(tensor.shape) * kind.itemsize
    return data[tensor.offset : end].copy().view(kind).reshape(tensor.shape[::-1])


def _floats(data: NDArray[np.uint8], tensor: Tensor) -> NDArray[np.float32]:
    values = _values(data, tensor)
    if tensor.kind == BF16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32, copy=False)
