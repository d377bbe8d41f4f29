"""How many threads the models begin with, and who changes that."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from localspec.engine.models import Models
from localspec.policy.threads import AdaptiveThreads
from localspec.speculative.policy_api import FixedThreads, ThreadPolicy

if TYPE_CHECKING:
    from localspec.llama.model import LlamaModel

_LARGEST_TRIED_BYTES = 100_000_000  # of weights; with more, a token is work for all cores
_NUM_THREAD_ROUNDS = 5
_THREADS_MARGIN = 0.9  # of the time with fewer threads, that more must not exceed


def choose_threads(model: LlamaModel) -> None:
    """Let a small model decode with as few threads as are fastest; leave others alone.

    Threads that share a few milliseconds of work spend much of it waiting for each other: a
    model of some million parameters can be twice as fast on one core as on two.

    Takes some ten decodes of a token. The model's cache must be empty, and is again.
    """
    if model.num_weight_bytes > _LARGEST_TRIED_BYTES or model.context_length < 2:
        return
    most = model.num_threads
    counts = [count for count in (1, 2, 4, 8, 16, 32) if count < most] + [most]
    best_s = dict.fromkeys(counts, float("inf"))
    for _ in range(_NUM_THREAD_ROUNDS):
        for count in counts:
            model.num_threads = count
            started = time.perf_counter()
            model.decode([0], 1)
            best_s[count] = min(best_s[count], time.perf_counter() - started)
            model.truncate(0)
    chosen = counts[0]
    for count in counts:
        if best_s[count] < _THREADS_MARGIN * best_s[chosen]:
            chosen = count
    model.num_threads = chosen


def choose_thread_policy(models: Models) -> ThreadPolicy:
    """The target's number follows the load, and the others' with it, where nobody set them."""
    target, draft, head, _ = models
    if not target.may_change_threads:
        return FixedThreads(target.num_threads)
    most_of_draft = 0 if draft is None else draft.num_threads

    def use(count: int) -> None:
        target.num_threads = count
        if draft is not None and draft.may_change_threads:
            draft.num_threads = min(count, most_of_draft)
        if head is not None:
            head.num_threads = count

    return AdaptiveThreads(target.num_threads, use, target.lane.was_alone)
