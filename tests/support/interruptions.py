"""Ends work in its midst, by a wish."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import inside
from localspec.sampling.distribution import Logits
from localspec.streaming.cancellation import Cancellation


@contextmanager
def wish_at_decode(number: int, cancellation: Cancellation) -> Iterator[Iterator[int]]:
    """In the block a wish to end comes when the number-th decode is asked for.

    What it gets counts the decodes that are done: its next number is how many those are.
    """
    asked, done = itertools.count(1), itertools.count()

    def counted(real: Callable[..., Logits]) -> Callable[..., Logits]:
        def decode(*arguments: Any) -> Logits:
            if next(asked) == number:
                cancellation.request()
            rows = real(*arguments)
            next(done)
            return rows

        return decode

    with pytest.MonkeyPatch.context() as patch:
        inside.replace_decode_batch(counted, patch)
        yield done
