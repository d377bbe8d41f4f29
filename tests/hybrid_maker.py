"""Writes small GGUF models with recurrent layers, random weights and another's tokenizer.

Keys and tensors as libllama's loaders of these architectures ask for them (src/models/).
`head_maker` makes models with trained heads in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gguf_maker import copy_tokenizer
from model_writer import ModelWriter, Stated

WIDTH, HIDDEN, HEAD = 64, 96, 32
NUM_LAYERS = 4
NUM_EXPERTS = 4
INNER, STATE, RANK, GROUPS, TAPS = 128, 16, 4, 2, 4  # of the recurrent layers


class Weights:
    """Adds tensors to a file."""

    def __init__(self, writer: ModelWriter, seed: int) -> None:
        self._writer = writer
        self._random = np.random.default_rng(seed)

    def matrix(self, name: str, *shape: int) -> None:
        """A random one, the length of a row last."""
        self.add(name, self._random.standard_normal(shape) / np.sqrt(shape[-1]))

    def constant(self, name: str, *shape: int, value: float = 1.0) -> None:
        """All of one value."""
        self.add(name, np.full(shape, value))

    def add(self, name: str, values: NDArray[np.float64]) -> None:
        """These values, as float32."""
        self._writer.add_tensor(name, values.astype(np.float32))


def write_hybrid(path: Path, tokenizer_of: Path, architecture: str, *, seed: int = 0) -> Path:
    """A model of four layers, of which one attends and the others are recurrent.

    architecture: qwen35 (gated delta nets), lfm2 (short convolutions), nemotron_h or
    granitehybrid (Mamba 2; of the latter libllama keeps no snapshots).
    """
    writer = ModelWriter(path, architecture)
    tokens = write_common(writer, tokenizer_of, NUM_LAYERS)
    weights = Weights(writer, seed)
    weights.matrix("token_embd.weight", tokens, WIDTH)
    weights.matrix("output.weight", tokens, WIDTH)
    _WRITERS[architecture](writer, weights, architecture)
    writer.finish()
    return path


def write_common(
    writer: ModelWriter, tokenizer_of: Path, num_blocks: int, *, width: int = WIDTH
) -> int:
    """The tokenizer and the keys that all architectures have; the number of tokens."""
    tokens = copy_tokenizer(writer, tokenizer_of)
    stated = Stated(
        context_length=2048,
        width=width,
        num_layers=num_blocks,
        num_heads=2,
        head_width=HEAD,
        num_turned=HEAD,
        rope_base=10_000.0,
    )
    writer.describe(stated)
    return tokens


def write_qwen35_trunk(writer: ModelWriter, weights: Weights, architecture: str) -> None:
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
        feed_forward(weights, block)
        if layer % 4 == 3:
            weights.matrix(f"{block}.attn_q.weight", 2 * 2 * HEAD, WIDTH)
            keys_and_values(weights, block)
            head_norms(weights, block)
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


def _lfm2(writer: ModelWriter, weights: Weights, architecture: str) -> None:
    writer.add_feed_forward_length(HIDDEN)
    writer.add_array(f"{architecture}.attention.head_count_kv", [0, 0, 0, 1])
    writer.add_uint32(f"{architecture}.shortconv.l_cache", 3)
    weights.constant("token_embd_norm.weight", WIDTH)
    for layer in range(NUM_LAYERS):
        block = f"blk.{layer}"
        weights.constant(f"{block}.attn_norm.weight", WIDTH)
        weights.constant(f"{block}.ffn_norm.weight", WIDTH)
        feed_forward(weights, block)
        if layer == 3:
            weights.matrix(f"{block}.attn_q.weight", 2 * HEAD, WIDTH)
            keys_and_values(weights, block)
            head_norms(weights, block)
            continue
        weights.matrix(f"{block}.shortconv.conv.weight", WIDTH, 3)
        weights.matrix(f"{block}.shortconv.in_proj.weight", 3 * WIDTH, WIDTH)
        weights.matrix(f"{block}.shortconv.out_proj.weight", WIDTH, WIDTH)


def write_mamba2_trunk(writer: ModelWriter, weights: Weights, architecture: str) -> None:
    """Also of nemotron_h_moe, whose keys count a head's block as well: one that attends."""
    has_own_layers = architecture != "granitehybrid"  # for feed-forward; else every one has it
    has_experts = architecture == "nemotron_h_moe"
    sizes = [0, 0, HIDDEN, 0] if has_own_layers else [HIDDEN] * NUM_LAYERS
    heads = [0, 0, 0, 1]
    num_more = int(has_experts)
    writer.add_array(f"{architecture}.feed_forward_length", sizes + [0] * num_more)
    writer.add_array(f"{architecture}.attention.head_count_kv", heads + [1] * num_more)
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
            feed_forward(weights, block)
        elif sizes[layer]:
            if has_experts:
                experts(weights, block, "up", "down")
                continue
            weights.matrix(f"{block}.ffn_up.weight", HIDDEN, WIDTH)
            weights.matrix(f"{block}.ffn_down.weight", WIDTH, HIDDEN)
            continue
        if heads[layer]:
            weights.matrix(f"{block}.attn_q.weight", 2 * HEAD, WIDTH)
            keys_and_values(weights, block)
            continue
        _mamba2_layer(weights, block)


