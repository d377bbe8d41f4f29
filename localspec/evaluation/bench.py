"""Measures the speed-up over plain decoding, by kind of text, in rounds of both sides."""

from __future__ import annotations

import localspec.llama.loaded  # noqa: F401  libllama before NumPy

# isort: split

import enum
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from localspec.engine.engine import Engine
from localspec.engine.prefill import time_decodes
from localspec.errors import ContextError, Interrupted, OptionError
from localspec.evaluation.prompts import KindOfText, Task
from localspec.evaluation.ratio_estimate import (
    FEWEST,
    RatioEstimate,
    estimate_ratio,
    in_equal_parts,
)
from localspec.evaluation.rounds import SHORTEST_ANSWER, Rounds, Stretch
from localspec.evaluation.time_limit import EndedBy, limited
from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.policy.cost import LARGEST_STEP, Costs
from localspec.policy.speedup import Curve, break_even_acceptance
from localspec.sampling.chain import Resolver, SamplerChain
from localspec.speculative.loop import SpeculativeDecoder
from localspec.speculative.metrics import Stats
from localspec.speculative.policy_api import DraftOff, DraftPolicy, ProposerKind
from localspec.streaming.cancellation import Cancellation, Watch
from localspec.system.machine import cores_here, num_busy_cores, peak_memory_bytes

_COST_ROUNDS = 2  # at most, of timing a few sizes of decodes
_COSTS_SHARE = 0.1  # of the time limit: later no more decodes are timed
NARROW = 1.05  # an interval that reaches less far needs no more text
NOT_FEW = 8  # stretches from which a narrow interval counts
_NUM_CACHED = 64  # tokens in front of a timed decode, at most
_SPARE = 1.2  # times the seconds that should be needed
_BUSY_CORES = 0.5  # beyond the cores that our threads leave free


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
    if estimate.high < 1.0:
        return Outcome.SLOWER
    return Outcome.NO_DIFFERENCE


@dataclass(frozen=True, slots=True)
class DecodeCosts:
    """The costs of decodes on a machine."""

    plain_s: float
    """Seconds of a target-only step."""

    ratios: tuple[float, ...]
    """The ratios of decodes of 1, 2, 3 … tokens, in such steps."""

    shares: Mapping[ProposerKind, float] = field(default_factory=dict)
    """A token of each proposer that was timed, in such steps."""

    are_steady: bool = True
    """Whether no other programs were busy; if some were, these costs are wrong."""


