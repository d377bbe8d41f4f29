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
from localspec.system.machine import cores_here, num_busy_processors, peak_memory_bytes

_COST_ROUNDS = 2  # the most rounds in which a few sizes of decodes are timed
_COSTS_SHARE = 0.1  # of the time limit; after that no second round begins
NARROW = 1.05  # the reach of an interval that needs no more text
NOT_FEW = 8  # stretches; an interval of fewer is never taken for narrow
_NUM_CACHED = 64  # the most tokens before a timed decode
_SPARE = 1.2  # the seconds to recommend ÷ the seconds that are probably needed
_BUSY_CORES = 0.5  # cores that other programs may use, beyond those that our threads leave free


class Outcome(enum.Enum):
    """The result of a comparison."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no difference seen"  # the interval holds 1
    NOTHING_DRAFTED = "nothing was drafted"  # both sides are plain decoding
    TOO_LITTLE = "not enough text"


def _outcome(estimate: RatioEstimate | None, num_drafted: int) -> Outcome:
    """The result for an estimate of the speed-up and a number of draft tokens."""
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
    """The time of a decode of 1, 2, 3 … tokens ÷ that of a target-only step."""

    shares: Mapping[ProposerKind, float] = field(default_factory=dict)
    """The time of a draft token ÷ that of a target-only step, for each timed proposer."""

    are_steady: bool = True
    """Whether no other programs were busy; if some were, these costs are wrong."""


@dataclass(slots=True)
class KindSpeed:
    """The measured speed of a kind of text."""

    kind: KindOfText
    stretches: list[Stretch] = field(default_factory=list)
    """The measured rounds, in order."""

    answers: list[Stats] = field(default_factory=list)
    """The statistics of the answers, in order, of both sides together. An answer may have been
    cut."""

    is_too_short: bool = False
    """Whether all prompts were answered and no answer was long enough for a stretch."""

    @property
    def estimate(self) -> RatioEstimate | None:
        """The speed-up with its interval; None for too little text."""
        plain_s = [stretch.plain_s for stretch in self.stretches]
        drafting_s = [stretch.drafting_s for stretch in self.stretches]
        return estimate_ratio(plain_s, drafting_s)

    @property
    def outcome(self) -> Outcome:
        """The result. Equally fast sides are called different 5 times in 100."""
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
        """The tokens of the stretches ÷ seconds; None for no seconds."""
        if not seconds:
            return None
        num_tokens = sum(stretch.num_tokens for stretch in self.stretches)
        return num_tokens / seconds

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
        """The numbers of steps that proposed 0, 1, 2 … tokens, of both sides together."""
        rows = [stats.steps_per_length for stats in self.answers]
        columns = zip(*rows, strict=True)
        return tuple(sum(column) for column in columns)


@dataclass(frozen=True, slots=True)
class Bench:
    """The results of a benchmark."""

    kinds: tuple[KindSpeed, ...]
    """In the order in which they are asked. Kinds with too little text are among them."""

    left_out: Mapping[KindOfText, int]
    """The number of prompts of each kind that were left out: they are too long, or need tools
    that the model cannot call."""

    too_long: Mapping[KindOfText, int]
    """The number of these prompts that do not fit the context."""

    costs: DecodeCosts | None
    """None if nothing drafts, or timing was interrupted."""

    peak_memory_bytes: int
    time_s: float

    ended_by: EndedBy | None
    """None if all intervals are narrow."""

    @property
    def over_all(self) -> RatioEstimate | None:
        """The speed-up over equal amounts of each measured kind; None if none was measured."""
        estimates = [speed.estimate for speed in self.kinds]
        measured = [estimate for estimate in estimates if estimate is not None]
        if measured:
            return in_equal_parts(measured)
        return None

    @property
    def outcome(self) -> Outcome:
        """The result over all."""
        num_drafted = sum(speed.num_drafted for speed in self.kinds)
        return _outcome(self.over_all, num_drafted)

    @property
    def seconds_needed(self) -> float | None:
        """Seconds that are probably enough for intervals that are missing or too wide.

        Every kind needs an interval. The interval over all kinds must leave out 1 or be narrow.
        None if nothing is missing, or if no stretch shows how long a stretch takes.
        """
        num_stretches = 0
        num_lacking = 0
        answer_times_s: list[float] = []
        for speed in self.kinds:
            num_stretches += len(speed.stretches)
            if not speed.is_too_short:
                num_lacking += max(0, FEWEST - len(speed.stretches))
            answer_times_s += [stats.total_time_s for stats in speed.answers]
        times_as_much = self._times_as_much()
        is_complete = num_lacking == 0 and times_as_much <= 1.0
        if num_stretches == 0 or is_complete:
            return None
        writing_s = sum(answer_times_s)
        stretch_s = writing_s / num_stretches
        missing_s = num_lacking * stretch_s
        narrowing_s = max(0.0, times_as_much - 1.0) * writing_s
        return _SPARE * (self.time_s + missing_s + narrowing_s)

    def _times_as_much(self) -> float:
        """How many times as much text probably shows a difference over all, or that there is
        none.

        1 if that is shown already, or if nothing was measured or drafted.
        """
        over_all = self.over_all
        if over_all is None or self.outcome is not Outcome.NO_DIFFERENCE:
            return 1.0
        value = over_all.value
        reach = max(value, 1 / value)  # with which the interval would leave out 1
        return over_all.times_as_much(max(reach, NARROW))

    @property
    def partial(self) -> bool:
        """Whether the benchmark was interrupted, or a kind has too little text."""
        lacks_text = any(speed.outcome is Outcome.TOO_LITTLE for speed in self.kinds)
        return lacks_text or self.ended_by is EndedBy.INTERRUPT

    @property
    def draft_off(self) -> DraftOff | None:
        """The most frequent reason for not drafting; None if every step drafted.

        The plain steps of the rounds have the reason SET_TO_ZERO. They count as one step, so
        that other reasons come first.
        """
        reasons: Counter[DraftOff] = Counter()
        for speed in self.kinds:
            for stats in speed.answers:
                reasons.update(stats.draft_off_steps)
        reasons[DraftOff.SET_TO_ZERO] = min(reasons[DraftOff.SET_TO_ZERO], 1)
        reason, num_steps = reasons.most_common(1)[0]
        if num_steps == 0:
            return None
        return reason

    @property
    def break_even(self) -> dict[ProposerKind, float | None]:
        """The lowest acceptance rate at which each proposer pays; None if it never does.

        The proposers are the lookup, whose tokens cost nothing, and those that were timed.
        Empty if no decodes of several tokens were timed, or if other programs were busy.
        """
        if self.costs is None or not self.costs.are_steady or len(self.costs.ratios) < 2:
            return {}
        times = (0.0, *self.costs.ratios)  # of decodes, by the number of tokens from 0
        shares = {ProposerKind.LOOKUP: 0.0, **self.costs.shares}
        most_draft_tokens = len(self.costs.ratios) - 1  # a decode has one token more
        rates = {}
        for kind, share in shares.items():
            rates[kind] = break_even_acceptance(Curve(times, share), most_draft_tokens)
        return rates


def run_bench(
    engine: Engine,
    tasks: Sequence[Task],
    ask_keywords: Mapping[str, Any],
    *,
    seconds: float,
    watch: Watch,
) -> Bench:
    """Measure an engine on tasks. Its policy is restored afterwards; what it learned is saved.

    First a task of each kind is asked, then always one of the kind whose interval is widest,
    until all intervals are narrow.

    Raises OptionError for answers that are too short to time both sides, ContextError if no
    task leaves context for an answer.

    Args:
        tasks: One or more.
        ask_keywords: Arguments of `Task.ask` for each task: options, system and template.
        seconds: The time limit. It and the watch's cancellation end the measurement even within
            a decode; the results so far are returned.
    """
    max_tokens = ask_keywords["options"].max_tokens
    if max_tokens is not None and max_tokens < SHORTEST_ANSWER:
        raise OptionError(
            f"answers of {max_tokens} tokens are too short to time both sides",
            f"Choose --max-tokens {SHORTEST_ANSWER} or more.",
        )
    with limited(engine, watch, seconds) as limit:
        policy = engine._draft_policy
        run = _BenchRun(engine, policy, ask_keywords, seconds, watch, limit.ended)
        run.measure_costs(tasks[0].text)
        run.compare(tasks)
    engine._save_profile()
    return run.result(limit.by)


@dataclass(slots=True)
class _Kind:
    """The tasks of a kind, and the speed that was measured with them."""

    speed: KindSpeed
    tasks: list[Task] = field(default_factory=list)

    @property
    def needs_more(self) -> bool:
        """Whether its interval is not narrow yet, and more answers can narrow it."""
        is_narrow = self.reach <= NARROW and len(self.speed.stretches) >= NOT_FEW
        return bool(self.tasks) and not (is_narrow or self.speed.is_too_short)

    @property
    def reach(self) -> float:
        """`RatioEstimate.reach` of its interval; infinite without an interval."""
        estimate = self.speed.estimate
        if estimate is None:
            return math.inf
        return estimate.reach


@dataclass(slots=True)
class _BenchRun:
    """A measurement and its results so far."""

    engine: Engine
    policy: DraftPolicy
    ask_keywords: Mapping[str, Any]
    seconds: float
    """The time limit."""

    watch: Watch
    ended: Cancellation
    """Requested when the time is over."""

    costs: DecodeCosts | None = None
    kinds: dict[KindOfText, _Kind] = field(default_factory=dict)
    left_out: Counter[KindOfText] = field(default_factory=Counter)
    too_long: Counter[KindOfText] = field(default_factory=Counter)
    started_s: float = field(default_factory=time.perf_counter)

    def result(self, ending: EndedBy | None) -> Bench:
        """The results so far, of the kinds whose tasks fit the context.

        Args:
            ending: Why the measurement ended early; None if it did not.
        """
        with_tasks = [kind for kind in self.kinds.values() if kind.tasks]
        return Bench(
            tuple(kind.speed for kind in with_tasks),
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
        """Time decodes after a text. After _COSTS_SHARE of the time no second round begins."""
        self.watch.progress("timing decodes", None)
        num_free = self.engine.context_length - LARGEST_STEP
        most = max(1, min(_NUM_CACHED, num_free))
        tokens = self.engine.tokenize(text)[:most]
        resolver = Resolver(self.engine.vocabulary)
        chain = resolver.chain(self.engine.sampling, len(tokens))

        def is_enough() -> bool:
            return self._spent_s() > _COSTS_SHARE * self.seconds

        def measure(loop: SpeculativeDecoder) -> DecodeCosts | None:
            return measure_costs(loop, chain, tokens, is_enough)

        with self.ended.obeyed(self.engine.cancel):
            self.costs = self.engine.exclusively(measure)

    def compare(self, tasks: Sequence[Task]) -> None:
        """Ask a task of each kind, then tasks of the kinds with the widest intervals.

        Tasks with tools are left out if the model cannot call them.

        Raises Interrupted, or ContextError if no task fits the context.
        """
        for task in tasks:
            if task.suits(self.engine, self.ask_keywords["template"]):
                kind = self.kinds.setdefault(task.kind, _Kind(KindSpeed(task.kind)))
                kind.tasks.append(task)
            else:
                self.left_out[task.kind] += 1
        order = list(self.kinds.values())
        for number, kind in enumerate(order):
            spent_s = self._spent_s()
            share_s = (self.seconds - spent_s) / (len(order) - number)
            self._ask(kind, spent_s + share_s)
        least_known = self._least_known()
        while least_known is not None:
            self._ask(least_known, self.seconds)
            least_known = self._least_known()

    def _least_known(self) -> _Kind | None:
        """The kind with the widest interval; None if no kind needs more answers."""
        unfinished = [kind for kind in self.kinds.values() if kind.needs_more]
        return max(unfinished, key=lambda kind: kind.reach, default=None)

    def _stage(self, kind: _Kind) -> str:
        """The progress in words: the kind that is asked, and the speed-ups so far."""
        parts = [f"writing {kind.speed.kind}"]
        for name, measured in self.kinds.items():
            estimate = measured.speed.estimate
            if estimate is not None:
                parts.append(f"{name} {estimate.value:.2f}")
        return "; ".join(parts)

    def _ask(self, kind: _Kind, until_s: float) -> None:
        """Write one more answer, and add what was measured to its kind.

        A task that does not fit the context is left out. If no task of any kind remains, its
        ContextError is raised. Raises Interrupted if the measurement is to end.

        Args:
            kind: The kind of text.
            until_s: Seconds since the start of the measurement. From then on the answer ends
                as soon as it has `FEWEST` stretches: fewer give no estimate.
        """
        self.watch.progress(self._stage(kind), None)
        rounds = Rounds(self.policy)
        self.engine._draft_policy = rounds
        task = kind.tasks[len(kind.speed.answers) % len(kind.tasks)]
        answer = task.ask(self.engine, **self.ask_keywords)
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
            if not any(other.tasks for other in self.kinds.values()):
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
    """Time decodes of the sizes whose costs are not known yet. Raises Interrupted.

    An adaptive policy of the loop learns the costs. None if nothing drafts, or if caches cannot
    be cut.

    Args:
        loop: The loop.
        chain: The samplers, whose time counts, too.
        tokens: The text after which decodes are timed. It is removed afterwards.
        is_enough: Asked between two rounds: whether to end.
    """
    cores = cores_here()
    is_quiet = num_busy_processors() < cores.allowed - cores.usable + _BUSY_CORES
    policy = loop.draft_policy
    if isinstance(policy, AdaptiveDraftPolicy):
        costs = policy.costs
    else:
        kinds = [proposer.kind for proposer in loop.proposers]
        costs = Costs(dict.fromkeys(kinds, 0.0))
    token_kinds: set[ProposerKind] = set()  # those that draft token by token
    try:
        for _ in range(_COST_ROUNDS):
            time_decodes(loop, tokens, costs, chain)
            if is_enough():
                break
        for proposer in loop.proposers:
            # A block costs the same for any number of tokens, so it has no share per token.
            if not proposer.state(tokens).is_block:
                token_kinds.add(proposer.kind)
    finally:
        loop.truncate(0)
    if costs.plain_s is None:
        return None
    largest = max(costs.measured_sizes(), default=1)
    ratios = tuple(costs.ratios()[1 : largest + 1])
    shares = {}
    for kind in token_kinds:
        share = costs.estimates[kind].value_to_keep()
        if share is not None:
            shares[kind] = share
    return DecodeCosts(costs.plain_s, ratios, shares, is_quiet)
