"""Writes small GGUF models with random weights and somebody else's tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np


def write_random_model(
    path: Path,
    tokenizer_of: Path,
    *,
    width: int = 64,
    num_layers: int = 1,
    context_length: int = 2048,
    seed: int = 0,
    num_padding: int = 0,
    replace_tokens: dict[int, str] | None = None,
    drop: tuple[str, ...] = (),
    extra: dict[str, bool | int | str] | None = None,
) -> Path:
    """A llama model of `num_layers` layers of `width`, random and so unrelated to any other.

    num_padding: ids added behind the vocabulary. replace_tokens: ids given another text.
    drop: metadata keys to leave out. extra: metadata to add.
    """
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    tokens = _copy_tokenizer(writer, tokenizer_of, num_padding, replace_tokens or {}, drop)
    num_heads, hidden = width // 32, 2 * width
    writer.add_context_length(context_length)
    writer.add_embedding_length(width)
    writer.add_block_count(num_layers)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(num_heads)
    writer.add_head_count_kv(num_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(32)
    for key, value in (extra or {}).items():
        {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string}[type(value)](
            key, value
        )

    def matrix(name: str, rows: int, columns: int) -> None:
        weights = random.standard_normal((rows, columns)) / np.sqrt(columns)
        writer.add_tensor(f"{name}.weight", weights.astype(np.float32))

    def norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(width, dtype=np.float32))

    matrix("token_embd", tokens, width)
    norm("output_norm")
    matrix("output", tokens, width)
    for layer in range(num_layers):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            matrix(f"blk.{layer}.{name}", width, width)
        matrix(f"blk.{layer}.ffn_gate", hidden, width)
        matrix(f"blk.{layer}.ffn_up", hidden, width)
        matrix(f"blk.{layer}.ffn_down", width, hidden)
        norm(f"blk.{layer}.attn_norm")
        norm(f"blk.{layer}.ffn_norm")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _copy_tokenizer(
    writer: gguf.GGUFWriter,
    source: Path,
    num_padding: int,
    replace_tokens: dict[int, str],
    drop: tuple[str, ...],
) -> int:
    """Copy every tokenizer field of `source`; the number of tokens written."""
    num_tokens = 0
    for key, field in gguf.GGUFReader(source).fields.items():
        if not key.startswith("tokenizer.") or key in drop:
            continue
        value: Any = field.contents()
        if key == "tokenizer.ggml.tokens":
            value = [replace_tokens.get(i, text) for i, text in enumerate(value)]
            value += [f"[PAD{len(value) + i}]" for i in range(num_padding)]
            num_tokens = len(value)
        elif key == "tokenizer.ggml.token_type":
            value = list(value) + [int(gguf.TokenType.UNUSED)] * num_padding
        elif key == "tokenizer.ggml.scores":
            value = list(value) + [0.0] * num_padding
        kinds = field.types
        writer.add_key_value(key, value, kinds[0], kinds[1] if len(kinds) > 1 else None)
    return num_tokens
