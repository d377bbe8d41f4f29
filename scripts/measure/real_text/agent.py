"""What an agent asks a model while it works on a small repository, made of this one's files."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from localspec.checks.prompts import Task

_ROOT = Path(__file__).parents[3]
# Beginnings of files that are small, and what is asked of them.
_FILES = {
    "tests/examples.py": ("num_examples", "examples_to_draw", 16),
    "tests/engines.py": ("SharedEngine", "EngineForTests", 34),
    "tests/toy_constraint.py": ("ToyConstraint", "SmallConstraint", 36),
    "docs/index.md": ("localspec", "LocalSpec", 20),
}
_SYSTEM = (
    "You are a coding agent. You work on a repository with these files: "
    f"{', '.join(_FILES)}. When you are asked to change a file, print all of it in one code "
    "block, and nothing else."
)
_CALL = {
    "type": "object",
    "properties": {
        "tool": {"enum": ["read_file", "write_file", "run_tests"]},
        "path": {"enum": list(_FILES)},
        "reason": {"type": "string", "maxLength": 80},
    },
    "required": ["tool", "path", "reason"],
    "additionalProperties": False,
}
_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer"},
        "city": {"type": "string", "maxLength": 40},
        "occupation": {"type": "string", "maxLength": 40},
        "is_employed": {"type": "boolean"},
    },
    "required": ["name", "age", "city", "occupation", "is_employed"],
    "additionalProperties": False,
}
_PEOPLE = (
    *("Anna Berg, 34, is a nurse in Oslo.", "In Porto lives Rui Costa, a retired baker of 71."),
    *("Mei Lin is 28 and designs bridges in Taipei.", "Tom Hale, 45, drives a bus in Leeds."),
    *("Sara Khan, a judge, is 52 and lives in Lahore.", "Jo Smit, 19, studies law in Delft."),
    *("Ivo Novak is an unemployed cook of 38 in Brno.", "Eva Ruiz, 61, paints in Seville."),
    *("Ali Demir, 40, repairs clocks in Izmir.", "Kim Park is 33, a pilot from Busan."),
    *("Lars Holm, 57, farms near Aarhus.", "Nora Weiss is 25 and teaches physics in Graz."),
    *("Dan Cole, 48, is a plumber in Perth.", "Yuki Mori, 30, sells books in Kyoto."),
)
NUM_WARM = 10  # of the people, after which answers count
_CHATS = (
    "My neighbour gave me a crate of quinces. What can I do with them?",
    "Explain to a teenager why the moon does not fall down.",
    "Write a letter to a landlord about a broken heater.",
)
_BLOCK = re.compile(r"```\w*\n(.*?)```", re.DOTALL)


class Session:
    """Turns of an agent, each a question of its own: a file as it stands, and a wish."""

    def __init__(self) -> None:
        self._files = {
            name: "\n".join((_ROOT / name).read_text("utf-8").splitlines()[:lines]) + "\n"
            for name, (_, _, lines) in _FILES.items()
        }
        self._asked = ""  # the file that is to be printed again

    def turns(self) -> Iterator[tuple[str, Task]]:
        """Twenty turns, each with the kind of what is asked. `take` the answer before the next.

        A read, two edits, a test and a call that writes, for every file.
        """
        for name, (old, new, _) in _FILES.items():
            yield "call", self._call(f"Which tool do you call to look at {name}?")
            yield "edit", self._edit(name, f"Rename {old} to {new}.")
            yield (
                "edit",
                self._edit(name, "Put a line with the word REVIEWED at its beginning."),
            )
            yield "test", self._about(name, "Write a short test, or a check, for this file.")
            yield (
                "call",
                self._call(f"You have changed {name}. Which tool do you call to save it?"),
            )

    def take(self, text: str) -> None:
        """The answer to the last turn; a whole file takes the place of the one before."""
        found = _BLOCK.search(text)
        if self._asked and found:
            self._files[self._asked] = found[1]

    def _edit(self, name: str, wish: str) -> Task:
        task = self._about(name, f"{wish} Print the whole file.")
        self._asked = name
        return task

    def _about(self, name: str, wish: str) -> Task:
        self._asked = ""
        return _task(f"{name}:\n```\n{self._files[name]}```\n{wish}")

    def _call(self, question: str) -> Task:
        self._asked = ""
        return _task(f"{question} Answer as JSON.", json_schema=_CALL)


def people() -> list[Task]:
    """Sentences to put into one form of JSON."""
    wish = "Write what this says as JSON: "
    return [_task(wish + each, json_schema=_PERSON) for each in _PEOPLE]


def chats() -> list[Task]:
    """Questions that have to do with nothing else here."""
    return [Task("chat", ({"role": "user", "content": each},)) for each in _CHATS]


def unrelated_texts() -> Iterator[str]:
    """Text of this repository, which no chat of those repeats."""
    paths = (sorted((_ROOT / name).rglob("*.*")) for name in ("localspec", "tests", "docs"))
    for path in itertools.chain(*paths):
        if path.suffix in (".py", ".md"):
            yield path.read_text("utf-8")


def _task(question: str, **keywords: Any) -> Task:
    roles = ({"role": "system", "content": _SYSTEM}, {"role": "user", "content": question})
    return Task("own", roles, keywords)
