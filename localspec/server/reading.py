"""How far a prompt is read, and about how long the rest takes."""

from __future__ import annotations

from typing import Any, NamedTuple

_LONG_S = 20.0
_LONG = 1024  # tokens, where it is not known how long one takes


class ReadingPrompt(NamedTuple):
    """A long prompt is being read: so many of its tokens are decoded.

    num_cached: tokens that were there before. left_s: about how long the rest takes; None where
    that is not known yet.
    """

    num_decoded: int = 0
    num_tokens: int = 0
    num_cached: int = 0
    left_s: float | None = None

    @property
    def field(self) -> dict[str, Any]:
        """What a client is told, in every protocol."""
        left_s = None if self.left_s is None else round(self.left_s, 1)
        told = {"processed": self.num_decoded, "total": self.num_tokens}
        return {"prompt_progress": {**told, "cache": self.num_cached, "left_s": left_s}}

    @property
    def is_long(self) -> bool:
        """Whether the rest is worth a line in the log."""
        if self.left_s is None:
            return self.num_tokens - self.num_decoded >= _LONG
        return self.left_s >= _LONG_S

    def __str__(self) -> str:
        number = f"{self.num_tokens - self.num_decoded:,}".replace(",", " ")
        if self.left_s is None:
            return f"reading {number} tokens"
        if self.left_s < 90:
            return f"reading {number} tokens, about {self.left_s:.0f} seconds"
        return f"reading {number} tokens, about {self.left_s / 60:.0f} minutes"
