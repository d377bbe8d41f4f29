"""How many of its oldest turns a conversation forgets when the context is full."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate

# Of a text: if the newest turns with that many do not fit, no older ones need be looked at.
_CHARACTERS_PER_TOKEN = 6
_MOST_ESTIMATES = 8  # after which the rest is halved, which always comes to an end soon


def num_to_forget(
    sizes: Sequence[int], length: Callable[[int], float], capacity: int, kept: float
) -> int:
    """0 if the whole has at most `capacity` tokens, else the fewest that leave at most `kept`.

    sizes: characters of each turn, oldest first. length: tokens of the prompt without so many
    oldest turns, or math.inf if nobody can make it; they become fewer the more of these are
    left out. It is what takes time: it is asked a few times, and never about much more text
    than `capacity` tokens may be. If no number of turns suffices, all are forgotten. Where
    what can be made is the limit, at most half of that is left.
    """
    after = [0, *accumulate(reversed(sizes))][::-1]  # characters without the first 0, 1, 2 …
    too_many = _first_too_many(after, length, capacity)
    if too_many is None:
        return 0
    fewest = _fewest(after, length, too_many, kept)
    if fewest < len(sizes) and length(fewest - 1) == math.inf:
        # Half of what there can be, as above: the next question has to have room, too.
        fewest = _fewest(after, length, fewest, length(fewest) / 2)
    return fewest


def _first_too_many(
    after: Sequence[int], length: Callable[[int], float], capacity: int
) -> int | None:
    """Without how many turns the prompt is still too long; None if the whole is not.

    Only as much of the conversation is looked at as can show it.
    """
    most = capacity * _CHARACTERS_PER_TOKEN
    while True:
        begin = _first_at_most(after, most)
        if length(begin) > capacity:
            return begin
        if begin == 0:
            return None
        most *= 2


def _fewest(
    after: Sequence[int], length: Callable[[int], float], too_few: int, kept: float
) -> int:
    """The fewest, more than `too_few`, without which at most `kept` tokens are left."""
    enough = len(after) - 1
    if length(enough) > kept:
        return enough
    num_estimates = 0
    while enough - too_few > 1:
        guess = (too_few + enough) // 2
        longer, shorter = length(too_few), length(enough)
        if num_estimates < _MOST_ESTIMATES and longer < math.inf:
            num_estimates += 1
            # As if all characters between the two had the same share of their tokens.
            share = (kept - shorter) / (longer - shorter)
            most = after[enough] + share * (after[too_few] - after[enough])
            guess = min(max(_first_at_most(after, most), too_few + 1), enough - 1)
        if length(guess) > kept:
            too_few = guess
        else:
            enough = guess
    return enough


def _first_at_most(after: Sequence[int], most: float) -> int:
    return next(number for number, size in enumerate(after) if size <= most)
