"""Model files of real shape without content, and what libllama would allocate for them.

The header is whole, the weights are a hole in the file. libllama reads such a file when it is
told to simulate its allocations (no_alloc), and logs what it would have taken.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import llama_cpp

from gguf_maker import copy_tokenizer
from localspec.llama.model_options import LlamaOptions
from localspec.llama.opening import context_params
from model_writer import ModelWriter, Stated

_ALIGNMENT = 32


@dataclass(frozen=True)
class HollowShape:
    """What decides the sizes. num_experts: 0 for a dense model; stated: further metadata."""

    architecture: str
    width: int
    num_heads: int
    num_kv_heads: int
    head_width: int
    hidden: int
    num_layers: int = 6
    num_experts: int = 0
    stated: dict[str, int] = field(default_factory=dict)


SHAPES = {
    "Llama 3.1 8B": HollowShape("llama", 4096, 32, 8, 128, 14336),
    "Qwen3 4B": HollowShape("qwen3", 2560, 32, 8, 128, 9728),
    "Qwen3 30B-A3B": HollowShape(
        "qwen3moe", 2048, 32, 4, 128, 6144, num_layers=4, num_experts=16,
        stated={"expert_count": 16, "expert_used_count": 8, "expert_feed_forward_length": 768},
    ),
    "Gemma 3 4B": HollowShape(
        "gemma3", 2560, 8, 4, 256, 10240, stated={"attention.sliding_window": 1024}
    ),
}  # fmt: skip


def write_hollow_model(path: Path, tokenizer_of: Path, shape: HollowShape) -> Path:
    """A file of that shape; its matrices are said to be Q4_K."""
    writer = ModelWriter(path, shape.architecture)
    vocab_size = copy_tokenizer(writer, tokenizer_of)
    stated = Stated(
        context_length=1 << 17,
        width=shape.width,
        num_layers=shape.num_layers,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        hidden=shape.hidden,
        head_width=shape.head_width,
    )
    writer.describe(stated)
    for key, value in shape.stated.items():
        writer.add_uint32(f"{shape.architecture}.{key}", value)
    num_bytes = sum(
        _described(writer, name, size) for name, size in _tensors(shape, vocab_size).items()
    )
    writer.finish_header()
    writer.close()
    begin = -(-path.stat().st_size // _ALIGNMENT) * _ALIGNMENT
    os.truncate(path, begin + num_bytes)
    return path


def _tensors(shape: HollowShape, vocab_size: int) -> dict[str, tuple[int, ...]]:
    """Dimensions by name, the length of a row last."""
    width, hidden, head = shape.width, shape.hidden, shape.head_width
    queries, keys = shape.num_heads * head, shape.num_kv_heads * head
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (width,), "ffn_norm": (width,),
        "attn_q": (queries, width), "attn_k": (keys, width), "attn_v": (keys, width),
        "attn_output": (width, queries),
    }  # fmt: skip
    if shape.architecture != "llama":
        layer |= {"attn_q_norm": (head,), "attn_k_norm": (head,)}
    if shape.architecture == "gemma3":
        layer |= {"post_attention_norm": (width,), "post_ffw_norm": (width,)}
    if count := shape.num_experts:
        used = shape.stated["expert_feed_forward_length"]
        layer |= {
            "ffn_gate_inp": (count, width), "ffn_gate_exps": (count, used, width),
            "ffn_up_exps": (count, used, width), "ffn_down_exps": (count, width, used),
        }  # fmt: skip
    else:
        layer |= {"ffn_gate": (hidden, width), "ffn_up": (hidden, width)}
        layer |= {"ffn_down": (width, hidden)}
    whole = {"token_embd": (vocab_size, width), "output_norm": (width,)}
    if shape.architecture != "gemma3":  # whose head is the table of the tokens
        whole["output"] = (vocab_size, width)
    blocks = {
        f"blk.{index}.{name}": size
        for index in range(shape.num_layers)
        for name, size in layer.items()
    }
    return {f"{name}.weight": size for name, size in {**whole, **blocks}.items()}


def _described(writer: ModelWriter, name: str, size: tuple[int, ...]) -> int:
    """The bytes that the tensor takes, with what pads it."""
    kinds = gguf.GGMLQuantizationType
    is_exact = len(size) == 1 or "gate_inp" in name
    num_bytes = writer.announce(name, kinds.F32 if is_exact else kinds.Q4_K, size)
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def simulate_load(path: Path, options: LlamaOptions) -> None:
    """Let libllama log what it would allocate."""
    params = llama_cpp.llama_model_default_params()
    params.no_alloc = True
    params.load_mode = llama_cpp.LLAMA_LOAD_MODE_NONE
    model = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
    context = context_params(options, options.context_length)
    llama_cpp.llama_free(llama_cpp.llama_init_from_model(model, context))
    llama_cpp.llama_model_free(model)
