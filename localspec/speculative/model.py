"""The language model as the loop needs it: decode, truncate, and a few facts.

Implemented by `LlamaModel` and by the tests' table models. Knows no files and no text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from localspec.sampling.distribution import Logits


class Model(Protocol):
    """A causal language model with one cached sequence."""

    @property
    def vocab_size(self) -> int:
        """Width of a row of logits."""

    @property
    def context_length(self) -> int:
        """The most tokens the cache can hold."""

    @property
    def max_outputs(self) -> int:
        """The most rows of logits one decode may return."""

    @property
    def num_cached(self) -> int:
        """Tokens with cache entries; the next decode continues at this position."""

    @property
    def max_rollback(self) -> int:
        """The most tokens of the last decode that `truncate` takes back and keeps the rest.

        0 for what is recurrent and has no snapshots: it comes back to a checkpoint only.
        """

    def decode(self, tokens: Sequence[int], num_logits: int) -> Logits:
        """Append tokens to the cache; rows of logits after the last num_logits of them.

        Returns (num_logits, vocab) float32, a view that may be written to and is valid until
        the next decode.
        On any error the cache is as it was before the call, or empty as in `truncate`, or holds
        some of these tokens, too: never one that rows are asked for.
        """

    def truncate(self, num_cached: int) -> None:
        """Keep the first num_cached tokens of the cache, or fewer where they are not whole.

        Some caches have lost what a part of them would need: a sliding window's older
        entries, a recurrent state. Then what is left is that of the last checkpoint, or
        nothing, and the rest is decoded again. Raises CacheError for more than are cached.
        """

    def checkpoint(self) -> None:
        """Remember the cache as it is: a later `truncate` keeps that much, unless it cuts it.

        One at a time; for what can be cut anywhere there is nothing to do.
        """
