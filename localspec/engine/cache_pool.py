"""Texts whose turn is over for now, with what both caches held of them.

The loop has one text at a time. A conversation that another interrupts finds its own again,
without decoding it again, as long as the memory that was granted suffices.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from localspec.errors import CacheError, OptionError
from localspec.llama.cache_state import CacheState
from localspec.speculative.loop import SpeculativeDecoder
from localspec.speculative.proposers import DraftModel

# A token is copied faster than decoded, by this factor at the least.
_COPIED_PER_DECODED = 16


class SavesState(Protocol):
    """A model whose cache can be taken out and put back."""

    def state_bytes(self) -> int:
        """Bytes that `save_state` would copy now; 0 if nothing is cached."""

    def save_state(self) -> CacheState:
        """A copy of what is cached. Raises CacheError if that fails."""

    def restore_state(self, state: CacheState) -> None:
        """Make that what is cached. Raises CacheError, and leaves the cache empty."""


class PooledCache(NamedTuple):
    """A text, and what each model's cache held of it; None where nothing was cached."""

    tokens: list[int]
    states: list[CacheState | None]

    @property
    def num_bytes(self) -> int:
        """Memory that the states take."""
        return sum(state.data.size for state in self.states if state is not None)


class CachePool:
    """A text for each owner but the one whose text the loop has; the oldest leave first.

    An owner is any object; its text goes when the object does. models: what the loop's text
    is cached in. budget_bytes: of all states together; 0 keeps none.

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

    def switch_to(self, owner: object | None, prompt: Sequence[int]) -> None:
        """Give the loop the owner's text, and keep that of the one before. None: nobody's.

        Without a text of the owner's own it gets a copy of the kept one that begins as the
        prompt does, or stays with its own, which may do so, too.
        """
        previous = self._owner()
        if owner is previous:
            return
        if previous is not None:
            self._keep(previous)
        self._owner = _nobody if owner is None else weakref.ref(owner)
        kept = None if owner is None else self._kept.pop(owner, None)
        if kept is None:
            kept = self._nearest(prompt)
        if kept is not None:
            self._restore(kept)

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

    def _nearest(self, prompt: Sequence[int]) -> PooledCache | None:
        """The kept text that spares more than its copy costs, beside what the loop's spares."""
        found, most = None, common_length(self._decoder.tokens, prompt)
        for kept in self._kept.values():
            num_common = common_length(kept.tokens, prompt)
            if num_common > most + len(kept.tokens) // _COPIED_PER_DECODED:
                found, most = kept, num_common
        return found

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
        """What the loop has; None if nothing is cached, or libllama does not give it."""
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
        self._decoder.tokens = list(kept.tokens)
        for model, state in zip(self._models, kept.states, strict=True):
            if state is not None:
                try:
                    model.restore_state(state)
                except CacheError:
                    continue  # its cache is empty, and decodes what it lacks


def _nobody() -> None:
    return None


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
