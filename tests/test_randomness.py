"""Every uniform has its own address, and no two addresses share a number."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from localspec.errors import OptionError
from localspec.randomness import MAX_SEED, Purpose, Randomness, fresh_seed


def test_no_two_addresses_share_a_number():
    """Over seeds, turns, steps, purposes and indices, also where counters run long."""
    seen: set[float] = set()
    count = 0
    for seed, turn, step in itertools.product((0, 1, MAX_SEED), (0, 1), range(20)):
        for purpose in Purpose:
            numbers = Randomness(seed, turn).uniforms(step, purpose, 40)
            seen.update(numbers.tolist())
            count += len(numbers)
    assert len(seen) == count


def test_an_address_always_holds_the_same_number():
    """Whatever was asked before, and however many are asked at once."""
    one, other = Randomness(7), Randomness(7)
    one.uniforms(3, Purpose.DRAFT, 9)
    few, many = (
        one.uniforms(5, Purpose.ACCEPT, 2),
        other.uniforms(5, Purpose.ACCEPT, 16),
    )
    np.testing.assert_array_equal(few, many[:2])


def test_numbers_are_uniform():
    """A chi-square over 64 equal bins of 64 000 numbers, seeded."""
    numbers = np.concatenate(
        [Randomness(1).uniforms(step, Purpose.ACCEPT, 64) for step in range(1000)]
    )
    counts = np.bincount((numbers * 64).astype(int), minlength=64)
    assert len(counts) == 64
    assert ((counts - 1000) ** 2 / 1000).sum() < 120  # 63 degrees of freedom: p = 2e-5


@pytest.mark.parametrize("seed", [-1, MAX_SEED + 1])
def test_seeds_outside_their_range_are_refused(seed):
    with pytest.raises(OptionError, match=str(seed)):
        Randomness(seed)


def test_fresh_seeds_are_valid_and_differ():
    seeds = {fresh_seed() for _ in range(100)}
    assert len(seeds) == 100
    assert all(Randomness(seed) for seed in seeds)
