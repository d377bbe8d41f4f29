"""Measures the speed-up over plain decoding, by kind of text: both sides take turns."""

from __future__ import annotations

import enum
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from localspec.checks.limit import EndedBy, ended_by, limited
from localspec.checks.prompts import KindOfText, Task
from localspec.checks.ratio_estimate import (
    FEWEST,
    RatioEstimate,
    estimate_ratio,
    in_equal_parts,
)
from localspec.checks.step_bench import StepCosts, measure_steps
from localspec.checks.turns import SHORTEST_ANSWER, Stretch, TurnTaking
from localspec.engine.engine import Engine
from localspec.errors import ContextError, Interrupted, OptionError
from localspec.isolated.watch import Watch
from localspec.machine import peak_memory_bytes
from localspec.policy.speedup import Curve, break_even_acceptance
from localspec.speculative.metrics import Stats
from localspec.speculative.policy_api import DraftOff, DraftPolicy, ProposerKind
from localspec.streaming.cancellation import Cancellation

COST_ROUNDS = 5  # at most, of timing decodes
_COSTS_SHARE = 0.1  # of the time, that they may take
NARROW = 1.05  # an interval that reaches less far needs no more text
NOT_FEW = 8  # stretches that an interval needs to count as that narrow


class Outcome(enum.Enum):
    """The result of a comparison."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no difference seen"  # the interval holds 1
    NOTHING_DRAFTED = "nothing was drafted"  # both sides are plain decoding
    TOO_LITTLE = "not enough text"


def _outcome(estimate: RatioEstimate | None, num_drafted: int) -> Outcome:
    if estimate is None:
        return Outcome.TOO_LITTLE
    if not num_drafted:
        return Outcome.NOTHING_DRAFTED
    if estimate.low > 1.0:
        return Outcome.FASTER
    return Outcome.SLOWER if estimate.high < 1.0 else Outcome.NO_DIFFERENCE


@dataclass(frozen=True, slots=True)
class KindSpeed:
    """How fast text of a kind is.

    stretches: of text that both sides wrote in turn. answers: their statistics, in order, of
    both sides together; an answer may have been cut.
    """

    kind: KindOfText
    stretches: tuple[Stretch, ...]
    answers: tuple[Stats, ...]

    @property
    def estimate(self) -> RatioEstimate | None:
        """The speed-up with its interval; None for too little text."""
        plain_s = [stretch.plain_s for stretch in self.stretches]
        return estimate_ratio(plain_s, [stretch.drafting_s for stretch in self.stretches])

    @property
    def outcome(self) -> Outcome:
        """The result; wrong about equally fast sides 5 times in 100."""
        return _outcome(self.estimate, self.num_drafted)

    @property
    def plain_tokens_per_s(self) -> float | None:
        """Of plain decoding; None without a stretch."""
        return self._rate(sum(stretch.plain_s for stretch in self.stretches))

    @property
    def tokens_per_s(self) -> float | None:
        """With drafts; None without a stretch."""
        return self._rate(sum(stretch.drafting_s for stretch in self.stretches))

    def _rate(self, seconds: float) -> float | None:
        return sum(each.num_tokens for each in self.stretches) / seconds if seconds else None

    @property
    def num_drafted(self) -> int:
        """Draft tokens."""
        return sum(stats.num_draft_tokens for stats in self.answers)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted ÷ proposed tokens; None if none was proposed."""
        num_accepted = sum(stats.num_accepted for stats in self.answers)
        return num_accepted / self.num_drafted if self.num_drafted else None

    @property
    def acceptance_by_proposer(self) -> dict[ProposerKind, float]:
        """The same of each proposer that proposed something."""
        drafted: Counter[ProposerKind] = Counter()
        accepted: Counter[ProposerKind] = Counter()
        for stats in self.answers:
            drafted.update(stats.drafted_per_proposer)
            accepted.update(stats.accepted_per_proposer)
        return {kind: accepted[kind] / drafted[kind] for kind in drafted}

    @property
    def steps_per_length(self) -> tuple[int, ...]:
        """Steps that proposed 0, 1, 2 … tokens, both sides together."""
        columns = zip(*(s.steps_per_length for s in self.answers), strict=True)
        return tuple(sum(column) for column in columns)


