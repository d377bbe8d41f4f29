"""Drafted and plain steps of one answer, as they took turns: was it faster for its drafts?

What plain decoding would have taken is known where plain steps lie beside drafted ones: moments
apart, behind a text of the same length, on a machine as busy. So an answer is cut into rounds,
each a run of drafted steps and the plain ones behind it, and the drafted tokens are held
against the plain steps on both sides of their run.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from statistics import fmean

from localspec.speculative.policy_api import Trial
from localspec.speculative.ratio_estimate import RatioEstimate, estimate_ratio

_NEAREST = 5  # plain steps on either side that count
_LEAST_ROUNDS = 4
_WIDEST = 1.5  # high ÷ low of an interval that still tells something


@dataclass(slots=True)
class _Run:
    """Steps of one kind in a row. plain_s: what target and sampler took in each plain one."""

    num_tokens: int = 0
    seconds: float = 0.0
    plain_s: list[float] = field(default_factory=list)

    @property
    def settled_s(self) -> list[float]:
        """Without a slow first step: behind a draft threads may have to wake."""
        others = self.plain_s[1:]
        return others if others and self.plain_s[0] > fmean(others) else self.plain_s


@dataclass(slots=True)
class Interleaving:
    """Takes the steps behind the prefill, in order."""

    _runs: list[_Run] = field(default_factory=lambda: [_Run()])  # plain, drafted, plain …
    _num_steps: int = 0

    def add(self, trial: Trial) -> None:
        """One step. It is plain if no proposer did anything in it."""
        scored_s = trial.target_time_s + trial.sampler_time_s
        is_idle = trial.proposer is None and trial.look_back_s == 0.0
        is_plain = is_idle and trial.num_target_tokens == 1
        if is_plain != bool(len(self._runs) % 2):
            self._runs.append(_Run())
        run = self._runs[-1]
        run.num_tokens += trial.num_emitted
        run.seconds += trial.look_back_s + trial.draft_time_s + scored_s
        if is_plain:
            run.plain_s.append(scored_s)
        self._num_steps += 1

    def speedup(self) -> RatioEstimate | None:
        """Times as fast as plain decoding; None where that was not measured well enough.

        It is never more than the tokens of a decode: one takes as long as a plain step at
        least, and where it seems not to, conditions were not alike.
        """
        plain_s, seconds = self._rounds()
        found = estimate_ratio(plain_s, seconds)
        if found is None or found.num_rounds < _LEAST_ROUNDS:
            return None
        # The prefill and its token among them, as in `Stats.mean_acceptance_length`.
        most = (1 + sum(run.num_tokens for run in self._runs)) / (1 + self._num_steps)
        if found.value > most or found.high > _WIDEST * found.low:
            return None
        return dataclasses.replace(found, high=min(found.high, most))

    def _rounds(self) -> tuple[list[float], list[float]]:
        """Of each round the seconds that plain decoding would have taken, and those it took."""
        plain_s, seconds = [], []
        for at in range(1, len(self._runs), 2):
            drafted, before, behind = (
                self._runs[at],
                self._runs[at - 1],
                self._runs[at + 1 :][:1],
            )
            # What lies before the first drafted step belongs to the first round.
            plain = [before, *behind] if at == 1 else behind
            near = [before.settled_s[-_NEAREST:], *(run.settled_s[:_NEAREST] for run in behind)]
            if not any(near):
                return [], []  # none but drafted steps
            step_s = fmean(fmean(steps) for steps in near if steps)
            plain_s.append(drafted.num_tokens * step_s + sum(sum(run.plain_s) for run in plain))
            seconds.append(drafted.seconds + sum(run.seconds for run in plain))
        return plain_s, seconds
