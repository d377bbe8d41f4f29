"""With how many threads a small model decodes fastest, found by trying.

Threads that share a few milliseconds of work spend much of it waiting for each other: a model
of some million parameters can be twice as fast on one core as on two.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from localspec.llama import LlamaModel

_LARGEST_BYTES = 100_000_000  # of weights; with more, a token is work for all cores
_NUM_ROUNDS = 5
_MARGIN = 0.9  # of the time with fewer threads, that more must not exceed


def choose_threads(model: LlamaModel) -> None:
    """Let a small model decode with as few threads as are fastest; leave others alone.

    Takes some ten decodes of a token. The model's cache must be empty, and is again.
    """
    if model.num_weight_bytes > _LARGEST_BYTES or model.context_length < 2:
        return
    most = model.num_threads
    counts = [count for count in (1, 2, 4, 8, 16, 32) if count < most] + [most]
    best_s = dict.fromkeys(counts, float("inf"))
    for _ in range(_NUM_ROUNDS):
        for count in counts:
            model.num_threads = count
            started = time.perf_counter()
            model.decode([0], 1)
            best_s[count] = min(best_s[count], time.perf_counter() - started)
            model.truncate(0)
    chosen = counts[0]
    for count in counts:
        if best_s[count] < _MARGIN * best_s[chosen]:
            chosen = count
    model.num_threads = chosen