def _mamba2_layer(weights: Weights, block: str) -> None:
    mixed = INNER + 2 * GROUPS * STATE
    weights.matrix(f"{block}.ssm_in.weight", 2 * INNER + 2 * GROUPS * STATE + RANK, WIDTH)
    weights.matrix(f"{block}.ssm_conv1d.weight", mixed, TAPS)
    weights.constant(f"{block}.ssm_conv1d.bias", mixed, value=0.0)
    weights.constant(f"{block}.ssm_dt.bias", RANK)
    weights.constant(f"{block}.ssm_a", RANK, 1, value=-0.5)
    weights.constant(f"{block}.ssm_d", RANK, 1)
    weights.constant(f"{block}.ssm_norm.weight", GROUPS, INNER // GROUPS)
    weights.matrix(f"{block}.ssm_out.weight", WIDTH, INNER)


def _state_sizes(writer: ModelWriter, *, inner: int) -> None:
    writer.add_ssm_conv_kernel(TAPS)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(STATE)
    writer.add_ssm_time_step_rank(RANK)
    writer.add_ssm_group_count(GROUPS)


def feed_forward(weights: Weights, block: str) -> None:
    weights.matrix(f"{block}.ffn_gate.weight", HIDDEN, WIDTH)
    weights.matrix(f"{block}.ffn_up.weight", HIDDEN, WIDTH)
    weights.matrix(f"{block}.ffn_down.weight", WIDTH, HIDDEN)


def experts(weights: Weights, block: str, *parts: str) -> None:
    """NUM_EXPERTS of them and a shared one; parts: of up, down and gate those there are."""
    weights.matrix(f"{block}.ffn_gate_inp.weight", NUM_EXPERTS, WIDTH)
    weights.constant(f"{block}.exp_probs_b.bias", NUM_EXPERTS, value=0.0)
    for part in parts:
        shape = (WIDTH, HIDDEN) if part == "down" else (HIDDEN, WIDTH)
        weights.matrix(f"{block}.ffn_{part}_exps.weight", NUM_EXPERTS, *shape)
        weights.matrix(f"{block}.ffn_{part}_shexp.weight", *shape)


def keys_and_values(weights: Weights, block: str) -> None:
    weights.matrix(f"{block}.attn_k.weight", HEAD, WIDTH)
    weights.matrix(f"{block}.attn_v.weight", HEAD, WIDTH)
    weights.matrix(f"{block}.attn_output.weight", WIDTH, 2 * HEAD)


def head_norms(weights: Weights, block: str) -> None:
    weights.constant(f"{block}.attn_q_norm.weight", HEAD)
    weights.constant(f"{block}.attn_k_norm.weight", HEAD)


_WRITERS: dict[str, Callable[[ModelWriter, Weights, str], None]] = {
    "qwen35": write_qwen35_trunk,
    "lfm2": _lfm2,
    "nemotron_h": write_mamba2_trunk,
    "granitehybrid": write_mamba2_trunk,
}