@dataclass(slots=True)
class KindSpeed:
    """The measured speed of a kind of text."""

    kind: KindOfText
    stretches: list[Stretch] = field(default_factory=list)
    """The rounds, one after the other."""

    answers: list[Stats] = field(default_factory=list)
    """Their statistics, in order, of both sides together; an answer may have been cut."""

    is_too_short: bool = False
    """Whether all prompts were answered, and no answer was long enough for a stretch."""

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
        """The speed of plain decoding; None without a stretch."""
        return self._rate(sum(stretch.plain_s for stretch in self.stretches))

    @property
    def tokens_per_s(self) -> float | None:
        """The speed with drafts; None without a stretch."""
        return self._rate(sum(stretch.drafting_s for stretch in self.stretches))

    def _rate(self, seconds: float) -> float | None:
        if seconds:
            return sum(each.num_tokens for each in self.stretches) / seconds
        return None

    @property
    def num_drafted(self) -> int:
        """How many tokens were drafted."""
        return sum(stats.num_draft_tokens for stats in self.answers)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted ÷ proposed tokens; None if none was proposed."""
        num_accepted = sum(stats.num_accepted for stats in self.answers)
        if self.num_drafted:
            return num_accepted / self.num_drafted
        return None

    @property
    def acceptance_by_proposer(self) -> dict[ProposerKind, float]:
        """The acceptance rate of each proposer that proposed something."""
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
    """The results of a benchmark."""

    kinds: tuple[KindSpeed, ...]
    """In the order in which they are asked, also those with too little text."""

    left_out: Mapping[KindOfText, int]
    """Prompts of each kind that need tools which the model cannot call, or are too long."""

    too_long: Mapping[KindOfText, int]
    """Those of them that do not fit the context."""

    costs: DecodeCosts | None
    """None if nothing drafts, or timing was interrupted."""

    peak_memory_bytes: int
    time_s: float

    ended_by: EndedBy | None
    """None if all intervals are narrow."""

    @property
    def over_all(self) -> RatioEstimate | None:
        """The speed-up over equal amounts of each measured kind; None without one."""
        known = [found.estimate for found in self.kinds if found.estimate]
        if known:
            return in_equal_parts(known)
        return None

    @property
    def outcome(self) -> Outcome:
        """The result over all."""
        return _outcome(self.over_all, sum(found.num_drafted for found in self.kinds))

    @property
    def seconds_needed(self) -> float | None:
        """Seconds that are probably enough for intervals that are missing or too wide.

        Every kind needs an interval, and the one over all has to leave out 1, or to be narrow.
        None if nothing is missing, or no stretch shows how long one takes.
        """
        num_stretches = sum(len(found.stretches) for found in self.kinds)
        num_lacking = sum(
            max(0, FEWEST - len(found.stretches))
            for found in self.kinds
            if not found.is_too_short
        )
        times_as_much = 1.0
        if self.over_all is not None and self.outcome is Outcome.NO_DIFFERENCE:
            value = self.over_all.value
            times_as_much = self.over_all.times_as_much(max(NARROW, value, 1 / value))
        if not num_stretches or (num_lacking == 0 and times_as_much <= 1.0):
            return None
        writing_s = sum(stats.total_time_s for each in self.kinds for stats in each.answers)
        first_s = num_lacking * writing_s / num_stretches
        more_s = max(0.0, times_as_much - 1.0) * writing_s
        return _SPARE * (self.time_s + first_s + more_s)

    @property
    def partial(self) -> bool:
        """Whether it was interrupted, or a kind has too little text."""
        lacks = any(found.outcome is Outcome.TOO_LITTLE for found in self.kinds)
        return lacks or self.ended_by is EndedBy.INTERRUPT

    @property
    def draft_off(self) -> DraftOff | None:
        """The most frequent reason for not drafting, without the rounds' plain steps."""
        reasons: Counter[DraftOff] = Counter()
        for found in self.kinds:
            for stats in found.answers:
                reasons.update(stats.draft_off_steps)
        reasons[DraftOff.SET_TO_ZERO] = min(reasons[DraftOff.SET_TO_ZERO], 1)
        return max(+reasons, key=lambda reason: reasons[reason], default=None)

    @property
    def break_even(self) -> dict[ProposerKind, float | None]:
        """The lowest acceptance rate at which each proposer pays; None if it never does.

        Has the lookup, whose tokens cost nothing, and others that were timed. Empty if only
        decodes of one token were timed, or costs are wrong.
        """
        if self.costs is None or not self.costs.are_steady or len(self.costs.ratios) < 2:
            return {}
        steps = (0.0, *self.costs.ratios)
        shares = {ProposerKind.LOOKUP: 0.0, **self.costs.shares}
        return {
            kind: break_even_acceptance(Curve(steps, share), len(steps) - 2)
            for kind, share in shares.items()
        }


def run_bench(
    engine: Engine,
    tasks: Sequence[Task],
    asked: Mapping[str, Any],
    *,
    seconds: float,
    watch: Watch,
) -> Bench:
    """Measure an engine on tasks. Its policy is restored afterwards, and keeps what it learned.

    First each kind is asked, then those whose interval is widest, until all are narrow.

    Raises OptionError for answers that are too short to time both sides, ContextError if no
    task leaves context for an answer.

    Args:
        asked: Keywords of `Task.ask`, its options among them.
        seconds: The time limit. It and the watch's cancellation end the measurement even within
            a decode; the results so far are returned.
    """
    max_tokens = asked["options"].max_tokens
    if max_tokens is not None and max_tokens < SHORTEST_ANSWER:
        raise OptionError(
            f"answers of {max_tokens} tokens are too short to time both sides",
            f"Choose --max-tokens {SHORTEST_ANSWER} or more.",
        )
    with limited(engine, watch, seconds) as limit:
        run = _BenchRun(engine, engine._draft_policy, asked, seconds, watch, limit.ended)
        run.measure_costs(tasks[0].text)
        run.compare(tasks)
    engine._save_profile()
    return run.result(limit.by)


@dataclass(slots=True)
class _Kind:
    """The tasks of a kind, and what was found with them."""

    speed: KindSpeed
    tasks: list[Task] = field(default_factory=list)

    @property
    def needs_more(self) -> bool:
        is_narrow = self.reach <= NARROW and len(self.speed.stretches) >= NOT_FEW
        return bool(self.tasks) and not (is_narrow or self.speed.is_too_short)

    @property
    def reach(self) -> float:
        """The interval's factor; infinite without an interval."""
        estimate = self.speed.estimate
        if estimate is None:
            return math.inf
        return estimate.reach


