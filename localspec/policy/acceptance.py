"""How likely a proposer's tokens are to be accepted: a filter over regimes of the text.

Some parts of a text are predictable and others are not. A regime is a rate at which draft
tokens are accepted. The present regime is hidden and changes now and then; it is tracked by
Bayes' rule over a grid of rates (a hidden Markov model, whose state is redrawn from a slowly
learned prior with a fixed hazard). So a fully accepted draft counts as "at least n tokens", a
regime that was not seen for a while becomes uncertain again, and the value of a long draft is
the mean over all possible rates.

The proposer's own confidence shifts the log-odds of a token by an amount that is learned for
each bin of confidence. Weighted by how often the bins occur, the shifts average 0, so the rate
of a regime is that of a token whose confidence is not known yet.

A lookup counts how its matches of each kind fare, so its confidence is taken as it is. A regime
says how the present text differs from that, for each source: whether the prompt is being copied
now says nothing about matches in another conversation.
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
# Tokens that a regime lasts on average. A bet has to pay within that number of tokens, and that
# number of verdicts replaces a first guess
REGIME_TOKENS = 64
_HAZARD = 1 / REGIME_TOKENS  # the chance of another regime at each token
# The first priors of the regimes. People choose good drafts for a target; a token that a
# constraint forces has to come in one spelling or another
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
# How fast the shifts of the bins, and how often the bins occur, follow what is seen
_SHIFT_RATE = 0.04
_EDGES = (0.3, 0.5, 0.7, 0.85, 0.95)  # edges of the bins of confidence
_LOG_ODDS = np.log(RATES) - np.log1p(-RATES)
_CENTRES = np.convolve([0.0, *_EDGES, 1.0], [0.5, 0.5], "valid")  # of the bins
# In a regime of rate 0.85 a lookup's confidence is taken as it is
_LITERAL_SHIFTS = np.log(_CENTRES / (1.0 - _CENTRES)) - np.log(0.85 / 0.15)

_POWERS = np.arange(1.0 + MAX_DRAFT_TOKENS)
# (regimes, 1 + MAX_DRAFT_TOKENS): tokens accepted of the next 0, 1, 2 …
GAINS: Weights = np.cumsum(RATES[:, None] ** _POWERS, axis=1) - 1.0


class Acceptance:
    """The acceptance of one proposer's tokens, learned from verdicts."""

    def __init__(self, kind: ProposerKind, source: MatchSource = MatchSource.PROMPT) -> None:
        num_bins = len(_EDGES) + 1
        self.num_seen = 0
        """Tokens that were judged."""
        self._is_literal = kind is ProposerKind.LOOKUP
        if self._is_literal:
            prior = _LOOKUP_PRIORS[source]
            self._shifts = _LITERAL_SHIFTS.copy()
        else:
            prior = _PRIORS[kind]
            self._shifts = np.zeros(num_bins)
        self._prior: Weights = prior / prior.sum()
        self._shares = np.full(num_bins, 1.0 / num_bins)  # how often the bins occur
        self._weights: Weights = self._prior.copy()
        self._num_passed = 0  # tokens since the weights were updated
        self._chances = _shifted(self._shifts)

    @property
    def weights(self) -> Weights:
        """(regimes,) probabilities of the rates in `RATES` now."""
        # Updated on demand, since most target-only steps do not need them.
        if self._num_passed > 0:
            stays = (1.0 - _HAZARD) ** self._num_passed
            self._weights = stays * self._weights + (1.0 - stays) * self._prior
            self._num_passed = 0
        return self._weights

    def chances(self, confidence: float) -> Weights:
        """(regimes,) the chance that a token proposed with that confidence is accepted."""
        chances: Weights = self._chances[bisect_right(_EDGES, confidence)]
        return chances

    def expected(self, weights: Weights, confidence: float | None) -> Weights:
        """(1 + MAX_DRAFT_TOKENS,) how many of the next 0, 1, 2 … tokens will be accepted.

        Args:
            weights: (regimes,) probabilities of the rates.
            confidence: The confidence in each token; None if it is not known yet. It is the
                same for all of them: a match that grows promises more only in a regime in which
                a text is copied.
        """
        gains = GAINS
        if confidence is not None:
            powers = self.chances(confidence)[:, None] ** _POWERS
            gains = np.cumsum(powers, axis=1) - 1.0
        expected: Weights = weights @ gains
        return expected

    def learn(self, confidence: float, outcome: float) -> None:
        """Take one judged token into account.

        Args:
            confidence: The confidence with which it was proposed.
            outcome: 1 if it was accepted, 0 if it was refused; between them, its chance to be
                accepted.
        """
        bin_ = bisect_right(_EDGES, confidence)
        chances = self._chances[bin_]
        if not self._is_literal:
            surprise = outcome - float(self.weights @ chances)
            self._shares *= 1.0 - _SHIFT_RATE
            self._shares[bin_] += _SHIFT_RATE
            self._shifts[bin_] += _SHIFT_RATE * surprise
            self._shifts -= self._shares @ self._shifts
            self._chances = _shifted(self._shifts)
        likelihoods = outcome * chances + (1.0 - outcome) * (1.0 - chances)
        weights = self.weights * likelihoods
        self._weights = weights / weights.sum()
        self.num_seen += 1
        rate = max(_HAZARD / 4, 1.0 / (_PRIOR_TOKENS + self.num_seen))
        self._prior += rate * (self._weights - self._prior)

    def age(self, num_tokens: int) -> None:
        """Let the regime become less certain, after num_tokens of text."""
        self._num_passed += num_tokens

    def as_dict(self) -> dict[str, Any]:
        """The content to save for the next process, in JSON's types."""
        return {
            "num_seen": self.num_seen,
            "prior": _rounded(self._prior, 6),
            "shifts": _rounded(self._shifts, 4),
            "shares": _rounded(self._shares, 4),
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Continue from `as_dict`."""
        prior = np.array(kept["prior"], dtype=np.float64)
        shifts = np.array(kept["shifts"], dtype=np.float64)
        shares = np.array(kept["shares"], dtype=np.float64)
        self.num_seen = int(kept["num_seen"])
        # Every rate keeps a little weight, so that no regime is ruled out forever.
        spread = 2 * _HAZARD
        self._prior = (1.0 - spread) * prior / prior.sum() + spread / len(RATES)
        # A damaged profile may have any number.
        self._shifts = np.clip(shifts, _LOG_ODDS[0], _LOG_ODDS[-1])
        self._shares = shares / shares.sum()
        self._chances = _shifted(self._shifts)
        self._weights = self._prior.copy()
        self._num_passed = 0


def _rounded(values: Weights, num_digits: int) -> list[float]:
    return [round(float(value), num_digits) for value in values]


def _shifted(shifts: Weights) -> Weights:
    """(bins, regimes) chances at each bin's shift of the log-odds."""
    odds: Weights = np.exp(_LOG_ODDS + shifts[:, None])
    return odds / (1.0 + odds)
