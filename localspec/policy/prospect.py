"""The outlook for a proposer: its possible gain in a step, its pauses, the end of a draft."""

from __future__ import annotations

import copy

import numpy as np

from localspec.policy.acceptance import ACCEPTED_BY_RATE, REGIME_TOKENS, Acceptance, Weights
from localspec.policy.cost import Costs
from localspec.speculative.policy_api import (
    MatchSource,
    ProposerKind,
    ProposerState,
    ReplayScores,
)

# Tokens for which a proposer is paused after a first trial that did not pay, or where no trial
# is allowed. After each further trial the pause is twice as long, up to two regimes
FIRST_PAUSE = 12
LONGEST_PAUSE = 2 * REGIME_TOKENS
# Target-only steps: a proposer that lost them is paused; one that saved them has proved itself
_DECISIVE = 4.0
_LONG_READ = 32  # a draft reads at least this number of tokens of a long text
_READ_SHARE = 1 / 8  # of the budget; a draft reads the whole text if that costs less
_NOTHING = ProposerState(max_tokens=0)


class Prospect:
    """The knowledge about a proposer, and its possible gain in the next step.

    `prepare` and `find_best` fill in what belongs to a step.

    Args:
        index: The proposer's position among the proposers.
        kind: Its kind.
    """

    def __init__(self, index: int, kind: ProposerKind) -> None:
        self.index = index
        self.kind = kind

        self.learned = Acceptance(kind)
        """The acceptance in all answers so far, for the next process."""

        self._at_start = copy.deepcopy(self.learned)  # the acceptance when an answer begins
        # The acceptance in this answer: for each source of a lookup, for others only one
        self._by_source: list[Acceptance] = []
        # Arguments of `learn_token`, of tokens that `learned` does not include yet
        self._judged: list[tuple[float, float, int]] = []
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

        self.step_costs: Weights = np.zeros(0)
        """The cost of the target's part of a step of 0, 1, 2 … tokens."""

        self.padded: list[int] = []
        """The sizes to which steps of 0, 1, 2 … tokens are padded."""

        self.draft_costs: Weights = np.zeros(0)
        """The cost to draft 1, 2 … tokens."""

        self._total_costs: Weights = np.zeros(0)  # of a step with a draft of 1, 2 … tokens
        self.reset()

    def reset(self) -> None:
        """Reset what belongs to one answer."""
        self.learn_judged()
        # Answers begin with a guess until enough tokens were judged. It is replaced once, and
        # after that only by `renew`.
        if self._at_start.num_seen < REGIME_TOKENS <= self.learned.num_seen:
            self._at_start = copy.deepcopy(self.learned)
        # A lookup itself counts how often its matches are right. Only the regime of this text
        # is learned here, and other texts say nothing about that.
        if self.kind is ProposerKind.LOOKUP:
            self._by_source = [Acceptance(self.kind, source) for source in MatchSource]
        else:
            self._by_source = [copy.deepcopy(self._at_start)]
        self.pause_left = 0
        """Tokens for which the proposer is paused; 0 or less if it is not."""
        self._next_pause = FIRST_PAUSE  # tokens of the next pause
        # The target-only steps that drafts and replays have saved, minus those that they cost,
        # since the answer began or the last pause for a loss
        self._saved_steps = 0.0
        self.replay_cost = 0.0
        """The cost of replays since the last pause, in target-only steps."""
        self.was_replayed = False
        """Whether it was replayed since the last step."""
        self.is_trial = False
        """Whether its last draft was only a trial."""

    def renew(self) -> None:
        """Let answers begin with all that was learned so far."""
        self.learn_judged()
        self._at_start = copy.deepcopy(self.learned)

    def learn_judged(self) -> None:
        """Include the answer's tokens in `learned`. It takes time: call it between answers."""
        for confidence, outcome, num_passed in self._judged:
            self.learned.age(num_passed)
            self.learned.learn(confidence, outcome)
        self._judged.clear()

    @property
    def acceptance(self) -> Acceptance:
        """The acceptance in this answer of tokens from the source that the state names."""
        return self._by_source[self.state.source]

    def age(self, num_tokens: int) -> None:
        """Let regimes become less certain, after num_tokens of text."""
        for acceptance in self._by_source:
            acceptance.age(num_tokens)

    def learn_replay(self, replay_scores: ReplayScores) -> None:
        """Learn from the tokens that a replay has judged, which `age` has let pass already."""
        chances = replay_scores.chances
        sources = replay_scores.sources or [self.state.source] * len(chances)
        for source in sources:
            self._by_source[source].take_back(1)
        for (confidence, chance), source in zip(chances, sources, strict=True):
            # 1: with each of these tokens the regime may have changed.
            self.learn_token(confidence, chance, 1, source)

    def learn_token(
        self,
        confidence: float,
        outcome: float,
        num_passed: int,
        source: MatchSource,
    ) -> None:
        """Learn from a judged token.

        Args:
            confidence, outcome: As for `Acceptance.learn`.
            num_passed: Tokens by which the acceptance ages first.
            source: The source of the token.
        """
        acceptance = self._by_source[source]
        acceptance.age(num_passed)
        acceptance.learn(confidence, outcome)
        if self.kind is not ProposerKind.LOOKUP:
            self._judged.append((confidence, outcome, num_passed))

    def prepare(self, state: ProposerState, free: int) -> bool:
        """Set the next step's state and limit. Returns whether it can propose a token.

        Args:
            state: The proposer's state for the text.
            free: The most draft tokens for which the step has room.
        """
        self.state = state
        self.limit = min(free, state.max_tokens)
        self.reads_from = None
        return self.limit > 0

    def find_best(self, costs: Costs, last_size: int) -> None:
        """Find the K with the highest rate, and set `rate`, `risk`, `gain` and the costs.

        Args:
            costs: The present costs.
            last_size: Tokens of the last decode.
        """
        self.step_costs, self.padded = costs.step_costs(last_size)
        if self.state.is_block:
            num_decodes = np.ones(self.limit)
        else:
            num_decodes = np.arange(1.0, self.limit + 1)
        self.draft_costs = costs.draft_token_cost(self.kind) * num_decodes
        # The target decodes one token more than were drafted.
        self._total_costs = self.step_costs[2 : self.limit + 2] + self.draft_costs
        acceptance = self.acceptance
        accepted = acceptance.expected_accepted(acceptance.weights, self.state.confidence)
        emitted = 1.0 + accepted[1 : self.limit + 1]
        rates = emitted / self._total_costs
        best = int(rates.argmax())
        cost = float(self._total_costs[best])
        self.rate = float(rates[best])
        self.risk = cost - 1.0
        self.gain = float(emitted[best]) - cost

    def gain_if_known(self) -> float:
        """Target-only steps per token that it would save on average if the regime were known.

        In each regime it would draft the best K, or nothing where none pays.
        """
        emitted = 1.0 + ACCEPTED_BY_RATE[:, 1 : self.limit + 1]  # (regimes, K)
        token_costs = self._total_costs / emitted
        best_costs = token_costs.min(axis=1)
        saved = np.maximum(self.step_costs[1] - best_costs, 0.0)
        return float(self.acceptance.weights @ saved)

    def plan_reading(
        self,
        costs: Costs,
        length: int,
        worth: float,
        budget: float,
        *,
        drafts: bool,
    ) -> bool:
        """Set `reads_from` if the draft lacks much of the text, and say whether reading pays.

        For a trial it reads a little of the end, and so it does to draft until the cost of
        reading is measured. After that it reads to draft as much as half of the budget allows.
        Once an eighth of the budget suffices for the whole text, it reads that.

        Args:
            costs: The present costs.
            length: The length of the text, in tokens.
            worth: Target-only steps that the draft may gain after reading.
            budget: Target-only steps that the answer may still lose.
            drafts: Whether it reads to draft; else for a trial.

        Returns:
            Whether the draft may gain more than reading costs.
        """
        token_cost = costs.read_token_cost(self.kind)
        num_missing = self.state.num_missing
        most_for_all = min(budget * _READ_SHARE, worth)
        if self.state.num_skipped > 0 and token_cost * length < most_for_all:
            self.reads_from = 0
            return True
        num_read = _LONG_READ
        is_timed = costs.estimates[f"read {self.kind.value}"].value is not None
        if drafts and is_timed and token_cost > 0.0:
            num_affordable = int(budget / 2 / token_cost)
            num_read = max(num_affordable, _LONG_READ)
        num_read = min(num_read, num_missing)
        if num_read < num_missing:
            self.reads_from = length - num_read
        return worth > 0.0 and num_read * token_cost <= worth

    def pause(self) -> None:
        """Pause the proposer, since it did not pay.

        Each pause is twice as long as the one before, up to LONGEST_PAUSE. It is multiplied by
        the cost of replays since the last one, if that is above 1.
        """
        self.pause_left = int(self._next_pause * max(self.replay_cost, 1.0))
        self._next_pause = min(2 * self._next_pause, LONGEST_PAUSE)
        self.replay_cost = 0.0

    def count_saved(self, gain: float) -> None:
        """Count what a draft or a replay saved, and pause the proposer if it lost too much.

        Once it has saved enough, its next pause is short again.

        Args:
            gain: Target-only steps that were saved; below 0 if they were lost.
        """
        self._saved_steps = min(self._saved_steps + gain, REGIME_TOKENS)
        if self._saved_steps > _DECISIVE:
            self._next_pause = FIRST_PAUSE
            self.replay_cost = 0.0
        elif self._saved_steps < -_DECISIVE:
            self._saved_steps = 0.0
            self.replay_cost = 0.0
            self.pause()


