"""The interface of policies that choose the number of threads for the next step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from localspec.speculative.policy_api import StepRecord


@dataclass(frozen=True, slots=True)
class ThreadUse:
    """num_threads: of the target's decodes now; num_usable: the most that it could have.

    is_busy: whether it has fewer because other programs run on the machine, and not because
    more threads are no faster.
    """

    num_threads: int
    num_usable: int
    is_busy: bool


class ThreadPolicy(Protocol):
    """Chooses the number of threads."""

    def choose(self) -> int:
        """The number for the target's decodes in the next step; the models are set to it."""

    def learn(self, record: StepRecord) -> None:
        """Learn from a finished step."""

    def use(self) -> ThreadUse:
        """The present choice."""


@dataclass(frozen=True, slots=True)
class FixedThreads:
    """The number with which the models were opened."""

    num_threads: int

    def choose(self) -> int:
        return self.num_threads

    def learn(self, record: StepRecord) -> None:
        """A fixed number learns nothing."""

    def use(self) -> ThreadUse:
        return ThreadUse(self.num_threads, self.num_threads, is_busy=False)
