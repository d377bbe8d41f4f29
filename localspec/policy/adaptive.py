"""The policy that drafts only as much as pays, and otherwise stays out of the way.

It chooses the K with the most expected tokens per second, E[emitted] / (K·c + T(K + 1)), of
all K including 0 (Leviathan et al., arXiv 2211.17192, theorem 3.8, with a measured T in
place of a constant one), from `cost` and `acceptance`. While tokens are drafted the same
question is asked again with what is known by then, as an optimal stopping problem at the
rate of the best K (Dinkelbach's method).

A proposer that may pay is tried at once, and pauses longer each time it does not. Within an
answer all follows from its text and from costs that are fixed when it begins: the same question
takes the same steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from localspec.policy.acceptance import REGIME_TOKENS
from localspec.policy.cost import LARGEST_STEP, SHORT_READ, Costs, fill
from localspec.policy.prospect import FIRST_PAUSE, LONGEST_PAUSE, Prospect, Stopping
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

# A gain has to be larger than this factor
_MARGIN = 1.02
# Target-only steps that finding out may cost in the first answer of a pair on a machine; half
# of it after an answer that spent some, down to the least
_GRANT = 6.0
_LEAST_GRANT = 1.5
# Of an answer's tokens: what it may cost where that is more. With the last look, which may cost
# more than is left, a long answer loses a hundredth
_SHARE = 0.008


class AdaptiveDraftPolicy(DraftPolicy):
    """Maximises the expected tokens per second over all proposers and all K.

    One object serves all answers of an engine; what it learned can be saved and restored.
    draft_shares: for each kind of proposer, a guess of what a draft token costs, as a share of
    a target-only step; it counts until the cost is measured. num_threads: the number of threads
    that the models begin with. costs: with the present number, for the length of the text.
    """

    def __init__(self, draft_shares: Mapping[ProposerKind, float], num_threads: int) -> None:
        self._draft_shares = draft_shares
        self._key = num_threads, 0  # of the present costs: threads, class of lengths
        self.costs = Costs(draft_shares)
        self._costs = {self._key: self.costs}
        self._grant = _GRANT  # target-only steps that the next answer may lose
        self._budget = _GRANT  # that the present one still may
        self._num_decoded = 0  # tokens of the present answer
        self._num_other = 0  # steps in a row with another number of threads
        self.prospects = [Prospect(index, kind) for index, kind in enumerate(draft_shares)]
        self._nearest: Prospect | None = None  # the one closest to paying
        self._last_size = 1  # tokens of the last decode
        self._since_plain = 0  # steps since a target-only one was timed
        self._last_proposer: int | None = None
        self._padded: list[int] = []
        self._idle = math.inf  # target-only steps that padding cost since the last draft

    def _use_costs(self, num_threads: int, length: int) -> None:
        """Take the costs with so many threads, for a class of lengths."""
        self._key = (num_threads, length)
        self._num_other = 0
        if self._key not in self._costs:
            self._costs[self._key] = Costs(self._draft_shares)
            self._costs[self._key].restore(self.costs.as_dict())  # a guess
            self._costs[self._key].prefill_token_s = self.costs.prefill_token_s
        self.costs = self._costs[self._key]

    def reset(self) -> None:
        for prospect in self.prospects:
            prospect.reset()
        for costs in self._costs.values():
            costs.settle()
        self._since_plain = 0
        self._grant = self._next_grant()
        self._budget = self._grant
        self._num_decoded = 0
        self._idle = math.inf

    def _next_grant(self) -> float:
        """The grant of the next answer. It has few levels, so that steps repeat."""
        if self._budget >= self._grant:
            return self._grant
        return max(self._grant / 2, _LEAST_GRANT)

    def renew(self) -> None:
        """Let the next answers begin with what was learned; for idle time."""
        for prospect in self.prospects:
            prospect.renew()

    def pause_left(self, proposer: int) -> int:
        prospect = self.prospects[proposer]
        # A lookup is judged as well while it is paused: that costs nothing.
        has_model = prospect.kind in (ProposerKind.DRAFT, ProposerKind.HEAD)
        if has_model:
            return max(prospect.pause_left, 0)
        return 0

    def choose(self, context: PolicyContext) -> Decision | Replay:
        available = [
            prospect
            for prospect, state in zip(self.prospects, context.states, strict=True)
            if not self.pause_left(prospect.index) and prospect.prepare(state, context.room)
        ]
        if not available:
            return Decision(None, draft_off=reason_for_none(context))
        if fill(context.num_cached) != self._key[1]:
            self._use_costs(self._key[0], fill(context.num_cached))
        if self.costs.needs_plain or self._since_plain >= LONGEST_PAUSE:
            return Decision(None, draft_off=DraftOff.MEASURING)
        for prospect in available:
            if prospect.state.num_unjudged > 0 and prospect.state.num_missing == 0:
                return Replay(prospect.index)
        awake = [prospect for prospect in available if prospect.pause_left <= 0]
        for prospect in awake:
            prospect.rank(self.costs, self._last_size)
        awake.sort(key=lambda prospect: -prospect.rate)
        self._nearest = awake[0] if awake else self._nearest
        for prospect in awake:
            attempt = self._attempt(prospect, context)
            if attempt is not None:
                return attempt
        nearest = self._nearest
        would_pay = nearest is not None and nearest.rate * nearest.steps[1] > _MARGIN
        why = DraftOff.OVER_BUDGET if would_pay else DraftOff.DOES_NOT_PAY
        return Decision(None, draft_off=why)

    def _attempt(self, prospect: Prospect, context: PolicyContext) -> Decision | Replay | None:
        """Draft with it if that pays, or look whether it may; pause it if neither."""
        state = prospect.state
        plain = float(prospect.steps[1])
        pays = prospect.rate * plain > _MARGIN
        is_sure = state.confidence is not None
        if is_sure and prospect.risk > self._budget:
            # It may wait, since to see how it would have fared costs nothing.
            pays = pays and prospect.gain > prospect.risk
        looks = state.num_unjudged > 1 and not prospect.was_replayed
        gain = plain - 1.0 / prospect.rate if pays else prospect.gain_if_known()
        worth = gain * min(REGIME_TOKENS, context.num_remaining)
        if not pays and (is_sure or not looks or self._budget <= 0.0):
            worth = 0.0
        length = context.num_cached + 1
        if prospect.may_read(self.costs, length, worth, self._budget, drafts=pays):
            if looks and not state.is_block:
                # It has to read those tokens anyway, and shows what to expect.
                prospect.was_replayed = True
                return Replay(prospect.index, prospect.reads_from)
            if pays or state.is_block:
                prospect.is_look = not pays
                self._padded = prospect.padded
                return Decision(prospect.index, Stopping(prospect), prospect.reads_from)
        if prospect.was_replayed:
            prospect.fail()
        elif not is_sure:
            prospect.pause_left = FIRST_PAUSE
        return None

    def replay(self, proposer: int, replay_scores: ReplayScores, seconds: float) -> None:
        prospect = self.prospects[proposer]
        num_read = replay_scores.num_read
        self.costs.learn_draft(prospect.kind, num_read, 0, seconds)
        sources = replay_scores.sources or [prospect.state.source] * len(replay_scores.chances)
        for (confidence, chance), source in zip(replay_scores.chances, sources, strict=True):
            prospect.see(confidence, chance, 1, source)
        cost = num_read * self.costs.read_token(prospect.kind)
        self._budget -= cost
        prospect.looks += cost
        prospect.save(-cost)

    @property
    def keeps_sizes(self) -> bool:
        return self.costs.is_change_dear

    def padded(self, num_tokens: int, limit: int) -> int:
        if num_tokens == 1:
            return self._padded_pause(limit)
        self._idle = 0.0
        if num_tokens >= len(self._padded) or self._padded[num_tokens] > limit:
            return num_tokens
        return self._padded[num_tokens]

    def _padded_pause(self, limit: int) -> int:
        """The size of a step without a draft: the last one's, until that cost a change."""
        costs = self.costs
        size = self._last_size
        if size > limit or not costs.is_change_dear or self._since_plain >= LONGEST_PAUSE:
            return 1
        self._idle += costs.ratios()[size] - 1.0
        if self._idle <= costs.change_cost:
            return size
        return 1

    def learn(self, record: StepRecord) -> None:
        size = record.num_target_tokens
        scored_s = record.target_time_s + record.sampler_time_s
        is_other = record.num_threads != self._key[0]
        self._num_other = self._num_other + 1 if is_other else 0
        if self._num_other > TRIAL_STEPS or (is_other and self.costs.needs_plain):
            self._use_costs(record.num_threads, self._key[1])
        elif not is_other:
            self._learn_step(record, size, scored_s)
        if record.proposer is not None:
            self._learn_draft(self.prospects[record.proposer], record)
        self._last_size = size
        self._last_proposer = record.proposer
        self._num_decoded += record.num_emitted
        if self._num_decoded * _SHARE > self._grant:
            self._budget += _SHARE * record.num_emitted
        for prospect in self.prospects:
            prospect.age(record.num_emitted)
            prospect.pause_left -= record.num_emitted
            prospect.was_replayed = False

    def _learn_step(self, record: StepRecord, size: int, scored_s: float) -> None:
        """Learn the cost of the target's part of a step."""
        costs = self.costs
        has_changed = size != self._last_size
        if record.proposer is None and size > 1:
            if costs.prefill_token_s is None and size > LARGEST_STEP:
                costs.prefill_token_s = scored_s / size
            return
        if size == 1:
            if has_changed and self._last_size <= LARGEST_STEP and costs.plain_s:
                costs.learn_change(scored_s / costs.plain_s)
            if not (has_changed and costs.is_change_dear):
                needs_more = costs.learn_plain(scored_s)
                self._since_plain = LONGEST_PAUSE if needs_more else 0
            return
        self._since_plain += 1
        if costs.plain_s and size <= LARGEST_STEP:
            change = costs.change_cost if has_changed else 0.0
            ratio = max(scored_s / costs.plain_s - change, 0.1)
            if costs.learn_size(size, ratio):
                self._since_plain = LONGEST_PAUSE

    def _learn_draft(self, prospect: Prospect, record: StepRecord) -> None:
        """Learn from a proposal and its verdict; its gain is reckoned by the fixed costs."""
        costs = self.costs
        num_drafted = record.num_draft_tokens
        # Of two tokens that it lacks, it reads the first one alone.
        reads_one = costs.is_change_dear and record.num_read == SHORT_READ
        num_decodes = 1 if prospect.state.is_block else max(num_drafted, 1) + reads_one
        spent = num_decodes * costs.token(prospect.kind)
        if record.num_read > 1:
            spent += record.num_read * costs.read_token(prospect.kind)
        if record.num_target_tokens <= LARGEST_STEP:
            spent += costs.ratios()[record.num_target_tokens]
        gain = record.num_emitted - spent
        self._budget = min(self._budget + gain, REGIME_TOKENS)
        prospect.save(gain)
        if prospect.is_look and gain < 0.0:
            prospect.fail()
        if self._last_proposer == prospect.index or not costs.is_change_dear:
            costs.learn_draft(prospect.kind, record.num_read, num_decodes, record.draft_time_s)
        for index, confidence in enumerate(record.confidences[: record.num_accepted + 1]):
            prospect.see(
                confidence, float(index < record.num_accepted), 0, prospect.state.source
            )

    def estimate(self) -> PolicyEstimate | None:
        """The expectation for the proposer that came closest to paying."""
        prospect = self._nearest
        plain_s = self.costs.plain_s
        if prospect is None or plain_s is None:
            return None
        acceptance = prospect.acceptance
        token = self.costs.token(prospect.kind)
        curve = Curve(self.costs.ratios(), token, prospect.state.is_block)
        return PolicyEstimate(
            prospect.kind,
            float(acceptance.expected(acceptance.weights, prospect.state.confidence)[1]),
            break_even_acceptance(curve, MAX_DRAFT_TOKENS),
            plain_s,
            token * plain_s,
            {1: 1.0, **self.costs.measured_sizes()},
        )

    def as_dict(self) -> dict[str, Any]:
        """The content to save for the next process, in JSON's types."""
        for prospect in self.prospects:
            prospect.learn_seen()
        costs = {" ".join(map(str, key)): one.as_dict() for key, one in self._costs.items()}
        learned = {each.kind.value: each.learned.as_dict() for each in self.prospects}
        return {"costs": costs, "acceptance": learned, "grant": self._next_grant()}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Continue from `as_dict`. Of no use after an error, as of a damaged file."""
        self._grant = min(max(float(kept["grant"]), _LEAST_GRANT), _GRANT)
        self._budget = self._grant
        for name, part in kept["costs"].items():
            num_threads, length = map(int, name.split())
            costs = self._costs.setdefault((num_threads, length), Costs(self._draft_shares))
            costs.restore(part)
        self.expect(kept["acceptance"])

    def expect(self, acceptance: Mapping[str, Any]) -> None:
        """Begin with what was learned of proposers' acceptance: a part of `as_dict`."""
        for prospect in self.prospects:
            if prospect.kind.value in acceptance:
                prospect.learned.restore(acceptance[prospect.kind.value])
            prospect.renew()
            prospect.reset()
