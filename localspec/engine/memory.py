"""What an open engine takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from localspec.preflight.room import PairMemory


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
