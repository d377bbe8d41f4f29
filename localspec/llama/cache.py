"""What a context has cached of its one text, and what of it can be taken back."""

from __future__ import annotations

from localspec.errors import CacheError
from localspec.llama import cache_state
from localspec.llama.cache_state import CacheState
from localspec.llama.handle import Handle
from localspec.llama.library import complaints, llama_cpp

_UNKNOWN = -1  # tokens in snapshots, if not even the last state is of use


class Cache:
    """The cached sequence of a handle's context.

    The keys and values of any token can be removed. A recurrent state only goes on from one
    state: if libllama keeps snapshots (n_rs_seq) it comes back to those of the last
    decode, and from anywhere to a checkpoint that was taken here. What libllama says it has
    removed is not believed.

    name: of the model, for errors.
    """

    def __init__(self, handle: Handle, name: str) -> None:
        self._handle = handle
        self._name = name
        self.num_cached = 0
        self._window: int = llama_cpp.llama_model_n_swa(handle.model)
        self._num_snapshots = int(llama_cpp.llama_n_rs_seq(handle.context))
        self.is_recurrent = bool(
            llama_cpp.llama_model_is_recurrent(handle.model)
            or llama_cpp.llama_model_is_hybrid(handle.model)
            or self._num_snapshots
        )
        self._num_in_snapshots = 0  # tokens at the end that they can take back
        self._checkpoint: CacheState | None = None

    def max_rollback(self, context_length: int) -> int:
        """The most tokens of the last decode that can be taken back without losing the rest.

        After a decode of two tokens: tried, since not every model says so.
        """
        removed: bool = llama_cpp.llama_memory_seq_rm(self._handle.memory, 0, 1, -1)
        if not (removed and self._is_whole(1)):
            return 0
        return self._num_snapshots if self.is_recurrent else context_length

    def begin_decode(self) -> None:
        """Until `add` it is not known what the recurrent state is, if the decode fails."""
        self._num_in_snapshots = _UNKNOWN

    def add(self, num_tokens: int) -> None:
        """So many were decoded, in one call of libllama."""
        self.num_cached += num_tokens
        self._num_in_snapshots = min(num_tokens - 1, self._num_snapshots)

    def truncate(self, num_cached: int) -> None:
        """See `Model.truncate`. Raises CacheError for more tokens than there are."""
        self._handle.require_pointers()
        if not 0 <= num_cached <= self.num_cached:
            raise CacheError(f"asked to keep {num_cached} of {self.num_cached} cached tokens")
        if num_cached < self.num_cached:
            self.keep(num_cached)

    def keep(self, num_cached: int) -> None:
        """Cut to the first num_cached tokens, or to fewer where those are not whole."""
        if self._checkpoint is not None and self._checkpoint.num_cached > num_cached:
            self._checkpoint = None  # of what is not the text any more
        if self.is_recurrent and self.num_cached - num_cached > self._num_in_snapshots:
            self._return_to_checkpoint()
            return
        self._num_in_snapshots = 0  # one way back only
        can_keep = num_cached > 0 and llama_cpp.llama_memory_seq_rm(
            self._handle.memory, 0, num_cached, -1
        )
        if can_keep and self._is_whole(num_cached):
            self.num_cached = num_cached
        else:
            self._return_to_checkpoint()

    @property
    def is_unchanged(self) -> bool:
        """Whether what libllama has is what is thought to be cached.

        The owner of a context may have used it, or an exception of a signal handler have come
        between a change there and its record here.
        """
        return self._is_whole(self.num_cached)

    def checkpoint(self) -> None:
        if not self.is_recurrent:
            return
        old, self._checkpoint = self._checkpoint, None  # which is overwritten
        buffer = None if old is None else old.data
        self._checkpoint = cache_state.take_state(
            llama_cpp, self._handle.context, self.num_cached, only_recurrent=True, buffer=buffer
        )

    def _return_to_checkpoint(self) -> None:
        """Go back to the checkpoint, if there is one, else to nothing."""
        state = self._checkpoint
        if state is None:
            self.clear()
            return
        self.num_cached = self._num_in_snapshots = 0  # until it is known to be there
        is_put = cache_state.put_state(
            llama_cpp, self._handle.context, state, only_recurrent=True
        ) and llama_cpp.llama_memory_seq_rm(self._handle.memory, 0, state.num_cached, -1)
        if is_put and self._is_whole(state.num_cached):
            self.num_cached = state.num_cached
        else:
            self.clear()

    def _is_whole(self, num_cached: int) -> bool:
        """Whether all that a decode after num_cached tokens looks at is cached, and no more.

        libllama takes anything away from a sliding window, whose oldest entries it has
        overwritten or, in a restored state, never had: what is left can have a hole at its
        beginning, or be nothing at all.
        """
        if llama_cpp.llama_memory_seq_pos_max(self._handle.memory, 0) != num_cached - 1:
            return False
        if self._window == 0 or self.is_recurrent:
            return True  # what is recurrent has its last state, and no positions before it
        oldest_needed = max(0, num_cached - self._window + 1)
        oldest: int = llama_cpp.llama_memory_seq_pos_min(self._handle.memory, 0)
        return oldest <= oldest_needed

    def state_bytes(self) -> int:
        """Bytes that `save_state` would copy now; 0 if nothing is cached."""
        if not self.num_cached:
            return 0
        size = cache_state.size_of_state(llama_cpp, self._handle.context)
        return size + (0 if self._checkpoint is None else self._checkpoint.num_bytes)

    def save_state(self) -> CacheState:
        """A copy of what is cached, and of the checkpoint.

        Raises CacheError if libllama fails to give it.
        """
        state = cache_state.take_state(llama_cpp, self._handle.context, self.num_cached)
        if state is None:
            raise CacheError(
                f"the cache of {self._name} cannot be copied{complaints.because()}"
            )
        checkpoint = self._checkpoint
        return state._replace(checkpoint=None if checkpoint is None else checkpoint.copy())

    def reach(self, state: CacheState, num_tokens: int) -> int:
        """How many tokens are left of a state that is restored and cut to num_tokens."""
        if num_tokens >= state.num_cached:
            return state.num_cached
        is_all_there = self._window == 0 or state.num_cached <= self._window
        if is_all_there and not self.is_recurrent:
            return num_tokens
        checkpoint = state.checkpoint
        is_before = checkpoint is not None and checkpoint.num_cached <= num_tokens
        return checkpoint.num_cached if checkpoint is not None and is_before else 0

    def restore_state(self, state: CacheState) -> None:
        """Make a state of this very model what is cached.

        Raises CacheError if libllama refuses it; the cache is empty then.
        """
        self.clear()
        is_put = cache_state.put_state(llama_cpp, self._handle.context, state)
        if not (is_put and self._is_whole(state.num_cached)):
            self.clear()
            raise CacheError(
                f"the cache of {self._name} cannot be restored{complaints.because()}"
            )
        if state.checkpoint is not None:
            self._checkpoint = state.checkpoint.copy()  # the next one is written over it
        self.num_cached = state.num_cached

    def clear(self) -> None:
        """Forget everything."""
        self._checkpoint = None
        llama_cpp.llama_memory_clear(self._handle.memory, False)
        self.num_cached = self._num_in_snapshots = 0
