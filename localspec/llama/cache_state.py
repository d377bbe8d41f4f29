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
    """The entries of num_cached tokens. data: (bytes,) uint8, for the same model only.

    checkpoint: what is recurrent as it was after fewer tokens, if that was remembered.
    """

    num_cached: int
    data: NDArray[np.uint8]
    checkpoint: CacheState | None = None

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""
        return self.data.size + (0 if self.checkpoint is None else self.checkpoint.data.size)

    def copy(self) -> CacheState:
        """One whose data nobody else has."""
        return self._replace(data=self.data.copy())


def size_of_state(lib: Any, context: Any, *, only_recurrent: bool = False) -> int:
    """Bytes that `take_state` would give now."""
    flags = _flags(lib, only_recurrent=only_recurrent)
    return int(lib.llama_state_seq_get_size_ext(context, _SEQUENCE, flags))


def take_state(
    lib: Any,
    context: Any,
    num_cached: int,
    *,
    only_recurrent: bool = False,
    buffer: NDArray[np.uint8] | None = None,
) -> CacheState | None:
    """A copy of the sequence's entries, or None if libllama fails to give it.

    only_recurrent: leave out what can be cut. buffer: an earlier copy that may be overwritten.
    """
    size = size_of_state(lib, context, only_recurrent=only_recurrent)
    data = np.empty(size, dtype=np.uint8) if buffer is None or buffer.size != size else buffer
    flags = _flags(lib, only_recurrent=only_recurrent)
    written = lib.llama_state_seq_get_data_ext(
        context, _pointer(data), data.size, _SEQUENCE, flags
    )
    return CacheState(num_cached, data) if 0 < written == data.size else None


def put_state(
    lib: Any, context: Any, state: CacheState, *, only_recurrent: bool = False
) -> bool:
    """Copy entries into a sequence: an empty one, or the recurrent ones over what is there.

    False if libllama refuses.
    """
    data = state.data
    flags = _flags(lib, only_recurrent=only_recurrent)
    read = lib.llama_state_seq_set_data_ext(
        context, _pointer(data), data.size, _SEQUENCE, flags
    )
    return bool(read == data.size)


def _flags(lib: Any, *, only_recurrent: bool) -> int:
    return int(lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY) if only_recurrent else 0


def _pointer(data: NDArray[np.uint8]) -> Any:
    return data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
