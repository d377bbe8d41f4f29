"""Measures the speed-up over plain decoding: both take turns on the same prompts."""

from __future__ import annotations

import enum
import math
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from localspec.checks.identity import GREEDY
from localspec.checks.limit import EndedBy, ended_by, limited
from localspec.checks.prompts import check_lengths
from localspec.checks.ratio_estimate import RatioEstimate, estimate_ratio
from localspec.checks.step_bench import StepCosts, measure_steps
from localspec.engine.engine import Engine
from localspec.errors import Interrupted, OptionError
from localspec.isolated.watch import OnMeasured, Watch
from localspec.machine import peak_memory_bytes
from localspec.policy.speedup import Curve, break_even_acceptance, expected_speedup
from localspec.sampling.params import SamplingParams
from localspec.speculative.metrics import Stats
from localspec.speculative.policy_api import DraftOff, DraftPolicy, FixedDraftPolicy
from localspec.streaming.cancellation import Cancellation

SWEEP = (1, 2, 3, 5, 7, 11, 15)  # numbers of draft tokens that are tried one by one
NUM_STEP_ROUNDS = 5
_SWEEP_TOKENS = 48
_COSTS_SHARE = 0.25  # of the time, that timing decodes may take


class Outcome(enum.Enum):
    """The result of a comparison."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no difference seen"  # the interval holds 1
    NOTHING_DRAFTED = "nothing was drafted"  # both sides are plain decoding
    ONE_ROUND = "one round cannot tell"  # it does not show the noise
    PART_OF_A_ROUND = "part of a round cannot tell"


@dataclass(frozen=True, slots=True)
class Side:
    """Plain or speculative answers.

    tokens_per_s: of each round, over all prompts, without the prefill and its token.
    time_to_first_token_s: the median of all answers. answers: their statistics, in order.
    """

    tokens_per_s: tuple[float, ...]
    time_to_first_token_s: float
    answers: tuple[Stats, ...]

    @property
    def token_s(self) -> tuple[float, ...]:
        """Seconds per token, of each round."""
        return tuple(1 / rate for rate in self.tokens_per_s)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both sides on the same prompts and options, in turn. round_s: seconds of a round.

    num_prompts: prompts that both sides answered in each round; missing_prompts: the others,
    if the only round is incomplete.
    """

    name: str
    plain: Side
    speculative: Side
    round_s: float
    num_prompts: int
    missing_prompts: int = 0

    @property
    def ratios(self) -> tuple[float, ...]:
        """Speculative ÷ plain, of each round."""
        pairs = zip(self.speculative.tokens_per_s, self.plain.tokens_per_s, strict=True)
        return tuple(ours / plain for ours, plain in pairs)

    @property
    def speedup(self) -> float:
        """Plain ÷ speculative seconds per token, each the mean of the rounds."""
        return sum(self.plain.token_s) / sum(self.speculative.token_s)

    @property
    def estimate(self) -> RatioEstimate | None:
        """The speed-up with its interval; None after one round."""
        return estimate_ratio(self.plain.token_s, self.speculative.token_s)

    @property
    def outcome(self) -> Outcome:
        """The result; wrong about equally fast sides 5 times in 100."""
        if not any(self.steps_per_length[1:]):
            return Outcome.NOTHING_DRAFTED
        if (estimate := self.estimate) is None:
            return Outcome.PART_OF_A_ROUND if self.missing_prompts else Outcome.ONE_ROUND
        if estimate.low > 1.0:
            return Outcome.FASTER
        return Outcome.SLOWER if estimate.high < 1.0 else Outcome.NO_DIFFERENCE

    @property
    def draft_off(self) -> DraftOff | None:
        """The most frequent reason for not drafting; None if every step drafted."""
        reasons: Counter[DraftOff] = Counter()
        for stats in self.speculative.answers:
            reasons.update(stats.draft_off_steps)
        return max(reasons, key=lambda reason: reasons[reason], default=None)

    @property
    def acceptance_rate(self) -> float:
        """Accepted ÷ proposed tokens; 0 if none was proposed."""
        proposed = sum(stats.num_draft_tokens for stats in self.speculative.answers)
        accepted = sum(stats.num_accepted for stats in self.speculative.answers)
        return accepted / proposed if proposed else 0.0

    @property
    def steps_per_length(self) -> tuple[int, ...]:
        """Steps that proposed 0, 1, 2 … tokens."""
        columns = zip(*(s.steps_per_length for s in self.speculative.answers), strict=True)
        return tuple(sum(column) for column in columns)


