"""Every uniform has its own address, and no two addresses share a number."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from localspec.errors import OptionError
from localspec.sampling.distribution import Distribution
from localspec.speculative.randomness import MAX_SEED, Randomness, fresh_seed

IDS = np.arange(40)


def test_no_two_addresses_share_a_number():
    """Over seeds, turns, steps, purposes and indices; nor is a number noise too."""
    seen: set[float] = set()
    count = 0
    for seed, turn in itertools.product((0, 1, MAX_SEED), (0, 1)):
        randomness = Randomness(seed, turn)
        for step in range(300):
            for numbers in (randomness.uniforms(step).ravel(), randomness.noise(step, IDS)):
                seen.update(numbers.tolist())
                count += len(numbers)
    assert len(seen) == count


def test_an_address_always_holds_the_same_number():
    """Whatever was asked before; noise is a function of index and token id alone."""
    one, other = Randomness(7), Randomness(7)
    late_uniforms = one.uniforms(1000).copy()
    np.testing.assert_array_equal(one.uniforms(3), other.uniforms(3))
    np.testing.assert_array_equal(one.uniforms(1000), late_uniforms)
    np.testing.assert_array_equal(other.uniforms(1000), late_uniforms)
    late = one.noise(1000, IDS)
    one.noise(3, IDS)
    np.testing.assert_array_equal(one.noise(1000, IDS), late)
    np.testing.assert_array_equal(other.noise(1000, IDS[30:31]), late[30:31])


def test_uniforms_and_noise_are_uniform():
    """A chi-square over 64 equal bins of 64 000 numbers each, seeded."""
    randomness = Randomness(1)
    for numbers in (
        np.concatenate([randomness.uniforms(n).ravel() for n in range(1334)]),
        np.concatenate([randomness.noise(index, np.arange(64)) for index in range(1000)]),
        np.concatenate([randomness.noise(index, np.array([9])) for index in range(64_000)]),
    ):
        counts = np.bincount((numbers[:64_000] * 64).astype(int), minlength=64)
        assert len(counts) == 64
        assert ((counts - 1000) ** 2 / 1000).sum() < 120  # 63 degrees of freedom: p = 2e-5


@pytest.mark.parametrize("num_survivors", [5, 300])
def test_a_race_draws_from_the_distribution(num_survivors):
    """20 000 races, also where only the ones with a chance are looked at; p > 1e-5."""
    random = np.random.default_rng(num_survivors)
    probs = random.dirichlet(np.full(num_survivors, 3.0))
    ids = np.sort(random.choice(10_000, num_survivors, replace=False))
    distribution = Distribution(ids, probs)
    randomness = Randomness(3)
    wins = [randomness.gumbel_max(index, distribution) for index in range(20_000)]
    counts = np.bincount(np.searchsorted(ids, wins), minlength=num_survivors)
    chi_square = ((counts - 20_000 * probs) ** 2 / (20_000 * probs)).sum()
    freedom = num_survivors - 1
    assert abs(chi_square - freedom) < 4.5 * np.sqrt(2 * freedom) + 8


def test_looking_only_at_the_able_changes_no_winner():
    """The shortcut for many survivors against all of them, however sharp distributions are."""
    random = np.random.default_rng(0)
    randomness = Randomness(1)
    for index in range(300):
        probs = np.exp(random.standard_normal(1000) * random.uniform(0, 12))
        distribution = Distribution(np.arange(1000), probs / probs.sum())
        times = -np.log1p(-randomness.noise(index, distribution.ids)) / distribution.probs
        assert randomness.gumbel_max(index, distribution) == np.argmin(times)


@pytest.mark.parametrize("mass", [0.0, 5e-324])
def test_a_token_without_mass_never_wins(mass):
    distribution = Distribution(np.arange(3), np.array([0.0, 1.0, mass]))
    assert {Randomness(seed).gumbel_max(0, distribution) for seed in range(50)} == {1}


@pytest.mark.parametrize("seed", [-1, MAX_SEED + 1])
def test_seeds_outside_their_range_are_refused(seed):
    with pytest.raises(OptionError, match=str(seed)):
        Randomness(seed)


def test_fresh_seeds_are_valid_and_differ():
    seeds = {fresh_seed() for _ in range(100)}
    assert len(seeds) == 100
    assert all(Randomness(seed) for seed in seeds)
