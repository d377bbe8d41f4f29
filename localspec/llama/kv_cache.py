"""The cache of a text: a sequence of a context, and how far it can be rolled back.

A token's *index* is its place in the list of tokens; its *position* is the number that libllama
has for it. They differ only after pictures (`cache_state`).
"""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

from localspec.errors import CacheError
from localspec.llama.cache_state import CacheState, PictureSpan, PictureSpans
from localspec.llama.handle import Handle
from localspec.llama.library import complaints, llama_cpp

_UNKNOWN = -1  # number of tokens in snapshots while the recurrent state itself is not known
_RECURRENT_ONLY = int(llama_cpp.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY)
_BYTES = ctypes.POINTER(ctypes.c_uint8)


class Cache:
    """A sequence of a handle's context, and a record of what is in it.

    Keys and values can be removed from any token on. A recurrent state cannot be rolled back
    token by token. It can return to the checkpoint taken by `checkpoint`, or, if libllama keeps
    snapshots (n_rs_seq), to the state after each of the last decode's last tokens. After each
    removal it is checked what libllama has removed.

    Args:
        handle: The context's handle, whose `caches` the cache is added to.
        number: The sequence's number in the context.
    """

    def __init__(self, handle: Handle, number: int = 0) -> None:
        self._handle = handle
        handle.caches[number] = self
        self.number = number

        self.num_cached = 0
        """Cached tokens, including the cells of pictures."""

        self._spans = PictureSpans()
        # How many of the last tokens can be rolled back by snapshots.
        self._num_in_snapshots = 0

        self.is_settled = True
        """Whether `truncate` was called since the last decode."""

        self._checkpoint: CacheState | None = None
        self._window: int = llama_cpp.llama_model_n_swa(handle.model)  # tokens; 0: no window
        self._num_snapshots = int(llama_cpp.llama_n_rs_seq(handle.context))
        is_recurrent = llama_cpp.llama_model_is_recurrent(handle.model)
        is_hybrid = llama_cpp.llama_model_is_hybrid(handle.model)

        self.is_recurrent = bool(is_recurrent or is_hybrid or self._num_snapshots)
        """Whether the model has a recurrent state, perhaps beside keys and values."""

    def max_rollback(self, context_length: int) -> int:
        """The most tokens of a decode that can be rolled back without losing earlier tokens.

        Found by removing the last of two tokens, since libllama does not tell it for all
        models. Call it when exactly two tokens are cached, and clear the cache after it.

        Args:
            context_length: The result if any number of tokens can be rolled back.
        """
        if not (self._remove_from(1) and self._is_whole(1)):
            return 0
        if self.is_recurrent:
            return self._num_snapshots
        return context_length

    def begin_decode(self) -> None:
        """Note before a decode that the recurrent state is unknown until `add` is called.

        So it is not trusted if the decode fails.
        """
        self._num_in_snapshots = _UNKNOWN
        self.is_settled = False

    def add(self, num_tokens: int) -> None:
        """Record `num_tokens` more cached tokens, decoded by one call of libllama."""
        self.num_cached += num_tokens
        # Not the first of these tokens: no snapshot has the state before the decode.
        self._num_in_snapshots = min(num_tokens - 1, self._num_snapshots)

    @property
    def position(self) -> int:
        """The position at which libllama puts the next token."""
        return self._spans.position(self.num_cached)

    def add_picture(self, num_cells: int, num_positions: int, last: int) -> None:
        """Record a picture that was read or passed over. Arguments as in `PictureSpan`."""
        span = PictureSpan(self.num_cached, num_cells, num_positions, last)
        self._spans = PictureSpans((*self._spans, span))
        self.num_cached += num_cells
        if num_positions:
            self._num_in_snapshots = 0

    def release_snapshots(self) -> bool:
        """Give up snapshots that are not needed: those of a decode that was cut already.

        Returns whether there are none left, so that libllama may move the recurrent state in
        memory, which loses its snapshots.
        """
        if self.is_settled:
            self._num_in_snapshots = min(self._num_in_snapshots, 0)  # _UNKNOWN stays
        return self._num_in_snapshots <= 0

    def truncate(self, num_cached: int) -> None:
        """Cut to the first num_cached tokens, as `Model.truncate` does.

        Raises CacheError if there are fewer tokens.
        """
        self._handle.require_pointers()
        self.is_settled = True
        if not 0 <= num_cached <= self.num_cached:
            raise CacheError(f"asked to keep {num_cached} of {self.num_cached} cached tokens")
        if num_cached < self.num_cached:
            self.cut_to(num_cached)

    def cut_to(self, num_cached: int) -> None:
        """Cut to the first num_cached tokens, or else to the checkpoint or to no tokens.

        Removes also entries that are not recorded. A cut within a picture moves to the
        picture's beginning.
        """
        num_cached = self._spans.floor(num_cached)
        if self._checkpoint is not None and self._checkpoint.num_cached > num_cached:
            self._checkpoint = None  # it holds tokens that are no longer in the text
        num_cut = self.num_cached - num_cached
        if not self.is_recurrent or num_cut <= self._num_in_snapshots:
            self._num_in_snapshots = 0  # snapshots serve one rollback only
            can_keep = num_cached > 0 and self._remove_from(num_cached)
            if can_keep and self._is_whole(num_cached):
                self.num_cached = num_cached
                self._spans = self._spans.up_to(num_cached)
                return
        self._return_to_checkpoint()

    def keep_decoded(self) -> None:
        """After an aborted decode, record the tokens of its finished graphs as cached.

        libllama has removed the other tokens. A recurrent state is unknown then, so it returns
        to the checkpoint.
        """
        if not self.is_recurrent:
            last = llama_cpp.llama_memory_seq_pos_max(self._handle.memory, self.number)
            self.num_cached = max(self.num_cached, self._spans.index_after(last))
        self.cut_to(self.num_cached)

    @property
    def is_unchanged(self) -> bool:
        """Whether libllama's cache has exactly the recorded tokens.

        An application may have used its adopted `Llama`, or an exception of a signal handler
        may have come between a change of the cache and its record.
        """
        return self._is_whole(self.num_cached)

    def checkpoint(self) -> None:
        """Copy the present recurrent state, in place of the last checkpoint.

        Does nothing for a model without a recurrent state. If libllama cannot copy it, there is
        no checkpoint afterwards.
        """
        if not self.is_recurrent:
            return
        buffer = None
        if self._checkpoint is not None:
            buffer = self._checkpoint.data
        self._checkpoint = None  # until its buffer is overwritten as a whole
        data = copy_entries(self._handle.context, self.number, _RECURRENT_ONLY, buffer)
        if data is not None:
            self._checkpoint = CacheState(self.num_cached, data)

    def _return_to_checkpoint(self) -> None:
        """Cut to the checkpoint's tokens; clear the cache without one, or if that fails."""
        state = self._checkpoint
        if state is None:
            self.clear()
            return
        self.num_cached = 0  # until the state is known to be restored
        self._num_in_snapshots = 0
        is_restored = restore_entries(
            self._handle.context,
            self.number,
            state.data,
            _RECURRENT_ONLY,
        )
        is_cut = is_restored and self._remove_from(state.num_cached)
        if is_cut and self._is_whole(state.num_cached):
            self.num_cached = state.num_cached
            self._spans = self._spans.up_to(state.num_cached)
        else:
            self.clear()

    def _remove_from(self, index: int) -> bool:
        """Remove the entries of all tokens from an index on. Returns whether libllama did."""
        memory = self._handle.memory
        position = self._spans.position(index)
        return bool(llama_cpp.llama_memory_seq_rm(memory, self.number, position, -1))

    def _is_whole(self, num_cached: int) -> bool:
        """Whether the cache ends after num_cached tokens, with all entries the next one needs.

        With a sliding window, entries can be missing. libllama lets us cut at any token, and
        the window then reaches back to older entries. These may have been overwritten, or the
        `CacheState` that was restored did not contain them.
        """
        memory = self._handle.memory
        last = self._spans.last_position(num_cached)
        if llama_cpp.llama_memory_seq_pos_max(memory, self.number) != last:
            return False
        if self._window == 0 or self.is_recurrent:
            # Of a recurrent or hybrid model libllama reports the last position alone.
            return True
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
        """A copy of the cached entries and the checkpoint.

        Raises CacheError if libllama cannot copy them.
        """
        self._handle.require_open()
        data = copy_entries(self._handle.context, self.number)
        if data is None:
            raise CacheError(
                f"the cache of {self._handle.name} cannot be copied{complaints.take_reason()}"
            )
        checkpoint = self._checkpoint and self._checkpoint.copy()
        return CacheState(self.num_cached, data, checkpoint, self._spans)

    def outline(self) -> CacheState:
        """What `save_state` returns, but without copied entries: for `num_restorable`."""
        no_data = np.empty(0, dtype=np.uint8)
        return CacheState(self.num_cached, no_data, self._checkpoint, self._spans)

    def num_restorable(self, state: CacheState, num_tokens: int) -> int:
        """How many tokens would be cached after restoring a state and cutting to num_tokens.

        If the cut is impossible, the cache returns to the state's checkpoint; without one of at
        most num_tokens tokens it is emptied.
        """
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
        """Replace the cache by a saved state of the same model.

        Raises CacheError if libllama refuses it; the cache is empty then.
        """
        self.clear()
        self._spans = state.pictures
        is_restored = restore_entries(self._handle.context, self.number, state.data)
        if not (is_restored and self._is_whole(state.num_cached)):
            self.clear()
            raise CacheError(
                f"the cache of {self._handle.name} cannot be restored{complaints.take_reason()}"
            )
        # A copy, since the next checkpoint overwrites its data.
        self._checkpoint = state.checkpoint and state.checkpoint.copy()
        self.num_cached = state.num_cached

    def clear(self) -> None:
        """Remove all tokens of the sequence, and the checkpoint."""
        self._checkpoint = None
        self._spans = PictureSpans()
        if self._handle.num_sequences == 1:
            zeroes_data = False
            llama_cpp.llama_memory_clear(self._handle.memory, zeroes_data)
        else:
            self._remove_from(0)
        self.num_cached = 0
        self._num_in_snapshots = 0


def copy_entries(
    context: int | None,
    sequence: int,
    flags: int = 0,
    buffer: NDArray[np.uint8] | None = None,
) -> NDArray[np.uint8] | None:
    """A copy of a sequence's cache entries, in libllama's format; None if libllama fails.

    Args:
        context: libllama's pointer to the context.
        sequence: The sequence's number.
        flags: Flags of llama_state_seq_get_data_ext; 0 copies all entries.
        buffer: An array to write to if it has the right size, instead of a new one.
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


def restore_entries(
    context: int | None,
    sequence: int,
    data: NDArray[np.uint8],
    flags: int = 0,
) -> bool:
    """Put copied entries into a sequence. Returns False if libllama refuses them.

    Args:
        context: libllama's pointer to the context.
        sequence: The sequence's number.
        data: The entries, from `copy_entries`.
        flags: The flags with which they were copied.
    """
    read = llama_cpp.llama_state_seq_set_data_ext(
        context,
        data.ctypes.data_as(_BYTES),
        data.size,
        sequence,
        flags,
    )
    return bool(read == data.size)
