"""Texts that wait, with the state of the caches for each.

The loop has one text at a time. A conversation that another interrupts finds its own again,
without decoding it again, as long as the memory that was granted suffices; a new one begins
with a copy of the text that it shares most with.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from localspec.errors import CacheError, OptionError
from localspec.llama.cache_state import CacheState
from localspec.speculative.loop import SpeculativeDecoder
from localspec.speculative.prefix import common_length
from localspec.speculative.proposers import DraftModel

# Tokens of a text whose entries are copied in the time that one is decoded: some hundreds on
# processors, fewer where the copy has to cross to a GPU.
_COPIED_PER_DECODED = 32


class SavesState(Protocol):
    """A model whose cache can be taken out and put back."""

    def state_bytes(self) -> int:
        """Bytes that `save_state` would copy now; 0 if nothing is cached."""

    def save_state(self) -> CacheState:
        """A copy of what is cached. Raises CacheError if that fails."""

    def restore_state(self, state: CacheState) -> None:
        """Make that what is cached. Raises CacheError, and leaves the cache empty."""

    def reach(self, state: CacheState, num_tokens: int) -> int:
        """How many tokens are left of a state that is restored and cut to num_tokens."""


class PooledCache(NamedTuple):
    """A text, and what each model's cache held of it; None where nothing was cached."""

    tokens: list[int]
    states: list[CacheState | None]

    @property
    def num_bytes(self) -> int:
        """Memory that the states take."""
        return sum(state.num_bytes for state in self.states if state is not None)


class CachePool:
    """A text for each owner but the one whose text the loop has; the oldest leave first.

    An owner is any object; its text goes when the object does. models: what the loop's text
    is cached in, the target first. budget_bytes: of all states together; 0 keeps none.

    Raises OptionError for a budget below 0.
    """

    def __init__(
        self, decoder: SpeculativeDecoder, models: Sequence[SavesState], budget_bytes: int
    ) -> None:
        if not (isinstance(budget_bytes, int) and budget_bytes >= 0):
            raise OptionError(f"kept_bytes is {budget_bytes!r}", "Choose 0 (none) or more.")
        self._decoder = decoder
        self._models = models
        self.budget_bytes = budget_bytes
        self._owner: Callable[[], object | None] = _nobody
        # Least recently used first.
        self._kept: weakref.WeakKeyDictionary[object, PooledCache] = weakref.WeakKeyDictionary()

    @property
    def num_bytes(self) -> int:
        """Memory that the kept states take. From any thread."""
        return sum(kept.num_bytes for kept in list(self._kept.values()))

    def switch_to(self, owner: object | None, tokens: Sequence[int]) -> None:
        """Give the loop the owner's text, and keep that of the one before. None: nobody's.

        tokens: what comes next, of which another text may have more: then the loop gets a copy
        of that. Without one of the owner's own the loop's stays, since it may begin alike.
        """
        previous = self._owner()
        if previous is not None and previous is not owner:
            self._keep(previous)
        own = None
        if owner is not previous:
            self._owner = _nobody if owner is None else weakref.ref(owner)
            own = None if owner is None else self._kept.pop(owner, None)
        if own is None:
            num_there = common_length(self._decoder.tokens, tokens)
            num_there = min(num_there, self._decoder.target.num_cached)
        else:
            num_there = self._reach(own, tokens)
        other = self._better_than(num_there, tokens)
        if other is not None:
            # Used, so the last to leave; and the states are only read.
            shared = self._kept[other] = self._kept.pop(other)
            self._restore(shared._replace(tokens=shared.tokens[:]))
        elif own is not None:
            self._restore(own)

    def _better_than(self, num_there: int, tokens: Sequence[int]) -> object | None:
        """Whose text spares most decodes of `tokens`, if it spares more than it costs."""
        best, most = None, 0
        for owner, kept in list(self._kept.items()):
            num_spared = self._reach(kept, tokens) - num_there
            if num_spared > max(most, len(kept.tokens) // _COPIED_PER_DECODED):
                best, most = owner, num_spared
        return best

    def _reach(self, kept: PooledCache, tokens: Sequence[int]) -> int:
        """How many of `tokens` the target need not decode after that text."""
        state = kept.states[0]
        if state is None:
            return 0
        return self._models[0].reach(state, common_length(kept.tokens, tokens))

    def clear(self) -> None:
        """Free what was kept."""
        self._kept.clear()

    def text_of(self, owner: object) -> PooledCache | None:
        """A copy of the owner's text and its states, if there is one.

        Raises CacheError if they are larger than the budget, which `put` would refuse.
        """
        if owner is not self._owner():
            return self._kept.get(owner)
        self._check_size(sum(self._sizes()))
        return self._copy()

    def put(self, owner: object, kept: PooledCache) -> None:
        """Make that the owner's text, from the next `switch_to` on.

        Raises CacheError if it is larger than the budget.
        """
        self.make_room(kept.num_bytes)
        if owner is self._owner():
            self._owner = _nobody
        self._kept[owner] = kept

    def make_room(self, num_bytes: int) -> None:
        """Let older texts leave for one of that size. Raises CacheError if it is too large."""
        self._check_size(num_bytes)
        while self.num_bytes + num_bytes > self.budget_bytes:
            oldest = next(iter(self._kept.keys()), None)
            if oldest is not None:
                del self._kept[oldest]

    def _check_size(self, num_bytes: int) -> None:
        if num_bytes > self.budget_bytes:
            raise CacheError(
                f"{num_bytes} bytes of caches are more than {self.budget_bytes}",
                "Grant more: load(kept_bytes=…).",
            )

    def _keep(self, owner: object) -> None:
        num_bytes = sum(self._sizes())
        if not 0 < num_bytes <= self.budget_bytes:
            return
        self.make_room(num_bytes)
        kept = self._copy()
        if kept is not None:
            self._kept[owner] = kept

    def _sizes(self) -> list[int]:
        """Bytes of each model's state; 0 if there is nothing to keep."""
        # A draft that has not read all of the text would be believed to have.
        partial = {
            id(proposer.model)
            for proposer in self._decoder.proposers
            if isinstance(proposer, DraftModel) and proposer.begins_at > 0
        }
        return [0 if id(model) in partial else model.state_bytes() for model in self._models]

    def _copy(self) -> PooledCache | None:
        """The loop's text and states; None if nothing is cached, or copying fails."""
        try:
            states = [
                model.save_state() if size else None
                for model, size in zip(self._models, self._sizes(), strict=True)
            ]
        except CacheError:
            return None  # then the text is decoded again when it comes back
        if not any(states):
            return None
        return PooledCache(list(self._decoder.tokens), states)

    def _restore(self, kept: PooledCache) -> None:
        self._decoder.truncate(0)
        # Now, since whatever happens below, each cache holds a prefix of it.
        self._decoder.tokens = kept.tokens
        for model, state in zip(self._models, kept.states, strict=True):
            if state is not None:
                try:
                    model.restore_state(state)
                except CacheError:
                    continue  # its cache is empty, and decodes what it lacks


def _nobody() -> None:
    return None
