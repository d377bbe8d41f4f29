"""The cuts: one row of logits → the distribution of the next token.

In llama.cpp's default order: top-n-sigma, top-k, typical-p, top-p, min-p, temperature. Each cut
sees only the tokens that the cuts before it kept. No cut sorts a whole vocabulary: thresholds
do most of the work, so a row of 152 064 logits costs a few passes of NumPy.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from localspec.errors import DecodeError
from localspec.sampling.distribution import (
    CERTAIN,
    MANY,
    Distribution,
    Logits,
    Probs,
    TokenIds,
    mass_of,
)
from localspec.sampling.params import SamplingParams

# Above this size a cut by mass finds its threshold in a histogram before it sorts.
_SORTED_AT_ONCE = 2048
_BUCKETS_PER_NAT = 128
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_DEEPEST_BUCKET = 32.0  # nats; tokens further away have next to no mass
# At this temperature only the larger of two float32 has mass, and no quotient overflows.
_LOWEST_TEMPERATURE = 1e-200
_LOWEST_FLOAT32 = 1e-38
_FEW = 128  # up to this number of tokens plain floats are faster than arrays
# How top-k finds candidates, see `_top_k_candidates`. The number of columns of the first table
# is the larger of these: for each token to keep, and in all
_COLUMNS_PER_TOKEN = 64
_LEAST_COLUMNS = 1024
_SECOND_TABLE_ROWS = 8
_MOST_HIGH_COLUMNS = 4  # for each token to keep; with more nothing is saved
_MOST_SORTED = 8  # candidates for each token to keep; more are not sorted as plain floats


def filtered_distribution(
    logits: Logits,
    params: SamplingParams,
    allocate: Callable[[int], Logits] = lambda size: np.empty(size, np.float32),
) -> Distribution:
    """The distribution that the cuts and the temperature make of a row.

    Biases and penalties are not applied here: see `SamplerChain.distribution`. If equal logits
    are at the edge of a cut, the lowest ids are kept. The result shares no memory with the row.

    Args:
        logits: (vocab,), not changed.
        params: The settings.
        allocate: Returns an array of a size, for the masses of a long row without a cut.

    Raises:
        DecodeError: If the row has NaN or no finite maximum.
    """
    if params.is_greedy and params.typical_p == 1.0:  # every other cut keeps the best token
        best = int(logits.argmax())  # the first NaN, if there is one
        _require_finite(logits[best])
        return one_hot(best)
    if params.top_n_sigma <= 0.0 and 0 < params.top_k <= _FEW and params.typical_p == 1.0:
        return _top_k_distribution(logits, params)
    _require_finite(logits.max())
    ids, kept_logits = _cut(logits, params)
    if params.is_greedy:
        best = int(kept_logits.argmax())
        return one_hot(int(ids[best]))
    if len(kept_logits) > MANY:
        masses = allocate(len(kept_logits))
        return _float32_softmax(ids, kept_logits, params.temperature, masses)
    return Distribution(ids, _softmax(kept_logits, params.temperature))


def _require_finite(largest: np.float32) -> None:
    """Raise DecodeError if the largest logit of a row is no finite number."""
    if not math.isfinite(largest):
        raise DecodeError(
            f"the largest logit of a row is {largest}",
            "Every token is banned, or the file is damaged: compare its sha256.",
        )


def one_hot(token: int) -> Distribution:
    """All probability on one token."""
    return Distribution(np.array([token], dtype=np.int64), CERTAIN)


def _cut(logits: Logits, params: SamplingParams) -> tuple[TokenIds, Logits]:
    """Ids of the tokens that the cuts keep, ascending, and their logits."""
    everything = _all_ids(len(logits))
    ids = everything
    if params.top_n_sigma > 0.0:
        indices = top_n_sigma(logits, params.top_n_sigma)
        ids = ids[indices]
        logits = logits[indices]
    if 0 < params.top_k < len(logits):
        indices = top_k(logits, params.top_k)
        ids = ids[indices]
        logits = logits[indices]
    if params.typical_p < 1.0:
        indices = typical(logits, params.typical_p)
        ids = ids[indices]
        logits = logits[indices]
    if params.top_p < 1.0 or params.min_p > 0.0:
        indices = top_p_min_p(logits, params.top_p, params.min_p)
        ids = ids[indices]
        logits = logits[indices]
    if ids is everything:  # nothing was cut
        return ids, logits
    # A cut may keep banned tokens if too few others are left.
    allowed = logits > -np.inf
    if allowed.all():
        return ids, logits
    return ids[allowed], logits[allowed]


@functools.lru_cache(maxsize=4)  # rows of a target and of a few drafts
def _all_ids(num_tokens: int) -> TokenIds:
    """0, 1, … num_tokens - 1. The array is shared, so it cannot be changed."""
    ids = np.arange(num_tokens)
    ids.setflags(write=False)
    return ids


def _softmax(logits: Logits, temperature: float) -> Probs:
    """The probabilities by logits ÷ temperature, in float64."""
    scaled: Probs = np.subtract(logits, logits.max(), dtype=np.float64)
    if temperature != 1.0:
        scaled /= max(temperature, _LOWEST_TEMPERATURE)
    np.exp(scaled, out=scaled)
    scaled /= scaled.sum()
    return scaled


def _float32_softmax(
    ids: TokenIds,
    logits: Logits,
    temperature: float,
    masses: Logits,
) -> Distribution:
    """The softmax of a long row in float32, whose rounding moves 1e-7 of the mass.

    Args:
        ids, logits: (m,) the tokens and their logits.
        masses: (m,) where the result's masses are written.
    """
    with np.errstate(over="ignore"):  # overflow to -inf, whose mass is 0
        np.subtract(logits, logits.max(), out=masses)
        if temperature != 1.0:
            masses *= np.float32(1.0 / max(temperature, _LOWEST_FLOAT32))
    np.exp(masses, out=masses)
    return Distribution(ids, masses, mass_of(masses))


def _top_k_distribution(logits: Logits, params: SamplingParams) -> Distribution:
    """The distribution if top-k leaves few tokens and is the first cut.

    The other cuts are top-p and min-p. Plain floats are faster than arrays here.
    """
    ids = _top_k_candidates(logits, params.top_k)
    # No or too many candidates: many ties, a short row, or no numbers.
    if ids is None or len(ids) > _MOST_SORTED * params.top_k:
        _require_finite(logits.max())
        ids = top_k(logits, params.top_k)
    values = logits[ids].tolist()
    tokens = ids.tolist()
    order = sorted(range(len(values)), key=values.__getitem__, reverse=True)  # stable for ties
    del order[params.top_k :]
    best = values[order[0]]
    masses = [math.exp(values[index] - best) for index in order]
    needed_mass = math.inf
    if params.top_p < 1.0:
        needed_mass = params.top_p * math.fsum(masses)
    temperature = max(params.temperature, _LOWEST_TEMPERATURE)
    kept: list[tuple[int, float]] = []  # tokens with their masses at the temperature
    kept_mass = 0.0  # at temperature 1
    for index, mass in zip(order, masses, strict=True):
        if mass < params.min_p or values[index] == -math.inf:
            break
        if kept and kept_mass >= needed_mass:  # top-p 0 keeps the best token
            break
        kept_mass += mass
        scaled = (values[index] - best) / temperature
        kept.append((tokens[index], math.exp(scaled)))
    kept.sort()
    kept_ids = [token for token, _ in kept]
    kept_masses = [mass for _, mass in kept]
    return Distribution(np.array(kept_ids), np.array(kept_masses), math.fsum(kept_masses))


def top_n_sigma(logits: Logits, n: float) -> TokenIds:
    """Indices of the logits within n standard deviations of the largest (arXiv 2411.07641).

    Ascending. Banned tokens (-inf) count for neither mean nor deviation.
    """
    spread = logits[logits > -np.inf].std(dtype=np.float64)
    least = float(logits.max()) - n * float(spread)
    # At least float32's lowest number, since -inf would keep banned tokens.
    least = max(least, -_FLOAT32_MAX)
    return np.flatnonzero(logits >= least)


def top_k(logits: Logits, k: int) -> TokenIds:
    """Indices of the k largest logits, ascending; of equal logits the first."""
    if k >= len(logits):
        return _all_ids(len(logits))
    candidates = _top_k_candidates(logits, k)
    if candidates is not None:
        logits = logits[candidates]
    position = len(logits) - k  # of the k-th largest in ascending order
    kth = np.partition(logits, position)[position]
    above = (logits > kth).nonzero()[0]
    ties = (logits == kth).nonzero()[0]
    first_ties = ties[: k - len(above)]
    best: TokenIds = np.sort(np.concatenate([above, first_ties]))
    if candidates is None:
        return best
    return candidates[best]


def _top_k_candidates(logits: Logits, k: int) -> TokenIds | None:
    """Ascending indices of the k largest logits and a few more.

    None if that saves nothing, or the row has NaN or no finite maximum.

    The row is laid out as a table, and the maxima of its columns as a second table. The k best
    maxima of the second table's columns are logits of k different tokens. So at least k logits
    reach the lowest of these, the floor, and all that do are in columns of the first table
    whose maximum does. Far cheaper than a partition of the whole row, because taking maxima
    runs at memory speed.
    """
    num_columns = max(_COLUMNS_PER_TOKEN * k, _LEAST_COLUMNS)
    num_rows = len(logits) // num_columns
    if num_rows <= 1:
        return None
    table_size = num_rows * num_columns
    table = logits[:table_size].reshape(num_rows, num_columns)
    last_row = logits[table_size:]  # shorter than the others
    maxima = np.maximum.reduce(table)
    extended_columns = maxima[: len(last_row)]  # those with a logit in the last row
    np.maximum(extended_columns, last_row, out=extended_columns)
    highest = np.maximum.reduce(maxima.reshape(_SECOND_TABLE_ROWS, -1))
    highest.partition((len(highest) - k, len(highest) - 1))  # NaN is the last
    floor = highest[-k]
    if not math.isfinite(highest[-1]):
        return None
    # `nonzero()[0]` where few tokens are left: `flatnonzero` takes twice as long there.
    high_columns = (maxima >= floor).nonzero()[0]
    if len(high_columns) > _MOST_HIGH_COLUMNS * k:  # ties, or neighbours: no saving
        return None
    # Flat, as `nonzero` of a table takes eight times as long.
    is_high = table.take(high_columns, axis=1) >= floor
    places = is_high.ravel().nonzero()[0]
    row = places // len(high_columns)
    column = high_columns[places % len(high_columns)]
    in_table = row * num_columns + column
    in_last_row = (last_row >= floor).nonzero()[0] + table_size
    return np.concatenate([in_table, in_last_row])


def typical(logits: Logits, typical_p: float) -> TokenIds:
    """Indices of the most typical tokens whose mass exceeds typical_p, ascending.

    Locally typical sampling (arXiv 2202.00666): a token is typical if its information
    content is near the row's entropy. A token of probability 0 adds nothing to the entropy,
    and is never typical (in llama.cpp it makes the entropy NaN).
    """
    allowed = None
    allowed_logits = logits
    if not logits.min() > -np.inf:
        allowed = np.flatnonzero(logits > -np.inf)  # not the banned tokens
        allowed_logits = logits[allowed]
    shifted = np.subtract(allowed_logits, allowed_logits.max(), dtype=np.float64)
    mass = np.exp(shifted)
    total = float(mass.sum())
    # -log p - entropy = mean - shifted, as the normalisation cancels out.
    mean = float((mass * shifted).sum()) / total
    distances = np.abs(shifted - mean)  # of information and entropy
    # The mass must exceed typical_p, while top-p's must only reach top_p.
    needed = math.nextafter(typical_p * total, math.inf)
    typical_indices = _smallest_keys(distances, mass, needed)
    if allowed is None:
        return typical_indices
    return allowed[typical_indices]


def top_p_min_p(logits: Logits, top_p: float, min_p: float) -> TokenIds:
    """Indices of the tokens that top-p and then min-p keep, ascending.

    top-p keeps the fewest most probable tokens whose mass reaches top_p. min-p keeps those at
    least min_p times as probable as the best. Both keep the first tokens of the same order, and
    the one that keeps fewer decides. So the threshold of min-p comes first, and only the tokens
    that it keeps are ordered.
    """
    with np.errstate(over="ignore"):
        depths = logits.max() - logits  # in nats below the best; inf where banned
    mass = np.exp(-depths)
    needed = top_p * float(mass.sum())
    if min_p == 0.0:
        return _smallest_keys(depths, mass, needed)
    near: TokenIds = (depths <= -math.log(min_p)).nonzero()[0]
    if top_p == 1.0:
        return near
    return near[_smallest_keys(depths[near], mass[near], needed)]


def _smallest_keys(keys: Logits | Probs, mass: Logits | Probs, needed: float) -> TokenIds:
    """Ascending indices of the smallest keys: the fewest whose masses add up to `needed`.

    All of them if their masses add up to less. Of equal keys, those with the lowest indices.

    Args:
        keys: (m,) 0 or above, in nats.
        mass: (m,) the mass of each key.
    """
    if len(keys) <= _SORTED_AT_ONCE:
        return np.sort(_smallest_keys_sorted(keys, mass, needed))
    # Only the bucket in which the mass is reached has to be sorted.
    depths = np.minimum(keys, _DEEPEST_BUCKET)
    buckets = (depths * _BUCKETS_PER_NAT).astype(np.int64)
    sums = np.bincount(buckets, mass).cumsum()
    last_bucket = int(np.searchsorted(sums, needed))
    is_kept = buckets < last_bucket
    in_last = np.flatnonzero(buckets == last_bucket)
    if last_bucket > 0:
        needed -= float(sums[last_bucket - 1])
    kept_in_last = _smallest_keys_sorted(keys[in_last], mass[in_last], needed)
    is_kept[in_last[kept_in_last]] = True
    return np.flatnonzero(is_kept)


def _smallest_keys_sorted(
    keys: Logits | Probs,
    mass: Logits | Probs,
    needed: float,
) -> TokenIds:
    """As `_smallest_keys`, but the smallest key is the first."""
    order = keys.argsort(kind="stable")
    sums = mass[order].cumsum(dtype=np.float64)
    num_kept = int(sums.searchsorted(needed)) + 1
    smallest: TokenIds = order[:num_kept]
    return smallest
