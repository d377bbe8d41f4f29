"""The language model as the loop needs it: decode, truncate, and a few facts.

Implemented by `LlamaModel` and by the tests' table models. Knows no files and no text.

A function that decodes for a text is a generator: it yields each `Decode`, and is sent its
rows. So a caller that runs several of them can decode for several texts at once. `result_of`
runs one.
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
        """How many tokens of the last decode `truncate` can take back without losing others.

        0 for a recurrent model without snapshots, which can only go back to a checkpoint.
        """

    def decode(self, tokens: Sequence[int], num_logits: int) -> Logits:
        """Append tokens to the cache. Returns the logits after the last num_logits of them.

        They are (num_logits, vocab) float32, a view that may be written to and is valid until
        the next decode. After an error the cache is as before the call, or empty as after
        `truncate`, or holds some of the tokens, but none of the last num_logits.
        """

    def truncate(self, num_cached: int) -> None:
        """Keep the first num_cached tokens of the cache, or fewer if it cannot be cut there.

        It cannot if a sliding window's older entries or a recurrent state are lost. Then the
        cache goes back to the last checkpoint, or is emptied. Raises CacheError if fewer than
        num_cached tokens are cached.
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
# A generator that yields its decodes, is sent their rows, and returns a `Result`
Decoding = Generator[Decode, Logits, Result]


def result_of(decoding: Decoding[Result]) -> Result:
    """Make the decodes that a generator yields. Returns its result.

    An error of a decode is raised within the generator.
    """
    try:
        decode = next(decoding)
        while True:
            try:
                rows = decode.model.decode(decode.tokens, decode.num_logits)
            except BaseException as error:
                decode = decoding.throw(error)
            else:
                decode = decoding.send(rows)
    except StopIteration as end:
        result: Result = end.value
        return result
