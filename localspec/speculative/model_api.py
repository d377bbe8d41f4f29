"""The language model as the loop needs it: decode, truncate, and a few facts.

Implemented by `LlamaModel` and by the tests' table models. Knows no files and no text.

What decodes for a text is a generator, which yields each `Decode` and is sent its rows. So
a caller that drives several texts can decode for all of them at once; `result_of` drives one.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import NamedTuple, Protocol, TypeVar

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

        0 for a recurrent model without snapshots, which only goes back to a checkpoint.
        """

    def decode(self, tokens: Sequence[int], num_logits: int) -> Logits:
        """Append tokens to the cache; rows of logits after the last num_logits of them.

        Returns (num_logits, vocab) float32, a view that may be written to and is valid until
        the next decode.
        On any error the cache is as it was before the call, or empty as in `truncate`, or also
        holds some of these tokens, but none of the last num_logits.
        """

    def truncate(self, num_cached: int) -> None:
        """Keep the first num_cached tokens of the cache, or fewer where they are not whole.

        A sliding window's older entries or a recurrent state may be lost. Then the cache goes
        back to the last checkpoint or is emptied, and the rest is decoded again. Raises
        CacheError for more than are cached.
        """

    def checkpoint(self) -> None:
        """Remember the cache as it is: a later `truncate` can go back to it.

        There is one checkpoint at a time. A cache that can be cut anywhere needs none.
        """


class Decode(NamedTuple):
    """A decode that a text needs next: the arguments of `Model.decode`."""

    model: Model
    tokens: Sequence[int]
    num_logits: int


Result = TypeVar("Result")
# A function that decodes, as a generator: what it returns is the `Result`.
Decoding = Generator[Decode, Logits, Result]


def result_of(decoding: Decoding[Result]) -> Result:
    """The result of a function that decodes, which is driven here."""
    try:
        asked = next(decoding)
        while True:
            try:
                rows = asked.model.decode(asked.tokens, asked.num_logits)
            except BaseException as error:
                asked = decoding.throw(error)
            else:
                asked = decoding.send(rows)
    except StopIteration as end:
        result: Result = end.value
        return result
