"""Rows of quantised weights made of random bytes, in llama.cpp's block formats."""

from __future__ import annotations

import numpy as np
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Kind
from gguf import LlamaFileType as FileType
from numpy.typing import NDArray

Blocks = NDArray[np.uint8]

# Where a block keeps its half-precision numbers, and values for them that give weights of
# about 0.1. All other bytes may be anything.
_NUMBERS: dict[Kind, dict[int, float]] = {
    Kind.Q4_0: {0: 2e-2},
    Kind.Q5_0: {0: 1e-2},
    Kind.Q5_1: {0: 1e-2, 2: -0.155},
    Kind.Q8_0: {0: 1.4e-3},
    Kind.Q4_K: {0: 4e-4, 2: 3e-3},
    Kind.Q5_K: {0: 2e-4, 2: 3.1e-3},
    Kind.Q6_K: {208: 8e-5},
}
# The types that llama.cpp uses for rows that do not divide into blocks of 256.
_SMALLER_BLOCKS = {Kind.Q4_K: Kind.Q5_0, Kind.Q5_K: Kind.Q5_1, Kind.Q6_K: Kind.Q8_0}

QUANTIZATIONS = {
    "Q4_0": (Kind.Q4_0, FileType.MOSTLY_Q4_0),
    "Q5_0": (Kind.Q5_0, FileType.MOSTLY_Q5_0),
    "Q8_0": (Kind.Q8_0, FileType.MOSTLY_Q8_0),
    "Q4_K": (Kind.Q4_K, FileType.MOSTLY_Q4_K_S),
    "Q4_K_M": (Kind.Q4_K, FileType.MOSTLY_Q4_K_M),
    "Q5_K": (Kind.Q5_K, FileType.MOSTLY_Q5_K_S),
    "Q6_K": (Kind.Q6_K, FileType.MOSTLY_Q6_K),
}


def fitting(kind: Kind, columns: int) -> Kind:
    """The kind itself, or what llama.cpp stores rows of this length in instead."""
    if columns % GGML_QUANT_SIZES[kind][0] == 0:
        return kind
    return _SMALLER_BLOCKS[kind]


def layer_kind(quantization: str, matrix: str, layer: int, num_layers: int) -> Kind:
    """The type in which llama-quantize stores a layer's matrix; a plain name has only one.

    Q4_K_M gives half of attn_v and ffn_down more bits: the first and the last eighth of the
    layers, and every third one between them.
    """
    eighth = num_layers // 8
    sensitive = matrix in ("attn_v", "ffn_down") and (
        layer < eighth or layer >= 7 * num_layers // 8 or (layer - eighth) % 3 == 2
    )
    if quantization == "Q4_K_M" and sensitive:
        return Kind.Q6_K
    return QUANTIZATIONS[quantization][0]


def head_kind(quantization: str) -> Kind:
    """The type in which llama-quantize stores the output matrix."""
    if quantization == "Q8_0":
        return Kind.Q8_0
    return Kind.Q6_K


def exact_kind(quantization: str) -> Kind:
    """The type of a layer's matrix of few, simple numbers: the usual one if gguf writes it."""
    kind = QUANTIZATIONS[quantization][0]
    if kind in (Kind.Q4_0, Kind.Q5_0):
        return kind
    return Kind.Q8_0


def row_bytes(kind: Kind, columns: int) -> int:
    """Bytes of a row of `columns` weights."""
    values, size = GGML_QUANT_SIZES[kind]
    return columns // values * size


def random_rows(random: np.random.Generator, kind: Kind, rows: int, columns: int) -> Blocks:
    """Weights around 0 of about 0.1: (rows, row_bytes) uint8."""
    values, size = GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (rows * columns // values, size), dtype=np.uint8)
    for offset, number in _NUMBERS[kind].items():
        blocks[:, offset : offset + 2] = np.array([number], "<f2").view(np.uint8)
    return blocks.reshape(rows, -1)


class RandomMatrices:
    """Matrices of one seed, cut from the same few megabytes: quick, and as good for timing."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._stock: dict[Kind, Blocks] = {}

    def matrix(self, kind: Kind, rows: int, columns: int) -> Blocks:
        """Random weights: (rows, row_bytes) uint8."""
        if kind not in self._stock:
            self._stock[kind] = random_rows(self._random, kind, 1 << 15, 256).reshape(-1)
        size = rows * row_bytes(kind, columns)
        return np.resize(self._stock[kind], size).reshape(rows, -1)
