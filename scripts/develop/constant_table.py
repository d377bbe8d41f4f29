"""Writes the table of constants of docs/policy.md: each, with the comment beside it.

    python scripts/develop/constant_table.py

A comment, behind a constant or above it, says what it means, and in brackets at its end the
scenarios of scripts/measure/policy_scenarios.py in which its value matters.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from marked_part import with_part

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/policy.md"
BEGIN, END = "<!-- table: scripts/develop/constant_table.py -->", "<!-- end of the table -->"
MODULES = ("acceptance", "adaptive", "budget", "prospect", "cost", "step_ratios", "threads")
NO_SCENARIO = "no scenario"
OF_THREADS = f"{NO_SCENARIO}: tests/test_threads.py"  # no scenario has several numbers of them


class Constant(NamedTuple):
    """One, as its module has it; scenarios: the words in brackets."""

    name: str
    value: str
    meaning: str
    scenarios: str


def constants(module: str) -> Iterator[Constant]:
    """All of a module that were chosen, and not computed from others."""
    source = (ROOT / f"localspec/policy/{module}.py").read_text("utf-8")
    for node in ast.parse(source).body:
        if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)):
            continue
        name, numbers = node.targets[0].id, node.value
        if isinstance(numbers, ast.Call) and ast.unparse(numbers.func) == "np.array":
            numbers = numbers.args[0]
        is_given = any(isinstance(part, ast.Constant) for part in ast.walk(numbers))
        is_computed = any(isinstance(part, ast.Call) for part in ast.walk(numbers))
        if name.isupper() and is_given and not is_computed:
            meaning, _, scenarios = _comment(source.splitlines(), node).partition("[")
            scenarios = scenarios.rstrip("]") or (OF_THREADS if module == "threads" else "")
            meaning = meaning.strip()
            meaning = meaning[:1].upper() + meaning[1:]
            yield Constant(name, ast.unparse(numbers), meaning, scenarios)


def _comment(lines: list[str], node: ast.Assign) -> str:
    """The comment after a line, or else the lines of comment above it."""
    beside = re.search(r"  # (.+)", lines[(node.end_lineno or 0) - 1])
    if beside:
        return beside[1]
    above = itertools.takewhile(lambda line: line[:1] == "#", lines[node.lineno - 2 :: -1])
    return " ".join(line[2:] for line in reversed(list(above)))


def table() -> str:
    """The table in Markdown, in the order of the code."""
    rows = [
        f"| `{one.name}` | `{one.value}` | {one.meaning} | {one.scenarios} |"
        for module in MODULES
        for one in constants(module)
    ]
    return "\n".join(("| constant | value | meaning | scenarios |", "|---|---|---|---|", *rows))


def page(text: str) -> str:
    """The page with the present table."""
    return with_part(text, BEGIN, END, f"\n\n{table()}\n\n")


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), encoding="utf-8")
