"""Drafted and target-only steps of one answer, as they took turns: was it faster for its
drafts?

What plain decoding would have taken is known where target-only steps lie beside drafted ones:
moments apart, after a text of the same length, on a machine as busy. So an answer is cut into
rounds, each a run of drafted steps and the target-only ones after it, and the drafted tokens
are held against the target-only steps on both sides of their run.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from statistics import fmean

from localspec.speculative.policy_api import StepRecord
from localspec.speculative.ratio_estimate import RatioEstimate, estimate_ratio

_NEAREST = 5  # target-only steps on either side that count
_LEAST_ROUNDS = 4
_WIDEST = 1.5  # high ÷ low of an interval that still tells something


@dataclass(slots=True)
class _Run:
    """Steps of one kind in a row. target_only_s: of target and sampler, in each such step."""

    num_tokens: int = 0
    seconds: float = 0.0
    target_only_s: list[float] = field(default_factory=list)

    @property
    def settled_s(self) -> list[float]:
        """Without a slow first step: after a draft threads may have to wake."""
        others = self.target_only_s[1:]
        return (
            others if others and self.target_only_s[0] > fmean(others) else self.target_only_s
        )


@dataclass(slots=True)
class Interleaving:
    """Takes the steps after the prefill, in order."""

    _runs: list[_Run] = field(default_factory=lambda: [_Run()])  # plain, drafted, plain …
    _num_steps: int = 0

    def add(self, record: StepRecord) -> None:
        """One step. It is plain if no proposer did anything in it."""
        scored_s = record.target_time_s + record.sampler_time_s
        is_idle = record.proposer is None and record.replay_s == 0.0
        is_plain = is_idle and record.num_target_tokens == 1
        if is_plain != bool(len(self._runs) % 2):
            self._runs.append(_Run())
        run = self._runs[-1]
        run.num_tokens += record.num_emitted
        run.seconds += record.replay_s + record.draft_time_s + scored_s
        if is_plain:
            run.target_only_s.append(scored_s)
        self._num_steps += 1

    def speedup(self) -> RatioEstimate | None:
        """Times as fast as plain decoding; None where that was not measured well enough.

        It is never more than the tokens of a decode: one takes as long as a target-only step at
        least, and where it seems not to, conditions were not alike.
        """
        target_only_s, seconds = self._rounds()
        found = estimate_ratio(target_only_s, seconds)
        if found is None or found.num_rounds < _LEAST_ROUNDS:
            return None
        # The prefill and its token among them, as in `Stats.mean_acceptance_length`.
        most = (1 + sum(run.num_tokens for run in self._runs)) / (1 + self._num_steps)
        if found.value > most or found.high > _WIDEST * found.low:
            return None
        return dataclasses.replace(found, high=min(found.high, most))

    def _rounds(self) -> tuple[list[float], list[float]]:
        """Of each round the seconds that plain decoding would have taken, and those it took."""
        target_only_s, seconds = [], []
        for at in range(1, len(self._runs), 2):
            drafted, before, after = (
                self._runs[at],
                self._runs[at - 1],
                self._runs[at + 1 :][:1],
            )
            # What lies before the first drafted step belongs to the first round.
            plain = [before, *after] if at == 1 else after
            near = [before.settled_s[-_NEAREST:], *(run.settled_s[:_NEAREST] for run in after)]
            if not any(near):
                return [], []  # none but drafted steps
            step_s = fmean(fmean(steps) for steps in near if steps)
            target_only_s.append(
                drafted.num_tokens * step_s + sum(sum(run.target_only_s) for run in plain)
            )
            seconds.append(drafted.seconds + sum(run.seconds for run in plain))
        return target_only_s, seconds
