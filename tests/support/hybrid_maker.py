"""Writes small GGUF models with recurrent layers, random weights and another's tokenizer.

Keys and tensors as libllama's loaders of these architectures ask for them (src/models/).
`head_maker` makes models with trained heads in the same way.
"""

from __future__ import annotations

from pathlib import Path

from gguf_maker import Weights, copy_tokenizer, write_random_model
from model_writer import ModelWriter, Stated

WIDTH, HIDDEN, HEAD = 64, 96, 32
NUM_LAYERS = 4
NUM_EXPERTS = 4
INNER, STATE, RANK, GROUPS, TAPS = 128, 16, 4, 2, 4  # of the recurrent layers


def write_hybrid(path: Path, tokenizer_of: Path, architecture: str) -> Path:
    """A model of four layers, of which one attends and the others are recurrent.

    architecture: qwen35 (gated delta nets), or granitehybrid (Mamba 2, of which libllama keeps
    no snapshots).
    """
    writer = ModelWriter(path, architecture)
    tokens = write_common(writer, tokenizer_of, NUM_LAYERS)
    weights = Weights(writer, 0)
    weights.matrix("token_embd.weight", tokens, WIDTH)
    weights.matrix("output.weight", tokens, WIDTH)
    (write_qwen35_trunk if architecture == "qwen35" else _granite)(writer, weights)
    writer.finish()
    return path


# By what their caches hold: attention, a sliding window, a state, or a state and attention.
CACHE_KINDS = ("llama", "gemma3", "mamba", "qwen35")


def write_cache_kind(path: Path, tokenizer_of: Path, kind: str) -> Path:
    """A model of one of CACHE_KINDS."""
    if kind == "qwen35":
        return write_hybrid(path, tokenizer_of, kind)
    return write_random_model(
        path,
        tokenizer_of,
        architecture=kind,
        context_length=1024,
        extra={"gemma3.attention.sliding_window": 24} if kind == "gemma3" else {},
    )


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


def write_qwen35_trunk(writer: ModelWriter, weights: Weights) -> None:
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count_kv(1)
    writer.add_array("qwen35.rope.dimension_sections", [4, 4, 4, 4])
    writer.add_uint32("qwen35.full_attention_interval", 4)
    _state_sizes(writer, inner=RANK * STATE)
    weights.constant("output_norm.weight", WIDTH)
    for layer in range(NUM_LAYERS):
        block = f"blk.{layer}"
        if layer % 4 == 3:
            qwen35_attention(weights, block)
            continue
        _qwen35_norms_and_feed_forward(weights, block)
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


def qwen35_attention(weights: Weights, block: str) -> None:
    """A layer that attends, as one in four of the model does, and its head."""
    _qwen35_norms_and_feed_forward(weights, block)
    weights.matrix(f"{block}.attn_q.weight", 2 * 2 * HEAD, WIDTH)
    keys_and_values(weights, block)
    head_norms(weights, block)


def _qwen35_norms_and_feed_forward(weights: Weights, block: str) -> None:
    weights.constant(f"{block}.attn_norm.weight", WIDTH)
    weights.constant(f"{block}.post_attention_norm.weight", WIDTH)
    feed_forward(weights, block)


def _granite(writer: ModelWriter, weights: Weights) -> None:
    """Mamba 2, and one layer that attends."""
    heads = [0, 0, 0, 1]
    writer.add_array("granitehybrid.feed_forward_length", [HIDDEN] * NUM_LAYERS)
    writer.add_array("granitehybrid.attention.head_count_kv", heads)
    writer.add_layer_norm_eps(1e-5)
    writer.add_float32("granitehybrid.logit_scale", 1.0)
    _state_sizes(writer, inner=INNER)
    weights.constant("output_norm.weight", WIDTH)
    for layer in range(NUM_LAYERS):
        block = f"blk.{layer}"
        weights.constant(f"{block}.attn_norm.weight", WIDTH)
        weights.constant(f"{block}.ffn_norm.weight", WIDTH)
        feed_forward(weights, block)
        if heads[layer]:
            weights.matrix(f"{block}.attn_q.weight", 2 * HEAD, WIDTH)
            keys_and_values(weights, block)
        else:
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


def feed_forward(weights: Weights, block: str, width: int = WIDTH) -> None:
    weights.matrix(f"{block}.ffn_gate.weight", HIDDEN, width)
    weights.matrix(f"{block}.ffn_up.weight", HIDDEN, width)
    weights.matrix(f"{block}.ffn_down.weight", width, HIDDEN)


def experts(weights: Weights, block: str) -> None:
    """NUM_EXPERTS of them and a shared one."""
    weights.matrix(f"{block}.ffn_gate_inp.weight", NUM_EXPERTS, WIDTH)
    weights.constant(f"{block}.exp_probs_b.bias", NUM_EXPERTS, value=0.0)
    for part in ("gate", "up", "down"):
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
