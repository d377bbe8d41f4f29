"""How far a prompt is read, and about how long the rest takes."""

from __future__ import annotations

import logging
import time
from typing import Any, NamedTuple

logger = logging.getLogger(__name__)

_LONG_S = 20.0  # what is read sooner is not worth a line
_AGAIN_S = 60.0  # between two lines of one prompt
_LONG = 1024  # tokens; where it is not known how long one takes


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

    def __str__(self) -> str:
        number = f"{self.num_tokens - self.num_decoded:,}".replace(",", " ")
        if self.left_s is None:
            return f"reading {number} tokens"
        if self.left_s < 90:
            return f"reading {number} tokens, about {self.left_s:.0f} seconds"
        return f"reading {number} tokens, about {self.left_s / 60:.0f} minutes"


class ReadingLog:
    """Logs what of a prompt is still to be read, while that takes long."""

    def __init__(self) -> None:
        self._said_s: float | None = None

    def note(self, reading: ReadingPrompt) -> None:
        """Log it, unless it is short, or was said a moment ago."""
        if reading.left_s is None:
            if reading.num_tokens - reading.num_decoded >= _LONG:
                logger.info("%s", reading)
            return
        now_s = time.monotonic()
        is_new = self._said_s is None or now_s - self._said_s >= _AGAIN_S
        if is_new and reading.left_s >= _LONG_S:
            self._said_s = now_s
            logger.info("%s", reading)
