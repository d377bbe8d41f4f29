"""The policy that drafts only as much as pays, and otherwise stays out of the way.

Of all numbers K of draft tokens, including 0, it chooses the one with the most expected tokens
per second, E[emitted] / (K·c + T(K + 1)) (Leviathan et al., arXiv 2211.17192, theorem 3.8, with
a measured T in place of a constant one). The costs c and T come from `cost`, the expectation
from `acceptance`. While tokens are drafted, the choice is made again with the confidences known
by then, as an optimal stopping problem at the rate of the best K (Dinkelbach's method).

A proposer that may pay is tried at once, and pauses longer each time it does not pay. Within an
answer, all choices follow from its text and from costs that are fixed when it begins. So the
same question takes the same steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from localspec.policy.acceptance import REGIME_TOKENS
from localspec.policy.cost import LARGEST_STEP, SHORT_READ, Costs, length_class
from localspec.policy.prospect import FIRST_PAUSE, LONGEST_PAUSE, Prospect, StoppingRule
from localspec.policy.speedup import Curve, break_even_acceptance
from localspec.policy.threads import TRIAL_STEPS
from localspec.speculative.policy_api import (
    MAX_DRAFT_TOKENS,
    Decision,
    DraftOff,
    DraftPolicy,
    PolicyContext,
    PolicyEstimate,
    ProposerKind,
    Replay,
    ReplayScores,
    StepRecord,
    reason_for_none,
)

# A speed-up has to be larger than this factor
_MARGIN = 1.02
# Target-only steps that trials may cost in the first answer of a pair on a machine. After an
# answer that spent some of them the grant is halved, down to the least
_GRANT = 6.0
_LEAST_GRANT = 1.5
# Trials in a long answer may cost this share of its tokens, if that is more than the grant. The
# last trial may exceed the budget, so in all a long answer loses up to a hundredth
_SHARE = 0.008
_TIMING_INTERVAL = LONGEST_PAUSE  # steps after which a target-only one is timed again
_LEAST_RATIO = 0.1  # of a step to a target-only one; less is an error of measurement


class AdaptiveDraftPolicy(DraftPolicy):
    """Maximises the expected tokens per second over all proposers and all K.

    One object serves all answers of an engine; what it learned can be saved and restored.

    Args:
        draft_shares: A guess of what a draft token costs, for each kind of proposer, as a share
            of a target-only step. It counts until the cost is measured.
        num_threads: The number of threads with which the models begin.
    """

    def __init__(self, draft_shares: Mapping[ProposerKind, float], num_threads: int) -> None:
        self._draft_shares = draft_shares
        self._key = (num_threads, 0)  # of the present costs: threads, and length class

        self.costs = Costs(draft_shares)
        """Costs with the present number of threads, for the text's length class."""

        self._costs = {self._key: self.costs}
        self._grant = _GRANT  # target-only steps that the next answer may lose
        self._budget = _GRANT  # target-only steps that the present answer may still lose
        self._num_answered = 0  # tokens of the present answer
        self._num_other_steps = 0  # steps in a row with another number of threads

        self.prospects = [Prospect(index, kind) for index, kind in enumerate(draft_shares)]
        """The outlook for each proposer."""

        self._nearest: Prospect | None = None  # the proposer that is closest to paying
        self._last_size = 1  # tokens of the last decode
        self._since_plain = 0  # steps since a target-only one was timed
        self._last_proposer: int | None = None  # of the last step
        self._padded: list[int] = []  # of the proposer that drafts: see `Prospect.padded`
        # Target-only steps that padding cost since the last draft
        self._padding_cost = math.inf

    def _use_costs(self, num_threads: int, length: int) -> None:
        """Switch to the costs with `num_threads` threads, for a length class.

        If they are not known yet, they begin as a copy of the present ones.
        """
        self._key = (num_threads, length)
        self._num_other_steps = 0
        if self._key not in self._costs:
            copied = Costs(self._draft_shares)
            copied.restore(self.costs.as_dict())
            copied.prefill_token_s = self.costs.prefill_token_s
            self._costs[self._key] = copied
        self.costs = self._costs[self._key]

    def reset(self) -> None:
        """Begin another answer: freeze the costs for it, and set what its trials may lose."""
        for prospect in self.prospects:
            prospect.reset()
        for costs in self._costs.values():
            costs.settle()
        self._since_plain = 0
        self._grant = self._next_grant()  # less if the last answer spent some of it
        self._budget = self._grant
        self._num_answered = 0
        self._padding_cost = math.inf  # no step is padded before the first draft

    def _next_grant(self) -> float:
        """The grant of the next answer; half of this one's if the answer spent some of it.

        Only a few grants are possible, so a repeated question mostly has the same one, and
        takes the same steps.
        """
        if self._budget >= self._grant:
            return self._grant
        return max(self._grant / 2, _LEAST_GRANT)

    def renew(self) -> None:
        """Let the next answers begin with all that was learned so far. Call it in idle time."""
        for prospect in self.prospects:
            prospect.renew()

    def pause_left(self, proposer: int) -> int:
        """The tokens for which a draft or a head is paused; 0 for other proposers."""
        prospect = self.prospects[proposer]
        # Others, as a lookup, are judged while they are paused, too: that costs nothing.
        has_model = prospect.kind in (ProposerKind.DRAFT, ProposerKind.HEAD)
        if has_model:
            return max(prospect.pause_left, 0)
        return 0

    def choose(self, context: PolicyContext) -> Decision | Replay:
        """The choice for the next step: a proposer, why none drafts, or a replay."""
        available = self._available(context)
        if not available:
            return Decision(None, draft_off=reason_for_none(context))
        num_threads, last_length = self._key
        length = length_class(context.num_cached)
        if length != last_length:
            self._use_costs(num_threads, length)
        if self.costs.needs_plain or self._since_plain >= _TIMING_INTERVAL:
            return Decision(None, draft_off=DraftOff.MEASURING)
        for prospect in available:
            # A replay for which nothing has to be read costs next to nothing.
            if prospect.state.num_unjudged > 0 and prospect.state.num_missing == 0:
                return Replay(prospect.index)
        awake = [prospect for prospect in available if prospect.pause_left <= 0]
        for prospect in awake:
            prospect.find_best(self.costs, self._last_size)
        awake.sort(key=lambda prospect: -prospect.rate)
        if awake:
            self._nearest = awake[0]
        for prospect in awake:
            attempt = self._attempt(prospect, context)
            if attempt is not None:
                return attempt
        return Decision(None, draft_off=self._why_not())

    def _available(self, context: PolicyContext) -> list[Prospect]:
        """The proposers that can propose a token in this step, prepared for it.

        A lookup is among them even while it is paused, so that it can be replayed.
        """
        available = []
        for prospect, state in zip(self.prospects, context.states, strict=True):
            if self.pause_left(prospect.index):
                continue
            if prospect.prepare(state, context.room):
                available.append(prospect)
        return available

    def _why_not(self) -> DraftOff:
        """Why no proposer drafts in this step, although one could."""
        nearest = self._nearest
        if nearest is not None and nearest.rate * nearest.step_costs[1] > _MARGIN:
            return DraftOff.OVER_BUDGET
        return DraftOff.DOES_NOT_PAY

    def _attempt(self, prospect: Prospect, context: PolicyContext) -> Decision | Replay | None:
        """The decision to draft with a proposer if that pays, or to try it if it may pay.

        Returns None if neither is worth its cost. The proposer is then paused. One whose
        confidence is known before a draft, as a lookup's, is paused only after a replay.
        """
        state = prospect.state
        plain = float(prospect.step_costs[1])
        pays = prospect.rate * plain > _MARGIN
        is_confidence_known = state.confidence is not None
        if is_confidence_known and prospect.risk > self._budget:
            # A lookup can wait: to see whether it would have been right costs nothing.
            pays = pays and prospect.gain > prospect.risk
        can_replay = state.num_unjudged > 1 and not prospect.was_replayed
        can_try = can_replay and not is_confidence_known and self._budget > 0.0
        gain = 0.0  # target-only steps per token
        if pays:
            gain = plain - 1.0 / prospect.rate
        elif can_try:
            gain = prospect.gain_if_known()
        num_tokens = min(REGIME_TOKENS, context.num_remaining)
        is_worth_reading = prospect.plan_reading(
            self.costs,
            context.num_cached + 1,
            gain * num_tokens,
            self._budget,
            drafts=pays,
        )
        if is_worth_reading:
            if can_replay and not state.is_block:
                # The draft has to read the tokens that it lacks anyway. A replay shows how many
                # of them it gets right.
                prospect.was_replayed = True
                return Replay(prospect.index, prospect.reads_from)
            # A block that may pay is tried by a draft, all else by a replay.
            if pays or state.is_block:
                prospect.is_trial = not pays
                self._padded = prospect.padded
                return Decision(prospect.index, StoppingRule(prospect), prospect.reads_from)
        if prospect.was_replayed:
            prospect.pause()
        elif not is_confidence_known:
            prospect.pause_left = FIRST_PAUSE
        return None

    def replay(self, proposer: int, replay_scores: ReplayScores, seconds: float) -> None:
        """Learn from a replay, and take its cost from the budget."""
        prospect = self.prospects[proposer]
        num_read = replay_scores.num_read
        self.costs.learn_draft(prospect.kind, num_read, 0, seconds)
        prospect.learn_replay(replay_scores)
        cost = num_read * self.costs.read_token_cost(prospect.kind)
        self._budget -= cost
        prospect.replay_cost += cost
        prospect.count_saved(-cost)

    @property
    def keeps_sizes(self) -> bool:
        """Whether a change of size costs enough to be avoided."""
        return self.costs.is_change_dear

    def padded(self, num_tokens: int, limit: int) -> int:
        """The size, at most `limit`, to which a step of num_tokens tokens is padded."""
        if num_tokens == 1:
            return self._size_without_draft(limit)
        self._padding_cost = 0.0
        if num_tokens >= len(self._padded) or self._padded[num_tokens] > limit:
            return num_tokens
        return self._padded[num_tokens]

    def _size_without_draft(self, limit: int) -> int:
        """The size to which a step without a draft is padded, at most `limit`.

        Where changes of size are dear it is the last step's size, until padding has cost as
        much as a change, or a target-only step has to be timed. Otherwise 1.
        """
        costs = self.costs
        size = self._last_size
        if size > limit or not costs.is_change_dear or self._since_plain >= _TIMING_INTERVAL:
            return 1
        self._padding_cost += costs.ratios()[size] - 1.0
        if self._padding_cost <= costs.change_cost:
            return size
        return 1

    def learn(self, record: StepRecord) -> None:
        """Learn costs and acceptance from a finished step, and count its tokens."""
        size = record.num_target_tokens
        target_s = record.target_time_s + record.sampler_time_s
        num_threads, length = self._key
        if record.num_threads == num_threads:
            self._num_other_steps = 0
            self._learn_target_cost(record, size, target_s)
        else:
            # Another number is the new usual one if it lasts longer than a trial of threads, or
            # if no target-only step was timed with the present one yet.
            self._num_other_steps += 1
            if self._num_other_steps > TRIAL_STEPS or self.costs.needs_plain:
                self._use_costs(record.num_threads, length)
        if record.proposer is not None:
            self._learn_draft(self.prospects[record.proposer], record)
        self._last_size = size
        self._last_proposer = record.proposer
        self._num_answered += record.num_emitted
        if self._num_answered * _SHARE > self._grant:
            self._budget += _SHARE * record.num_emitted
        for prospect in self.prospects:
            prospect.age(record.num_emitted)
            prospect.pause_left -= record.num_emitted
            prospect.was_replayed = False

    def _learn_target_cost(self, record: StepRecord, size: int, target_s: float) -> None:
        """Learn the cost of the target's part of a step: of a prefill, a size or a change.

        Args:
            record: The step.
            size: Tokens of the target's decode.
            target_s: Seconds of the target and of sampling.
        """
        costs = self.costs
        has_changed = size != self._last_size
        if record.proposer is None and size > 1:  # a prefill, or padding
            if costs.prefill_token_s is None and size > LARGEST_STEP:
                costs.prefill_token_s = target_s / size
            return
        if size == 1:
            if has_changed and self._last_size <= LARGEST_STEP and costs.plain_s:
                costs.learn_change(target_s / costs.plain_s)
            if not (has_changed and costs.is_change_dear):
                self._since_plain = 0
                if costs.learn_plain(target_s):
                    self._since_plain = _TIMING_INTERVAL  # the next step is target-only, too
            return
        self._since_plain += 1
        if costs.plain_s and size <= LARGEST_STEP:
            ratio = target_s / costs.plain_s
            if has_changed:
                ratio -= costs.change_cost
            if costs.learn_size(size, max(ratio, _LEAST_RATIO)):
                self._since_plain = _TIMING_INTERVAL

    def _learn_draft(self, prospect: Prospect, record: StepRecord) -> None:
        """Learn from a proposal and its verdict, and pause a trial that lost.

        What the step gained goes into the budget. It is computed from the answer's fixed costs,
        not from its times, so that a repeated question takes the same steps.
        """
        costs = self.costs
        num_decodes = 1
        if not prospect.state.is_block:
            num_decodes = max(record.num_draft_tokens, 1)  # 1 even if it proposed nothing
            if costs.is_change_dear and record.num_read == SHORT_READ:
                num_decodes += 1  # of two tokens that it lacks, it reads the first one alone
        spent = num_decodes * costs.draft_token_cost(prospect.kind)
        if record.num_read > 1:  # a single token is an ordinary decode
            spent += record.num_read * costs.read_token_cost(prospect.kind)
        if record.num_target_tokens <= LARGEST_STEP:
            spent += costs.ratios()[record.num_target_tokens]
        gain = record.num_emitted - spent  # in target-only steps
        self._budget = min(self._budget + gain, REGIME_TOKENS)
        prospect.count_saved(gain)
        if prospect.is_trial and gain < 0.0:
            prospect.pause()
        if self._last_proposer == prospect.index or not costs.is_change_dear:
            costs.learn_draft(prospect.kind, record.num_read, num_decodes, record.draft_time_s)
        source = prospect.state.source
        judged = record.confidences[: record.num_accepted + 1]
        for index, confidence in enumerate(judged):
            was_accepted = index < record.num_accepted
            # 0: `age` lets all of the step's tokens pass at once, in this answer's acceptance.
            # What is learned for later answers does not age: they begin better with a rate that
            # holds on average than with a spread over regimes.
            prospect.learn_token(confidence, float(was_accepted), 0, source)

    def estimate(self) -> PolicyEstimate | None:
        """The estimate for the proposer that came closest to paying.

        None before one was considered, or before a target-only step was timed.
        """
        prospect = self._nearest
        plain_s = self.costs.plain_s
        if prospect is None or plain_s is None:
            return None
        acceptance = prospect.acceptance
        draft_cost = self.costs.draft_token_cost(prospect.kind)
        curve = Curve(self.costs.ratios(), draft_cost, prospect.state.is_block)
        expected = acceptance.expected_accepted(acceptance.weights, prospect.state.confidence)
        return PolicyEstimate(
            proposer=prospect.kind,
            acceptance=float(expected[1]),
            break_even=break_even_acceptance(curve, MAX_DRAFT_TOKENS),
            plain_step_s=plain_s,
            draft_token_s=draft_cost * plain_s,
            step_ratios={1: 1.0, **self.costs.measured_sizes()},
        )

    def as_dict(self) -> dict[str, Any]:
        """The content to save for the next process, in JSON's types."""
        costs = {}
        for (num_threads, length), known in self._costs.items():
            costs[f"{num_threads} {length}"] = known.as_dict()
        acceptance = {}
        for prospect in self.prospects:
            prospect.learn_judged()
            acceptance[prospect.kind.value] = prospect.learned.as_dict()
        return {
            "costs": costs,
            "acceptance": acceptance,
            "grant": self._next_grant(),
        }

    def usual_costs(self) -> Costs:
        """The known costs with the most threads, after the shortest texts that were timed.

        The present costs if no decode of several tokens was timed.
        """
        for key in sorted(self._costs, key=_usual_first):
            costs = self._costs[key]
            if costs.measured_sizes():
                return costs
        return self.costs

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Continue with the content in `kept`, which `as_dict` returned.

        After an error, as of a damaged file, the policy cannot be used.
        """
        grant = max(float(kept["grant"]), _LEAST_GRANT)
        self._grant = min(grant, _GRANT)
        self._budget = self._grant
        for name, part in kept["costs"].items():
            num_threads, length = name.split()
            key = (int(num_threads), int(length))
            costs = self._costs.setdefault(key, Costs(self._draft_shares))
            costs.restore(part)
        self.expect(kept["acceptance"])

    def expect(self, acceptance: Mapping[str, Any]) -> None:
        """Begin with a known acceptance of proposers.

        Args:
            acceptance: The part "acceptance" of what `as_dict` returned. Proposers that are not
                in it begin with a guess.
        """
        for prospect in self.prospects:
            known = acceptance.get(prospect.kind.value)
            if known is not None:
                prospect.learned.restore(known)
            prospect.renew()
            prospect.reset()


def _usual_first(key: tuple[int, int]) -> tuple[int, int]:
    """A sort key for numbers of threads with length classes: most threads, then short texts."""
    num_threads, length = key
    return -num_threads, length
