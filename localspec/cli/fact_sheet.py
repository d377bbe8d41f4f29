"""The results of a command, as text for people or as one JSON object for programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from localspec.cli.screen import in_flags, titled


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

    problems: list[Problem] = field(default_factory=list)

    values: dict[str, Any] = field(default_factory=dict)
    """The object that --json prints, by its keys."""

    def add(self, title: str, *lines: str, **values: Any) -> None:
        """Add facts in words, and their values."""
        self.facts.append((title, list(lines)))
        self.values |= values

    def add_problem(self, what: str, remedy: str) -> None:
        """Add what is wrong or could be better, and what to do about it."""
        self.problems.append(Problem(what, remedy))

    def text(self) -> str:
        """The facts, and then the problems."""
        paragraphs = [titled(self.facts)]
        for problem in self.problems:
            lines = [("Problem", [problem.what]), ("Remedy", [in_flags(problem.remedy)])]
            paragraphs.append(titled(lines))
        return "\n\n".join(paragraphs)
