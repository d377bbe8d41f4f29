"""The results of a command, as text for people or as one JSON object for programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from localspec.cli.screen import in_flags, titled


class Severity(IntEnum):
    """How serious a problem is; the most serious has the lowest number."""

    BROKEN = 0
    """Something that the user wants does not work."""

    UNUSED_DEVICE = 1
    """A GPU or another device computes nothing."""

    SLOW_BUILD = 2
    """The build of llama.cpp computes more slowly than it could."""

    LIMITED = 3
    """Cores, memory or disk space are short, or a download is unfinished."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem, and what to do about it."""

    what: str
    remedy: str


@dataclass(slots=True)
class FactSheet:
    """Facts under titles, problems with their remedies, and the values for --json."""

    facts: list[tuple[str, list[str]]] = field(default_factory=list)
    """Titles with their lines. A title without lines is not shown."""

    _problems: list[tuple[Severity, Problem]] = field(default_factory=list)

    values: dict[str, Any] = field(default_factory=dict)
    """The object that --json prints, by its keys."""

    def add(self, title: str, *lines: str, **values: Any) -> None:
        """Add facts: lines for people under a title, and values for --json by their keys."""
        self.facts.append((title, list(lines)))
        self.values |= values

    def add_problem(self, severity: Severity, what: str, remedy: str) -> None:
        """Add what is wrong or could be better, and what to do about it."""
        self._problems.append((severity, Problem(what, remedy)))

    @property
    def problems(self) -> list[Problem]:
        """The problems, the most serious first; equally serious ones in the order of adding."""
        ranked = sorted(self._problems, key=lambda entry: entry[0])
        return [problem for _, problem in ranked]

    def text(self) -> str:
        """The text for people: the facts, then each problem with its remedy."""
        paragraphs = [titled(self.facts)]
        for problem in self.problems:
            lines = [("Problem", [problem.what]), ("Remedy", [in_flags(problem.remedy)])]
            paragraphs.append(titled(lines))
        return "\n\n".join(paragraphs)
