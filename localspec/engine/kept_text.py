"""A text whose caches are kept: where it is, and what keeps it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from localspec.llama.cache_state import CacheState


class SavesState(Protocol):
    """A model whose cache can be taken out and put back."""

    def state_bytes(self) -> int:
        """Bytes that `save_state` would copy now; 0 if nothing is cached."""

    def save_state(self) -> CacheState:
        """A copy of what is cached. Raises CacheError if that fails."""

    def restore_state(self, state: CacheState) -> None:
        """Make that what is cached. Raises CacheError, and leaves the cache empty."""

    def outline(self) -> CacheState:
        """What `save_state` would copy now, without the entries: for `reach`."""

    def reach(self, state: CacheState, num_tokens: int) -> int:
        """How many tokens are left of a state that is restored and cut to num_tokens."""


class CopiedHead(Protocol):
    """A head, of which another at another text can have what they begin alike."""

    def copied(self) -> Any:
        """What it has, for `take_over`. From any thread."""

    def take_over(self, other: Any, num_cached: int) -> None:
        """Have that of the first num_cached tokens, which its target has cached."""


class PooledCache(NamedTuple):
    """A text, and what each model's cache held of it; None where nothing was cached.

    head: what a head had, in a copy from another place. client: as `Prompt` has it.
    """

    tokens: list[int]
    states: list[CacheState | None]
    head: Any = None
    client: str = ""

    @property
    def num_bytes(self) -> int:
        """Memory that the states take."""
        return sum(state.num_bytes for state in self.states if state is not None)


class KeepsTexts(Protocol):
    """Where texts are when they have left the memory: see `CacheStore`."""

    def best(self, tokens: Sequence[int], num_there: int) -> PooledCache | None:
        """The text that spares most decodes, of which num_there are spared without it."""

    def wants(self, tokens: Sequence[int], outline: CacheState) -> bool:
        """Whether a text is worth keeping."""

    def has_room_for(self, num_bytes: int) -> bool:
        """Whether a text of that size may be copied, and kept."""

    def keep(self, kept: PooledCache, check: Callable[[], None]) -> None:
        """Keep a text, unless `check`, which is called often, raises."""
