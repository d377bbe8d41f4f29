"""The memory of a model that turns texts into vectors."""

from __future__ import annotations

import os
from dataclasses import dataclass

from localspec.gguf_file.header import Header
from localspec.gguf_file.shape import ModelShape, context_to_open
from localspec.llama.options import LlamaOptions, embedding_batch_size
from localspec.preflight.memory import cache_bytes, vocabulary_bytes
from localspec.presets.located import find_model, read_model_header

_FLOAT, _SMALL_BYTES = 4, 2 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedderFacts:
    """Such a model. context_length: tokens of a text. needed_bytes: memory, once it works."""

    name: str
    is_here: bool
    size_bytes: int
    context_length: int
    needed_bytes: int


def embedder_facts(model: str | os.PathLike[str]) -> EmbedderFacts:
    """The model that `load_embedder` would open. Of a missing file only the header is fetched.

    Raises PresetError, OptionError, ModelFileError or DownloadError.
    """
    found = read_model_header(find_model(model, "target"), embeds=True)
    header = found.header
    length = context_to_open(None, ModelShape(header).context_length, header.path.name)
    return EmbedderFacts(
        name=header.path.name,
        is_here=found.is_here,
        size_bytes=found.size_bytes,
        context_length=length,
        needed_bytes=embedder_bytes(header, length),
    )


def embedder_bytes(header: Header, context_length: int) -> int:
    """Memory that it takes for texts of up to so many tokens, at most a fifth too much."""
    shape, batch = ModelShape(header), embedding_batch_size(header, context_length)
    streams = 4 * shape.width
    queries = 2 * shape.num_heads * shape.key_width
    logits = caches = 0
    if "bert" not in header.architecture:  # whose rows have no logits, and no cache
        logits = len(header.tokens)
        caches = cache_bytes(header, LlamaOptions(context_length=context_length))
    # The logits, which libllama computes, and hands out once more; and the attention's mask.
    rows = max(3 * shape.hidden + streams, queries + streams, logits) + logits
    compute = batch * (rows + context_length) * _FLOAT
    return header.weights_bytes + caches + compute + vocabulary_bytes(header) + _SMALL_BYTES
