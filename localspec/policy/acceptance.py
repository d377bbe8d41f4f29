"""How likely a proposer's tokens are to be accepted: a filter over regimes of the text.

Some parts of a text are predictable and others are not. A regime is a rate at which draft
tokens are accepted. The present regime is hidden and changes now and then; it is tracked by
Bayes' rule over a grid of rates. This is a hidden Markov model: at each token, with a fixed
probability (the hazard), a new regime is drawn from a slowly learned prior. So a regime in
which no token was judged for a while becomes uncertain again, and the value of a long draft is
the mean over all possible rates.

The proposer's own confidence shifts the log-odds of a token by an amount that is learned for
each bin of confidence. Weighted by how often the bins occur, the shifts average 0, so the rate
of a regime is that of a token whose confidence is not known yet.

The shifts of a lookup are constants, since its confidence is already the rate at which its
matches were accepted. A regime says how the present text differs from that rate. Each source of
matches has regimes of its own: whether the prompt is being copied now says nothing about
matches in another conversation.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.speculative.policy_api import MAX_DRAFT_TOKENS, MatchSource, ProposerKind

Weights = NDArray[np.float64]

# The regimes: rates at which draft tokens are accepted, closer together near 1, where small
# differences decide how long a draft pays
RATES = np.array([0.01, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.86, 0.9, 0.93, 0.955, 0.98])
# Tokens that a regime lasts on average. A trial has to pay within this number of tokens. After
# this number of judged tokens, the learned acceptance replaces the first guess
REGIME_TOKENS = 64
_HAZARD = 1 / REGIME_TOKENS  # the chance of another regime at each token
# The first priors of the regimes. Drafts and heads are chosen to fit their target, so high
# rates are likely. A forced text has to come; only its spelling, in tokens, may differ
_PRIORS: dict[ProposerKind, Weights] = {
    ProposerKind.DRAFT: 0.5 + RATES,
    ProposerKind.HEAD: 0.5 + RATES,
    ProposerKind.FORCED: RATES**40,
}
# The first priors of a lookup, about as measured in code, edits, explanations and arithmetic:
# an answer copies its prompt or does not, repeats itself as often as the lookup counted, and
# repeats other texts less often
_LOOKUP_PRIORS: dict[MatchSource, Weights] = {
    MatchSource.PROMPT: 2.0 * RATES**4 * (1.0 - RATES) + RATES**40,
    MatchSource.ANSWER: RATES**12 * (1.0 - RATES) ** 2,
    MatchSource.OTHER: RATES**5 * (1.0 - RATES) ** 2,
}
# The weight of the first prior, in judged tokens
_PRIOR_TOKENS = 6
# The least share by which the prior follows the weights at a judged token
_LEAST_PRIOR_RATE = _HAZARD / 4
# The share by which the shifts of the bins, and the frequencies of the bins, follow each token
_SHIFT_RATE = 0.04
_EDGES = (0.3, 0.5, 0.7, 0.85, 0.95)  # edges of the bins of confidence
_LOG_ODDS = np.log(RATES) - np.log1p(-RATES)
_CENTRES = np.convolve([0.0, *_EDGES, 1.0], [0.5, 0.5], "valid")  # of the bins
# In a regime of this rate, a lookup's confidence is the chance that its token is accepted
_LOOKUP_RATE = 0.85
_LOOKUP_LOG_ODDS = np.log(_LOOKUP_RATE / (1.0 - _LOOKUP_RATE))
_LOOKUP_SHIFTS = np.log(_CENTRES / (1.0 - _CENTRES)) - _LOOKUP_LOG_ODDS

_EXPONENTS = np.arange(1.0 + MAX_DRAFT_TOKENS)
# (regimes, 1 + MAX_DRAFT_TOKENS): how many of the next 0, 1, 2 … tokens are accepted
ACCEPTED_BY_RATE: Weights = np.cumsum(RATES[:, None] ** _EXPONENTS, axis=1) - 1.0


class Acceptance:
    """The acceptance of one proposer's tokens, learned from verdicts.

    Args:
        kind: The proposer.
        source: Where the tokens of a lookup are from; other proposers have no source.
    """

    def __init__(self, kind: ProposerKind, source: MatchSource = MatchSource.PROMPT) -> None:
        num_bins = len(_EDGES) + 1
        self.num_seen = 0
        """Tokens that were judged."""
        self._is_lookup = kind is ProposerKind.LOOKUP
        if self._is_lookup:
            prior = _LOOKUP_PRIORS[source]
            self._shifts = _LOOKUP_SHIFTS.copy()
        else:
            prior = _PRIORS[kind]
            self._shifts = np.zeros(num_bins)
        self._prior: Weights = prior / prior.sum()
        self._shares = np.full(num_bins, 1.0 / num_bins)  # of the bins among judged tokens
        self._weights: Weights = self._prior.copy()  # after the last judged token
        self._num_passed = 0  # tokens by which they have to age
        self._chances = _chances_by_bin(self._shifts)  # (bins, regimes)

    @property
    def weights(self) -> Weights:
        """(regimes,) probabilities of the rates in `RATES` now."""
        # Computed on demand, since most target-only steps do not need them, and not kept, since
        # a replay may still judge the tokens that have passed.
        same_chance = (1.0 - _HAZARD) ** self._num_passed  # that no new one was drawn
        weights: Weights = same_chance * self._weights + (1.0 - same_chance) * self._prior
        return weights

    def chances(self, confidence: float) -> Weights:
        """(regimes,) the chance in each regime that a token of this confidence is accepted."""
        chances: Weights = self._chances[bisect_right(_EDGES, confidence)]
        return chances

    def expected_accepted(self, weights: Weights, confidence: float | None) -> Weights:
        """(1 + MAX_DRAFT_TOKENS,) the mean number accepted of the next 0, 1, 2 … tokens.

        Args:
            weights: (regimes,) probabilities of the rates.
            confidence: The confidence in every one of these tokens; None if it is not known
                yet.
        """
        by_regime = ACCEPTED_BY_RATE
        if confidence is not None:
            chances = self.chances(confidence)
            all_accepted = chances[:, None] ** _EXPONENTS  # the chance of n tokens in a row
            by_regime = np.cumsum(all_accepted, axis=1) - 1.0
        expected: Weights = weights @ by_regime
        return expected

    def learn(self, confidence: float, outcome: float) -> None:
        """Learn from one judged token.

        Args:
            confidence: The confidence with which it was proposed.
            outcome: 1 if it was accepted, 0 if it was refused. For a token that was judged
                without a draw, the chance of its acceptance.
        """
        bin_ = bisect_right(_EDGES, confidence)
        chances = self._chances[bin_]
        if not self._is_lookup:
            surprise = outcome - float(self.weights @ chances)
            self._shares *= 1.0 - _SHIFT_RATE
            self._shares[bin_] += _SHIFT_RATE
            self._shifts[bin_] += _SHIFT_RATE * surprise
            mean_shift = self._shares @ self._shifts
            self._shifts -= mean_shift  # so that they average 0
            self._chances = _chances_by_bin(self._shifts)
        # Bayes' rule.
        likelihoods = outcome * chances + (1.0 - outcome) * (1.0 - chances)
        weights = self.weights * likelihoods
        self._weights = weights / weights.sum()
        self._num_passed = 0
        self.num_seen += 1
        # The prior is the mean of all weights so far at first, later of the most recent ones.
        share = 1.0 / (_PRIOR_TOKENS + self.num_seen)
        share = max(share, _LEAST_PRIOR_RATE)
        self._prior += share * (self._weights - self._prior)

    def age(self, num_tokens: int) -> None:
        """Let the regime become less certain, after num_tokens of text."""
        self._num_passed += num_tokens

    def take_back(self, num_tokens: int) -> None:
        """Take back the `age` of the last num_tokens of text, which are judged after all."""
        # At least 0, since a step that reads a picture lets no token pass.
        self._num_passed = max(self._num_passed - num_tokens, 0)

    def as_dict(self) -> dict[str, Any]:
        """The content to save for the next process, in JSON's types."""
        return {
            "num_seen": self.num_seen,
            "prior": _rounded(self._prior, 6),
            "shifts": _rounded(self._shifts, 4),
            "shares": _rounded(self._shares, 4),
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Continue with the content in `kept`, which `as_dict` returned."""
        prior = np.array(kept["prior"], dtype=np.float64)
        shifts = np.array(kept["shifts"], dtype=np.float64)
        shares = np.array(kept["shares"], dtype=np.float64)
        self.num_seen = int(kept["num_seen"])
        # Every rate keeps a little weight, so that no regime is ruled out forever.
        spread = 2 * _HAZARD
        learned = prior / prior.sum()
        uniform = 1.0 / len(RATES)
        self._prior = (1.0 - spread) * learned + spread * uniform
        # A damaged profile may have any number.
        self._shifts = np.clip(shifts, _LOG_ODDS[0], _LOG_ODDS[-1])
        self._shares = shares / shares.sum()
        self._chances = _chances_by_bin(self._shifts)
        self._weights = self._prior.copy()
        self._num_passed = 0


def _rounded(values: Weights, num_digits: int) -> list[float]:
    return [round(float(value), num_digits) for value in values]


def _chances_by_bin(shifts: Weights) -> Weights:
    """(bins, regimes) chances of acceptance.

    Args:
        shifts: (bins,) what each bin's confidence adds to the log-odds of a regime's rate.
    """
    odds: Weights = np.exp(_LOG_ODDS + shifts[:, None])
    return odds / (1.0 + odds)
