"""Embedding and output matrix that give each token the followers it should have.

The output's rows are random codes. An embedding is the shortest vector whose products with the
codes of its followers are the logits they should have; its products with all other codes are
small, as codes of hundreds of random numbers are nearly at right angles. The rest of the
embedding keeps all vectors at one length, so that the last norm scales them alike, and is
then hidden from the output by zeros in that norm's weights.

With a head an embedding has four parts: the vector that gives the followers, the one that gives
the head's, the token's phase, and a rest that keeps all embeddings at one length. The output
matrix is zero for all but the first part. So a row before it is the embedding, scaled, and the
head, too, would say what the target says, but that its matrix exchanges the first two parts. It
also subtracts the phase that should follow the row's from the token's own. While the row is
that of the token before, or the head's own in its place, nothing is left of it. Any other row
turns the head's words into noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray

from shape_pair import blocks
from shape_pair.bigrams import PHASES, Bigrams, TokenIds
from shape_pair.shapes import Shape

MAX_CODE = 768  # numbers; more would not make the other logits smaller by much
CHUNK = 2048  # tokens worked on at once
_BLOCK = 32  # weights that share a scale; each part begins with such a block
_PHASE_SHARE = 0.25  # of an embedding's length
_STEP = 0.125  # of the numbers that turn a wrong phase into noise: -7 to 7 steps


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


def code_width(width: int) -> int:
    """Numbers of each of the first two parts: whole blocks of every output matrix."""
    return min(MAX_CODE, (width // 2 - _BLOCK) // 256 * 256)


def make_head_ends(
    seed: int, output_kind: Kind, shape: Shape, bigrams: Bigrams, *, with_head: bool
) -> Ends:
    """Embedding, norm and output matrix; without a head its part of the embedding is zero."""
    random = np.random.default_rng(seed)
    width = shape.width
    vocab = shape.vocab_size
    code = code_width(shape.width)
    output = blocks.random_rows(random, output_kind, vocab, width)
    output[:, blocks.row_bytes(output_kind, code) :] = 0
    codes = codes_of(output, output_kind, code)

    def vectors(followers: Callable[[TokenIds], TokenIds]) -> NDArray[np.float32]:
        return shortest_vectors(codes, bigrams.logits, followers)

    told = vectors(bigrams.target_followers)
    drafted = vectors(bigrams.draft_followers) if with_head else np.zeros_like(told)
    squares = np.einsum("ij,ij->i", told, told) + np.einsum("ij,ij->i", drafted, drafted)
    length = np.sqrt(2.0 * squares.max())
    phase = np.zeros((vocab, _BLOCK), dtype=np.float32)
    phase[np.arange(vocab), bigrams.phases] = _PHASE_SHARE * length
    num_rest = width - 2 * code - _BLOCK
    signs = random.choice(np.array([-1.0, 1.0], dtype=np.float32), num_rest)
    rest = np.sqrt(((1 - _PHASE_SHARE**2) * length**2 - squares) / num_rest)
    embedding = np.empty((vocab, blocks.row_bytes(Kind.Q8_0, width)), dtype=np.uint8)
    for begin in range(0, vocab, CHUNK):
        part = slice(begin, begin + CHUNK)
        rows = np.hstack([told[part], drafted[part], phase[part], rest[part, None] * signs])
        embedding[part] = gguf.quants.quantize(rows, Kind.Q8_0)
    return Ends(embedding, np.full(width, length / np.sqrt(width), np.float32), output)


def reading_matrix(seed: int, width: int, kind: Kind) -> blocks.Blocks:
    """`eh_proj`, of token and row side by side: (width, row_bytes of 2 * width)."""
    code = code_width(width)
    matrix = np.zeros((width, 2 * width), dtype=np.float32)
    source = np.arange(width)
    source[: 2 * code] = np.roll(source[: 2 * code], code)
    matrix[np.arange(width), source] = 1.0
    noise = np.random.default_rng(seed).integers(-7, 8, (code, PHASES)) * _STEP
    for begin, values in ((2 * code, noise), (width + 2 * code, -np.roll(noise, -1, axis=1))):
        matrix[:code, begin : begin + PHASES] = values
        # The largest number of a block says its scale; here no token or row has anything.
        matrix[:code, begin + _BLOCK - 1] = -8 * _STEP
    return gguf.quants.quantize(matrix, kind)