@dataclass(frozen=True, slots=True)
class Bench:
    """Everything measured.

    kinds: in the order in which they are asked, also those with too little text. left_out:
    kinds that this model cannot be asked, or whose prompts do not fit its context. costs: None
    if timing decodes was interrupted. ended_by: None if all intervals are narrow.
    """

    kinds: tuple[KindSpeed, ...]
    left_out: tuple[KindOfText, ...]
    costs: StepCosts | None
    peak_memory_bytes: int
    time_s: float
    ended_by: EndedBy | None

    @property
    def over_all(self) -> RatioEstimate | None:
        """The speed-up for as much text of each kind that was measured; None for no kind."""
        known = [found.estimate for found in self.kinds if found.estimate]
        return in_equal_parts(known) if known else None

    @property
    def outcome(self) -> Outcome:
        """The result over all."""
        return _outcome(self.over_all, sum(found.num_drafted for found in self.kinds))

    @property
    def draft_off(self) -> DraftOff | None:
        """The most frequent reason for not drafting but the turns; None if there is none."""
        reasons: Counter[DraftOff] = Counter()
        for found in self.kinds:
            for stats in found.answers:
                reasons.update(stats.draft_off_steps)
        reasons[DraftOff.SET_TO_ZERO] = min(reasons[DraftOff.SET_TO_ZERO], 1)
        return max(+reasons, key=lambda reason: reasons[reason], default=None)

    @property
    def break_even(self) -> float | None:
        """The lowest acceptance rate at which the draft model pays; None if it never does."""
        has_draft = self.costs is not None and self.costs.draft_token_s is not None
        return self._break_even(self.curve) if has_draft else None

    @property
    def free_break_even(self) -> float | None:
        """The same for draft tokens that cost nothing, as those of the lookup."""
        curve = self.curve
        return self._break_even(None if curve is None else Curve(curve.steps, 0.0))

    @staticmethod
    def _break_even(curve: Curve | None) -> float | None:
        return None if curve is None else break_even_acceptance(curve, len(curve.steps) - 2)

    @property
    def curve(self) -> Curve | None:
        """The costs in target-only steps; None without costs."""
        if self.costs is None:
            return None
        draft_s = self.costs.draft_token_s or 0.0
        return Curve((0.0, *self.costs.ratios), draft_s / self.costs.target_s[0])


def run_bench(
    engine: Engine,
    tasks: Sequence[Task],
    asked: Mapping[str, Any],
    *,
    seconds: float,
    watch: Watch,
) -> Bench:
    """Measure an engine on tasks. Its policy is restored afterwards, and keeps what it learned.

    First each kind is asked, then those whose interval is widest, until all are narrow. asked:
    keywords of `Task.ask`, its options among them. seconds: the time limit. It and the watch's
    cancellation end the measurement even within a decode; the results so far are returned.

    Raises OptionError for answers that are too short to time both sides, ContextError if no
    task leaves room for an answer.
    """
    max_tokens = asked["options"].max_tokens
    if max_tokens is not None and max_tokens < SHORTEST_ANSWER:
        raise OptionError(
            f"answers of {max_tokens} tokens are too short to time both sides",
            f"Choose --max-tokens {SHORTEST_ANSWER} or more.",
        )
    policy = engine._draft_policy
    ending: EndedBy | None = None
    with limited(watch.cancellation, seconds) as ended:
        run = _BenchRun(engine, policy, asked, seconds, watch, ended)
        try:
            run.measure_costs()
            run.compare(tasks)
        except Interrupted:
            ending = ended_by(watch.cancellation)
        finally:
            engine._draft_policy = policy
    engine._save_profile()
    return run.found(ending)


