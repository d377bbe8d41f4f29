"""The best tokens of a row with their log-probabilities, before and after the transforms."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from localspec.filters import top_k
from localspec.sampling import Distribution, Logits, Probs, TokenIds


class TopTokens(NamedTuple):
    """The most probable tokens, best first; of equal ones the lowest id first.

    ids: (n,). logprobs: (n,) float64, natural logarithms.
    """

    ids: TokenIds
    logprobs: Probs


def top_of_row(logits: Logits, num_tokens: int) -> TopTokens:
    """The model's own law: the softmax of `logits` (vocab,) with nothing applied.

    num_tokens: 1 or more; fewer come back where the vocabulary is smaller.
    """
    ids = np.arange(len(logits))
    if num_tokens < len(logits):
        ids = top_k(logits, num_tokens)
    best = logits[ids].astype(np.float64)
    largest = best.max()
    total = np.exp(logits - np.float32(largest)).sum(dtype=np.float64)
    return _best_first(ids, best - largest - math.log(total), num_tokens)


def top_of_law(law: Distribution, num_tokens: int) -> TopTokens:
    """The law that a token is drawn from: what the transforms left of the row.

    num_tokens: 1 or more; fewer come back where fewer survived.
    """
    possible = law.probs > 0.0
    return _best_first(law.ids[possible], np.log(law.probs[possible]), num_tokens)


def _best_first(ids: TokenIds, logprobs: Probs, num_tokens: int) -> TopTokens:
    order = np.argsort(-logprobs, kind="stable")[:num_tokens]
    return TopTokens(ids[order], logprobs[order])
