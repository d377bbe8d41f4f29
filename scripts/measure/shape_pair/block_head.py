"""A file with a DSpark head (DFlash with a Markov head) for a target of `make_head_ends`.

Its layers pass on what they are given, and its last norm leaves nothing of that to the output
layer. So what a place says comes from the Markov head alone, which gives the followers of the
token before: of the text's last one, then of the likeliest of each place. All matrices have the
sizes and types of a real head's.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Kind

from model_writer import ModelWriter, Stated
from shape_pair import blocks
from shape_pair.bigrams import Bigrams
from shape_pair.shapes import Shape
from shape_pair.vocabulary import WordList, add_tokenizer
from shape_pair.weights import Ends, code_width, codes_of, shortest_vectors

_NUM_LAYERS = 5  # as of the published heads, and as many of the target's are read
_BLOCK_SIZE = 16


def write_block_head(
    path: Path, shape: Shape, quantization: str, words: WordList, bigrams: Bigrams, ends: Ends
) -> None:
    """ends: the target's, whose table and output the head shares."""
    width = shape.width
    code = code_width(shape.width)
    codes = codes_of(ends.head, blocks.fitting(blocks.head_kind(quantization), width), code)
    writer = ModelWriter(path.with_name(path.name + ".part"), "dflash")
    writer.add_name(path.stem)
    _add_header(writer, shape)
    add_tokenizer(writer, shape, words)
    followers = shortest_vectors(codes, bigrams.logits, bigrams.draft_followers)
    writer.quantized("markov_w1.weight", followers, Kind.Q8_0)
    writer.quantized("markov_w2.weight", codes, Kind.Q8_0)
    random = blocks.RandomMatrices(1)
    kind = blocks.fitting(blocks.QUANTIZATIONS[quantization][0], width)

    def add_random(name: str, *sizes: int) -> None:
        matrix = random.matrix(blocks.fitting(kind, sizes[1]), *sizes)
        writer.add_tensor(f"{name}.weight", matrix, raw_dtype=blocks.fitting(kind, sizes[1]))

    add_random("fc", width, len(_layers_read(shape)) * width)
    norm = np.ones(width, dtype=np.float32)
    norm[:code] = 0.0
    writer.add_tensor("output_norm.weight", norm)
    writer.add_tensor("enc.output_norm.weight", np.ones(width, dtype=np.float32))
    queries = shape.num_heads * shape.head_width
    keys = shape.num_kv_heads * shape.head_width
    for layer in range(_NUM_LAYERS):
        block = f"blk.{layer}"
        for name, size in (
            ("attn_norm", width),
            ("ffn_norm", width),
            ("attn_q_norm", shape.head_width),
            ("attn_k_norm", shape.head_width),
        ):
            writer.add_tensor(f"{block}.{name}.weight", np.ones(size, dtype=np.float32))
        add_random(f"{block}.attn_q", queries, width)
        add_random(f"{block}.attn_k", keys, width)
        add_random(f"{block}.attn_v", keys, width)
        add_random(f"{block}.ffn_gate", shape.hidden, width)
        add_random(f"{block}.ffn_up", shape.hidden, width)
        for name, size in (("attn_output", queries), ("ffn_down", shape.hidden)):
            zeros = np.zeros((width, size), dtype=np.float32)
            writer.quantized(f"{block}.{name}.weight", zeros, blocks.fitting(kind, size))
    writer.finish()
    path.with_name(path.name + ".part").replace(path)


def _layers_read(shape: Shape) -> list[int]:
    """Spread over the target, as the published heads have them."""
    places = np.linspace(1, max(shape.num_layers - 3, 1), _NUM_LAYERS)
    return [int(place) for place in places]


def _add_header(writer: ModelWriter, shape: Shape) -> None:
    writer.add_description("Real shape, invented text: for measuring speed only.")
    stated = Stated(
        context_length=shape.context_length,
        width=shape.width,
        num_layers=_NUM_LAYERS,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        hidden=shape.hidden,
        head_width=shape.head_width,
        num_turned=shape.head_width,
        rope_base=1e6,
    )
    writer.describe(stated)
    writer.add_mask_token_id(shape.vocab_size - 1)
    writer.add_array("dflash.target_layers", _layers_read(shape))
    writer.add_uint32("dflash.block_size", _BLOCK_SIZE)
    writer.add_causal_attention(value=False)
    writer.add_bool("dflash.sample_from_anchor", val=True)
