"""Whether the rows of a decode depend on how many tokens it has: what is known of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_CHEAP = 1.03  # a slowdown that nobody would notice


@dataclass(frozen=True, slots=True, kw_only=True)
class Exactness:
    """Sizes of decodes whose rows and caches are equal, to the bit, to those of single tokens.

    Where all are, a text is one function of file, prompt, options and machine: not of the
    draft, the number of draft tokens or threads, or what was cached.

    largest_step: steps of up to this many tokens are; 1 if no other is. all_sizes: every
    decode is, prompts included. joined: so are those that several texts have a part in.
    reason: why not every one; empty if all are. slowdown: time of the worst decode ÷ the same
    with the usual settings; None if that was not measured.
    """

    largest_step: int = 1
    all_sizes: bool = False
    joined: bool = False
    reason: str = "not asked for (exact=True)"
    slowdown: float | None = None

    @classmethod
    def restored(cls, kept: Mapping[str, object]) -> Exactness:
        """Of a model that is exact. kept: its profile's content."""
        slowdown = kept.get("slowdown")
        known = slowdown if isinstance(slowdown, float) else None
        joined = kept.get("joined") is True
        return cls(all_sizes=True, joined=joined, reason="", slowdown=known)

    @property
    def is_cheap(self) -> bool:
        """Whether exact decodes cost so little that they need not be asked for."""
        slowdown = self.slowdown
        return self.all_sizes and slowdown is not None and slowdown <= _CHEAP

    def __str__(self) -> str:
        if self.all_sizes:
            return "all sizes"
        sizes = f"2 to {self.largest_step}" if self.largest_step > 1 else "none"
        return f"{sizes}: {self.reason}"
