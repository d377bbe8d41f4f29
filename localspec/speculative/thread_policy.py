"""With how many threads the next step is computed: the interface of who decides that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from localspec.speculative.policy_api import StepRecord


@dataclass(frozen=True, slots=True)
class ThreadUse:
    """num_threads: of the target's decodes now; num_usable: that it could have.

    is_busy: whether it has fewer of them because something else runs on the machine, and not
    because more are no faster.
    """

    num_threads: int
    num_usable: int
    is_busy: bool


class ThreadPolicy(Protocol):
    """A policy of the number of threads."""

    def choose(self) -> int:
        """Of the target's decodes in the next step; the models are set to it."""

    def learn(self, record: StepRecord) -> None:
        """Take a finished step into account."""

    def use(self) -> ThreadUse:
        """What it has come to."""


@dataclass(frozen=True, slots=True)
class FixedThreads:
    """The number with which the models were opened."""

    num_threads: int

    def choose(self) -> int:
        return self.num_threads

    def learn(self, record: StepRecord) -> None:
        """See `ThreadPolicy.learn`."""

    def use(self) -> ThreadUse:
        return ThreadUse(self.num_threads, self.num_threads, is_busy=False)
