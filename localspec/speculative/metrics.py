"""The statistics of a step and of an answer, from measured counts and times."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from localspec.exactness import Exactness
from localspec.speculative.policy_api import (
    MAX_DRAFT_TOKENS,
    DraftOff,
    PolicyEstimate,
    ProposerKind,
    StepRecord,
    ThreadUse,
)

if TYPE_CHECKING:
    from localspec.sampling.distribution import Distribution, Logits


class Provenance(str, enum.Enum):
    """Where a token came from."""

    ACCEPTED = "accepted"  # proposed by the draft and kept
    RECOVERED = "recovered"  # drawn by the target in place of a refused draft token
    BONUS = "bonus"  # drawn by the target after every draft token was kept
    PLAIN = "plain"  # drawn by the target with nothing proposed


@dataclass(slots=True, kw_only=True)
class Step(StepRecord):
    """A round of propose, score, verify, truncate, emit."""

    tokens: list[int]
    """The emitted tokens, in order."""

    provenance: list[Provenance]
    """The provenance of the emitted tokens, in order."""

    logits: Logits = field(repr=False, compare=False)
    """The target's rows of at least every emitted token, in order: a view that the next
    decode of any text in the target's context overwrites."""

    distributions: list[Distribution] = field(repr=False, compare=False)
    """The target's distributions of at least every emitted token, in order."""

    kind: ProposerKind | None
    """The kind of the chosen proposer, if any."""

    draft_off: DraftOff | None
    """Why nothing was proposed; None if something was, and in the first step and for the last
    token of an answer, which never have a draft."""


