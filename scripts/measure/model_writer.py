"""Writes a GGUF model: what its header says of its shape, and its tensors.

The pairs that are measured, and the models that tests make, state theirs by it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Stated:
    """The numbers of a transformer. None: this model states it in another way, or not at all.

    hidden: of the feed-forward part. num_turned: numbers of a head that its position turns.
    """

    context_length: int
    width: int
    num_layers: int
    num_heads: int
    num_kv_heads: int | None = None
    hidden: int | None = None
    head_width: int | None = None
    num_turned: int | None = None
    rope_base: float | None = None
    epsilon: float = 1e-6


class ModelWriter(gguf.GGUFWriter):
    """A file that is written whole by `finish`, or in which `announce` leaves room."""

    def describe(self, stated: Stated) -> None:
        """Add it to the header."""
        self.add_context_length(stated.context_length)
        self.add_embedding_length(stated.width)
        self.add_block_count(stated.num_layers)
        self.add_head_count(stated.num_heads)
        self.add_layer_norm_rms_eps(stated.epsilon)
        for add, value in (
            (self.add_head_count_kv, stated.num_kv_heads),
            (self.add_feed_forward_length, stated.hidden),
            (self.add_key_length, stated.head_width),
            (self.add_value_length, stated.head_width),
            (self.add_rope_dimension_count, stated.num_turned),
            (self.add_rope_freq_base, stated.rope_base),
        ):
            if value is not None:
                add(value)

    def quantized(self, name: str, values: NDArray[np.float32], kind: Kind) -> None:
        """Add a matrix: (rows, columns) or more."""
        self.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    def announce(self, name: str, kind: Kind, shape: tuple[int, ...]) -> int:
        """State a tensor whose numbers come later; the bytes that it takes."""
        if kind is Kind.F32:
            stored = shape
            dtype = np.dtype(np.float32)
        else:
            values, size = gguf.GGML_QUANT_SIZES[kind]
            stored = (*shape[:-1], shape[-1] // values * size)
            dtype = np.dtype(np.uint8)
        num_bytes = math.prod(stored) * dtype.itemsize
        self.add_tensor_info(name, stored, dtype, num_bytes, kind)
        return num_bytes

    def finish_header(self) -> None:
        """Write everything in front of the tensors' numbers."""
        self.write_header_to_file()
        self.write_kv_data_to_file()
        self.write_ti_data_to_file()

    def finish(self) -> None:
        """Write the file."""
        self.write_header_to_file()
        self.write_kv_data_to_file()
        self.write_tensors_to_file()
        self.close()