@dataclass(frozen=True, slots=True)
class Bench:
    """Everything measured.

    comparisons: those with a prompt that both sides answered. costs: None if no round of timing
    was complete. sweep: number of draft tokens → speed-up over plain, greedy. num_rounds: the
    requested number. ended_by: the reason if the measurement ended early. round_s: estimated
    seconds of a round, None if unknown.
    """

    comparisons: tuple[Comparison, ...]
    costs: StepCosts | None
    sweep: dict[int, float]
    peak_memory_bytes: int
    num_rounds: int
    time_s: float
    ended_by: EndedBy | None
    round_s: float | None

    @property
    def break_even(self) -> float | None:
        """The lowest acceptance rate at which the draft model pays; None if it never does."""
        curve = self.curve
        if curve is None or self.costs is None:
            return None
        return break_even_acceptance(curve, len(self.costs.target_s) - 1)

    @property
    def curve(self) -> Curve | None:
        """The costs in target-only steps; None without a draft model or costs."""
        if self.costs is None or self.costs.draft_token_s is None:
            return None
        target_only_s = self.costs.target_s[0]
        return Curve((0.0, *self.costs.ratios), self.costs.draft_token_s / target_only_s)

    def predicted(self, acceptance: float) -> dict[int, float]:
        """Number of draft tokens → speed-up at that acceptance; empty without a curve."""
        curve = self.curve
        if curve is None or self.costs is None:
            return {}
        return {
            count: expected_speedup(curve, acceptance, count)
            for count in range(len(self.costs.target_s))
        }


def run_bench(
    engine: Engine,
    prompts: Sequence[list[int]],
    *,
    num_rounds: int,
    max_tokens: int,
    seconds: float | None,
    watch: Watch,
) -> Bench:
    """Measure an engine on prompts of token ids. Its policy is restored afterwards.

    seconds: the time limit. It and the watch's cancellation end the measurement even within a
    decode; the results so far are returned.

    Raises ContextError for a prompt that leaves no room for an answer, OptionError if no
    answer has a second token: the first one comes from the prompt's decode.
    """
    if max_tokens < 2:
        raise OptionError(
            f"answers of {max_tokens} tokens have no decode after the prompt",
            "Choose --max-tokens 2 or more.",
        )
    check_lengths(prompts, engine.context_length)
    policy = engine._draft_policy
    ending: EndedBy | None = None
    with limited(watch.cancellation, seconds) as ended:
        run = _BenchRun(engine, policy, prompts, num_rounds, max_tokens, watch.progress, ended)
        try:
            run.measure_costs(seconds)
            for kind in run.kinds:
                run.compare(kind)
            run.sweep()
        except Interrupted:
            ending = ended_by(watch.cancellation)
        finally:
            engine._draft_policy = policy
    return run.found(ending)


@dataclass(slots=True)
class _Kind:
    """A kind of sampling. rounds: the plain and the speculative answer to each prompt."""

    name: str
    sampling: SamplingParams
    rounds: list[list[tuple[Stats, Stats]]] = field(default_factory=list)
    time_s: float = 0.0

    def comparison(self, num_prompts: int) -> Comparison | None:
        """The comparison over complete rounds; if there are none, over a part of the first.

        A part of a later round is left out, since its prompts are not those of a whole round.
        None if no prompt was answered by both sides, or no answer has tokens to compare.
        """
        whole = [pairs for pairs in self.rounds if len(pairs) == num_prompts]
        counted = whole or self.rounds[:1]
        num_pairs = len(counted[0]) if counted else 0
        has_tokens = num_pairs > 0 and all(
            any(pair[side].decoded_tokens for pair in counted[0]) for side in (0, 1)
        )
        if not whole and not has_tokens:
            return None
        plain, speculative = (
            _side([[pair[side] for pair in pairs] for pairs in counted]) for side in (0, 1)
        )
        round_s = self.time_s * num_prompts / sum(map(len, self.rounds))
        missing = num_prompts - num_pairs
        return Comparison(self.name, plain, speculative, round_s, num_pairs, missing)


