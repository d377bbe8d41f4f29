"""Two contenders at the same work, in turn, and what came of it."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from comparison.contender import Answer, Contender, Request
from localspec.errors import LocalspecError

_WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Duel:
    """The two sides, and the temperature."""

    title: str
    ours: Contender
    theirs: Contender
    temperature: float


@dataclass(slots=True)
class Side:
    """Everything one contender answered, in order."""

    name: str
    answers: list[Answer] = field(default_factory=list)
    peak_bytes: int | None = None

    @property
    def speeds(self) -> list[float]:
        return [answer.tokens_per_s for answer in self.answers]

    @property
    def acceptance_rate(self) -> float | None:
        """Kept ÷ proposed, None if nothing was proposed."""
        drafted = sum(answer.num_drafted for answer in self.answers)
        return sum(answer.num_kept for answer in self.answers) / drafted if drafted else None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Both sides; their answers of the same index were given one right after the other."""

    title: str
    ours: Side
    theirs: Side

    @property
    def ratios(self) -> list[float]:
        """Our speed ÷ theirs, for each question of each round."""
        pairs = zip(self.ours.speeds, self.theirs.speeds, strict=True)
        return [ours / theirs for ours, theirs in pairs]

    @property
    def median_ratio(self) -> float:
        return statistics.median(self.ratios)


def fight(duel: Duel, prompts: Sequence[str], *, max_tokens: int, num_rounds: int) -> Outcome:
    """Load both, ask both everything num_rounds times, by turns first and second.

    Raises LocalspecError if one of them fails, answers with too few tokens to measure, or
    proposes nothing where it should.
    """
    ours, theirs = Side(duel.ours.name), Side(duel.theirs.name)
    with duel.ours, duel.theirs:
        order = [(duel.ours, ours), (duel.theirs, theirs)]
        warm_up = Request(prompts[0], _WARM_UP_TOKENS, duel.temperature, seed=0)
        for contender, _ in order:
            contender.answer(warm_up)
        for number in range(num_rounds):
            for prompt in prompts:
                request = replace(warm_up, prompt=prompt, max_tokens=max_tokens, seed=number)
                for contender, side in order:
                    side.answers.append(_checked(contender.answer(request), side.name))
                order.reverse()
            print(f"{duel.title}: round {number + 1} of {num_rounds}", file=sys.stderr)
    for contender, side in order:
        side.peak_bytes = contender.peak_bytes
        if contender.must_draft and side.acceptance_rate is None:
            raise LocalspecError(
                f"{side.name} proposed nothing", "Does the draft fit the target?"
            )
    return Outcome(duel.title, ours, theirs)


def _checked(answer: Answer, name: str) -> Answer:
    if answer.num_tokens < 2 or answer.tokens_per_s <= 0.0:
        raise LocalspecError(
            f"an answer of {name} has {answer.num_tokens} tokens, too few to measure",
            "Choose prompts that call for longer answers (--prompts, --chat).",
        )
    return answer
