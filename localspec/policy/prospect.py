"""The outlook for a proposer: its possible gain in a step, its pauses, the end of a draft."""

from __future__ import annotations

import copy

import numpy as np

from localspec.policy.acceptance import GAINS, REGIME_TOKENS, Acceptance, Weights
from localspec.policy.cost import Costs
from localspec.speculative.policy_api import MatchSource, ProposerKind, ProposerState

# Tokens for which a proposer is paused after a first trial that did not pay, or where no trial
# is allowed; twice as long after each further trial, up to two regimes
FIRST_PAUSE = 12
LONGEST_PAUSE = 2 * REGIME_TOKENS
_LOSS = 4.0  # target-only steps that a proposer may lose before it is paused
_LONG_READ = 32  # a draft reads at least this number of tokens of a long text
_NOTHING = ProposerState(max_tokens=0)


class Prospect:
    """The knowledge about a proposer, and its possible gain in the next step.

    Args:
        index: The proposer's position among the proposers.
        kind: Its kind.
    """

    def __init__(self, index: int, kind: ProposerKind) -> None:
        self.index = index
        self.kind = kind

        self.learned = Acceptance(kind)
        """The acceptance in all answers so far, for the next process."""

        self._first = copy.deepcopy(self.learned)  # the acceptance when an answer begins
        self._by_source: list[Acceptance] = []  # in this answer
        self._seen: list[
            tuple[float, float, int]
        ] = []  # judged tokens that are not yet learned
        self.state = _NOTHING

        self.limit = 0
        """The most tokens that it can propose in the next step."""

        self.rate = 0.0
        """Tokens per target-only step with its best K ≥ 1."""

        self.risk = 0.0
        """Target-only steps that the best K loses if no token is accepted."""

        self.gain = 0.0
        """Target-only steps that the best K gains on average."""

        self.reads_from: int | None = None
        """See `Decision`."""

        self.steps: Weights = np.zeros(0)
        """See `Costs.steps`."""

        self.padded: list[int] = []
        """See `Costs.steps`."""

        self.drafting: Weights = np.zeros(0)
        """The cost to draft 1, 2 … tokens."""

        self._spent: Weights = np.zeros(0)  # the cost of a step with a draft of 1, 2 … tokens
        self.reset()

    def reset(self) -> None:
        """Reset what belongs to one answer."""
        self.learn_seen()
        if self._first.num_seen < REGIME_TOKENS <= self.learned.num_seen:
            self._first = copy.deepcopy(self.learned)
        # A lookup counts itself how its kinds of matches fare. Only the regime of this text is
        # learned here, and other texts say nothing about that.
        if self.kind is ProposerKind.LOOKUP:
            self._by_source = [Acceptance(self.kind, source) for source in MatchSource]
        else:
            self._by_source = [copy.deepcopy(self._first)]
        self.pause_left = 0
        """Tokens for which the proposer is not asked."""
        self._next_pause = FIRST_PAUSE  # tokens of the next pause
        self._saved = 0.0  # target-only steps saved lately
        self.looks = 0.0
        """The cost of replays since the last pause, in target-only steps."""
        self.was_replayed = False
        """Whether it was replayed before the present step."""
        self.is_look = False
        """Whether its last draft was only a trial."""

    def renew(self) -> None:
        """Let answers begin with the knowledge of now."""
        self.learn_seen()
        self._first = copy.deepcopy(self.learned)

    def learn_seen(self) -> None:
        """Learn from the answer for the next process. Done between answers: it takes time."""
        for confidence, outcome, num_passed in self._seen:
            self.learned.age(num_passed)
            self.learned.learn(confidence, outcome)
        self._seen.clear()

    @property
    def acceptance(self) -> Acceptance:
        """The acceptance in this answer, of tokens from the present source."""
        return self._by_source[self.state.source]

    def age(self, num_tokens: int) -> None:
        """Let regimes become less certain, after num_tokens of text."""
        for acceptance in self._by_source:
            acceptance.age(num_tokens)

    def see(
        self,
        confidence: float,
        outcome: float,
        num_passed: int,
        source: MatchSource,
    ) -> None:
        """Take a judged token into account."""
        acceptance = self._by_source[source]
        acceptance.age(num_passed)
        acceptance.learn(confidence, outcome)
        if self.kind is not ProposerKind.LOOKUP:
            self._seen.append((confidence, outcome, num_passed))

    def prepare(self, state: ProposerState, free: int) -> bool:
        """Set the next step's state and limit. Returns whether it can propose a token.

        Args:
            state: The proposer's state.
            free: The most draft tokens for which the step has room.
        """
        self.state = state
        self.limit = min(free, state.max_tokens)
        self.reads_from = None
        return self.limit > 0

    def rank(self, costs: Costs, last_size: int) -> None:
        """Find the best K. last_size: tokens of the last decode."""
        self.steps, self.padded = costs.steps(last_size)
        if self.state.is_block:
            num_decodes = np.ones(self.limit)
        else:
            num_decodes = np.arange(1.0, self.limit + 1)
        self.drafting = costs.token(self.kind) * num_decodes
        self._spent = self.steps[2 : self.limit + 2] + self.drafting
        expected = self.acceptance.expected(self.acceptance.weights, self.state.confidence)
        emitted = 1.0 + expected[1 : self.limit + 1]
        rates = emitted / self._spent
        best = int(rates.argmax())
        self.rate = float(rates[best])
        self.risk = float(self._spent[best]) - 1.0
        self.gain = float(emitted[best] - self._spent[best])

    def gain_if_known(self) -> float:
        """Target-only steps per token that it would save if the regime were known."""
        emitted = 1.0 + GAINS[:, 1 : self.limit + 1]  # (regimes, K)
        cost = (self._spent / emitted).min(axis=1)  # per token with the best K of each regime
        saved = np.maximum(self.steps[1] - cost, 0.0)
        return float(self.acceptance.weights @ saved)

    def may_read(
        self,
        costs: Costs,
        length: int,
        worth: float,
        budget: float,
        *,
        drafts: bool,
    ) -> bool:
        """Choose where in the text the draft begins to read, if it lacks much of it.

        For a trial it reads a little of the end. To draft, it reads as much as half of the
        budget allows; and the whole text once an eighth of the budget suffices for that.

        Args:
            costs: The present costs.
            length: The length of the text, in tokens.
            worth: Target-only steps that reading may gain.
            budget: Target-only steps that the answer may still lose.
            drafts: Whether it reads to draft; else for a trial.

        Returns:
            Whether reading is worth its cost.
        """
        token = costs.read_token(self.kind)
        num_missing = self.state.num_missing
        if self.state.num_skipped > 0 and token * length < min(budget / 8, worth):
            self.reads_from = 0
            return True
        num_read = _LONG_READ
        is_timed = costs.ledger[f"read {self.kind.value}"].value is not None
        if drafts and is_timed and token > 0.0:
            num_read = max(int(budget / 2 / token), _LONG_READ)
        num_read = min(num_read, num_missing)
        if num_read < num_missing:
            self.reads_from = length - num_read
        return worth > 0.0 and num_read * token <= worth

    def fail(self) -> None:
        """Pause, since it did not pay: longer each time, and longer after costly replays."""
        self.pause_left = int(self._next_pause * max(self.looks, 1.0))
        self._next_pause = min(2 * self._next_pause, LONGEST_PAUSE)
        self.looks = 0.0

    def save(self, gain: float) -> None:
        """Count the target-only steps that a draft saved; below 0 those that it lost."""
        self._saved = min(self._saved + gain, REGIME_TOKENS)
        if self._saved > _LOSS:
            self._next_pause = FIRST_PAUSE
            self.looks = 0.0
        elif self._saved < -_LOSS:
            self._saved = 0.0
            self.looks = 0.0
            self.fail()


class Stopping:
    """Continues a draft while that yields more tokens than the best K in the same time.

    Args:
        best: The proposer, ranked.
    """

    def __init__(self, best: Prospect) -> None:
        self._acceptance = best.acceptance
        self._confidence = best.state.confidence
        # (regimes,) the probability of the regime and of all drafted tokens being accepted
        self._alive = self._acceptance.weights
        self.limit = best.limit
        self._loss = best.rate * best.steps  # in tokens
        self._draft_loss = best.rate * (best.drafting - best.drafting[0])

    def num_worth(self, num_drafted: int, confidence: float) -> int:
        limit = self.limit - num_drafted
        if limit <= 0:
            return 0
        alive = self._alive * self._acceptance.chances(confidence)
        # The gain and the cost of 0, 1, 2 … more tokens after this one.
        further = self._acceptance.expected(alive, self._confidence)[:limit]
        loss = self._loss[num_drafted + 2 : num_drafted + 2 + limit]
        values = alive.sum() + further - self._draft_loss[:limit] - loss
        best = int(np.argmax(values))
        self._alive = alive
        if values[best] + self._loss[num_drafted + 1] > 0.0:
            return best + 1
        return 0
