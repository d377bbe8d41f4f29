"""The test of distributions: right when they hold, and sure when they do not."""

from __future__ import annotations

import numpy as np
import pytest

from localspec.checks.martingale import CategoryTest, chi_square_tail, noncentrality


@pytest.mark.parametrize(
    ("value", "freedom", "tail"),  # tables of the chi-square distribution
    [
        (3.841459, 1, 0.05),
        (5.991465, 2, 0.05),
        (7.814728, 3, 0.05),
        (16.918978, 9, 0.05),
        (29.588298, 10, 0.001),
        (0.0, 3, 1.0),
    ],
)
def test_chi_square_tail_matches_the_tables(value, freedom, tail):
    assert chi_square_tail(value, freedom) == pytest.approx(tail, rel=1e-5)


def p_value(bias: float, seed: int, num_tokens: int = 400) -> float:
    """Of draws whose distribution depends on the draw before; `bias` goes to category 0."""
    random = np.random.default_rng(seed)
    test = CategoryTest(3)
    distributions = random.dirichlet(np.ones(3), size=3)
    state = 0
    for _ in range(num_tokens):
        distribution = distributions[state]
        real = (1 - bias) * distribution + bias * np.array([1.0, 0.0, 0.0])
        state = int(random.choice(3, p=real))
        test.add(distribution, state)
    return test.p_value


def test_p_values_are_uniform_when_the_distributions_hold():
    values = np.array([p_value(0.0, seed) for seed in range(400)])
    for level in (0.05, 0.2, 0.5):
        share = (values < level).mean()
        assert abs(share - level) < 4 * np.sqrt(level * (1 - level) / 400)


@pytest.mark.parametrize(
    ("freedom", "power", "value"),  # Haynam et al., tables of the power of the chi-square test
    [(1, 0.9, 10.507), (2, 0.9, 12.654), (4, 0.8, 11.935), (4, 0.95, 18.572)],
)
def test_noncentralities_match_the_tables(freedom, power, value):
    assert noncentrality(freedom, 0.05, power) == pytest.approx(value, abs=2e-3)


def add_all(test: CategoryTest, distribution: np.ndarray, counts: np.ndarray) -> None:
    """As often as counted, each category."""
    for category, count in enumerate(counts):
        for _ in range(count):
            test.add(distribution, category)


@pytest.mark.parametrize(
    ("distribution", "num_tokens"),
    [
        ([0.5, 0.5], 500),
        ([0.99, 0.01], 500),  # hardly ever: what falls wrong is rare, too
        ([0.6, 0.2, 0.1, 0.07, 0.03], 500),
    ],
)
def test_a_bias_of_the_stated_size_is_seen_as_often_as_stated(distribution, num_tokens):
    """In whichever category; and where there is none, hardly ever."""
    alpha, power, distribution = 0.01, 0.9, np.array(distribution)
    random = np.random.default_rng(0)

    def seen(real: np.ndarray) -> float:
        num_seen = 0
        for draws in random.multinomial(num_tokens, real, size=120):
            test = CategoryTest(len(distribution))
            add_all(test, distribution, draws)
            num_seen += test.p_value < alpha
        return num_seen / 120

    test = CategoryTest(len(distribution))
    add_all(test, distribution, random.multinomial(num_tokens, distribution))
    bias = test.smallest_visible_bias(alpha, power)
    for category in range(len(distribution)):
        real = distribution * (1 - distribution[category] - bias) / (1 - distribution[category])
        real[category] = distribution[category] + bias
        if real[category] < 1:
            assert seen(real) >= power - 4 * np.sqrt(power * (1 - power) / 120)
    assert seen(distribution) <= alpha + 4 * np.sqrt(alpha / 120)


def test_what_is_visible_shrinks_with_the_root_of_the_tokens():
    test = CategoryTest(2)
    assert test.smallest_visible_bias(1e-3, 0.95) == 1.0
    for _ in range(4000):
        test.add(np.array([0.5, 0.5]), 0)
    visible = test.smallest_visible_bias(1e-3, 0.95)
    assert 0.03 < visible < 0.05
    for _ in range(12000):
        test.add(np.array([0.5, 0.5]), 0)
    assert test.smallest_visible_bias(1e-3, 0.95) == pytest.approx(visible / 2, rel=0.02)
    assert p_value(0.2, 1, 4000) < 1e-10


def test_impossible_categories_do_no_harm():
    test = CategoryTest(4)
    for number in range(1000):
        test.add(np.array([0.5, 0.5, 0.0, 0.0]), number % 2)
    assert test.p_value == pytest.approx(1.0)


def test_a_token_from_an_impossible_category_is_fatal():
    """Its distribution says 0; here next to nothing, as a softmax would."""
    test = CategoryTest(3)
    for number in range(1000):
        test.add(np.array([0.5, 0.5 - 1e-6, 1e-6]), 2 if number == 500 else number % 2)
    assert test.p_value < 1e-9