@dataclass(slots=True)
class _BenchRun:
    """A measurement and its results so far."""

    engine: Engine
    policy: DraftPolicy
    asked: Mapping[str, Any]
    seconds: float
    watch: Watch
    ended: Cancellation
    """Requested when the time is over."""

    costs: DecodeCosts | None = None
    kinds: dict[KindOfText, _Kind] = field(default_factory=dict)
    left_out: Counter[KindOfText] = field(default_factory=Counter)
    too_long: Counter[KindOfText] = field(default_factory=Counter)
    started_s: float = field(default_factory=time.perf_counter)

    def result(self, ending: EndedBy | None) -> Bench:
        return Bench(
            tuple(kind.speed for kind in self.kinds.values() if kind.tasks),
            dict(self.left_out),
            dict(self.too_long),
            self.costs,
            peak_memory_bytes(),
            self._spent_s(),
            ending,
        )

    def _spent_s(self) -> float:
        return time.perf_counter() - self.started_s

    def measure_costs(self, text: str) -> None:
        """Time decodes after a text; a second round only within a share of the time."""
        self.watch.progress("timing decodes", None)
        most = max(1, min(_NUM_CACHED, self.engine.context_length - LARGEST_STEP))
        tokens = self.engine.tokenize(text)[:most]
        chain = Resolver(self.engine.vocabulary).chain(self.engine.sampling, len(tokens))
        with self.ended.obeyed(self.engine.cancel):
            self.costs = self.engine.exclusively(
                lambda loop: measure_costs(
                    loop, chain, tokens, lambda: self._spent_s() > _COSTS_SHARE * self.seconds
                )
            )

    def compare(self, tasks: Sequence[Task]) -> None:
        """Ask each kind once, then those that are known least. Raises Interrupted."""
        for task in tasks:
            if task.suits(self.engine, self.asked["template"]):
                self.kinds.setdefault(task.kind, _Kind(KindSpeed(task.kind))).tasks.append(task)
            else:
                self.left_out[task.kind] += 1
        order = list(self.kinds.values())
        for number, kind in enumerate(order):
            spent_s = self._spent_s()
            self._ask(kind, spent_s + (self.seconds - spent_s) / (len(order) - number))
        while waiting := [kind for kind in self.kinds.values() if kind.needs_more]:
            self._ask(max(waiting, key=lambda kind: kind.reach), self.seconds)

    def _ask(self, kind: _Kind, until_s: float) -> None:
        """Write one more answer. From until_s on it ends once it allows an estimate."""
        estimates = ((name, each.speed.estimate) for name, each in self.kinds.items())
        known = [f"{name} {estimate.value:.2f}" for name, estimate in estimates if estimate]
        self.watch.progress("; ".join((f"writing {kind.speed.kind}", *known)), None)
        self.engine._draft_policy = rounds = Rounds(self.policy)
        task = kind.tasks[len(kind.speed.answers) % len(kind.tasks)]
        answer = task.ask(self.engine, **self.asked)
        try:
            with self.ended.obeyed(answer.cancel):
                for _ in answer:
                    if self._spent_s() > until_s and len(rounds.stretches) >= FEWEST:
                        answer.cancel()
                reply = answer.reply()
        except ContextError:
            kind.tasks.remove(task)
            self.left_out[task.kind] += 1
            self.too_long[task.kind] += 1
            if not any(each.tasks for each in self.kinds.values()):
                raise
            return
        kind.speed.stretches += rounds.stretches
        kind.speed.answers.append(reply.stats)
        has_all_answers = len(kind.speed.answers) >= len(kind.tasks)
        kind.speed.is_too_short = has_all_answers and not kind.speed.stretches
        if self.ended.is_requested:
            raise Interrupted("the measurement was ended")


def measure_costs(
    loop: SpeculativeDecoder,
    chain: SamplerChain,
    tokens: list[int],
    is_enough: Callable[[], bool] = lambda: False,
) -> DecodeCosts | None:
    """Time what is not known yet of decodes after a text, which is removed afterwards.

    An adaptive policy of the loop learns it, as in idle time. Raises Interrupted.

    Args:
        is_enough: Ends it between two rounds. None if nothing drafts, or the text's caches
            cannot be cut.
    """
    cores = cores_here()
    is_quiet = num_busy_cores() < cores.allowed - cores.usable + _BUSY_CORES
    policy = loop.draft_policy
    costs = Costs(dict.fromkeys([each.kind for each in loop.proposers], 0.0))
    if isinstance(policy, AdaptiveDraftPolicy):
        costs = policy.costs
    try:
        for _ in range(_COST_ROUNDS):
            time_decodes(loop, tokens, costs, chain)
            if is_enough():
                break
        # The cost of a block is that of any number of tokens.
        by_token = {each.kind for each in loop.proposers if not each.state(tokens).is_block}
    finally:
        loop.truncate(0)
    if costs.plain_s is None:
        return None
    largest = max(costs.measured_sizes(), default=1)
    timed = {kind: costs.ledger[kind].value_to_keep() for kind in by_token}
    shares = {kind: share for kind, share in timed.items() if share is not None}
    return DecodeCosts(costs.plain_s, tuple(costs.ratios()[1 : largest + 1]), shares, is_quiet)
