"""How fast is it, against plain decoding of the same prompts in turn?"""

from __future__ import annotations

import enum
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from localspec.checks.step_bench import StepCosts, measure_steps
from localspec.engine.engine import Engine
from localspec.errors import ContextError, OptionError
from localspec.machine import peak_memory_bytes
from localspec.policy.speedup import Curve, break_even_acceptance, expected_speedup
from localspec.sampling.params import SamplingParams
from localspec.speculative.metrics import Stats
from localspec.speculative.policy_api import DraftOff, DraftPolicy, FixedDraftPolicy
from localspec.speculative.ratio_estimate import RatioEstimate, estimate_ratio

GREEDY = SamplingParams(temperature=0)
SWEEP = (1, 2, 3, 5, 7, 11, 15)  # numbers of draft tokens that are tried one by one
_NUM_STEP_ROUNDS = 5
_SWEEP_TOKENS = 48

Progress = Callable[[str, float], None]  # (what is measured, the share that is done)


class Outcome(enum.Enum):
    """What the rounds of a comparison say."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no difference seen"  # the interval holds 1
    NOTHING_DRAFTED = "nothing was drafted"  # both sides are plain decoding
    ONE_ROUND = "one round cannot tell"  # it says nothing of its noise


@dataclass(frozen=True, slots=True)
class Side:
    """Plain or speculative answers. A value of each round: tokens ÷ seconds of all prompts.

    The prefill and its token are no part of that. time_to_first_token_s: the median of all
    answers. stats: of every answer, in order.
    """

    tokens_per_s: tuple[float, ...]
    time_to_first_token_s: float
    stats: tuple[Stats, ...]

    @property
    def token_s(self) -> tuple[float, ...]:
        """Seconds per token, of each round."""
        return tuple(1 / rate for rate in self.tokens_per_s)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both sides on the same prompts and options, in turn. round_s: seconds a round took."""

    name: str
    plain: Side
    speculative: Side
    round_s: float

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
        """The speed-up with its interval; None of one round."""
        return estimate_ratio(self.plain.token_s, self.speculative.token_s)

    @property
    def outcome(self) -> Outcome:
        """What can be said; wrong about equal sides 5 times in 100."""
        if not any(self.steps_per_length[1:]):
            return Outcome.NOTHING_DRAFTED
        if (estimate := self.estimate) is None:
            return Outcome.ONE_ROUND
        if estimate.low > 1.0:
            return Outcome.FASTER
        return Outcome.SLOWER if estimate.high < 1.0 else Outcome.NO_DIFFERENCE

    @property
    def draft_off(self) -> DraftOff | None:
        """Why most steps that did not draft did not; None if every step did."""
        reasons: Counter[DraftOff] = Counter()
        for stats in self.speculative.stats:
            reasons.update(stats.draft_off_steps)
        return max(reasons, key=lambda reason: reasons[reason], default=None)

    @property
    def acceptance_rate(self) -> float:
        """Accepted ÷ proposed tokens; 0 if none was proposed."""
        proposed = sum(stats.num_draft_tokens for stats in self.speculative.stats)
        accepted = sum(stats.num_accepted for stats in self.speculative.stats)
        return accepted / proposed if proposed else 0.0

    @property
    def steps_per_length(self) -> tuple[int, ...]:
        """Steps that proposed 0, 1, 2 … tokens."""
        columns = zip(*(s.steps_per_length for s in self.speculative.stats), strict=True)
        return tuple(sum(column) for column in columns)


