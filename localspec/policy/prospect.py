"""The outlook for a proposer: its possible gain in a step, its pauses, the end of a draft."""

from __future__ import annotations

import copy

import numpy as np

from localspec.policy.acceptance import GAINS, REGIME_TOKENS, Acceptance, Weights
from localspec.policy.cost import Costs
from localspec.speculative.policy_api import MatchSource, ProposerKind, ProposerState

# Tokens of a pause after a first trial that did not pay, or where none may; twice as long after
# each further trial, up to two regimes
FIRST_PAUSE = 12
LONGEST_PAUSE = 2 * REGIME_TOKENS
_LOSS = 4.0  # target-only steps that it may lose before it pauses
_LONG_READ = 32  # tokens that a draft reads at least of a long text
_NOTHING = ProposerState(max_tokens=0)


class Prospect:
    """The knowledge about a proposer, and its possible gain in the next step.

    index: its position among the proposers. acceptance: in this answer; learned: what all
    answers so far showed, for the next process. pause_left: tokens for which it is not asked.
    is_look: whether its last draft was only to find out.

    limit: the most tokens it can propose in the next step. rate: tokens per target-only step
    with its best K ≥ 1, which loses `risk` target-only steps if none is accepted, and gains
    `gain` on average. reads_from: as in `Decision`.
    """

    def __init__(self, index: int, kind: ProposerKind) -> None:
        self.index = index
        self.kind = kind
        self.learned = Acceptance(kind)
        self._first = copy.deepcopy(self.learned)  # what an answer begins with
        self._by_source: list[Acceptance] = []  # in this answer
        self._seen: list[tuple[float, float, int]] = []  # of this answer, not yet learned
        self.state = _NOTHING
        self.limit = 0
        self.rate = 0.0
        self.risk = self.gain = 0.0
        self.reads_from: int | None = None
        self.steps: Weights = np.zeros(0)  # see `Costs.steps`
        self.padded: list[int] = []
        self.drafting: Weights = np.zeros(0)  # the cost to draft 1, 2 … tokens
        self._spent: Weights = np.zeros(0)
        self.reset()

    def reset(self) -> None:
        """Reset what is of one answer: another begins."""
        self.learn_seen()
        if self._first.num_seen < REGIME_TOKENS <= self.learned.num_seen:
            self._first = copy.deepcopy(self.learned)
        # How kinds of findings fare a lookup counts itself. What remains is the regime of this
        # text, of which other texts say nothing.
        self._by_source = [copy.deepcopy(self._first)]
        if self.kind is ProposerKind.LOOKUP:
            self._by_source = [Acceptance(self.kind, source) for source in MatchSource]
        self.pause_left = 0
        self._next_pause = FIRST_PAUSE
        self._saved = 0.0  # target-only steps, lately
        self.looks = 0.0  # cost of replays since it paused
        self.was_replayed = self.is_look = False

    def renew(self) -> None:
        """Let answers begin with what was learned so far."""
        self.learn_seen()
        self._first = copy.deepcopy(self.learned)

    def learn_seen(self) -> None:
        """Learn for the next process. It takes time, so it is done behind an answer."""
        for confidence, outcome, num_passed in self._seen:
            self.learned.age(num_passed)
            self.learned.learn(confidence, outcome)
        self._seen.clear()

    @property
    def acceptance(self) -> Acceptance:
        """In this answer, of tokens from the present source."""
        return self._by_source[self.state.source]

    def age(self, num_tokens: int) -> None:
        """Let regimes become less certain, after num_tokens of text."""
        for acceptance in self._by_source:
            acceptance.age(num_tokens)

    def see(
        self, confidence: float, outcome: float, num_passed: int, source: MatchSource
    ) -> None:
        """Take a judged token into account."""
        acceptance = self._by_source[source]
        acceptance.age(num_passed)
        acceptance.learn(confidence, outcome)
        if self.kind is not ProposerKind.LOOKUP:
            self._seen.append((confidence, outcome, num_passed))

    def prepare(self, state: ProposerState, free: int) -> bool:
        """Begin a step of at most so many draft tokens. Returns whether it can propose any."""
        self.state, self.limit = state, min(free, state.max_tokens)
        self.reads_from = None
        return self.limit > 0

    def rank(self, costs: Costs, last_size: int) -> None:
        """Find the best K, behind a decode of so many tokens."""
        self.steps, self.padded = costs.steps(last_size)
        token = costs.token(self.kind)
        num_decodes = np.arange(1.0, self.limit + 1)
        self.drafting = token * (np.ones(self.limit) if self.state.is_block else num_decodes)
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
        cost = (self._spent / (1.0 + GAINS[:, 1 : self.limit + 1])).min(axis=1)
        return float(self.acceptance.weights @ np.maximum(self.steps[1] - cost, 0.0))

    def may_read(
        self, costs: Costs, length: int, worth: float, budget: float, *, drafts: bool
    ) -> bool:
        """Choose where in the text it begins to read, if it lacks much of it.

        It reads a little of the end to look whether it pays, as much as half of the budget
        allows when it drafts, and everything once an eighth does. Returns whether reading is
        worth its cost.

        Args:
            length: The length of the text.
            worth: Target-only steps that are to be gained.
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
        """Pause, since it did not pay: longer each time, and longer if a look took more."""
        self.pause_left = int(self._next_pause * max(self.looks, 1.0))
        self._next_pause = min(2 * self._next_pause, LONGEST_PAUSE)
        self.looks = 0.0

    def save(self, gain: float) -> None:
        """Count what a draft saved; less than 0 if it lost some."""
        self._saved = min(self._saved + gain, REGIME_TOKENS)
        if self._saved > _LOSS:
            self._next_pause = FIRST_PAUSE
            self.looks = 0.0
        elif self._saved < -_LOSS:
            self._saved = self.looks = 0.0
            self.fail()


class Stopping:
    """Continues a draft while that yields more tokens than the best K in the same time."""

    def __init__(self, best: Prospect) -> None:
        self._acceptance = best.acceptance
        self._confidence = best.state.confidence
        # (regimes,) probability of the regime, and that all tokens so far are accepted
        self._alive = self._acceptance.weights
        self.limit = best.limit
        self._loss = best.rate * best.steps  # in tokens
        self._draft_loss = best.rate * (best.drafting - best.drafting[0])

    def num_worth(self, num_drafted: int, confidence: float) -> int:
        limit = self.limit - num_drafted
        if limit <= 0:
            return 0
        alive = self._alive * self._acceptance.chances(confidence)
        # What 0, 1, 2 … more tokens after this one gain, and what they cost.
        further = self._acceptance.expected(alive, self._confidence)[:limit]
        loss = self._loss[num_drafted + 2 : num_drafted + 2 + limit]
        values = alive.sum() + further - self._draft_loss[:limit] - loss
        best = int(np.argmax(values))
        self._alive = alive
        if values[best] + self._loss[num_drafted + 1] > 0.0:
            return best + 1
        return 0
