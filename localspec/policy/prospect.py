"""A proposer before a step: what its best K may gain and lose, and when drafting stops.

How much may be lost in finding out whether a draft pays is a `Budget`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from localspec.policy.acceptance import GAINS, Acceptance, Weights
from localspec.policy.cost import DraftCost
from localspec.policy.step_times import StepTimes
from localspec.speculative.policy_api import ProposerKind, ProposerState

# A gain has to be larger than this factor
# [no scenario: two useless proposers on a flat v reach 0.993 with it, 0.987 without]
MARGIN = 1.02
LONG_READ = 32  # reading fewer tokens than this is part of a step [long prompts, a chat]
_BET = 0.5  # share of the budget that one step may lose [never right]
# Ratio of expected gain to expected loss above which a bet needs no budget [long answers]
_SAFE_ODDS = 2.0
_NOTHING = ProposerState(max_tokens=0)
# Time that may be lost at first, in target-only steps [never right, short answers]
_GRANTED_STEPS = 6.0
# Share of plain decoding's time that may be lost later [never right, turning good]
_GRANTED_SHARE = 0.002
# The most time that drafting can save up, in target-only steps [switching]
_MAX_SAVED_STEPS = 60.0
# Share of the probable loss that replaying may cost [beside a lookup, turning good]
_REPLAY_SHARE = 0.02


class Budget:
    """The time that drafting saved so far, a grant, and a share of the probable loss.

    It never falls below 0. A bet at good odds needs no budget, and after lost bets the grant
    alone would have to pay the debt before a resting draft could be tried again.

    All in seconds. target_only_s: what a target-only step takes now. lost_s: the probable loss,
    what drafting would have saved since the last replay or draft.
    """

    def __init__(self) -> None:
        self._saved_s = 0.0
        self._granted_s = 0.0

    def pass_by(self, seconds: float) -> None:
        """Grant a share of the time that plain decoding would have taken."""
        self._granted_s += _GRANTED_SHARE * seconds

    def save(self, seconds: float, target_only_s: float) -> None:
        """Add the time that a draft, a replay or a decision saved; negative if it cost time."""
        saved_s = max(self._saved_s + seconds, -self._grant_s(target_only_s))
        self._saved_s = min(saved_s, _MAX_SAVED_STEPS * target_only_s)

    def left_s(self, target_only_s: float) -> float:
        """How much time may be lost with nothing gained."""
        # After target-only steps became faster, more may be spent than the grant is now.
        return max(self._saved_s + self._grant_s(target_only_s), 0.0)

    def for_replay_s(self, target_only_s: float, lost_s: float) -> float:
        """How much a replay may cost."""
        return self.left_s(target_only_s) + _REPLAY_SHARE * lost_s

    def _grant_s(self, target_only_s: float) -> float:
        return self._granted_s + _GRANTED_STEPS * target_only_s


@dataclass(slots=True)
class Prospect:
    """The knowledge about a proposer, and its possible gain in the next step.

    index: its position among the proposers. lost_token_s: seconds that it would probably have
    saved with each token that was not drafted; lost_s: their sum since its last replay or
    draft, the probable loss. trial_s: a share of that since its last draft, minus the time of
    replays for a trial. has_replayed: whether it replayed in this answer.

    limit: the most tokens it can propose in the next step. catch_up_s: seconds to read what it
    lacks first; reads_from: as in `Decision`. rate: tokens per second with its best K ≥ 1 that
    the budget allows, 0 if it allows none; risk_s: the expected loss with that K in the cases
    where it does not pay. unlimited_rate: the rate of the best K without a budget.
    """

    index: int
    kind: ProposerKind
    cost: DraftCost
    acceptance: Acceptance
    lost_s: float = 0.0
    lost_token_s: float = 0.0
    trial_s: float = 0.0
    has_replayed: bool = False
    state: ProposerState = _NOTHING
    limit: int = 0
    catch_up_s: float = 0.0
    reads_from: int | None = None
    risk_s: float = 0.0
    rate: float = 0.0
    unlimited_rate: float = 0.0

    def prepare(self, state: ProposerState, room: int) -> bool:
        """Begin a step with room for so many tokens. Returns whether it can propose any."""
        self.state, self.limit = state, min(room, state.max_tokens)
        self.catch_up_s, self.reads_from = 0.0, None
        self.risk_s = self.rate = 0.0
        return self.limit > 0

    def expect_catch_up(
        self, target_only_s: float, prefill_token_s: float | None, most: int
    ) -> None:
        """Compute `catch_up_s`. most: of a long read, only so many tokens count for a step.

        prefill_token_s: the target's cost of one token among many, if it is known.
        """
        if self.state.num_missing > 1:
            cost = self.cost
            num_tokens = min(self.state.num_missing, most) - 1
            read_s = num_tokens * cost.read_token_s(target_only_s, prefill_token_s)
            self.catch_up_s = max(read_s, cost.token_s(target_only_s))

    def replay_s(self, target_only_s: float) -> float:
        """Seconds of a replay: to read what it lacks, and to decode a block for it."""
        block_s = self.cost.token_s(target_only_s) if self.state.is_block else 0.0
        return self.catch_up_s + block_s

    def rank(self, times: Weights, at_worst: Weights, budget_s: float) -> None:
        """Find the proposer's best K.

        times, at_worst: (LARGEST_STEP + 1,) seconds of a step of n tokens, as expected and in
        the worst case. budget_s: seconds that may be lost.
        """
        acceptance = self.acceptance
        gains_by_regime = acceptance.gains(self.state.confidence)
        expected = acceptance.weights @ gains_by_regime
        emitted = 1.0 + gains_by_regime[:, 1 : self.limit + 1]
        spent = self._spent(at_worst) + self.catch_up_s
        losses = spent - times[1] * emitted
        risks = acceptance.weights @ np.maximum(losses, 0.0)
        # A bet at very good odds needs no budget.
        gains = risks - acceptance.weights @ losses
        allowed = (spent - times[1] <= _BET * budget_s) | (gains >= _SAFE_ODDS * risks)
        rates = (1.0 + expected[1 : self.limit + 1]) / self._spent(times)
        self.unlimited_rate = float(rates.max())
        if not allowed.any():
            return
        best = int(np.argmax(np.where(allowed, rates, 0.0)))
        self.risk_s = float(risks[best])
        # A draft must not become longer than the budget allows either.
        self.limit = int(np.flatnonzero(allowed)[-1]) + 1
        self.rate = float(rates[best])

    def choose_optimistically(self, times: StepTimes) -> float | None:
        """Find the K that pays if steps of several tokens are as fast as is likely at best.

        Returns the seconds that a draft of K tokens probably loses; None if no K pays.
        """
        acceptance = self.acceptance
        expected = acceptance.expected(acceptance.weights, self.state.confidence)
        rates = (1.0 + expected[1 : self.limit + 1]) / self._spent(times.optimistic)
        best = int(np.argmax(rates))
        self.rate = float(rates[best])
        target_only_s = float(times.latest[1])
        if self.rate <= MARGIN / target_only_s:
            return None
        spent_s = self._spent(times.latest)[best] + self.catch_up_s
        self.limit = best + 1
        losses = spent_s - target_only_s * (1.0 + GAINS[:, self.limit])
        return float(acceptance.weights @ np.maximum(losses, 0.0))

    def saved_token_s(self, times: Weights) -> float:
        """Seconds per token that it would save on average if the regime were known."""
        spent = times[2:] + self.drafting_s(times, len(times) - 2)
        token_s = (spent / (1.0 + GAINS[:, 1:])).min(axis=1)
        saved = np.maximum(times[1] - token_s, 0.0)
        return float(self.acceptance.weights @ saved)

    def _spent(self, times: Weights) -> Weights:
        """(limit,) seconds of steps with 1, 2 … draft tokens."""
        return times[2 : self.limit + 2] + self.drafting_s(times, self.limit)

    def drafting_s(self, times: Weights, most: int) -> Weights:
        """(most,) seconds to draft 1, 2 … tokens; a block costs the same whatever its size."""
        num_decodes = np.arange(1.0, most + 1)
        if self.state.is_block:
            num_decodes[:] = 1.0
        return self.cost.token_s(float(times[1])) * num_decodes


class Stopping:
    """Continues a draft while that yields more tokens than the best K in the same time."""

    def __init__(self, best: Prospect, times: Weights) -> None:
        self._acceptance = best.acceptance
        self._confidence = best.state.confidence
        # (regimes,) probability of the regime, and that all tokens so far are accepted
        self._alive = self._acceptance.weights
        self.limit = best.limit
        self._loss = best.rate * times  # in tokens
        drafting_s = best.drafting_s(times, best.limit)
        self._draft_loss = best.rate * (drafting_s - drafting_s[0])

    def num_worth(self, num_drafted: int, confidence: float) -> int:
        limit = self.limit - num_drafted
        if limit <= 0:
            return 0
        alive = self._alive * self._acceptance.chances(confidence)
        # What 0, 1, 2 … more tokens after this one gain, and what they cost.
        known = self._confidence is not None
        further = self._acceptance.expected(alive, confidence if known else None)[:limit]
        loss = self._loss[num_drafted + 2 : num_drafted + 2 + limit]
        values = alive.sum() + further - self._draft_loss[:limit] - loss
        best = int(np.argmax(values))
        self._alive = alive
        return best + 1 if values[best] + self._loss[num_drafted + 1] > 0.0 else 0
