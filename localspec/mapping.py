"""Whether a model's file is mapped into memory, or read.

ggml's CPU backend keeps many types of weights in an order of its own (see
`tensor_types.repacked_types`). Of a mapped file they are in memory twice then: as the file's
pages, which may go where memory is short, and as the copy. A file that is read is there once,
but a large one that the system has at hand loads several times more slowly (figures are in
docs/performance.md). So small ones are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from localspec.header import Header
from localspec.llama_options import LlamaOptions
from localspec.memory import repacked_bytes

_MOST_READ_BYTES = 1 << 30


def with_suited_mapping(
    options: LlamaOptions, header: Header, repacked: Mapping[str, float]
) -> LlamaOptions:
    """The options, with a small file to be read where a good part of it is stored anew.

    repacked: the types that are, see `tensor_types`.
    """
    if options.use_mmap is not None:
        return options
    is_small = header.weights_bytes <= _MOST_READ_BYTES
    if is_small and 4 * repacked_bytes(header, repacked) > header.weights_bytes:
        return replace(options, use_mmap=False)
    return options
