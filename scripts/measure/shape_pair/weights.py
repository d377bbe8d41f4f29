"""Embedding and head that give each token the followers it should have.

The head's rows are random codes. An embedding is the shortest vector whose products with the
codes of its followers are the logits they should have; its products with all other codes are
small, as codes of hundreds of random numbers are nearly at right angles. The rest of the
embedding keeps all vectors at one length, so that the last norm scales them alike, and is
then hidden from the head by zeros in that norm's weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray

from shape_pair import blocks
from shape_pair.bigrams import TokenIds

MAX_CODE = 768  # numbers; more would not make the other logits smaller by much
CHUNK = 2048  # tokens worked on at once


@dataclass(frozen=True)
class Ends:
    """The weights at both ends of the layers. embedding and head are rows of blocks."""

    embedding: blocks.Blocks  # of kind Q8_0: one row is read per token, whatever its size
    output_norm: NDArray[np.float32]  # (width,)
    head: blocks.Blocks


def make_ends(
    seed: int,
    head_kind: Kind,
    width: int,
    vocab_size: int,
    logits: NDArray[np.float64],
    followers: Callable[[TokenIds], TokenIds],
) -> Ends:
    """Embedding, norm and head by which followers(t)[i] has logits[i] after token t.

    logits: (m,). followers: (n,) ids → (n, m) ids.
    """
    random = np.random.default_rng(seed)
    head = blocks.random_rows(random, head_kind, vocab_size, width)
    code = min(MAX_CODE, width * 3 // 4)
    wanted = shortest_vectors(codes_of(head, head_kind, code), logits, followers)
    squares = np.einsum("ij,ij->i", wanted, wanted)
    length = np.sqrt(2.0 * squares.max())
    signs = random.choice(np.array([-1.0, 1.0], dtype=np.float32), width - code)
    rest = np.sqrt((length**2 - squares) / (width - code))
    embedding = np.empty((vocab_size, blocks.row_bytes(Kind.Q8_0, width)), dtype=np.uint8)
    for begin in range(0, vocab_size, CHUNK):
        part = slice(begin, begin + CHUNK)
        rows = np.hstack([wanted[part], rest[part, None] * signs])
        embedding[part] = gguf.quants.quantize(rows, Kind.Q8_0)
    norm = np.zeros(width, dtype=np.float32)
    norm[:code] = length / np.sqrt(width)
    return Ends(embedding, norm, head)


def shortest_vectors(
    codes: NDArray[np.float32],
    logits: NDArray[np.float64],
    followers: Callable[[TokenIds], TokenIds],
) -> NDArray[np.float32]:
    """For each token the shortest vector by which its followers have these logits.

    codes: (vocab, code). logits: (m,). followers: (n,) ids → (n, m) ids. (vocab, code).
    """
    wanted = np.empty_like(codes)
    for begin in range(0, len(codes), CHUNK):
        ids = np.arange(begin, min(begin + CHUNK, len(codes)))
        theirs = codes[followers(ids)]  # (n, m, code)
        gram = (theirs @ theirs.transpose(0, 2, 1)).astype(np.float64)
        mix = np.linalg.solve(
            gram, np.broadcast_to(logits[:, None], (len(ids), len(logits), 1))
        )
        wanted[ids] = (mix.transpose(0, 2, 1).astype(np.float32) @ theirs)[:, 0]
    return wanted


def codes_of(head: blocks.Blocks, kind: Kind, code: int) -> NDArray[np.float32]:
    """The first `code` weights of each row of the head: (vocab, code)."""
    values, size = gguf.GGML_QUANT_SIZES[kind]
    num_bytes = -(-code // values) * size
    codes = np.empty((len(head), code), dtype=np.float32)
    for begin in range(0, len(head), CHUNK):
        part = np.ascontiguousarray(head[begin : begin + CHUNK, :num_bytes])
        codes[begin : begin + CHUNK] = gguf.quants.dequantize(part, kind)[:, :code]
    return codes