@dataclass(frozen=True, slots=True)
class Stats:
    """The cost of an answer, in wall time. Tuples per position have MAX_DRAFT_TOKENS entries.

    The first step, the prefill, decodes the prompt and draws the first token. The draft,
    target, sampler and waited times are the sums of the later steps.
    """

    prompt_tokens: int
    cached_prompt_tokens: int
    completion_tokens: int
    num_steps: int
    num_draft_tokens: int
    num_accepted: int
    num_recovered: int
    num_bonus: int
    num_plain: int
    drafted_per_position: tuple[int, ...]
    accepted_per_position: tuple[int, ...]
    draft_time_s: float
    target_time_s: float
    sampler_time_s: float
    time_to_first_token_s: float
    total_time_s: float
    steps_per_length: tuple[int, ...]
    """(1 + MAX_DRAFT_TOKENS,) steps that proposed 0, 1, 2 … tokens."""

    steps_per_proposer: Mapping[ProposerKind, int]
    """Steps in which each kind proposed something."""

    drafted_per_proposer: Mapping[ProposerKind, int]
    """Drafted tokens of each kind of proposer."""

    accepted_per_proposer: Mapping[ProposerKind, int]
    """Accepted tokens of each kind of proposer."""

    draft_off: DraftOff | None
    """The reason of the last step that did not draft."""

    draft_off_steps: Mapping[DraftOff, int]
    """Steps per reason."""

    outlook: PolicyEstimate | None
    """The automatic policy's expectation at the end of the answer; None with another policy."""

    steps_per_threads: Mapping[int, int]
    """Steps after the prefill per number of threads."""

    threads: ThreadUse | None
    """The choice of threads at the end; None for an answer that never began."""

    exact: bool
    """Whether a greedy or seeded text is the same to the bit with any draft, any number of
    threads and any cache."""

    waited_time_s: float = 0.0
    """Seconds in which other answers used the machine. Of a decode for n answers at once, each
    counts 1 / n as its own."""

    exact_steps: str = ""
    """How steps are bounded to make the answer exact, and what that costs, in words."""

    @property
    def decode_time_s(self) -> float:
        """Seconds of the steps after the prefill: draft, target, sampler and waiting.

        Not the wall time: it excludes what an application does between two pieces.
        """
        worked_s = self.draft_time_s + self.target_time_s + self.sampler_time_s
        return worked_s + self.waited_time_s

    @property
    def decoded_tokens(self) -> int:
        """Completion tokens of the steps after the prefill: all but the first one."""
        return max(self.completion_tokens - 1, 0)

    @property
    def tokens_per_s(self) -> float | None:
        """`decoded_tokens` ÷ `decode_time_s`: the same steps on both sides.

        None if there are none, as in an answer of one token.
        """
        if self.decoded_tokens == 0 or self.decode_time_s <= 0.0:
            return None
        return self.decoded_tokens / self.decode_time_s

    @property
    def prompt_tokens_per_s(self) -> float | None:
        """Prompt tokens that were not cached ÷ `time_to_first_token_s`.

        None if no token came.
        """
        if self.num_steps == 0 or self.time_to_first_token_s <= 0.0:
            return None
        return (self.prompt_tokens - self.cached_prompt_tokens) / self.time_to_first_token_s

    @property
    def acceptance_rate(self) -> float:
        """Accepted ÷ proposed draft tokens, 0 … 1; 0 if none was proposed."""
        if self.num_draft_tokens:
            return self.num_accepted / self.num_draft_tokens
        return 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per target decode: 1 + accepted ÷ steps; 0 without a step."""
        if self.num_steps:
            return 1.0 + self.num_accepted / self.num_steps
        return 0.0


@dataclass(slots=True)
class Meter:
    """Counts the steps of an answer, and makes its `Stats`."""

    prompt_tokens: int
    cached_prompt_tokens: int
    started_s: float
    exactness: Exactness = field(default_factory=Exactness)
    first_token_s: float | None = None
    num_steps: int = 0
    tokens: Counter[Provenance] = field(default_factory=Counter)
    """The number of emitted tokens of each provenance."""

    drafts: Counter[tuple[ProposerKind | None, int, int]] = field(default_factory=Counter)
    """The number of steps by proposer, number of drafted tokens and number of accepted tokens;
    without a proposer both numbers are 0."""

    draft_time_s: float = 0.0
    target_time_s: float = 0.0
    sampler_time_s: float = 0.0
    waited_s: float = 0.0
    """Seconds of waiting in all steps so far, the prefill included."""

    waited_time_s: float = 0.0
    """Seconds of waiting in the steps after the prefill."""

    draft_off: DraftOff | None = None
    draft_off_steps: Counter[DraftOff] = field(default_factory=Counter)
    steps_per_threads: Counter[int] = field(default_factory=Counter)

    def add(self, step: Step, now_s: float, waited_s: float = 0.0) -> None:
        """Count a step.

        Args:
            step: The step.
            now_s: The time of its end, as `started_s`.
            waited_s: The seconds that the answer has waited so far, all steps together.
        """
        if self.first_token_s is None:
            self.first_token_s = now_s - self.started_s
        else:
            self.draft_time_s += step.replay_s + step.draft_time_s
            self.target_time_s += step.target_time_s
            self.sampler_time_s += step.sampler_time_s
            self.waited_time_s += waited_s - self.waited_s
            self.steps_per_threads[step.num_threads] += 1
        self.waited_s = waited_s
        self.num_steps += 1
        num_drafted = step.num_draft_tokens
        kind = None
        if num_drafted > 0:
            kind = step.kind
        self.drafts[kind, num_drafted, step.num_accepted] += 1
        if step.draft_off is not None:
            self.draft_off = step.draft_off
            self.draft_off_steps[step.draft_off] += 1

    def stats(
        self,
        now_s: float,
        outlook: PolicyEstimate | None,
        threads: ThreadUse | None,
    ) -> Stats:
        """The statistics of an answer that ends at now_s.

        Args:
            now_s: The time, as `started_s`.
            outlook: The policy's estimate of a further step, if it has one.
            threads: The use of threads at the end, if there was any.
        """
        total_time_s = now_s - self.started_s
        lengths = Counter[int]()
        drafted_at = Counter[int]()
        accepted_at = Counter[int]()
        steps = Counter[ProposerKind]()
        drafted = Counter[ProposerKind]()
        accepted = Counter[ProposerKind]()
        positions = range(MAX_DRAFT_TOKENS)
        for (kind, num_drafted, num_accepted), count in self.drafts.items():
            lengths[num_drafted] += count
            drafted_at.update(dict.fromkeys(range(num_drafted), count))
            accepted_at.update(dict.fromkeys(range(num_accepted), count))
            if kind is not None:
                steps[kind] += count
                drafted[kind] += num_drafted * count
                accepted[kind] += num_accepted * count
        return Stats(
            prompt_tokens=self.prompt_tokens,
            cached_prompt_tokens=self.cached_prompt_tokens,
            completion_tokens=self.tokens.total(),
            num_steps=self.num_steps,
            num_draft_tokens=drafted_at.total(),
            num_accepted=accepted_at.total(),
            num_recovered=self.tokens[Provenance.RECOVERED],
            num_bonus=self.tokens[Provenance.BONUS],
            num_plain=self.tokens[Provenance.PLAIN],
            drafted_per_position=tuple(drafted_at[position] for position in positions),
            accepted_per_position=tuple(accepted_at[position] for position in positions),
            draft_time_s=self.draft_time_s,
            target_time_s=self.target_time_s,
            sampler_time_s=self.sampler_time_s,
            time_to_first_token_s=self.first_token_s or total_time_s,
            total_time_s=total_time_s,
            steps_per_length=tuple(lengths[length] for length in range(MAX_DRAFT_TOKENS + 1)),
            steps_per_proposer=dict(steps),
            drafted_per_proposer=dict(drafted),
            accepted_per_proposer=dict(accepted),
            draft_off=self.draft_off,
            draft_off_steps=dict(self.draft_off_steps),
            outlook=outlook,
            steps_per_threads=dict(self.steps_per_threads),
            threads=threads,
            exact=self.exactness.holds,
            waited_time_s=self.waited_time_s,
            exact_steps=self.exactness.steps,
        )


# Reasons for not drafting, in words
WHY_OFF = {
    DraftOff.NO_DRAFT: "no draft model",
    DraftOff.SET_TO_ZERO: "draft off",
    DraftOff.TARGET_CANNOT_ROLL_BACK: "draft off: the target's cache cannot be rolled back",
    DraftOff.DRAFT_CONTEXT_FULL: "draft off: the text is longer than the draft's context",
    DraftOff.NO_HEAD: "no head: 'localspec explain' says why",
    DraftOff.HEAD_LACKS_ROWS: "draft off: the head has to see the text first",
    DraftOff.TOKEN_UNKNOWN_TO_DRAFT: "draft off: the text has a token the draft lacks",
    DraftOff.NOTHING_REPEATS: "little to draft from: the text does not repeat itself",
    DraftOff.MEASURING: "measuring what a target-only step costs",
    DraftOff.DOES_NOT_PAY: "draft off where it did not pay",
    DraftOff.OVER_BUDGET: "draft off for now: trying it would cost more time than is allowed",
}


def why_mostly_off(stats: Stats) -> str | None:
    """Why most steps of an answer did not draft, in words; None if most did."""
    steps = stats.draft_off_steps
    num_off = sum(steps.values())
    if stats.draft_off is None or 2 * num_off < stats.num_steps:
        return None
    reason = max(steps, key=steps.__getitem__)
    never_pays = stats.outlook is not None and stats.outlook.break_even is None
    if never_pays and reason in (DraftOff.DOES_NOT_PAY, DraftOff.OVER_BUDGET):
        return "draft off: it costs more here than it could gain"
    return WHY_OFF[reason]
