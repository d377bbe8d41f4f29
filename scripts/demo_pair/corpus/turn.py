"""A question with its answer, and the memory of a conversation."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from .grammar import say


@dataclass(frozen=True)
class Turn:
    """A user message and the answer to it; `short` is the answer of a terse speaker."""

    user: str
    answer: str
    short: str = ""

    def brief(self) -> str:
        """The short answer, or the first sentence of the full one."""
        if self.short:
            return self.short
        for mark in (". ", "! ", "? "):
            head, found, _ = self.answer.partition(mark)
            if found and len(head) > 12 and "\n" not in head:
                return head + mark.strip()
        return self.answer


@dataclass
class Memory:
    """Facts of this conversation that may be asked for again."""

    name: str = ""
    likes: dict[str, str] = field(default_factory=dict)


def turn_of(
    rng: Random, wording: Mapping[str, str], slots: Mapping[str, str], short: str = ""
) -> Turn:
    """A question and its answer, each in one of its wordings."""
    return Turn(say(rng, wording["ask"], slots), say(rng, wording["answer"], slots), short)