class StoppingRule:
    """Continues a draft while its tokens gain more than their time is worth: an `Extent`.

    A cost is worth the tokens that steps with the best K emit in the same time (Dinkelbach's
    method).

    Args:
        best: The proposer that drafts, after `find_best`.
    """

    def __init__(self, best: Prospect) -> None:
        self._acceptance = best.acceptance
        self._confidence = best.state.confidence
        # (regimes,) the probability that it is the regime and all drafted tokens are accepted
        self._all_accepted = self._acceptance.weights
        self.limit = best.limit
        # In tokens, the worth of the target's part of a step of 0, 1, 2 … tokens
        self._step_worth = best.rate * best.step_costs
        # In tokens, the worth of drafting 0, 1, 2 … more tokens
        self._draft_worth = best.rate * (best.draft_costs - best.draft_costs[0])

    def num_worth(self, num_drafted: int, confidence: float) -> int:
        """How many more tokens are worth drafting, the next one included; 0 ends the draft.

        See `Extent.num_worth`. Call it once for each token: it takes in the confidence.
        """
        limit = self.limit - num_drafted
        if limit <= 0:
            return 0
        all_accepted = self._all_accepted * self._acceptance.chances(confidence)
        self._all_accepted = all_accepted
        # What the next token and 0, 1, 2 … more gain and cost. The draft's decode for the next
        # one, whose confidence is known, is over.
        accepted = self._acceptance.expected_accepted(all_accepted, self._confidence)[:limit]
        gained = all_accepted.sum() + accepted
        first = num_drafted + 2  # tokens of the target's decode with the next one
        step_worth = self._step_worth[first : first + limit]
        values = gained - self._draft_worth[:limit] - step_worth
        best = int(np.argmax(values))
        value_if_stopped = -self._step_worth[num_drafted + 1]
        if values[best] > value_if_stopped:
            return best + 1
        return 0