@dataclass(slots=True)
class _BenchRun:
    """A measurement and its results so far. ended: requested when it must end."""

    engine: Engine
    policy: DraftPolicy
    prompts: Sequence[list[int]]
    num_rounds: int
    max_tokens: int
    progress: OnMeasured
    ended: Cancellation
    costs: StepCosts | None = None
    sweep_found: dict[int, float] = field(default_factory=dict)
    num_pairs: int = 0
    pairs_s: float = 0.0
    started_s: float = field(default_factory=time.perf_counter)
    kinds: list[_Kind] = field(init=False)

    def __post_init__(self) -> None:
        self.kinds = [_Kind("greedy", GREEDY)]
        if not self.engine.sampling.is_greedy:
            self.kinds.append(_Kind("sampling", self.engine.sampling))

    def found(self, ending: EndedBy | None) -> Bench:
        found = [kind.comparison(len(self.prompts)) for kind in self.kinds]
        comparisons = tuple(each for each in found if each is not None)
        pair_s = self._pair_s()
        return Bench(
            comparisons,
            self.costs,
            self.sweep_found,
            peak_memory_bytes(),
            self.num_rounds,
            time.perf_counter() - self.started_s,
            ending,
            None if pair_s is None else pair_s * len(self.prompts),
        )

    def measure_costs(self, seconds: float | None) -> None:
        """Time decodes five times, or as often as a share of the time limit allows."""
        enough_s = math.inf if seconds is None else _COSTS_SHARE * seconds

        def show(done: int, of: int) -> None:
            self.progress(f"Timing decodes of 1 to 17 tokens, {done} of {of}", None)

        def is_enough() -> bool:
            return time.perf_counter() - self.started_s > enough_s

        with self.engine.exclusively() as loop, self.ended.obeyed(self.engine.cancel):
            self.costs = measure_steps(loop, NUM_STEP_ROUNDS, show, is_enough)

    def compare(self, kind: _Kind) -> None:
        """Add rounds, one pair of answers at a time."""
        policies = (FixedDraftPolicy(0), self.policy)
        for number in range(self.num_rounds):
            pairs: list[tuple[Stats, Stats]] = []
            kind.rounds.append(pairs)
            for place, prompt in enumerate(self.prompts):
                self.progress(
                    f"Comparing {kind.name}: round {number + 1} of {self.num_rounds}, "
                    f"prompt {place + 1} of {len(self.prompts)}",
                    self._seconds_left(),
                )
                started = time.perf_counter()
                # The order alternates, so that neither side always has the warm machine.
                order = (0, 1) if (number + place) % 2 == 0 else (1, 0)
                answers = {
                    side: self._answer(prompt, policies[side], kind.sampling, number)
                    for side in order
                }
                pairs.append((answers[0], answers[1]))
                pair_s = time.perf_counter() - started
                kind.time_s += pair_s
                self.pairs_s += pair_s
                self.num_pairs += 1

    def sweep(self) -> None:
        """Fixed numbers of draft tokens, each in turn with plain decoding."""
        if self.engine.shared_vocabulary is None:
            return  # no draft model
        [first] = self.kinds[0].rounds[:1]
        longest = max(range(len(first)), key=lambda place: first[place][0].completion_tokens)
        prompt = self.prompts[longest]
        for index, count in enumerate(SWEEP):
            left = self._sweep_s(len(SWEEP) - index)
            self.progress(f"Trying each number of draft tokens: {count}", left)
            plain = self._answer(prompt, FixedDraftPolicy(0), GREEDY, 0, _SWEEP_TOKENS)
            drafted = self._answer(prompt, FixedDraftPolicy(count), GREEDY, 0, _SWEEP_TOKENS)
            self.sweep_found[count] = _rate([drafted]) / _rate([plain])

    def _answer(
        self,
        prompt: list[int],
        policy: DraftPolicy,
        sampling: SamplingParams,
        seed: int,
        most_tokens: int | None = None,
    ) -> Stats:
        """The statistics of a whole answer. Raises Interrupted for one that is cut off."""
        # Emptied, so that every answer reads its whole prompt.
        with self.engine.exclusively():
            pass
        self.engine._draft_policy = policy
        answer = self.engine.generate_raw(
            prompt,
            sampling=sampling,
            seed=None if sampling.is_greedy else seed,
            rule=None if sampling.is_greedy else "block",
            max_tokens=min(self.max_tokens, most_tokens or self.max_tokens),
        )
        with self.ended.obeyed(answer.cancel):
            reply = answer.reply()
        if reply.finish_reason == "cancelled":
            raise Interrupted("the measurement was ended")
        return reply.stats

    def _pair_s(self) -> float | None:
        """Seconds of a pair of answers: as measured, or at first as the costs predict."""
        if self.num_pairs:
            return self.pairs_s / self.num_pairs
        return None if self.costs is None else 2 * self.max_tokens * self.costs.target_s[0]

    def _seconds_left(self) -> float | None:
        if (pair_s := self._pair_s()) is None:
            return None
        num_all = len(self.kinds) * self.num_rounds * len(self.prompts)
        return (num_all - self.num_pairs) * pair_s + self._sweep_s(len(SWEEP))

    def _sweep_s(self, num_sizes: int) -> float:
        if self.engine.shared_vocabulary is None:
            return 0.0
        share = min(1.0, _SWEEP_TOKENS / self.max_tokens)
        return num_sizes * share * (self._pair_s() or 0.0)


def _side(rounds: list[list[Stats]]) -> Side:
    every = [stats for answers in rounds for stats in answers]
    return Side(
        tokens_per_s=tuple(_rate(answers) for answers in rounds),
        time_to_first_token_s=statistics.median(s.time_to_first_token_s for s in every),
        answers=tuple(every),
    )


def _rate(answers: list[Stats]) -> float:
    """Tokens per second after the prefill, over all answers. Raises OptionError."""
    num_tokens = sum(s.decoded_tokens for s in answers)
    if num_tokens == 0:
        raise OptionError(
            "every answer ended with its first token, which comes from the prompt's decode",
            "Use --prompts with longer answers, or a larger --ctx.",
        )
    return num_tokens / sum(s.decode_time_s for s in answers)
