"""The cuts: one row of logits → the distribution of the next token.

In llama.cpp's default order: top-n-sigma, top-k, typical-p, top-p, min-p, temperature. Each cut
sees only the survivors of the last one, and no cut sorts a whole vocabulary: thresholds do most
of the work, so a row of 152 064 logits costs a few passes of NumPy.
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
_FEW = 128  # tokens that plain floats cut faster than arrays do


def filtered_distribution(
    logits: Logits,
    params: SamplingParams,
    row_of: Callable[[int], Logits] = lambda size: np.empty(size, np.float32),
) -> Distribution:
    """The distribution that the cuts and the temperature make of a row.

    Biases and penalties are not applied here: see `SamplerChain.distribution`. If equal logits
    are at the edge of a cut, the lowest ids survive. Returns no view of the row.

    Args:
        logits: (vocab,).
        params: The settings.
        row_of: Gives an array of that size for the masses of a long row without a cut.

    Raises:
        DecodeError: If the row has NaN or no finite maximum.
    """
    if params.is_greedy and params.typical_p == 1.0:  # every other cut keeps the best token
        best = int(logits.argmax())  # the first NaN, if there is one
        _require_finite(logits[best])
        return one_hot(best)
    if params.top_n_sigma <= 0.0 and 0 < params.top_k <= _FEW and params.typical_p == 1.0:
        return _of_few(logits, params)
    _require_finite(logits.max())
    ids, kept = _cut(logits, params)
    if params.is_greedy:
        return one_hot(int(ids[kept.argmax()]))
    if len(kept) > MANY:
        return _of_many(ids, kept, params.temperature, row_of(len(kept)))
    return Distribution(ids, _softmax(kept, params.temperature))


def _require_finite(largest: np.float32) -> None:
    if not math.isfinite(largest):
        raise DecodeError(
            f"the largest logit of a row is {largest}",
            "Every token is banned, or the file is damaged: compare its sha256.",
        )


def one_hot(token: int) -> Distribution:
    """All probability on one token."""
    return Distribution(np.array([token], dtype=np.int64), CERTAIN)


def _cut(logits: Logits, params: SamplingParams) -> tuple[TokenIds, Logits]:
    """Ids of the tokens that survive the cuts, ascending, and their logits."""
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
    ids = np.arange(num_tokens)
    ids.setflags(write=False)
    return ids


def _softmax(logits: Logits, temperature: float) -> Probs:
    scaled: Probs = np.subtract(logits, logits.max(), dtype=np.float64)
    if temperature != 1.0:
        scaled /= max(temperature, _LOWEST_TEMPERATURE)
    np.exp(scaled, out=scaled)
    scaled /= scaled.sum()
    return scaled


def _of_many(
    ids: TokenIds,
    logits: Logits,
    temperature: float,
    masses: Logits,
) -> Distribution:
    """The softmax of a long row in float32, which moves 1e-7 of the mass."""
    with np.errstate(over="ignore"):  # overflow to -inf, whose mass is 0
        np.subtract(logits, logits.max(), out=masses)
        if temperature != 1.0:
            masses *= np.float32(1.0 / max(temperature, _LOWEST_FLOAT32))
    np.exp(masses, out=masses)
    return Distribution(ids, masses, mass_of(masses))


def _of_few(logits: Logits, params: SamplingParams) -> Distribution:
    """The distribution if top-k leaves few tokens: plain floats are faster than arrays."""
    ids = _at_least(logits, params.top_k)
    if ids is None or len(ids) > 8 * params.top_k:  # many ties, a short row, or no numbers
        _require_finite(logits.max())
        ids = top_k(logits, params.top_k)
    values = logits[ids].tolist()
    tokens = ids.tolist()
    order = sorted(range(len(values)), key=values.__getitem__, reverse=True)  # stable for ties
    del order[params.top_k :]
    best = values[order[0]]
    masses = [math.exp(values[index] - best) for index in order]
    needed = math.inf
    if params.top_p < 1.0:
        needed = params.top_p * math.fsum(masses)
    temperature = max(params.temperature, _LOWEST_TEMPERATURE)
    kept: list[tuple[int, float]] = []
    reached = 0.0
    for index, mass in zip(order, masses, strict=True):
        if mass < params.min_p or values[index] == -math.inf:
            break
        if kept and reached >= needed:  # top-p 0 keeps the best token
            break
        reached += mass
        kept.append((tokens[index], math.exp((values[index] - best) / temperature)))
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
    candidates = _at_least(logits, k)
    if candidates is not None:
        logits = logits[candidates]
    kth = np.partition(logits, len(logits) - k)[len(logits) - k]
    above = (logits > kth).nonzero()[0]
    ties = (logits == kth).nonzero()[0][: k - len(above)]
    best: TokenIds = np.sort(np.concatenate([above, ties]))
    if candidates is None:
        return best
    return candidates[best]


def _at_least(logits: Logits, k: int) -> TokenIds | None:
    """Ascending indices of the k largest logits and a few more.

    None if that saves nothing, or the row is not finite.

    The row is dealt into columns, and their maxima into columns of columns. The k best maxima
    of these belong to k different tokens, so at least k logits reach the k-th of them, and
    all that do are in columns whose maximum does. Far cheaper than a partition of the whole
    row, because taking maxima runs at memory speed.
    """
    columns = max(64 * k, 1024)
    rows = len(logits) // columns
    if rows <= 1:
        return None
    table = logits[: rows * columns].reshape(rows, columns)
    rest = logits[rows * columns :]
    maxima = np.maximum.reduce(table)
    np.maximum(maxima[: len(rest)], rest, out=maxima[: len(rest)])
    highest = np.maximum.reduce(maxima.reshape(8, -1))
    highest.partition((len(highest) - k, len(highest) - 1))  # NaN is the last
    floor = highest[-k]
    if not math.isfinite(highest[-1]):
        return None
    # `nonzero()[0]` where few tokens are left: `flatnonzero` takes twice as long there.
    tall = (maxima >= floor).nonzero()[0]
    if len(tall) > 4 * k:  # ties, or neighbours: no saving
        return None
    # Flat, as `nonzero` of a table takes eight times as long.
    places = (table.take(tall, axis=1) >= floor).ravel().nonzero()[0]
    row = places // len(tall)
    column = tall[places % len(tall)]
    above = row * columns + column
    last = (rest >= floor).nonzero()[0] + rows * columns
    return np.concatenate([above, last])


def typical(logits: Logits, typical_p: float) -> TokenIds:
    """Indices of the most typical tokens whose mass exceeds typical_p, ascending.

    Locally typical sampling (arXiv 2202.00666): a token is typical if its information
    content is near the row's entropy. A token of probability 0 adds nothing to the entropy,
    and is never typical (in llama.cpp it makes the entropy NaN).
    """
    possible = None
    known = logits
    if not logits.min() > -np.inf:
        possible = np.flatnonzero(logits > -np.inf)  # not the banned tokens
        known = logits[possible]
    shifted = np.subtract(known, known.max(), dtype=np.float64)
    mass = np.exp(shifted)
    total = float(mass.sum())
    # -log p - entropy = mean - shifted, as the normalisation cancels out.
    mean = float((mass * shifted).sum()) / total
    # The mass must exceed typical_p, while top-p's must only reach top_p.
    needed = math.nextafter(typical_p * total, math.inf)
    kept = _leading(np.abs(shifted - mean), mass, needed)
    if possible is None:
        return kept
    return possible[kept]


def top_p_min_p(logits: Logits, top_p: float, min_p: float) -> TokenIds:
    """Indices of the tokens that top-p and then min-p keep, ascending.

    top-p keeps the fewest most probable tokens whose mass reaches top_p, min-p those at
    least min_p times as probable as the best. Both keep a beginning of the same order, and the
    shorter one counts. So the threshold of min-p goes first, and only its survivors are
    ordered.
    """
    with np.errstate(over="ignore"):
        depths = logits.max() - logits  # in nats below the best; inf where banned
    mass = np.exp(-depths)
    needed = top_p * float(mass.sum())
    if min_p == 0.0:
        return _leading(depths, mass, needed)
    near: TokenIds = (depths <= -math.log(min_p)).nonzero()[0]
    if top_p == 1.0:
        return near
    return near[_leading(depths[near], mass[near], needed)]


def _leading(keys: Logits | Probs, mass: Logits | Probs, needed: float) -> TokenIds:
    """Ascending indices of the fewest smallest keys whose mass reaches `needed`.

    All of them if it is never reached; of equal keys the first.

    Args:
        keys: 0 or above, in nats.
    """
    if len(keys) <= _SORTED_AT_ONCE:
        return np.sort(_first(keys, mass, needed))
    # Only the bucket in which the mass is reached has to be sorted.
    numbers = (np.minimum(keys, _DEEPEST_BUCKET) * _BUCKETS_PER_NAT).astype(np.int64)
    reached = np.bincount(numbers, mass).cumsum()
    bucket = int(np.searchsorted(reached, needed))
    kept = numbers < bucket
    edge = np.flatnonzero(numbers == bucket)
    if bucket > 0:
        needed -= float(reached[bucket - 1])
    first = _first(keys[edge], mass[edge], needed)
    kept[edge[first]] = True
    return np.flatnonzero(kept)


def _first(keys: Logits | Probs, mass: Logits | Probs, needed: float) -> TokenIds:
    """The indices of `_leading` by ascending key."""
    order = keys.argsort(kind="stable")
    reached = mass[order].cumsum(dtype=np.float64)
    first: TokenIds = order[: int(reached.searchsorted(needed)) + 1]
    return first
