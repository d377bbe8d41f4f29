"""The cache of a text: a sequence of a context, and how much of it can be rolled back."""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

from localspec.errors import CacheError
from localspec.llama.cache_state import CacheState, PictureSpan, PictureSpans
from localspec.llama.handle import Handle
from localspec.llama.library import complaints, llama_cpp

_UNKNOWN = -1  # tokens in snapshots, if not even the last state can be used
_RECURRENT_ONLY = int(llama_cpp.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY)
_BYTES = ctypes.POINTER(ctypes.c_uint8)


class Cache:
    """A sequence of a handle's context.

    The keys and values of any token can be removed. A recurrent state cannot be rolled back
    token by token: if libllama keeps snapshots (n_rs_seq), it returns to one of the last
    decode, and from anywhere to the checkpoint that was taken here. Each removal by libllama is
    checked.
    """

    def __init__(self, handle: Handle, number: int = 0) -> None:
        self._handle = handle
        handle.caches[number] = self
        self.number = number

        self.num_cached = 0
        """Cached tokens, including the cells of pictures."""

        self._spans = PictureSpans()
        self._num_in_snapshots = 0  # tokens at the end that snapshots can roll back

        self.is_settled = True
        """Whether the last decode was cut to the kept tokens."""

        self._checkpoint: CacheState | None = None
        self._window: int = llama_cpp.llama_model_n_swa(handle.model)
        self._num_snapshots = int(llama_cpp.llama_n_rs_seq(handle.context))
        self.is_recurrent = bool(
            llama_cpp.llama_model_is_recurrent(handle.model)
            or llama_cpp.llama_model_is_hybrid(handle.model)
            or self._num_snapshots
        )

    def max_rollback(self, context_length: int) -> int:
        """The most tokens of the last decode that can be rolled back without losing others.

        Call it after a decode of two tokens: it tries, since not every model says so.
        """
        if not (self._remove_from(1) and self._is_whole(1)):
            return 0
        if self.is_recurrent:
            return self._num_snapshots
        return context_length

    def begin_decode(self) -> None:
        """Note that the recurrent state is unknown until `add`: the decode may fail."""
        self._num_in_snapshots = _UNKNOWN
        self.is_settled = False

    def add(self, num_tokens: int) -> None:
        """Record that one call of libllama has decoded `num_tokens` tokens."""
        self.num_cached += num_tokens
        self._num_in_snapshots = min(num_tokens - 1, self._num_snapshots)

    @property
    def position(self) -> int:
        """The position at which libllama puts the next token."""
        return self._spans.position(self.num_cached)

    def add_picture(self, num_cells: int, num_positions: int, last: int) -> None:
        """Record that a picture was read, or passed over. For the numbers see `PictureSpan`."""
        span = PictureSpan(self.num_cached, num_cells, num_positions, last)
        self._spans = PictureSpans((*self._spans, span))
        self.num_cached += num_cells
        if num_positions:
            self._num_in_snapshots = 0

    def lets_move(self) -> bool:
        """Whether its recurrent state may be moved, which loses the snapshots.

        They are not needed once the last decode was cut.
        """
        if self.is_settled:
            self._num_in_snapshots = min(self._num_in_snapshots, 0)
        return self._num_in_snapshots <= 0

    def truncate(self, num_cached: int) -> None:
        """Cut as `Model.truncate` does. Raises CacheError for more tokens than there are."""
        self._handle.require_pointers()
        self.is_settled = True
        if not 0 <= num_cached <= self.num_cached:
            raise CacheError(f"asked to keep {num_cached} of {self.num_cached} cached tokens")
        if num_cached < self.num_cached:
            self.keep(num_cached)

    def keep(self, num_cached: int) -> None:
        """Cut to the first num_cached tokens, or to fewer if these cannot be kept.

        A cut within a picture moves to the picture's beginning.
        """
        num_cached = self._spans.floor(num_cached)
        if self._checkpoint is not None and self._checkpoint.num_cached > num_cached:
            self._checkpoint = None  # it holds tokens that are no longer in the text
        if not self.is_recurrent or self.num_cached - num_cached <= self._num_in_snapshots:
            self._num_in_snapshots = 0  # one rollback only
            can_keep = num_cached > 0 and self._remove_from(num_cached)
            if can_keep and self._is_whole(num_cached):
                self.num_cached = num_cached
                self._spans = self._spans.up_to(num_cached)
                return
        self._return_to_checkpoint()

    def keep_decoded(self) -> None:
        """After an aborted decode, keep the tokens of its finished graphs.

        libllama has removed the others. A recurrent state is unknown, and is rolled back.
        """
        if not self.is_recurrent:
            last = llama_cpp.llama_memory_seq_pos_max(self._handle.memory, self.number)
            self.num_cached = max(self.num_cached, self._spans.place_after(last))
        self.keep(self.num_cached)

    @property
    def is_unchanged(self) -> bool:
        """Whether libllama's cache equals the record here.

        The owner of a context may have used it. Or an exception of a signal handler may have
        come between a change of the cache and its record.
        """
        return self._is_whole(self.num_cached)

    def checkpoint(self) -> None:
        """Remember the present recurrent state, in place of the last checkpoint."""
        if not self.is_recurrent:
            return
        buffer = None
        if self._checkpoint is not None:
            buffer = self._checkpoint.data
        self._checkpoint = None  # its buffer is overwritten
        data = copied_entries(self._handle.context, self.number, _RECURRENT_ONLY, buffer)
        if data is not None:
            self._checkpoint = CacheState(self.num_cached, data)

    def _return_to_checkpoint(self) -> None:
        """Return to the checkpoint, or to an empty cache without one."""
        state = self._checkpoint
        if state is None:
            self.clear()
            return
        self.num_cached = 0  # until the state is known to be restored
        self._num_in_snapshots = 0
        is_put = put_entries(self._handle.context, self.number, state.data, _RECURRENT_ONLY)
        is_cut = is_put and self._remove_from(state.num_cached)
        if is_cut and self._is_whole(state.num_cached):
            self.num_cached = state.num_cached
            self._spans = self._spans.up_to(state.num_cached)
        else:
            self.clear()

    def _remove_from(self, place: int) -> bool:
        """Remove the entries from a place on. Returns libllama's answer."""
        position = self._spans.position(place)
        return bool(
            llama_cpp.llama_memory_seq_rm(self._handle.memory, self.number, position, -1)
        )

    def _is_whole(self, num_cached: int) -> bool:
        """Whether the cache has exactly the entries that a decode after num_cached tokens
        needs.

        libllama allows any part of a sliding window to be removed. The window's oldest entries
        have been overwritten, or were never in a restored state: the remaining entries can lack
        the beginning of the window, or all of it.
        """
        memory = self._handle.memory
        last = self._spans.last_position(num_cached)
        if llama_cpp.llama_memory_seq_pos_max(memory, self.number) != last:
            return False
        if self._window == 0 or self.is_recurrent:
            return True  # a recurrent model has its last state, and no positions before it
        oldest_needed = max(0, self._spans.position(num_cached) - self._window + 1)
        oldest: int = llama_cpp.llama_memory_seq_pos_min(memory, self.number)
        return oldest <= oldest_needed

    def state_bytes(self) -> int:
        """Bytes that `save_state` would copy now; 0 if nothing is cached."""
        self._handle.require_open()
        if not self.num_cached:
            return 0
        size = int(llama_cpp.llama_state_seq_get_size_ext(self._handle.context, self.number, 0))
        if self._checkpoint is not None:
            size += self._checkpoint.num_bytes
        return size

    def save_state(self) -> CacheState:
        """A copy of the cached entries, and of the checkpoint.

        Raises CacheError if libllama fails to give it.
        """
        self._handle.require_open()
        data = copied_entries(self._handle.context, self.number)
        if data is None:
            raise CacheError(
                f"the cache of {self._handle.name} cannot be copied{complaints.because()}"
            )
        checkpoint = self._checkpoint and self._checkpoint.copy()
        return CacheState(self.num_cached, data, checkpoint, self._spans)

    def outline(self) -> CacheState:
        """The result of `save_state` without the entries: for `reach`."""
        nothing = np.empty(0, dtype=np.uint8)
        return CacheState(self.num_cached, nothing, self._checkpoint, self._spans)

    def reach(self, state: CacheState, num_tokens: int) -> int:
        """How many tokens remain of a state that is restored and cut to num_tokens."""
        num_tokens = state.pictures.floor(num_tokens)
        if num_tokens >= state.num_cached:
            return state.num_cached
        has_all_entries = self._window == 0 or state.num_cached <= self._window
        if has_all_entries and not self.is_recurrent:
            return num_tokens
        checkpoint = state.checkpoint
        if checkpoint is None or checkpoint.num_cached > num_tokens:
            return 0
        return checkpoint.num_cached

    def restore_state(self, state: CacheState) -> None:
        """Put a state of this very model into the cache.

        Raises CacheError if libllama refuses it; the cache is empty then.
        """
        self.clear()
        self._spans = state.pictures
        is_put = put_entries(self._handle.context, self.number, state.data)
        if not (is_put and self._is_whole(state.num_cached)):
            self.clear()
            raise CacheError(
                f"the cache of {self._handle.name} cannot be restored{complaints.because()}"
            )
        self._checkpoint = state.checkpoint and state.checkpoint.copy()  # it is overwritten
        self.num_cached = state.num_cached

    def clear(self) -> None:
        """Forget everything of the sequence."""
        self._checkpoint = None
        self._spans = PictureSpans()
        if self._handle.num_sequences == 1:
            llama_cpp.llama_memory_clear(self._handle.memory, False)
        else:
            self._remove_from(0)
        self.num_cached = 0
        self._num_in_snapshots = 0


def copied_entries(
    context: int | None,
    sequence: int,
    flags: int = 0,
    buffer: NDArray[np.uint8] | None = None,
) -> NDArray[np.uint8] | None:
    """A copy of a sequence's entries, or None if libllama fails to give it.

    Args:
        context: libllama's pointer.
        sequence: The sequence.
        flags: libllama's flags.
        buffer: An earlier copy to overwrite.
    """
    size = int(llama_cpp.llama_state_seq_get_size_ext(context, sequence, flags))
    data = buffer
    if data is None or data.size != size:
        data = np.empty(size, dtype=np.uint8)
    pointer = data.ctypes.data_as(_BYTES)
    written = llama_cpp.llama_state_seq_get_data_ext(context, pointer, size, sequence, flags)
    if 0 < written == size:
        return data
    return None


def put_entries(
    context: int | None,
    sequence: int,
    data: NDArray[np.uint8],
    flags: int = 0,
) -> bool:
    """Restore entries. Returns False if libllama refuses."""
    read = llama_cpp.llama_state_seq_set_data_ext(
        context,
        data.ctypes.data_as(_BYTES),
        data.size,
        sequence,
        flags,
    )
    return bool(read == data.size)
