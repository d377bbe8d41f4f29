"""A file with an EAGLE-3 head that drafts along with a target of `make_head_ends`.

The target's layers pass an embedding on as it is, and a phase is in each of them, of which the
sum is the same for all tokens: of that alone the encoder makes a row. So what the head says has
to come through its attention: the queries and keys are one vector, turned by its position, so
that an entry sees itself alone. Its value is the part of the token's embedding that gives its
followers, less that of the row, which is the head's own at tokens that it has drafted.
The feed-forward part adds nothing. All matrices have the sizes and types of a real head's.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray

from model_writer import ModelWriter, Stated
from shape_pair import blocks
from shape_pair.bigrams import PHASES, Bigrams
from shape_pair.shapes import Shape
from shape_pair.vocabulary import WordList, add_tokenizer
from shape_pair.weights import CHUNK, Ends, code_width, codes_of, shortest_vectors

Matrix = NDArray[np.float32]

_TURNED = 16  # pairs of each query that are turned fastest, and so tell places apart
_SHARPNESS = 24.0  # of a query's product with its own key: above that of others by twenty


class _Embedding(NamedTuple):
    """rows: (vocab, width), of one length: the followers' part, and a rest of these signs."""

    rows: Matrix
    signs: Matrix
    length: float


def write_eagle_head(
    path: Path, shape: Shape, quantization: str, words: WordList, bigrams: Bigrams, ends: Ends
) -> None:
    """ends: the target's. The head has an embedding of its own, and the target's output."""
    width = shape.width
    kind = blocks.exact_kind(quantization)
    code = code_width(width)
    output_kind = blocks.fitting(blocks.head_kind(quantization), width)
    embedding = _embedding(shape, bigrams, codes_of(ends.head, output_kind, code))
    phase = _phase_of(ends, code)
    row_length = phase * np.sqrt(width - code)
    mean_code = float((embedding.rows[:, :code] ** 2).sum(1).mean())
    norm = np.zeros(width, dtype=np.float32)
    norm[:code] = np.sqrt((row_length**2 + mean_code) / width)
    vectors = {
        "output_norm.weight": norm,
        # So that normed rows are what they were.
        "blk.0.attn_norm.weight": np.full(width, embedding.length / np.sqrt(width), np.float32),
        "blk.0.attn_norm_2.weight": np.full(width, row_length / np.sqrt(width), np.float32),
        "blk.0.ffn_norm.weight": np.ones(width, np.float32),
    }
    queries = _place_matrix(shape, shape.num_heads, code, embedding)
    keys = _place_matrix(shape, shape.num_kv_heads, code, embedding)
    matrices = {
        "fc": _encoder(width, code),
        "blk.0.attn_q": queries,
        "blk.0.attn_k": keys,
        "blk.0.attn_v": _values(shape, code),
        "blk.0.attn_output": _attention_output(shape, code),
        "blk.0.ffn_down": np.zeros((width, shape.hidden), np.float32),
    }
    writer = ModelWriter(path.with_name(path.name + ".part"), "eagle3")
    writer.add_name(path.stem)
    _add_header(writer, shape)
    add_tokenizer(writer, shape, words)
    writer.quantized("token_embd.weight", embedding.rows, Kind.Q8_0)
    for name, matrix in matrices.items():
        writer.quantized(f"{name}.weight", matrix, kind)
    random = blocks.RandomMatrices(1)
    for name in ("ffn_gate", "ffn_up"):
        layer_kind = blocks.fitting(blocks.QUANTIZATIONS[quantization][0], width)
        rows = random.matrix(layer_kind, shape.hidden, width)
        writer.add_tensor(f"blk.0.{name}.weight", rows, raw_dtype=layer_kind)
    for name, vector in vectors.items():
        writer.add_tensor(name, vector)
    writer.finish()
    path.with_name(path.name + ".part").replace(path)


def _add_header(writer: ModelWriter, shape: Shape) -> None:
    last = shape.num_layers
    writer.add_description("Real shape, invented text: for measuring speed only.")
    stated = Stated(
        context_length=shape.context_length,
        width=shape.width,
        num_layers=1,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        hidden=shape.hidden,
        head_width=shape.head_width,
        num_turned=shape.head_width,
        rope_base=1e6,
    )
    writer.describe(stated)
    # As llama.cpp's converter chooses them.
    writer.add_array("eagle3.target_layers", [min(2, last - 1), last // 2, max(last - 3, 1)])
    writer.add_uint32("eagle3.target_hidden_size", shape.width)


def _embedding(shape: Shape, bigrams: Bigrams, codes: Matrix) -> _Embedding:
    drafted = shortest_vectors(codes, bigrams.logits, bigrams.draft_followers)
    squares = np.einsum("ij,ij->i", drafted, drafted)
    length = float(np.sqrt(2.0 * squares.max()))
    num_rest = shape.width - drafted.shape[1]
    signs = np.resize(np.array([1.0, -1.0], dtype=np.float32), num_rest)
    rest = np.sqrt((length**2 - squares) / num_rest)
    return _Embedding(np.hstack([drafted, rest[:, None] * signs]), signs, length)


def _phase_of(ends: Ends, code: int) -> float:
    """The part of a target's embedding that holds its token's phase: the same for all."""
    row = gguf.quants.dequantize(ends.embedding[:CHUNK], Kind.Q8_0)
    phases = row[:, 2 * code : 2 * code + PHASES].sum(1)
    return float(phases.mean())


def _encoder(width: int, code: int) -> Matrix:
    """(width, 3 * width): a constant for all but the followers' part."""
    matrix = np.zeros((width, 3 * width), dtype=np.float32)
    matrix[code:, 2 * code : 2 * code + PHASES] = 1.0
    return matrix


def _place_matrix(shape: Shape, heads: int, code: int, embedding: _Embedding) -> Matrix:
    """Queries or keys, (heads * size, 2 * width): the same vector, whatever the token."""
    size = shape.head_width
    matrix = np.zeros((heads, size, 2 * shape.width), dtype=np.float32)
    # The rest of an embedding, summed up, is at least 0.7 of this.
    total = embedding.length * np.sqrt(shape.width - code)
    number = np.sqrt(_SHARPNESS * np.sqrt(size)) / total
    matrix[:, 0 : 2 * _TURNED : 2, code : shape.width] = number * embedding.signs
    return matrix.reshape(heads * size, -1)


def _values(shape: Shape, code: int) -> Matrix:
    """(kv heads * size, 2 * width): the token's followers' part, less the row's."""
    matrix = np.zeros((shape.num_kv_heads * shape.head_width, 2 * shape.width), np.float32)
    places = np.arange(code)
    matrix[places, places] = 1.0
    matrix[places, shape.width + places] = -1.0
    return matrix


def _attention_output(shape: Shape, code: int) -> Matrix:
    """(width, heads * size): of each group of queries the first one's value."""
    size = shape.head_width
    group = shape.num_heads // shape.num_kv_heads
    matrix = np.zeros((shape.width, shape.num_heads * size), dtype=np.float32)
    places = np.arange(code)
    matrix[places, places // size * group * size + places % size] = 1.0
    return matrix
