"""Defaults for a model: flash attention, and whether its file is mapped.

Attention on a CPU is fused, or done product by product. ggml's fused kernel ("flash attention")
takes the queries one at a time unless there are 64 or more of them, so the cost of decoding a
few tokens grows quickly with the text: after 3000 cached tokens a 0.5B model takes 552 ms for 5
tokens with it and 133 ms without, and 162 against 86 ms for one. Those are the decodes of an
answer, and of verifying a draft. It reads prompts of whole batches faster, by up to a fifth
(see `options.graph_batch_size`), and in less memory.

A model's file is mapped into memory, or read. ggml's CPU backend repacks many types of weights
(see `repacked_types`). The weights of a mapped file are then in memory twice: as the file's
pages, which the system may drop where memory is short, and as the copy. A file that is read is
in memory once, but a large one that the system has cached loads several times more slowly
(a 7B: 15 s in place of 5). So small ones are read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from localspec.gguf_file.header import Header
from localspec.gguf_file.shape import ModelShape
from localspec.gguf_file.tensor_types import type_name
from localspec.llama.options import FlashAttention, LlamaOptions
from localspec.preflight.memory import compute_bytes, repacked_bytes

_MOST_BYTES = 128 << 20  # more without it: as 32 heads need in contexts of up to 32768
_PLAIN_TYPES = (None, "f32", "f16", "bf16")  # of values that libllama has without it
_MOST_READ_BYTES = 1 << 30


def suited_attention(
    header: Header, context_length: int, max_outputs: int, *, uses_gpu: bool
) -> FlashAttention:
    """ "off" if that is faster and takes little memory, else "auto", libllama's choice."""
    shape = ModelShape(header)
    if uses_gpu or shape.has_state or shape.is_latent:
        return "auto"
    with_flash, without = (
        compute_bytes(header, context_length, max_outputs, setting)
        for setting in ("auto", "off")
    )
    return "off" if without - with_flash <= _MOST_BYTES else "auto"


def with_suited_attention(
    options: LlamaOptions, header: Header, context_length: int, *, uses_gpu: bool
) -> LlamaOptions:
    """The options, with `suited_attention` if they leave it open."""
    if options.flash_attention != "auto" or options.cache_type_v not in _PLAIN_TYPES:
        return options
    suited = suited_attention(header, context_length, options.max_outputs, uses_gpu=uses_gpu)
    return replace(options, flash_attention=suited)


def with_exact_settings(
    options: LlamaOptions, header: Header, uneven: Collection[str], *, uses_gpu: bool
) -> LlamaOptions:
    """The options, and where they ask for exact decodes what makes these so.

    uneven: types whose repacked kernels add differently, see `tensor_types`.

    Flash attention has one kernel for the rows of any decode where keys and values have
    different types (else ggml-cpu splits one token's among threads, and those of many into
    tiles). Keys in bf16 cost less time than values in bf16, and lose as little.
    """
    if not options.exact:
        return options
    options = replace(options, flash_attention="on")
    if uses_gpu:
        return options
    key = options.cache_type_k or ("f16" if options.cache_type_v not in (None, "f16") else None)
    if key is None:
        options = replace(options, cache_type_k="bf16", cache_type_v="f16")
    elif options.cache_type_v is None:
        options = replace(options, cache_type_v="bf16" if key == "f16" else "f16")
    has_uneven = any(type_name(tensor.kind) in uneven for tensor in header.tensors)
    return replace(options, repack=False if has_uneven else options.repack)


def with_suited_mapping(
    options: LlamaOptions, header: Header, repacked: Mapping[str, float]
) -> LlamaOptions:
    """The options, with a small file read if more than a quarter of it is repacked.

    repacked: the types that are repacked, see `tensor_types`.
    """
    if options.use_mmap is not None:
        return options
    is_small = header.weights_bytes <= _MOST_READ_BYTES
    if is_small and 4 * repacked_bytes(header, repacked) > header.weights_bytes:
        return replace(options, use_mmap=False)
    return options
