"""A cached sequence as bytes, by libllama: taken out of a context and put back.

lib: the llama_cpp module. context: libllama's pointer.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_SEQUENCE = 0


class CacheState(NamedTuple):
    """The entries of num_cached tokens. data: (bytes,) uint8, for the same model only."""

    num_cached: int
    data: NDArray[np.uint8]


def size_of_state(lib: Any, context: Any) -> int:
    """Bytes that `take_state` would give now."""
    return int(lib.llama_state_seq_get_size(context, _SEQUENCE))


def take_state(lib: Any, context: Any, num_cached: int) -> CacheState | None:
    """A copy of the sequence's entries, or None if libllama fails to give it."""
    data = np.empty(size_of_state(lib, context), dtype=np.uint8)
    written = lib.llama_state_seq_get_data(context, _pointer(data), data.size, _SEQUENCE)
    return CacheState(num_cached, data) if 0 < written == data.size else None


def put_state(lib: Any, context: Any, state: CacheState) -> bool:
    """Copy entries into an empty sequence. False if libllama refuses."""
    data = state.data
    read = lib.llama_state_seq_set_data(context, _pointer(data), data.size, _SEQUENCE)
    return bool(read == data.size)


def _pointer(data: NDArray[np.uint8]) -> Any:
    return data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
