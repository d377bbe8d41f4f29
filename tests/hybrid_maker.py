"""Writes small GGUF models with recurrent layers, random weights and another's tokenizer.

Keys and tensors as libllama's loaders of these architectures ask for them (src/models/).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np

from gguf_maker import copy_tokenizer

WIDTH, HIDDEN, HEAD = 64, 96, 32
NUM_LAYERS = 4
INNER, STATE, RANK, GROUPS, TAPS = 128, 16, 4, 2, 4  # of the recurrent layers


class Weights:
    """Adds random tensors to a file."""

    def __init__(self, writer: gguf.GGUFWriter, seed: int) -> None:
        self._writer = writer
        self._random = np.random.default_rng(seed)

    def matrix(self, name: str, rows: int, columns: int) -> None:
        values = self._random.standard_normal((rows, columns)) / np.sqrt(columns)
        self._writer.add_tensor(name, values.astype(np.float32))

    def constant(self, name: str, *shape: int, value: float = 1.0) -> None:
        self._writer.add_tensor(name, np.full(shape, value, dtype=np.float32))


def write_hybrid(path: Path, tokenizer_of: Path, architecture: str, *, seed: int = 0) -> Path:
    """A model of four layers, of which one attends and the others are recurrent.

    architecture: qwen35 (gated delta nets), lfm2 (short convolutions), nemotron_h or
    granitehybrid (Mamba 2; of the latter libllama keeps no snapshots).
    """
    writer = gguf.GGUFWriter(path, architecture)
    tokens = copy_tokenizer(writer, tokenizer_of)
    writer.add_context_length(2048)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(NUM_LAYERS)
    writer.add_head_count(2)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(10_000.0)
    weights = Weights(writer, seed)
    weights.matrix("token_embd.weight", tokens, WIDTH)
    weights.matrix("output.weight", tokens, WIDTH)
    _WRITERS[architecture](writer, weights, architecture)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _qwen35(writer: gguf.GGUFWriter, weights: Weights, architecture: str) -> None:
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count_kv(1)
    writer.add_array(f"{architecture}.rope.dimension_sections", [4, 4, 4, 4])
    writer.add_uint32(f"{architecture}.full_attention_interval", 4)
    _state_sizes(writer, inner=RANK * STATE)
    weights.constant("output_norm.weight", WIDTH)
    for layer in range(NUM_LAYERS):
        block = f"blk.{layer}"
        weights.constant(f"{block}.attn_norm.weight", WIDTH)
        weights.constant(f"{block}.post_attention_norm.weight", WIDTH)
        _feed_forward(weights, block)
        if layer % 4 == 3:
            weights.matrix(f"{block}.attn_q.weight", 2 * 2 * HEAD, WIDTH)
            _keys_and_values(weights, block)
            _head_norms(weights, block)
            continue
        mixed = 2 * GROUPS * STATE + RANK * STATE
        weights.matrix(f"{block}.attn_qkv.weight", mixed, WIDTH)
        weights.matrix(f"{block}.attn_gate.weight", RANK * STATE, WIDTH)
        weights.matrix(f"{block}.ssm_conv1d.weight", mixed, TAPS)
        weights.constant(f"{block}.ssm_dt.bias", RANK)
        weights.constant(f"{block}.ssm_a", RANK, value=-0.5)
        weights.matrix(f"{block}.ssm_beta.weight", RANK, WIDTH)
        weights.matrix(f"{block}.ssm_alpha.weight", RANK, WIDTH)
        weights.constant(f"{block}.ssm_norm.weight", STATE)
        weights.matrix(f"{block}.ssm_out.weight", WIDTH, RANK * STATE)


def _lfm2(writer: gguf.GGUFWriter, weights: Weights, architecture: str) -> None:
    writer.add_feed_forward_length(HIDDEN)
    writer.add_array(f"{architecture}.attention.head_count_kv", [0, 0, 0, 1])
    writer.add_uint32(f"{architecture}.shortconv.l_cache", 3)
    weights.constant("token_embd_norm.weight", WIDTH)
    for layer in range(NUM_LAYERS):
        block = f"blk.{layer}"
        weights.constant(f"{block}.attn_norm.weight", WIDTH)
        weights.constant(f"{block}.ffn_norm.weight", WIDTH)
        _feed_forward(weights, block)
        if layer == 3:
            weights.matrix(f"{block}.attn_q.weight", 2 * HEAD, WIDTH)
            _keys_and_values(weights, block)
            _head_norms(weights, block)
            continue
        weights.matrix(f"{block}.shortconv.conv.weight", WIDTH, 3)
        weights.matrix(f"{block}.shortconv.in_proj.weight", 3 * WIDTH, WIDTH)
        weights.matrix(f"{block}.shortconv.out_proj.weight", WIDTH, WIDTH)


def _mamba2(writer: gguf.GGUFWriter, weights: Weights, architecture: str) -> None:
    has_own_layers = architecture == "nemotron_h"  # for feed-forward; else every one has it
    sizes = [0, 0, HIDDEN, 0] if has_own_layers else [HIDDEN] * NUM_LAYERS
    writer.add_array(f"{architecture}.feed_forward_length", sizes)
    writer.add_array(f"{architecture}.attention.head_count_kv", [0, 0, 0, 1])
    writer.add_layer_norm_eps(1e-5)
    if not has_own_layers:
        writer.add_float32(f"{architecture}.logit_scale", 1.0)
    _state_sizes(writer, inner=INNER)
    weights.constant("output_norm.weight", WIDTH)
    for layer in range(NUM_LAYERS):
        block = f"blk.{layer}"
        weights.constant(f"{block}.attn_norm.weight", WIDTH)
        if not has_own_layers:
            weights.constant(f"{block}.ffn_norm.weight", WIDTH)
            _feed_forward(weights, block)
        elif sizes[layer]:
            weights.matrix(f"{block}.ffn_up.weight", HIDDEN, WIDTH)
            weights.matrix(f"{block}.ffn_down.weight", WIDTH, HIDDEN)
            continue
        if layer == 3:
            weights.matrix(f"{block}.attn_q.weight", 2 * HEAD, WIDTH)
            _keys_and_values(weights, block)
            continue
        mixed = INNER + 2 * GROUPS * STATE
        weights.matrix(f"{block}.ssm_in.weight", 2 * INNER + 2 * GROUPS * STATE + RANK, WIDTH)
        weights.matrix(f"{block}.ssm_conv1d.weight", mixed, TAPS)
        weights.constant(f"{block}.ssm_conv1d.bias", mixed, value=0.0)
        weights.constant(f"{block}.ssm_dt.bias", RANK)
        weights.constant(f"{block}.ssm_a", RANK, 1, value=-0.5)
        weights.constant(f"{block}.ssm_d", RANK, 1)
        weights.constant(f"{block}.ssm_norm.weight", GROUPS, INNER // GROUPS)
        weights.matrix(f"{block}.ssm_out.weight", WIDTH, INNER)


def _state_sizes(writer: gguf.GGUFWriter, *, inner: int) -> None:
    writer.add_ssm_conv_kernel(TAPS)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(STATE)
    writer.add_ssm_time_step_rank(RANK)
    writer.add_ssm_group_count(GROUPS)


def _feed_forward(weights: Weights, block: str) -> None:
    weights.matrix(f"{block}.ffn_gate.weight", HIDDEN, WIDTH)
    weights.matrix(f"{block}.ffn_up.weight", HIDDEN, WIDTH)
    weights.matrix(f"{block}.ffn_down.weight", WIDTH, HIDDEN)


def _keys_and_values(weights: Weights, block: str) -> None:
    weights.matrix(f"{block}.attn_k.weight", HEAD, WIDTH)
    weights.matrix(f"{block}.attn_v.weight", HEAD, WIDTH)
    weights.matrix(f"{block}.attn_output.weight", WIDTH, 2 * HEAD)


def _head_norms(weights: Weights, block: str) -> None:
    weights.constant(f"{block}.attn_q_norm.weight", HEAD)
    weights.constant(f"{block}.attn_k_norm.weight", HEAD)


_WRITERS: dict[str, Callable[[gguf.GGUFWriter, Weights, str], None]] = {
    "qwen35": _qwen35,
    "lfm2": _lfm2,
    "nemotron_h": _mamba2,
    "granitehybrid": _mamba2,
}
