"""Counters of a step and of an answer. Measured, never assumed; rates are derived."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from localspec.speculative.policy_api import (
    MAX_DRAFT_TOKENS,
    DraftOff,
    PolicyEstimate,
    ProposerKind,
    StepRecord,
)
from localspec.speculative.thread_policy import ThreadUse

if TYPE_CHECKING:
    from localspec.sampling.distribution import Distribution, Logits


class Provenance(str, enum.Enum):
    """Where a token came from."""

    ACCEPTED = "accepted"  # proposed by the draft and kept
    RECOVERED = "recovered"  # drawn by the target in place of a refused draft token
    BONUS = "bonus"  # drawn by the target after every draft token was kept
    PLAIN = "plain"  # drawn by the target with nothing proposed


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(StepRecord):
    """One round of propose, score, verify, truncate, emit.

    tokens, provenance: emitted, in order. kind: of the proposer, if one was chosen. draft_off:
    why nothing was proposed, unless it is the step's place: the first one and the last token of
    an answer have no use for a draft.
    logits, distributions: the target's rows and distributions at least of every emitted token,
    in order; the rows are a view that the next step overwrites.
    """

    tokens: list[int]
    provenance: list[Provenance]
    logits: Logits = field(repr=False, compare=False)
    distributions: list[Distribution] = field(repr=False, compare=False)
    kind: ProposerKind | None
    draft_off: DraftOff | None


@dataclass(frozen=True, slots=True)
class Stats:
    """What an answer cost, in wall time. Tuples per position are (MAX_DRAFT_TOKENS,).

    steps_per_length: (1 + MAX_DRAFT_TOKENS,) steps that proposed 0, 1, 2 … tokens.
    steps_per_proposer: steps in which each kind proposed something; drafted_per_proposer and
    accepted_per_proposer: tokens of each. draft_off: why the last
    step that did not draft did not; draft_off_steps: steps per reason. outlook: what the
    automatic policy expects at the end of the answer; None of any other policy.
    steps_per_threads: steps after the prefill per number of threads; threads: what came of
    choosing it, at the end; None of an answer that never began.

    The first step decodes the prompt and draws the first token: that is the prefill, and
    the draft, target and sampler times are those of the steps after it.
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
    steps_per_proposer: Mapping[ProposerKind, int]
    drafted_per_proposer: Mapping[ProposerKind, int]
    accepted_per_proposer: Mapping[ProposerKind, int]
    draft_off: DraftOff | None
    draft_off_steps: Mapping[DraftOff, int]
    outlook: PolicyEstimate | None
    steps_per_threads: Mapping[int, int]
    threads: ThreadUse | None

    @property
    def decode_time_s(self) -> float:
        """Seconds of the steps after the prefill: draft, target and sampler.

        Not the wall time: what an application does between two pieces is not decoding.
        """
        return self.draft_time_s + self.target_time_s + self.sampler_time_s

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
        return self.num_accepted / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per target decode: 1 + accepted ÷ steps."""
        return 1.0 + self.num_accepted / self.num_steps if self.num_steps else 0.0


@dataclass(slots=True)
class Meter:
    """Adds steps up to `Stats`."""

    prompt_tokens: int
    cached_prompt_tokens: int
    started_s: float
    first_token_s: float | None = None
    num_steps: int = 0
    counts: dict[Provenance, int] = field(default_factory=lambda: dict.fromkeys(Provenance, 0))
    drafted: list[int] = field(default_factory=lambda: [0] * MAX_DRAFT_TOKENS)
    accepted: list[int] = field(default_factory=lambda: [0] * MAX_DRAFT_TOKENS)
    draft_time_s: float = 0.0
    target_time_s: float = 0.0
    sampler_time_s: float = 0.0
    lengths: list[int] = field(default_factory=lambda: [0] * (MAX_DRAFT_TOKENS + 1))
    proposers: Counter[ProposerKind] = field(default_factory=Counter)
    drafted_by: Counter[ProposerKind] = field(default_factory=Counter)
    accepted_by: Counter[ProposerKind] = field(default_factory=Counter)
    draft_off: DraftOff | None = None
    draft_off_steps: dict[DraftOff, int] = field(default_factory=dict)
    steps_per_threads: dict[int, int] = field(default_factory=dict)

    def add(self, step: Step, now_s: float) -> None:
        """Count one step that ended at now_s."""
        if self.first_token_s is None:
            self.first_token_s = now_s - self.started_s
        else:
            self.draft_time_s += step.replay_s + step.draft_time_s
            self.target_time_s += step.target_time_s
            self.sampler_time_s += step.sampler_time_s
            self.steps_per_threads[step.num_threads] = (
                self.steps_per_threads.get(step.num_threads, 0) + 1
            )
        self.num_steps += 1
        self.lengths[step.num_draft_tokens] += 1
        if step.num_draft_tokens and step.kind is not None:
            self.proposers[step.kind] += 1
            self.drafted_by[step.kind] += step.num_draft_tokens
            self.accepted_by[step.kind] += step.num_accepted
        for position in range(step.num_draft_tokens):
            self.drafted[position] += 1
            self.accepted[position] += position < step.num_accepted
        if step.draft_off is not None:
            self.draft_off = step.draft_off
            self.draft_off_steps[step.draft_off] = (
                self.draft_off_steps.get(step.draft_off, 0) + 1
            )

    def deliver(self, provenance: Provenance) -> None:
        """Count one token of the answer. A stop string can leave the rest of a step out."""
        self.counts[provenance] += 1

    def stats(
        self, now_s: float, outlook: PolicyEstimate | None, threads: ThreadUse | None
    ) -> Stats:
        """Everything so far, for an answer that ends at now_s."""
        total_time_s = now_s - self.started_s
        return Stats(
            prompt_tokens=self.prompt_tokens,
            cached_prompt_tokens=self.cached_prompt_tokens,
            completion_tokens=sum(self.counts.values()),
            num_steps=self.num_steps,
            num_draft_tokens=sum(self.drafted),
            num_accepted=sum(self.accepted),
            num_recovered=self.counts[Provenance.RECOVERED],
            num_bonus=self.counts[Provenance.BONUS],
            num_plain=self.counts[Provenance.PLAIN],
            drafted_per_position=tuple(self.drafted),
            accepted_per_position=tuple(self.accepted),
            draft_time_s=self.draft_time_s,
            target_time_s=self.target_time_s,
            sampler_time_s=self.sampler_time_s,
            time_to_first_token_s=self.first_token_s or total_time_s,
            total_time_s=total_time_s,
            steps_per_length=tuple(self.lengths),
            steps_per_proposer=dict(self.proposers),
            drafted_per_proposer=dict(self.drafted_by),
            accepted_per_proposer=dict(self.accepted_by),
            draft_off=self.draft_off,
            draft_off_steps=dict(self.draft_off_steps),
            outlook=outlook,
            steps_per_threads=dict(self.steps_per_threads),
            threads=threads,
        )
