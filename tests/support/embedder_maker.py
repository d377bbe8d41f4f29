"""Writes models that turn texts into vectors."""

from __future__ import annotations

from gguf_maker import write_random_model

# Kinds of pooling, as GGUF files number them.
MEAN = 1
LAST = 3
RANK = 4


def write_embedder(path, tokenizer_of, pooling, **more):
    """A model that pools: by the mean of its rows, or the last one."""
    extra = {"llama.pooling_type": pooling}
    more = {"context_length": 64, **more}
    return write_random_model(path, tokenizer_of, extra=extra, **more)
