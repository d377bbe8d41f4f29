"""The policy that drafts only as much as pays, and otherwise stays out of the way.

It chooses the K with the most expected tokens per second, E[emitted] / (K·c + T(K + 1)), of
all K including 0 (Leviathan et al., arXiv 2211.17192, theorem 3.8, with a measured T in
place of a constant one), from `cost` and `acceptance`. While tokens are drafted the same
question is asked again with what is known by then, as an optimal stopping problem at the
rate of the best K (Dinkelbach's method).

A replay shows whether a text is predictable: a draft has to read the text anyway, and that
tells what it would have proposed there. Replays happen as often as they pay for themselves, and
nothing uncertain is tried beyond a `Budget`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from localspec.policy.acceptance import HAZARD, Acceptance, Weights
from localspec.policy.cost import LARGEST_STEP, TargetCost
from localspec.policy.prospect import LONG_READ, MARGIN, Budget, Prospect, Stopping
from localspec.policy.speedup import Curve, break_even_acceptance
from localspec.policy.step_times import StepTimes, ThreadCosts
from localspec.speculative.policy_api import (
    CERTAIN_CONFIDENCE,
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

# Share of plain decoding's time that deciding to stay with it may take [slow decisions]
_DECIDING_SHARE = 0.002
_NUM_MEASURED = 2  # target-only steps before anything else is tried [short answers]
# Steps after which a target-only one is due, to time it [memory bursts, busy processor]
_ANCHOR_STEPS = 64
# Share of the probable loss that a trial at old costs may lose [stale costs]
_TRIAL_SHARE = 0.25
# A target-only step after a draft is timed again if it takes this many times as long as others
# [waking threads]
_WAKE_UP_FACTOR = 1.1
# Tokens for which the result of a replay is useful, and that pass between two answers
# [a chat, short answers]
_HORIZON = 1 / HAZARD
# Tokens over which a gain has to pay for reading the whole text [long prompts]
_GAIN_TOKENS = 2 / HAZARD
# Share of the budget for which a proposer reads the whole text [long prompts]
_EVERYTHING_SHARE = 0.25
# Share of the budget for which a proposer reads the end of a long text [long prompts]
_REPLAY_READ_SHARE = 0.5


class AdaptiveDraftPolicy(DraftPolicy):
    """Maximises the expected tokens per second over all proposers and all K.

    One object serves all answers of an engine; what it learned can be saved and restored.
    draft_shares: for each kind of proposer, a guess of what a draft token costs, as a share of
    a target-only step; it counts until the cost is measured. num_threads: the number of threads
    that the models begin with.
    """

    def __init__(self, draft_shares: Mapping[ProposerKind, float], num_threads: int) -> None:
        self._costs = ThreadCosts(draft_shares, num_threads)
        self.prospects = [
            Prospect(index, kind, cost, Acceptance.of(kind))
            for index, (kind, cost) in enumerate(self._costs.now.drafts.items())
        ]
        self._has_drafted = False  # whether the last step drafted, and decoded several tokens
        self._must_retime = False  # whether a target-only step has to be timed again
        self._budget = Budget()
        self._available: list[Prospect] = []  # who could propose in this step
        self._deciding_s = 0.0  # time of the last decision that nothing pays
        self._rest_steps = 0  # steps without drafting after such a decision
        self._rest_left = 0  # of these, steps to come
        self._draft_off = DraftOff.DOES_NOT_PAY  # the reason of that decision
        self._nearest: Prospect | None = None  # the one closest to paying

    @property
    def target_cost(self) -> TargetCost:
        """The target's costs, with the present number of threads."""
        return self._costs.now.target

    @property
    def _times(self) -> StepTimes:
        return self._costs.now.times

    def use_threads(self, num_threads: int) -> None:
        self._must_retime |= self._costs.use(num_threads)
        for prospect in self.prospects:
            prospect.cost = self._costs.now.drafts[prospect.kind]

    def begin(self) -> None:
        # Another text may be in another regime.
        self._available = []
        for prospect in self.prospects:
            prospect.has_replayed = False
            prospect.acceptance.pass_by(int(_HORIZON))

    def choose(self, context: PolicyContext) -> Decision | Replay:
        self._available = available = [
            prospect
            for prospect, state in zip(self.prospects, context.states, strict=True)
            if prospect.prepare(state, context.room)
        ]
        if not available:
            return Decision(None, draft_off=reason_for_none(context))
        if self._rest_left > 0 and not self._gains_for_certain(available):
            self._rest_left -= 1
            return Decision(None, draft_off=self._draft_off)
        target_only_s = self.target_cost.target_only_s
        is_new = self._costs.now.num_plain < _NUM_MEASURED
        is_due = self.target_cost.steps_since_target_only >= _ANCHOR_STEPS
        if not target_only_s or is_new or is_due or self._must_retime:
            return Decision(None, draft_off=DraftOff.MEASURING)
        times = self._times.at(context.num_cached, target_only_s)
        for prospect in available:
            # A lookup that rests beside a draft is judged as well: that costs nothing.
            if prospect.state.num_unjudged > 0 and prospect.state.num_missing == 0:
                return Replay(prospect.index)
        for prospect in available:
            prefill_token_s = self.target_cost.prefill_token_s
            prospect.expect_catch_up(target_only_s, prefill_token_s, LONG_READ)
            prospect.rank(times, self._times.at_worst, self._budget.left_s(target_only_s))
        self._nearest = nearest = max(available, key=lambda prospect: prospect.unlimited_rate)
        decision = (
            self._drafting(available, times, context)
            or self._due_replay(available, times, context)
            or self._trial(nearest, context)
        )
        if decision is not None:
            return decision
        would_pay = nearest.unlimited_rate > MARGIN / target_only_s
        self._draft_off = DraftOff.OVER_BUDGET if would_pay else DraftOff.DOES_NOT_PAY
        # With a fast target the decision itself would take a noticeable share of a step.
        self._rest_steps = int(self._deciding_s / (_DECIDING_SHARE * target_only_s))
        self._rest_left = self._rest_steps
        return Decision(None, draft_off=self._draft_off)

    def _gains_for_certain(self, available: list[Prospect]) -> bool:
        """Whether some proposer is certain of more tokens than it needs to pay.

        Tokens that a constraint forces come and go with each step, while a regime lasts.
        """
        steps = self._times.latest
        return any(
            steps[prospect.limit + 1] * MARGIN < steps[1] * (prospect.limit + 1)
            for prospect in available
            if prospect.state.confidence == CERTAIN_CONFIDENCE
        )

    def _drafting(
        self, available: list[Prospect], times: Weights, context: PolicyContext
    ) -> Decision | Replay | None:
        """Draft with the best proposer whose reading the budget allows."""
        target_only_s = float(times[1])
        for best in sorted(available, key=lambda prospect: -prospect.rate):
            if best.rate <= MARGIN / target_only_s:
                break
            gain_s = (target_only_s - 1 / best.rate) * min(_GAIN_TOKENS, context.num_remaining)
            if not self._may_read(best, context, gain_s, self._budget.left_s(target_only_s)):
                continue
            if best.state.num_unjudged > 1 and not best.state.is_block:
                # It has to read those tokens anyway, and a replay shows what to expect.
                return Replay(best.index, best.reads_from)
            return Decision(best.index, Stopping(best, times), best.reads_from)
        return None

    def _due_replay(
        self, available: list[Prospect], times: Weights, context: PolicyContext
    ) -> Decision | Replay | None:
        """Replay when it is due, to find out whether the text has become predictable.

        Each token that was not drafted may have cost time. A replay is due once that probable
        loss is as large as the cost of the replay, so replays never cost more than waiting.
        A block takes as long for a replay as for a draft, so in place of the first one it is
        drafted, if that would pay at the lowest costs that are likely.
        """
        target_only_s = float(times[1])
        for prospect in available:
            optimistic_s = prospect.saved_token_s(self._times.optimistic)
            pessimistic_s = prospect.saved_token_s(self._times.pessimistic)
            prospect.lost_token_s = (optimistic_s + pessimistic_s) / 2
            worth_s = prospect.lost_s + prospect.lost_token_s
            afforded_s = self._budget.for_replay_s(target_only_s, worth_s)
            if not prospect.has_replayed:
                # The result of the first replay is likely to hold for a while. As long as no
                # step of several tokens was timed they may be dear, and a prompt is not read
                # in hope alone.
                at_worst_s = prospect.saved_token_s(self._times.at_worst)
                is_guess = self._times.is_guess
                token_s = (optimistic_s + at_worst_s) / 2 if is_guess else prospect.lost_token_s
                worth_s = max(worth_s, token_s * min(_HORIZON, context.num_remaining))
            pays = min(worth_s, afforded_s) > prospect.replay_s(target_only_s)
            is_due = prospect.state.num_unjudged > 0 and pays
            if is_due and self._may_read(prospect, context, 0.0, afforded_s):
                prospect.lost_s = 0.0
                is_early = self._times.is_guess or not prospect.has_replayed
                prospect.has_replayed = True
                if is_early and prospect.state.is_block:
                    prospect.limit = min(context.room, prospect.state.max_tokens)
                    if prospect.choose_optimistically(self._times) is not None:
                        extent = Stopping(prospect, self._times.optimistic)
                        return Decision(prospect.index, extent, prospect.reads_from)
                return Replay(prospect.index, prospect.reads_from)
        return None

    def _trial(self, nearest: Prospect, context: PolicyContext) -> Decision | Replay | None:
        """Draft once, if drafting would pay at the lowest costs that are likely by now.

        While nothing is drafted, no step of several tokens is timed. A policy that trusted old
        times could stay with plain decoding forever. nearest: the proposer closest to paying;
        one trial shows the costs of all.
        """
        state = nearest.state
        if not (self.target_cost.is_old and nearest.cost.is_measured) or state.num_skipped:
            return None
        target_only_s = float(self._times.latest[1])
        nearest.prepare(state, context.room)  # without the limit of the budget
        prefill_token_s = self.target_cost.prefill_token_s
        nearest.expect_catch_up(target_only_s, prefill_token_s, state.num_missing)
        trial_loss_s = nearest.choose_optimistically(self._times)
        if trial_loss_s is None or trial_loss_s > nearest.trial_s:
            return None
        if state.num_unjudged > 1 and not state.is_block:
            # What it would have proposed lately may already show that it is of no use.
            nearest.trial_s -= nearest.catch_up_s
            return Replay(nearest.index)
        return Decision(nearest.index, Stopping(nearest, self._times.optimistic))

    def replay(self, proposer: int, replay_scores: ReplayScores, seconds: float) -> None:
        target_only_s = self.target_cost.target_only_s or 0.0
        prospect = self.prospects[proposer]
        prospect.cost.learn(replay_scores.num_read, 0, seconds, target_only_s)
        for confidence, chance in replay_scores.chances:
            prospect.acceptance.learn(confidence, chance)
            prospect.acceptance.pass_by(1)
        self._budget.save(-seconds, target_only_s)

    def _may_read(
        self, prospect: Prospect, context: PolicyContext, gain_s: float, budget_s: float
    ) -> bool:
        """Choose where in the text a proposer that lacks much of it begins to read.

        It reads everything if that surely pays. Otherwise it reads as much of the end of the
        text as half of the budget allows, and everything later, once drafting has saved enough
        time. gain_s: what drafting is expected to save. Returns whether the budget is enough.
        """
        state, cost = prospect.state, prospect.cost
        if state.num_missing < LONG_READ and state.num_skipped == 0:
            return True
        target_only_s = self.target_cost.target_only_s or 0.0
        token_s = cost.read_token_s(target_only_s, self.target_cost.prefill_token_s)
        length = context.num_cached + 1
        if state.num_skipped > 0 and token_s * length < min(
            _EVERYTHING_SHARE * budget_s, gain_s
        ):
            prospect.reads_from = 0
            return True
        if state.num_missing < LONG_READ:
            return True
        num_tokens = int(max(budget_s - prospect.risk_s, 0.0) / max(token_s, 1e-9))
        if state.num_missing > 2 * LONG_READ:
            # The first read is a trial, and some budget has to remain for drafting.
            half = int(_REPLAY_READ_SHARE * num_tokens) if cost.knows_reading else 0
            num_tokens = min(num_tokens, max(half, LONG_READ))
        if num_tokens < state.num_missing:
            prospect.reads_from = length - num_tokens
        return num_tokens >= LONG_READ

    def padded(self, num_tokens: int, limit: int) -> int:
        return self._times.cheapest(num_tokens, min(limit, LARGEST_STEP))

    def learn(self, record: StepRecord) -> None:
        self._costs.pass_by()
        scored_s = record.target_time_s + record.sampler_time_s
        step_s = scored_s + record.draft_time_s
        size = record.num_target_tokens
        self._must_retime = self._is_slowed(record, scored_s)
        self._has_drafted = record.proposer is not None and size > 1
        is_step = record.proposer is not None or size == 1 or size > LARGEST_STEP
        counts = True  # as a cost of drafting
        if is_step and not self._must_retime:
            counts = self.target_cost.learn(size, record.num_cached, scored_s)
            self._costs.now.num_plain += size == 1
        target_only_s = self.target_cost.target_only_s
        self._budget.pass_by(record.num_emitted * (target_only_s or 0.0))
        if record.proposer is not None and target_only_s is not None:
            prospect = self.prospects[record.proposer]
            num_drafted = len(record.confidences)
            num_decodes = 1 if prospect.state.is_block else max(num_drafted, 1)
            prospect.cost.learn(
                record.num_read, num_decodes, record.draft_time_s, target_only_s
            )
            prospect.acceptance.learn_verdict(record.confidences, record.num_accepted)
            prospect.lost_s = prospect.trial_s = 0.0
            if counts:
                self._budget.save(record.num_emitted * target_only_s - step_s, target_only_s)
        else:
            for prospect in self._available:
                prospect.lost_s += prospect.lost_token_s
                prospect.trial_s += _TRIAL_SHARE * prospect.lost_token_s
            self._budget.save(-record.draft_time_s, target_only_s or 0.0)
            if self._rest_left == self._rest_steps:
                self._deciding_s = record.draft_time_s
        for prospect in self.prospects:
            prospect.acceptance.pass_by(record.num_emitted)

    def _is_slowed(self, record: StepRecord, scored_s: float) -> bool:
        """Whether this target-only step was slower because it followed a draft.

        Where a step takes a millisecond, threads that rested during the draft have to wake up.
        The next step is then target-only as well, and its time is the one that counts.
        """
        target_only_s = self.target_cost.target_only_s
        is_behind = self._has_drafted or record.proposer is not None or record.replay_s > 0.0
        is_slow = target_only_s is not None and scored_s > _WAKE_UP_FACTOR * target_only_s
        return record.num_target_tokens == 1 and is_behind and is_slow

    def estimate(self) -> PolicyEstimate | None:
        """The expectation for the proposer that came closest to paying."""
        target_only_s = self.target_cost.target_only_s
        steps = self._times.latest.tolist()
        # With a number of threads that was chosen just now, no times were computed yet.
        if self._nearest is None or target_only_s is None or not steps[1]:
            return None
        prospect, acceptance = self._nearest, self._nearest.acceptance
        draft_s = prospect.cost.token_s(target_only_s)
        curve = Curve(steps, draft_s, prospect.state.is_block)
        return PolicyEstimate(
            prospect.kind,
            float(acceptance.expected(acceptance.weights, prospect.state.confidence)[1]),
            break_even_acceptance(curve, MAX_DRAFT_TOKENS),
            target_only_s,
            draft_s,
            self._times.measured,
        )

    def as_dict(self) -> dict[str, Any]:
        """The content to save for the next process, in JSON's types."""
        return {
            "costs": self._costs.as_dict(),
            "acceptance": {
                prospect.kind.value: prospect.acceptance.as_dict()
                for prospect in self.prospects
            },
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Continue from `as_dict`. Not to be used after an error, as of a damaged file."""
        parts = kept["acceptance"]
        self._costs.restore(kept["costs"])
        for prospect in self.prospects:
            if prospect.kind.value in parts:
                prospect.acceptance.restore(parts[prospect.kind.value])
