"""How attention is computed on a CPU: fused, as GPUs like it, or product by product.

ggml's fused kernel ("flash attention") takes the queries one at a time unless there are 64 or
more of them, so what it costs to decode a few tokens grows quickly with the text: behind 3000
cached tokens a 0.5B model takes 552 ms for 5 tokens with it and 133 ms without, and 162 against
86 ms for one. Those are the decodes of an answer, and of verifying a draft. Prompts of whole
batches it reads faster, by up to a fifth (see `llama_options.graph_batch_size`), and in less
memory.
"""

from __future__ import annotations

from dataclasses import replace

from localspec.header import Header
from localspec.llama_options import FlashAttention, LlamaOptions
from localspec.memory import compute_bytes
from localspec.model_shape import ModelShape

_MOST_BYTES = 128 << 20  # that it may take more: 32 heads do so at a context of 8192 tokens
_PLAIN_TYPES = (None, "f32", "f16", "bf16")  # libllama has no other values without it


def suited_attention(
    header: Header, context_length: int, max_outputs: int, *, uses_gpu: bool
) -> FlashAttention:
    """ "off" where that is faster and takes little memory, else "auto", libllama's choice.

    context_length: that it is opened with.
    """
    shape = ModelShape(header)
    if uses_gpu or not shape.can_roll_back or shape.is_latent:
        return "auto"
    with_flash, without = (
        compute_bytes(header, context_length, max_outputs, setting)
        for setting in ("auto", "off")
    )
    return "off" if without - with_flash <= _MOST_BYTES else "auto"


def with_suited_attention(
    options: LlamaOptions, header: Header, context_length: int, *, uses_gpu: bool
) -> LlamaOptions:
    """The options, with `suited_attention` where they leave it open."""
    if options.flash_attention != "auto" or options.cache_type_v not in _PLAIN_TYPES:
        return options
    suited = suited_attention(header, context_length, options.max_outputs, uses_gpu=uses_gpu)
    return replace(options, flash_attention=suited)
