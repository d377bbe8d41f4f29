"""The policy that drafts only as much as pays, and otherwise stays out of the way.

It chooses the K with the most expected tokens per second, E[emitted] / (K·c + T(K + 1)), of
all K including 0 (Leviathan et al., arXiv 2211.17192, theorem 3.8, with a measured T in
place of a constant one), from `cost` and `acceptance`. While tokens are drafted the same
question is asked again with what is known by then, as an optimal stopping problem at the
rate of the best K (Dinkelbach's method).

Whether a text is predictable is seen by looking back: reading the text that is there, which a
draft has to do anyway, tells what it would have proposed. That is done as often as pays, and
nothing uncertain is tried beyond a `Budget`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from localspec.policy.acceptance import HAZARD, Acceptance, Weights
from localspec.policy.budget import Budget
from localspec.policy.candidate import LONG_READ, MARGIN, Candidate, Prospect, Stopping
from localspec.policy.cost import LARGEST_STEP, DraftCost, TargetCost
from localspec.policy.speedup import Curve, break_even_acceptance
from localspec.policy.step_times import StepTimes
from localspec.speculative.policy_api import (
    MAX_DRAFT_TOKENS,
    Choice,
    DraftOff,
    Hindsight,
    Moment,
    Outlook,
    ProposerKind,
    Trial,
    reason_without_choice,
)

_DECIDING_SHARE = 0.002  # of plain decoding, that may be spent on deciding to stay with it
_NUM_MEASURED = 2  # plain steps before anything else is tried
# Steps after which a plain one is due, to measure what it costs; sooner where drafting gains
# little: there a plain step costs little, and decides. The first one behind a rest comes
# sooner, too: often drafting began because plain steps happened to take long.
_ANCHOR_STEPS = 64
_ANCHOR_SHARE = 0.004  # of gain, for which one more step comes between two of them
_FIRST_ANCHOR_SHARE = 0.03  # the same of the first
_TRIAL_SHARE = 0.25  # of what was probably missed, that may be lost to see what steps cost now
_WAKING = 1.1  # times as long as others: that may be a plain step's place behind a draft
_FASTER = 1.05  # times as fast as others: that may be a machine that has become faster
_HORIZON = 1 / HAZARD  # tokens for which what is learned now is worth something
_TOO_DEAR = -1  # instead of a position to read from


class AutomaticDraftLength:
    """Expected tokens per second, maximised over proposers and K.

    One object serves all answers of an engine; what it learned can be kept and restored.
    draft_shares: of each proposer's kind the guess of a draft token's cost, as a share of
    a plain step, until it is measured.
    """

    def __init__(self, draft_shares: Mapping[ProposerKind, float]) -> None:
        self.target_cost = TargetCost()
        self.prospects = [
            Prospect(kind, DraftCost(share), Acceptance())
            for kind, share in draft_shares.items()
        ]
        self._num_plain = 0
        self._has_drafted = False  # in the last step, which decoded several tokens
        self._is_in_doubt = False  # what a plain step costs, by the last one
        self._anchor_steps = _ANCHOR_STEPS
        self._has_rested = False  # since a plain step was due
        self._budget = Budget()
        self._able: list[Prospect] = []  # who could propose in this step
        self._deciding_s = 0.0  # what it took to see that nothing pays
        self._quiet_steps = 0  # without another look into it, each time
        self._quiet_left = 0
        self._draft_off = DraftOff.DOES_NOT_PAY  # why it rests
        self._times = StepTimes(self.target_cost)
        self._nearest: tuple[Prospect, float | None] | None = None

    def begin(self) -> None:
        """See `DraftLength.begin`. Another text may be another regime."""
        self._able = []
        for prospect in self.prospects:
            prospect.has_looked = False
            prospect.acceptance.pass_by(int(_HORIZON))

    def choose(self, moment: Moment) -> Choice:
        """See `DraftLength.choose`."""
        able = [
            Candidate(index, self.prospects[index], offer, min(moment.room, offer.max_tokens))
            for index, offer in enumerate(moment.offers)
            if min(moment.room, offer.max_tokens) > 0
        ]
        self._able = [candidate.prospect for candidate in able]
        if not able:
            return Choice(None, draft_off=reason_without_choice(moment))
        if self._quiet_left > 0:
            self._quiet_left -= 1
            return Choice(None, draft_off=self._draft_off)
        plain_s = self.target_cost.plain_s
        if not plain_s or self._num_plain < _NUM_MEASURED:
            return Choice(None, draft_off=DraftOff.MEASURING)
        is_due = self.target_cost.steps_since_plain >= self._anchor_steps
        if is_due or self._is_in_doubt:
            self._has_rested = False
            return Choice(None, draft_off=DraftOff.MEASURING)
        times = self._times.at(moment.num_cached, plain_s)
        for candidate in able:
            prefill_token_s = self.target_cost.prefill_token_s
            candidate.expect_catch_up(plain_s, prefill_token_s, LONG_READ)
            budget_s = self._budget.for_bet_s(plain_s, candidate.prospect.missed_s)
            candidate.rank(times, self._times.at_worst, budget_s)
        nearest = max(able, key=lambda candidate: candidate.hoped_rate)
        self._nearest = nearest.prospect, nearest.offer.confidence
        choice = self._drafting(able, times, moment)
        if choice is None:
            choice = self._another_look(able, times, moment)
        if choice is None:
            choice = self._trial(nearest, moment)
        if choice is None:
            self._has_rested = True
            would_pay = nearest.hoped_rate > MARGIN / plain_s
            self._draft_off = DraftOff.OVER_BUDGET if would_pay else DraftOff.DOES_NOT_PAY
            # With a fast target the deciding itself would be felt.
            self._quiet_steps = int(self._deciding_s / (_DECIDING_SHARE * plain_s))
            self._quiet_left = self._quiet_steps
            return Choice(None, draft_off=self._draft_off)
        return choice

    def _drafting(self, able: list[Candidate], times: Weights, moment: Moment) -> Choice | None:
        """Draft by the best for which the budget allows what it would have to read first."""
        plain_s = float(times[1])
        for best in sorted(able, key=lambda candidate: -candidate.rate):
            if best.rate <= MARGIN / plain_s:
                break
            gain_s = (plain_s - 1 / best.rate) * min(2 * _HORIZON, moment.num_remaining)
            reads_from = self._reads_from(best, moment, gain_s, self._budget.left_s(plain_s))
            if reads_from == _TOO_DEAR:
                continue
            gain = 1.0 - 1.0 / (best.rate * plain_s)
            share = _FIRST_ANCHOR_SHARE if self._has_rested else _ANCHOR_SHARE
            self._anchor_steps = int(min(gain / share + 1.0, _ANCHOR_STEPS))
            if best.offer.num_unjudged > 1:
                # That has to be read anyway, and shows what to expect.
                return Choice(best.index, None, reads_from)
            return Choice(best.index, Stopping(best, times), reads_from)
        return None

    def _another_look(
        self, able: list[Candidate], times: Weights, moment: Moment
    ) -> Choice | None:
        """Find out whether the text has become predictable to one of them, when that is due.

        Every plain token may be a chance that was missed. When as much has probably been
        missed as it costs to look, it is time to look; so no more is spent on looking than
        is lost by waiting.
        """
        plain_s = float(times[1])
        for candidate in able:
            prospect = candidate.prospect
            hoped_s = candidate.missed_token_s(self._times.hoped)
            feared_s = candidate.missed_token_s(self._times.feared)
            prospect.missed_token_s = (hoped_s + feared_s) / 2
            worth_s = prospect.missed_s + prospect.missed_token_s
            afforded_s = self._budget.for_look_s(plain_s, worth_s)
            if not prospect.has_looked:
                # What the first look finds is likely to hold for a while.
                likely_s = prospect.missed_token_s * min(_HORIZON, moment.num_remaining)
                worth_s = max(worth_s, likely_s)
            if candidate.offer.num_unjudged == 0:
                continue
            if min(worth_s, afforded_s) <= candidate.catch_up_s:
                continue
            reads_from = self._reads_from(candidate, moment, 0.0, afforded_s)
            if reads_from != _TOO_DEAR:
                prospect.missed_s = 0.0
                prospect.has_looked = True
                return Choice(candidate.index, None, reads_from)
        return None

    def _trial(self, nearest: Candidate, moment: Moment) -> Choice | None:
        """Draft once, where that would pay if costs had become what they may be by now.

        While nothing is drafted no step of several tokens is timed. Believing what was timed
        once, a policy could stay with plain decoding for good. nearest: to paying; one trial
        tells of the costs of all.
        """
        prospect, offer = nearest.prospect, nearest.offer
        if not (self.target_cost.is_old and prospect.cost.is_measured) or offer.num_skipped:
            return None
        plain_s = float(self._times.latest[1])
        limit = min(moment.room, offer.max_tokens)  # whatever the budget allows
        tried = Candidate(nearest.index, prospect, offer, limit)
        tried.expect_catch_up(plain_s, self.target_cost.prefill_token_s, offer.num_missing)
        probably_lost_s = tried.hope(self._times)
        if probably_lost_s is None or probably_lost_s > prospect.trial_s:
            return None
        if offer.num_unjudged > 1:
            # What it would have proposed of late may tell already that it is no use.
            prospect.trial_s -= tried.catch_up_s
            return Choice(tried.index, None, None)
        return Choice(tried.index, Stopping(tried, self._times.hoped), None)

    def look_back(self, proposer: int, hindsight: Hindsight, seconds: float) -> None:
        """See `DraftLength.look_back`."""
        plain_s = self.target_cost.plain_s or 0.0
        prospect = self.prospects[proposer]
        prospect.cost.learn(hindsight.num_read, 0, seconds, plain_s)
        for confidence, chance in hindsight.chances:
            prospect.acceptance.learn(confidence, chance)
            prospect.acceptance.pass_by(1)
        self._budget.save(-seconds, plain_s)

    def _reads_from(
        self, best: Candidate, moment: Moment, gain_s: float, budget_s: float
    ) -> int | None:
        """Where in the text a proposer that lacks much of it shall begin to read.

        It reads everything if that will surely pay, else as much of the end of the text as
        half of the budget allows; later, when drafting has earned it, all. gain_s: what
        drafting is expected to save.
        """
        offer, cost = best.offer, best.prospect.cost
        if offer.num_missing < LONG_READ and offer.num_skipped == 0:
            return None
        plain_s = self.target_cost.plain_s or 0.0
        token_s = cost.read_token_s(plain_s, self.target_cost.prefill_token_s)
        everything_s = token_s * (moment.num_cached + 1)
        if offer.num_skipped > 0 and everything_s < min(budget_s / 4, gain_s):
            return 0
        if offer.num_missing < LONG_READ:
            return None
        num_tokens = int(max(budget_s - best.risk_s, 0.0) / max(token_s, 1e-9))
        if offer.num_missing > 2 * LONG_READ:
            # At first a trial; and something has to be left for what comes behind it.
            half = num_tokens // 2 if cost.knows_reading else 0
            num_tokens = min(num_tokens, max(half, LONG_READ))
        if num_tokens >= offer.num_missing:
            return None
        length = moment.num_cached + 1
        return length - num_tokens if num_tokens >= LONG_READ else _TOO_DEAR

    def padded(self, num_tokens: int, limit: int) -> int:
        """See `DraftLength.padded`."""
        return self._times.cheapest(num_tokens, min(limit, LARGEST_STEP))

    def learn(self, trial: Trial) -> None:
        """See `DraftLength.learn`."""
        scored_s = trial.target_time_s + trial.sampler_time_s
        step_s = scored_s + trial.draft_time_s
        size = trial.num_target_tokens
        is_doubtful = self._is_doubtful(trial, scored_s)
        self._is_in_doubt = is_doubtful or self._is_faster(trial, scored_s)
        self._has_drafted = trial.proposer is not None and size > 1
        is_step = trial.proposer is not None or size == 1 or size > LARGEST_STEP
        if is_step and not is_doubtful:
            self.target_cost.learn(size, trial.num_cached, scored_s)
            self._num_plain += size == 1
        plain_s = self.target_cost.plain_s
        self._budget.pass_by(trial.num_emitted * (plain_s or 0.0))
        if trial.proposer is not None and plain_s is not None:
            prospect = self.prospects[trial.proposer]
            num_drafted = len(trial.confidences)
            prospect.cost.learn(
                trial.num_read, max(num_drafted, 1), trial.draft_time_s, plain_s
            )
            prospect.acceptance.learn_verdict(trial.confidences, trial.num_accepted)
            prospect.missed_s = prospect.trial_s = 0.0
            self._budget.save(trial.num_emitted * plain_s - step_s, plain_s)
        else:
            for prospect in self._able:
                prospect.missed_s += prospect.missed_token_s
                prospect.trial_s += _TRIAL_SHARE * prospect.missed_token_s
            self._budget.save(-trial.draft_time_s, plain_s or 0.0)
            if self._quiet_left == self._quiet_steps:
                self._deciding_s = trial.draft_time_s
        for prospect in self.prospects:
            prospect.acceptance.pass_by(trial.num_emitted)

    def _is_doubtful(self, trial: Trial, scored_s: float) -> bool:
        """Whether it was a plain step that says little about several in a row.

        Behind a draft it can take longer, where a step takes a millisecond: threads that
        rested have to wake. Then another one follows, behind it, which tells.
        """
        plain_s = self.target_cost.plain_s
        is_behind = self._has_drafted or trial.proposer is not None or trial.look_back_s > 0.0
        is_slow = plain_s is not None and scored_s > _WAKING * plain_s
        return trial.num_target_tokens == 1 and is_behind and is_slow

    def _is_faster(self, trial: Trial, scored_s: float) -> bool:
        """Whether a plain step between drafts took less than those before.

        The median of a few counts, and while tokens are drafted it would take many steps to
        follow. So more plain ones come behind it, until it has.
        """
        plain_s = self.target_cost.plain_s
        is_between = self._has_drafted or self._is_in_doubt
        is_plain = trial.proposer is None and trial.num_target_tokens == 1
        return plain_s is not None and is_between and is_plain and scored_s * _FASTER < plain_s

    def outlook(self) -> Outlook | None:
        """See `DraftLength.outlook`. Of the proposer that came nearest to paying."""
        plain_s = self.target_cost.plain_s
        if self._nearest is None or plain_s is None:
            return None
        prospect, confidence = self._nearest
        acceptance = prospect.acceptance
        draft_s = prospect.cost.token_s(plain_s)
        costs = Curve(self._times.latest.tolist(), draft_s)
        return Outlook(
            prospect.kind,
            float(acceptance.expected(acceptance.weights, confidence)[1]),
            break_even_acceptance(costs, MAX_DRAFT_TOKENS),
            plain_s,
            draft_s,
        )

    def as_dict(self) -> dict[str, Any]:
        """What is worth keeping beyond this process, as JSON has it."""
        return {
            "target": self.target_cost.as_dict(),
            "proposers": {
                prospect.kind.value: {
                    "cost": prospect.cost.as_dict(),
                    "acceptance": prospect.acceptance.as_dict(),
                }
                for prospect in self.prospects
            },
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Go on from what `as_dict` gave.

        Raises ValueError, TypeError or KeyError at a part that is something else.
        """
        parts = kept["proposers"]
        if not isinstance(parts, Mapping):
            raise TypeError(f"the proposers are {parts!r}")
        self.target_cost.restore(kept["target"])
        for prospect in self.prospects:
            part = parts.get(prospect.kind.value)
            if part is not None:
                prospect.cost.restore(part["cost"])
                prospect.acceptance.restore(part["acceptance"])
