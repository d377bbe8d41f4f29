"""Writes small GGUF files of DFlash heads, for the models that `head_maker` makes.

Keys and tensors as libllama's loader asks for them (src/models/dflash.cpp).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np
from head_maker import LAYERS_READ
from hybrid_maker import HEAD, HIDDEN, WIDTH, Weights, write_common
from numpy.typing import NDArray

from model_writer import ModelWriter

Matrix = NDArray[np.float64]
BLOCK_SIZE, MASK = 8, 4000  # tokens at once, and the token of a mask
NUM_CANDIDATES = 4  # of a place of DFlash2
_NUM_LAYERS = 2


class BlockHead(NamedTuple):
    """A head to be made.

    kind: dflash, dspark or dflash2. num_known: tokens that it knows, with a table and an output
    of its own; 0 is all, with its target's. window: of its first layer; 0 is none. is_mrope:
    its positions have several parts. from_anchor: the first row of a block drafts (DSpark).
    is_causal: a place sees those before it only.
    mask: the token of its masks.
    """

    kind: str = "dflash"
    num_known: int = 0
    window: int = 0
    is_mrope: bool = False
    from_anchor: bool = True
    is_causal: bool = False
    mask: int = MASK


def write_block_head(path: Path, target: Path, made: BlockHead, *, seed: int = 0) -> Path:
    """A head of two layers for a made target.

    Behind most tokens that a text comes back to, its masks attend to the last token alone, so
    the first place is right; behind others they attend to what the head has read.
    """
    writer = ModelWriter(path, "dflash")
    tokens = write_common(writer, target, _NUM_LAYERS)
    _write_keys(writer, made)
    weights = Weights(writer, seed)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(target).tensors}
    table, output = (
        tensors[f"{name}.weight"].data.astype(np.float64) for name in ("token_embd", "output")
    )
    if made.num_known:
        known = np.sort(np.random.default_rng(2).permutation(tokens)[: made.num_known])
        writer.add_tensor("d2t", known.astype(np.int64))
        weights.add("token_embd.weight", table)
        seen, output = _seen_by_masks(table, output, made.mask), output[known]
        weights.add("output.weight", output)
    else:
        seen = _seen_by_masks(table, output, made.mask)
    fused = np.random.default_rng(seed).standard_normal((WIDTH, len(LAYERS_READ) * WIDTH))
    weights.add("fc.weight", fused - np.outer(seen, seen @ fused))
    weights.constant("enc.output_norm.weight", WIDTH)
    weights.constant("output_norm.weight", WIDTH)
    for layer in range(_NUM_LAYERS):
        _layer(weights, f"blk.{layer}")
    _attends_to_last(weights, "blk.0", table[made.mask], seen)
    _attends(weights, "blk.1")
    if made.kind == "dspark":
        writer.add_bool("dflash.sample_from_anchor", made.from_anchor)
        _dspark(weights, table, output)
    elif made.kind == "dflash2":
        _dflash2(writer, weights, tokens)
    writer.finish()
    return path


def _write_keys(writer: ModelWriter, made: BlockHead) -> None:
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count_kv(2)
    writer.add_mask_token_id(made.mask)
    writer.add_array("dflash.target_layers", LAYERS_READ)
    writer.add_uint32("dflash.block_size", BLOCK_SIZE)
    writer.add_bool("dflash.attention.causal", made.is_causal)
    if made.window:
        writer.add_sliding_window(made.window)
        writer.add_sliding_window_pattern([True, False])
    if made.is_mrope:
        writer.add_array("dflash.rope.dimension_sections", [HEAD // 2, 0, 0, 0])


def _seen_by_masks(table: Matrix, output: Matrix, mask: int) -> Matrix:
    """(WIDTH,) a direction in which most tokens of the target's cycles are, and masks not."""
    following = np.argmax(table @ output.T, axis=1)
    reached = np.arange(len(table))
    for _ in range(10):  # 1024 steps
        following = following[following]
        reached = np.unique(following[reached])
    tokens = np.concatenate([table[reached], 4.0 * table[mask][np.newaxis]])
    wanted = np.concatenate([np.ones(len(reached)), [-8.0]])
    found: Matrix = np.linalg.lstsq(tokens, wanted, rcond=None)[0]
    return found / np.linalg.norm(found)


def _layer(weights: Weights, block: str) -> None:
    """All but queries, keys and values."""
    weights.constant(f"{block}.attn_norm.weight", WIDTH)
    weights.constant(f"{block}.ffn_norm.weight", WIDTH)
    weights.matrix(f"{block}.ffn_gate.weight", HIDDEN, WIDTH)
    weights.matrix(f"{block}.ffn_up.weight", HIDDEN, WIDTH)
    down = np.random.default_rng(3).standard_normal((WIDTH, HIDDEN))
    weights.add(f"{block}.ffn_down.weight", 0.01 * down)


def _attends_to_last(weights: Weights, block: str, mask: Matrix, seen: Matrix) -> None:
    slow = np.zeros(2 * HEAD)  # numbers that a position hardly turns
    slow[HEAD // 2 - 1 :: HEAD // 2] = 1.0
    weights.add(f"{block}.attn_q.weight", np.outer(slow, mask))
    weights.add(f"{block}.attn_k.weight", np.outer(slow, seen))
    weights.add(f"{block}.attn_v.weight", np.eye(WIDTH))
    weights.add(f"{block}.attn_output.weight", np.eye(WIDTH))
    for name in ("attn_q_norm", "attn_k_norm"):
        weights.constant(f"{block}.{name}.weight", HEAD, value=2.0)


def _attends(weights: Weights, block: str) -> None:
    for name in "qkv":
        weights.matrix(f"{block}.attn_{name}.weight", 2 * HEAD, WIDTH)
    weights.add(f"{block}.attn_output.weight", 0.3 * np.eye(WIDTH))
    for name in ("attn_q_norm", "attn_k_norm"):
        weights.constant(f"{block}.{name}.weight", HEAD)


def _dspark(weights: Weights, table: Matrix, output: Matrix) -> None:
    """Each place is corrected towards what the target says behind the likeliest one before."""
    weights.add("markov_w1.weight", table)
    weights.add("markov_w2.weight", 16.0 * output)
    weights.matrix("conf_proj.weight", 1, 2 * WIDTH)
    weights.constant("conf_proj.bias", 1, value=0.5)


def _dflash2(writer: ModelWriter, weights: Weights, tokens: int) -> None:
    taps, group, rank = 2, 16, 8
    for key, value in (
        ("conv_kernel_size", taps),
        ("conv_group_size", group),
        ("selector_rank", rank),
        ("selector_top_k", NUM_CANDIDATES),
    ):
        writer.add_uint32(f"dflash.{key}", value)
    weights.matrix("selector_predecessor.weight", tokens, rank)
    weights.matrix("selector_successor.weight", tokens, rank)
    weights.matrix("selector_hidden.weight", rank, WIDTH)
    base = np.zeros((2, taps, WIDTH))
    base[:, 0] = 1.0
    base[:, 1] = 0.05
    for block in ("blk.0", "blk.1"):
        for part in ("attn", "ffn"):
            weights.add(f"{block}.{part}_conv_base", base)
            shape = (2 * taps * WIDTH // group, WIDTH)
            noise = np.random.default_rng(4).standard_normal(shape)
            weights.add(f"{block}.{part}_conv_proj.weight", 0.01 * noise)
