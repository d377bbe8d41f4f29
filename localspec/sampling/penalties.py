"""Penalties for repetition in the text so far: for tokens, and for sequences (DRY).

Nothing here distinguishes prompt from answer, or draft tokens from kept ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from localspec.sampling.distribution import Logits, TokenIds
from localspec.sampling.params import SamplingParams

# Sequences that no repeat crosses. By their first token: each way in which they continue, as a
# tuple of tokens, which is empty for a token that is a breaker alone.
Breakers = Mapping[int, Sequence[tuple[int, ...]]]

_FLOAT32_MAX = float(np.finfo(np.float32).max)


def penalise_tokens(row: Logits, text: TokenIds, params: SamplingParams) -> None:
    """Apply the repetition, presence and frequency penalties to `row` (vocab,), in place.

    Ids beyond the row are skipped: the target may have tokens that the draft lacks.

    Args:
        row: The logits.
        text: (n,) the tokens so far.
        params: The settings. Only the last penalty_last_n tokens count; it is above 0.
    """
    last_tokens = text[-params.penalty_last_n :]
    tokens, counts = np.unique(last_tokens, return_counts=True)
    num_known = int(np.searchsorted(tokens, len(row)))
    tokens = tokens[:num_known]
    counts = counts[:num_known]
    # In float32, as in llama.cpp.
    logits = row[tokens]
    repetition = np.float32(params.repetition_penalty)
    # Division alone would make tokens with negative logits more likely.
    logits = np.where(logits <= 0.0, logits * repetition, logits / repetition)
    subtracted = counts.astype(np.float32) * np.float32(params.frequency_penalty)
    subtracted += np.float32(params.presence_penalty)
    row[tokens] = logits - subtracted


def penalise_repeats(
    row: Logits,
    text: TokenIds,
    params: SamplingParams,
    breakers: Breakers,
) -> None:
    """Apply DRY's penalties to `row` (vocab,), in place.

    A token that already followed an earlier copy of the text's end is penalised, by the length
    of the longest such copy. As in llama.cpp, only the last dry_penalty_last_n tokens count,
    back to the last breaker, and a token that is a breaker alone is not penalised.

    Args:
        row: The logits.
        text: (n,) the tokens so far, 1 or more.
        params: The settings.
        breakers: dry_sequence_breakers as tokens.
    """
    text = text[-params.dry_penalty_last_n :]
    longest = _longest_repeats(text, params, breakers)
    for token, length in longest.items():
        is_breaker = () in breakers.get(token, ())
        if token < len(row) and not is_breaker:
            excess = length - params.dry_allowed_length
            penalty = params.dry_multiplier * params.dry_base**excess
            row[token] -= np.float32(min(penalty, _FLOAT32_MAX))


def _longest_repeats(
    text: TokenIds,
    params: SamplingParams,
    breakers: Breakers,
) -> dict[int, int]:
    """Token → length of the longest copy of the text's end that the token already followed.

    Only lengths from dry_allowed_length on. At first, all earlier occurrences of the last token
    match; with each further token before them, those that no longer match are dropped.
    """
    limit = _length_since_breaker(text, breakers)
    limit = min(limit, params.dry_allowed_length + _max_exponent(params.dry_base))
    if limit < params.dry_allowed_length:
        return {}
    last = len(text) - 1
    copy_ends = np.flatnonzero(text[:last] == text[last])
    lengths = np.ones(len(copy_ends), dtype=np.int64)
    matching = np.arange(len(copy_ends))  # indices of the copies that still match
    for length in range(1, limit):
        matching = matching[copy_ends[matching] >= length]
        previous_tokens = text[copy_ends[matching] - length]
        matching = matching[previous_tokens == text[last - length]]
        if len(matching) == 0:
            break
        lengths[matching] = length + 1
    is_long = lengths >= params.dry_allowed_length
    following = text[copy_ends[is_long] + 1]
    longest: dict[int, int] = {}
    for token, length in zip(following.tolist(), lengths[is_long].tolist(), strict=True):
        known_length = longest.get(token, 0)
        longest[token] = max(known_length, length)
    return longest


def _length_since_breaker(text: TokenIds, breakers: Breakers) -> int:
    """How many tokens follow the last breaker; all if there is none."""
    if not breakers:
        return len(text)
    for num_following, token in enumerate(text[::-1].tolist()):
        tails = breakers.get(token)
        if tails is None:
            continue
        following = text[len(text) - num_following :]
        tail_lengths = []  # of the breakers that are there as a whole
        for tail in tails:
            if following[: len(tail)].tolist() == list(tail):
                tail_lengths.append(len(tail))
        if tail_lengths:
            return num_following - max(tail_lengths)
    return len(text)


def _max_exponent(base: float) -> int:
    """The largest exponent for which base ** exponent is a float32, as in llama.cpp."""
    if base > 1.0:
        return int(math.log(_FLOAT32_MAX) / math.log(base))
    return 0
