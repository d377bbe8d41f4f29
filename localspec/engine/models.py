"""The models that an engine owns, and what they take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from localspec.llama.head import LlamaHead
    from localspec.llama.medusa import MedusaHeads
    from localspec.llama.model import LlamaModel
    from localspec.preflight.room import PairMemory


class Models(NamedTuple):
    """A target, and what may draft for it.

    memory: what they take, if all were opened from files.
    """

    target: LlamaModel
    draft: LlamaModel | None
    head: LlamaHead | MedusaHeads | None
    memory: PairMemory | None = None

    @property
    def saved(self) -> list[LlamaModel]:
        """Those whose caches are kept of texts that wait: a head's is soon read again."""
        return [self.target] if self.draft is None else [self.target, self.draft]

    @property
    def all(self) -> list[LlamaModel | LlamaHead | MedusaHeads]:
        """In the order in which they are opened."""
        heads = [] if self.head is None else [self.head]
        return [*self.saved, *heads]

    @property
    def num_sequences(self) -> int:
        """Texts that every context can hold side by side."""
        return min(model.num_sequences for model in self.all)


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """What an open engine takes, in bytes.

    models: weights, caches and buffers of target, draft and head for the whole context, as
    their files' headers say; None where an application's own `Llama` is among them.
    kept_bytes: main memory that the caches of conversations that wait take, which
    `free_kept` frees; most_kept_bytes: what they may take.
    """

    models: PairMemory | None
    kept_bytes: int
    most_kept_bytes: int