@dataclass(frozen=True, slots=True)
class Bench:
    """Everything measured. sweep: number of draft tokens → speed-up over plain, greedy."""

    comparisons: tuple[Comparison, ...]
    costs: StepCosts
    sweep: dict[int, float]
    peak_memory_bytes: int

    @property
    def break_even(self) -> float | None:
        """The least acceptance at which the draft model pays; None if it never does."""
        curve = self.curve
        if curve is None:
            return None
        return break_even_acceptance(curve, len(self.costs.target_s) - 1)

    @property
    def curve(self) -> Curve | None:
        """The costs in target-only steps; None without a draft model."""
        if self.costs.draft_token_s is None:
            return None
        target_only_s = self.costs.target_s[0]
        return Curve((0.0, *self.costs.ratios), self.costs.draft_token_s / target_only_s)

    def predicted(self, acceptance: float) -> dict[int, float]:
        """Number of draft tokens → speed-up at that acceptance; empty without a draft."""
        curve = self.curve
        if curve is None:
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
    progress: Progress,
) -> Bench:
    """Measure an engine on prompts of token ids. Its policy is afterwards what it was.

    Raises ContextError for a prompt that leaves no room for an answer, OptionError if no
    answer has a token after its first: only those take decodes that can be compared.
    """
    if max_tokens < 2:
        raise OptionError(
            f"answers of {max_tokens} tokens take no decode after the prompt's",
            "Choose --max-tokens 2 or more.",
        )
    for prompt in prompts:
        if len(prompt) >= engine.context_length:
            raise ContextError(
                f"a prompt has {len(prompt)} tokens; the context holds {engine.context_length}",
                "Leave it out, or choose a larger context (--ctx).",
            )
    policy = engine.draft_policy
    kinds = [("greedy", GREEDY)]
    if not engine.sampling.is_greedy:
        kinds.append(("sampling", engine.sampling))
    try:
        progress("steps", 0.0)
        with engine.exclusively() as loop:
            costs = measure_steps(loop, _NUM_STEP_ROUNDS)
        comparisons = []
        for index, (name, sampling) in enumerate(kinds):
            runner = _Runner(engine, policy, sampling, max_tokens)

            def show(share: float, name: str = name, index: int = index) -> None:
                progress(name, 0.1 + 0.7 * (index + share) / len(kinds))

            comparisons.append(runner.compare(name, prompts, num_rounds, show))
        runner = _Runner(engine, policy, GREEDY, min(max_tokens, _SWEEP_TOKENS))
        longest = max(
            range(len(prompts)),
            key=lambda place: comparisons[0].plain.stats[place].completion_tokens,
        )
        sweep = runner.sweep(
            prompts[longest], lambda share: progress("each K", 0.8 + 0.2 * share)
        )
    finally:
        engine.draft_policy = policy
    return Bench(tuple(comparisons), costs, sweep, peak_memory_bytes())


@dataclass(frozen=True, slots=True)
class _Runner:
    engine: Engine
    policy: DraftPolicy
    sampling: SamplingParams
    max_tokens: int

    def compare(
        self,
        name: str,
        prompts: Sequence[list[int]],
        num_rounds: int,
        show: Callable[[float], None],
    ) -> Comparison:
        policies = (FixedDraftPolicy(0), self.policy)
        rounds: list[list[list[Stats]]] = [[], []]
        started = time.perf_counter()
        for number in range(num_rounds):
            answers: list[list[Stats]] = [[], []]
            for place, prompt in enumerate(prompts):
                # Who goes first changes, so that neither side always finds a warm machine.
                for side in (0, 1) if (number + place) % 2 == 0 else (1, 0):
                    answers[side].append(self._answer(prompt, policies[side], number))
                show((number + (place + 1) / len(prompts)) / num_rounds)
            for side in (0, 1):
                rounds[side].append(answers[side])
        plain, speculative = (_side(answers) for answers in rounds)
        round_s = (time.perf_counter() - started) / num_rounds
        return Comparison(name, plain, speculative, round_s)

    def sweep(self, prompt: list[int], show: Callable[[float], None]) -> dict[int, float]:
        """Fixed numbers of draft tokens, each in turn with plain decoding."""
        speedups: dict[int, float] = {}
        if self.engine.shared_vocabulary is None:
            return speedups  # no draft model
        for index, count in enumerate(SWEEP):
            plain = self._answer(prompt, FixedDraftPolicy(0), 0)
            drafted = self._answer(prompt, FixedDraftPolicy(count), 0)
            speedups[count] = _rate([drafted]) / _rate([plain])
            show((index + 1) / len(SWEEP))
        return speedups

    def _answer(self, prompt: list[int], policy: DraftPolicy, seed: int) -> Stats:
        # Emptied, so that every answer reads its whole prompt.
        with self.engine.exclusively():
            pass
        self.engine.draft_policy = policy
        reply = self.engine.generate(
            prompt,
            sampling=self.sampling,
            seed=None if self.sampling.is_greedy else seed,
            verify=None if self.sampling.is_greedy else "block",
            max_tokens=self.max_tokens,
        )
        return reply.stats


def _side(rounds: list[list[Stats]]) -> Side:
    every = [stats for answers in rounds for stats in answers]
    return Side(
        tokens_per_s=tuple(_rate(answers) for answers in rounds),
        time_to_first_token_s=statistics.median(s.time_to_first_token_s for s in every),
        stats=tuple(every),
    )


def _rate(answers: list[Stats]) -> float:
    """Tokens ÷ seconds after the prefill, of all answers together; OptionError of none."""
    num_tokens = sum(s.decoded_tokens for s in answers)
    if num_tokens == 0:
        raise OptionError(
            "every answer ended with its first token, which comes from the prompt's decode",
            "Give --prompts with longer answers, or a larger --ctx.",
        )
    return num_tokens / sum(s.decode_time_s for s in answers)
