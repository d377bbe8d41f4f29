"""Rounds within one answer: a round is timed plain steps and then timed drafting steps.

Plain and drafting steps have similar text and machine load, and nothing is decoded twice.
The first step of each side is not counted: it pays for the switch, for example when a draft
reads the tokens of the plain steps. The time of a longer read, such as that of the prompt, is
spread over the tokens of the whole answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from localspec.speculative.policy_api import (
    MAX_DRAFT_TOKENS,
    Decision,
    DraftOff,
    DraftPolicy,
    PolicyContext,
    PolicyEstimate,
    Replay,
    ReplayScores,
    StepRecord,
)

_PLAIN_STEPS = 6  # with the first one, which is not counted
_LONG_READ = 16  # a draft that reads more tokens does not just catch up with plain steps
_DRAFTING_STEPS = 3  # counted ones, at least, and until they have _DRAFTING_TOKENS
_DRAFTING_TOKENS = 16
# Tokens that an answer needs to have a counted drafting step after the longest uncounted draft.
SHORTEST_ANSWER = 1 + _PLAIN_STEPS + 1 + MAX_DRAFT_TOKENS + 1


@dataclass(slots=True)
class _Side:
    """The plain or the drafting steps of a round. Its first step is not measured."""

    num_steps: int = 0
    """All steps, with the first one."""

    num_tokens: int = 0
    """The tokens of the measured steps."""

    seconds: float = 0.0
    """The time of the measured steps."""

    def add(self, record: StepRecord, drafting_s: float) -> None:
        """Add a step. Its draft took drafting_s seconds."""
        if self.num_steps:
            self.num_tokens += record.num_emitted
            self.seconds += drafting_s + record.target_time_s + record.sampler_time_s
        self.num_steps += 1


@dataclass(frozen=True, slots=True)
class Stretch:
    """A measured round."""

    num_tokens: int
    """Tokens of the text with drafts."""

    plain_token_s: float
    """Seconds of a plain token."""

    drafting_s: float
    """Seconds of the text with drafts."""

    @property
    def plain_s(self) -> float:
        """Seconds that plain decoding would have taken for the same tokens."""
        return self.num_tokens * self.plain_token_s


class Rounds(DraftPolicy):
    """Alternates plain steps with a policy's own. The policy learns nothing from plain ones."""

    def __init__(self, policy: DraftPolicy) -> None:
        self._policy = policy
        self._plain = _Side()
        self._drafting = _Side()
        self._is_prefill = True
        self._stretches: list[Stretch] = []
        self._num_tokens = 0  # of the answer, without the prefill step's
        self._num_replay_read = 0  # tokens that replays before the next step have read
        self._long_reads_s = 0.0  # seconds of long reads

    @property
    def stretches(self) -> list[Stretch]:
        """The answer's stretches so far; the last may be short.

        Each has its part of the time of long reads.
        """
        # No division by 0 before the first token.
        read_s_per_token = self._long_reads_s / max(self._num_tokens, 1)
        stretches = []
        for stretch in (*self._stretches, *self._current_stretch()):
            read_s = read_s_per_token * stretch.num_tokens
            stretches.append(replace(stretch, drafting_s=stretch.drafting_s + read_s))
        return stretches

    @property
    def keeps_sizes(self) -> bool | None:
        return self._policy.keeps_sizes

    def reset(self) -> None:
        self._policy.reset()

    def pause_left(self, proposer: int) -> int:
        return self._policy.pause_left(proposer)

    def choose(self, context: PolicyContext) -> Decision | Replay:
        """No draft for a plain step; otherwise the policy's choice."""
        if self._is_plain:
            return Decision(None, draft_off=DraftOff.SET_TO_ZERO)
        return self._policy.choose(context)

    def replay(self, proposer: int, replay_scores: ReplayScores, seconds: float) -> None:
        """Let the policy learn from its replay, and count the tokens that were read for it."""
        self._num_replay_read += replay_scores.num_read
        self._policy.replay(proposer, replay_scores, seconds)

    def padded(self, num_tokens: int, limit: int) -> int:
        return self._policy.padded(num_tokens, limit)

    def estimate(self) -> PolicyEstimate | None:
        return self._policy.estimate()

    def learn(self, record: StepRecord) -> None:
        """Add a finished step to its side of the round, and end the round if it is complete."""
        if self._is_prefill:
            self._is_prefill = False
            self._policy.learn(record)
            return
        self._num_tokens += record.num_emitted
        if self._is_plain:
            self._plain.add(record, record.draft_time_s)
            return
        drafting_s = record.draft_time_s + record.replay_s
        if self._num_replay_read + record.num_read > _LONG_READ:
            self._long_reads_s += drafting_s
            drafting_s = 0.0
        self._num_replay_read = 0
        self._drafting.add(record, drafting_s)
        self._policy.learn(record)
        has_enough_steps = self._drafting.num_steps > _DRAFTING_STEPS
        if has_enough_steps and self._drafting.num_tokens >= _DRAFTING_TOKENS:
            self._stretches += self._current_stretch()
            self._plain = _Side()
            self._drafting = _Side()

    @property
    def _is_plain(self) -> bool:
        """Whether the next step of the round is a plain one."""
        return self._plain.num_steps < _PLAIN_STEPS

    def _current_stretch(self) -> list[Stretch]:
        """The current round's stretch; empty before a drafting step was counted."""
        plain = self._plain
        drafting = self._drafting
        if not drafting.num_tokens:
            return []
        plain_token_s = plain.seconds / plain.num_tokens
        return [Stretch(drafting.num_tokens, plain_token_s, drafting.seconds)]
