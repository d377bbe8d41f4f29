"""Penalties for repetition in the text so far: for tokens, and for sequences (DRY).

Nothing here distinguishes prompt from answer, or draft tokens from kept ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from localspec.sampling.distribution import Logits, TokenIds
from localspec.sampling.params import SamplingParams

# Sequences that no repeat crosses: first token → the tokens that must follow it, perhaps none.
Breakers = Mapping[int, Sequence[tuple[int, ...]]]

_FLOAT32_MAX = float(np.finfo(np.float32).max)


def penalise_tokens(row: Logits, text: TokenIds, params: SamplingParams) -> None:
    """Apply the repetition, presence and frequency penalties to `row` (vocab,), in place.

    Ids beyond the row are skipped: the target may have tokens that the draft lacks.

    Args:
        row: The logits.
        text: (n,) the tokens so far. The last penalty_last_n count, which is above 0.
        params: The settings.
    """
    tokens, counts = np.unique(text[-params.penalty_last_n :], return_counts=True)
    num_known = int(np.searchsorted(tokens, len(row)))
    tokens = tokens[:num_known]
    counts = counts[:num_known]
    # In float32, as in llama.cpp.
    logits = row[tokens]
    repetition = np.float32(params.repetition_penalty)
    # Division alone would make tokens with negative logits more likely.
    logits = np.where(logits <= 0.0, logits * repetition, logits / repetition)
    added = counts.astype(np.float32) * np.float32(params.frequency_penalty)
    added += np.float32(params.presence_penalty)
    row[tokens] = logits - added


def penalise_repeats(
    row: Logits,
    text: TokenIds,
    params: SamplingParams,
    breakers: Breakers,
) -> None:
    """Apply DRY's penalties to `row` (vocab,), in place.

    A token is penalised for the longest end of `text` (n,) that it already followed. As in
    llama.cpp, only the last dry_penalty_last_n tokens count, back to the last breaker, and a
    token that is a breaker alone is not penalised.
    """
    text = text[-params.dry_penalty_last_n :]
    longest = _longest_repeats(text, params, breakers)
    for token, length in longest.items():
        if token < len(row) and () not in breakers.get(token, ()):
            excess = length - params.dry_allowed_length
            penalty = params.dry_multiplier * params.dry_base**excess
            row[token] -= np.float32(min(penalty, _FLOAT32_MAX))


def _longest_repeats(
    text: TokenIds,
    params: SamplingParams,
    breakers: Breakers,
) -> dict[int, int]:
    """Token → length of the longest end of the text that it already followed.

    Only lengths from dry_allowed_length on. All earlier occurrences of the last token count
    at first; each further length keeps the ones that still match.
    """
    limit = _length_since_breaker(text, breakers)
    limit = min(limit, params.dry_allowed_length + _max_exponent(params.dry_base))
    if limit < params.dry_allowed_length:
        return {}
    last = len(text) - 1
    ends = np.flatnonzero(text[:last] == text[last])
    lengths = np.ones(len(ends), dtype=np.int64)
    alive = np.arange(len(ends))
    for length in range(1, limit):
        alive = alive[ends[alive] >= length]
        alive = alive[text[ends[alive] - length] == text[last - length]]
        if len(alive) == 0:
            break
        lengths[alive] = length + 1
    long = lengths >= params.dry_allowed_length
    following = text[ends[long] + 1].tolist()
    longest: dict[int, int] = {}
    for token, length in zip(following, lengths[long].tolist(), strict=True):
        longest[token] = max(longest.get(token, 0), length)
    return longest


def _length_since_breaker(text: TokenIds, breakers: Breakers) -> int:
    """How many tokens follow the last breaker; all if there is none."""
    if not breakers:
        return len(text)
    for distance, token in enumerate(text[::-1].tolist()):
        tails = breakers.get(token)
        if tails is None:
            continue
        following = text[len(text) - distance :]
        complete = []
        for tail in tails:
            if following[: len(tail)].tolist() == list(tail):
                complete.append(len(tail))
        if complete:
            return distance - max(complete)
    return len(text)


def _max_exponent(base: float) -> int:
    """The largest exponent for which base ** exponent is a float32, as in llama.cpp."""
    if base > 1.0:
        return int(math.log(_FLOAT32_MAX) / math.log(base))
    return 0