@dataclass(slots=True)
class _Kind:
    """The tasks of a kind, and what was found with them."""

    name: KindOfText
    tasks: list[Task]
    stretches: list[Stretch] = field(default_factory=list)
    answers: list[Stats] = field(default_factory=list)

    @property
    def speed(self) -> KindSpeed:
        return KindSpeed(self.name, tuple(self.stretches), tuple(self.answers))

    @property
    def next_task(self) -> Task:
        return self.tasks[len(self.answers) % len(self.tasks)]

    @property
    def needs_more(self) -> bool:
        is_narrow = self.reach <= NARROW and len(self.stretches) >= NOT_FEW
        # Answers may be too short for a stretch.
        is_hopeless = not self.stretches and len(self.answers) >= len(self.tasks)
        return not (is_narrow or is_hopeless)

    @property
    def reach(self) -> float:
        """Of the interval; without one infinite."""
        estimate = self.speed.estimate
        return math.inf if estimate is None else estimate.reach


@dataclass(slots=True)
class _BenchRun:
    """A measurement and its results so far. ended: requested when it must end."""

    engine: Engine
    policy: DraftPolicy
    asked: Mapping[str, Any]
    seconds: float
    watch: Watch
    ended: Cancellation
    costs: StepCosts | None = None
    kinds: dict[KindOfText, _Kind] = field(default_factory=dict)
    left_out: list[KindOfText] = field(default_factory=list)
    started_s: float = field(default_factory=time.perf_counter)

    def found(self, ending: EndedBy | None) -> Bench:
        return Bench(
            tuple(kind.speed for kind in self.kinds.values()),
            tuple(self.left_out),
            self.costs,
            peak_memory_bytes(),
            self._spent_s(),
            ending,
        )

    def _spent_s(self) -> float:
        return time.perf_counter() - self.started_s

    def measure_costs(self) -> None:
        """Time decodes, as often as a share of the time allows."""

        def show(done: int, of: int) -> None:
            self.watch.progress(f"timing decodes, {done} of {of} at most", None)

        def is_enough() -> bool:
            return self._spent_s() > _COSTS_SHARE * self.seconds

        with self.engine.exclusively() as loop, self.ended.obeyed(self.engine.cancel):
            self.costs = measure_steps(loop, COST_ROUNDS, show, is_enough)

    def compare(self, tasks: Sequence[Task]) -> None:
        """Ask each kind once, then those that are known least. Raises Interrupted."""
        for task in tasks:
            if task.suits(self.engine, self.asked["template"]):
                self.kinds.setdefault(task.kind, _Kind(task.kind, [])).tasks.append(task)
            elif task.kind not in self.left_out:
                self.left_out.append(task.kind)
        refused: ContextError | None = None
        for number, kind in enumerate(list(self.kinds.values())):
            left_s = self.seconds - self._spent_s()
            share_s = left_s / (len(self.kinds) + len(self.left_out) - number)
            try:
                self._ask(kind, self._spent_s() + share_s)
            except ContextError as error:
                refused = error
                del self.kinds[kind.name]
                self.left_out.append(kind.name)
        if refused is not None and not self.kinds:
            raise refused
        while waiting := [kind for kind in self.kinds.values() if kind.needs_more]:
            self._ask(max(waiting, key=lambda kind: kind.reach), self.seconds)

    def _ask(self, kind: _Kind, until_s: float) -> None:
        """Add an answer, which ends at that time if it has enough for an estimate."""
        estimates = ((each.name, each.speed.estimate) for each in self.kinds.values())
        known = [f"{name} {found.value:.2f}" for name, found in estimates if found]
        self.watch.progress("; ".join((f"writing {kind.name}", *known)), None)
        self.engine._draft_policy = turns = TurnTaking(self.policy)
        answer = kind.next_task.ask(self.engine, **self.asked)
        with self.ended.obeyed(answer.cancel):
            for _ in answer:
                if self._spent_s() > until_s and len(turns.stretches) >= FEWEST:
                    answer.cancel()
            reply = answer.reply()
        kind.stretches += turns.stretches
        kind.answers.append(reply.stats)
        if self.ended.is_requested:
            raise Interrupted("the measurement was ended")
