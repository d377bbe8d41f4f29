"""Drafted and target-only steps of one answer, as they took turns: was it faster for its
drafts?

What plain decoding would have taken is known where target-only steps lie beside drafted ones:
moments apart, after a text of the same length, on a machine as busy. So an answer is cut into
rounds, each a run of drafted steps and the target-only ones after it, and the drafted tokens
are held against the target-only steps on both sides of their run.

Steps are held only against others with the same number of threads, which makes them faster or
slower by itself: each stretch of an answer with one number of them has rounds of its own.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from statistics import fmean

from localspec.speculative.policy_api import StepRecord
from localspec.speculative.ratio_estimate import RatioEstimate, estimate_ratio

_NEAREST = 5  # target-only steps on either side that count
_LEAST_ROUNDS = 4
_LONGEST_GAP = 16  # steps with another number of threads, after which conditions may differ
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
class _Stretch:
    """Steps with one number of threads, but for a few between them that had another.

    last: number of its latest step.
    """

    runs: list[_Run] = field(default_factory=lambda: [_Run()])  # plain, drafted, plain …
    last: int = 0

    def add(self, record: StepRecord) -> None:
        """One step. It is plain if no proposer did anything in it."""
        scored_s = record.target_time_s + record.sampler_time_s
        is_idle = record.proposer is None and record.replay_s == 0.0
        is_plain = is_idle and record.num_target_tokens == 1
        if is_plain != bool(len(self.runs) % 2):
            self.runs.append(_Run())
        run = self.runs[-1]
        run.num_tokens += record.num_emitted
        run.seconds += record.replay_s + record.draft_time_s + scored_s
        if is_plain:
            run.target_only_s.append(scored_s)

    @property
    def plain_s(self) -> float:
        """Seconds of a stretch without a drafted step; 0 of any other."""
        return self.runs[0].seconds if len(self.runs) == 1 else 0.0

    def rounds(self) -> list[tuple[float, float]]:
        """Of each round the seconds that plain decoding would have taken, and those it took."""
        found = []
        for at in range(1, len(self.runs), 2):
            drafted, before, after = (
                self.runs[at],
                self.runs[at - 1],
                self.runs[at + 1 :][:1],
            )
            # What lies before the first drafted step belongs to the first round.
            plain = [before, *after] if at == 1 else after
            near = [before.settled_s[-_NEAREST:], *(run.settled_s[:_NEAREST] for run in after)]
            if not any(near):
                return []  # none but drafted steps
            step_s = fmean(fmean(steps) for steps in near if steps)
            plain_s = sum(sum(run.target_only_s) for run in plain)
            seconds = drafted.seconds + sum(run.seconds for run in plain)
            found.append((drafted.num_tokens * step_s + plain_s, seconds))
        return found


@dataclass(slots=True)
class Interleaving:
    """Takes the steps after the prefill, in order."""

    _stretches: list[_Stretch] = field(default_factory=list)
    _latest: dict[int, _Stretch] = field(default_factory=dict)  # by number of threads
    _num_steps: int = 0
    _num_tokens: int = 0

    def add(self, record: StepRecord) -> None:
        """One step."""
        stretch = self._latest.get(record.num_threads)
        if stretch is None or self._num_steps - stretch.last > _LONGEST_GAP:
            stretch = _Stretch()
            self._stretches.append(stretch)
            self._latest[record.num_threads] = stretch
        stretch.add(record)
        stretch.last = self._num_steps
        self._num_steps += 1
        self._num_tokens += record.num_emitted

    def speedup(self) -> RatioEstimate | None:
        """Times as fast as plain decoding; None where that was not measured well enough.

        It is never more than the tokens of a decode: one takes as long as a target-only step at
        least, and where it seems not to, conditions were not alike.
        """
        rounds = [one for stretch in self._stretches for one in stretch.rounds()]
        # Where nothing was drafted both sides took the same time.
        plain_s = sum(stretch.plain_s for stretch in self._stretches) / max(len(rounds), 1)
        found = estimate_ratio(
            [target_only_s + plain_s for target_only_s, _ in rounds],
            [seconds + plain_s for _, seconds in rounds],
        )
        if found is None or found.num_rounds < _LEAST_ROUNDS:
            return None
        # The prefill and its token among them, as in `Stats.mean_acceptance_length`.
        most = (1 + self._num_tokens) / (1 + self._num_steps)
        if found.value > most or found.high > _WIDEST * found.low:
            return None
        return dataclasses.replace(found, high=min(found.high, most))
