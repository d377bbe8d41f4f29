"""What is asked, by kind of text: published sets from a folder, else the built-in tasks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from localspec.checks.prompts import KindOfText, Task, built_in_tasks
from localspec.errors import OptionError

# Prime, so that the first few of a set are from all its parts, and more keep those.
_STRIDE = 61
_COMPLETE = "Complete this Python function. Give the whole function.\n\n```python\n{}```"


@dataclass(frozen=True, slots=True)
class Question:
    """A task, how it is called in tables, and what is asked after its answer, if anything."""

    name: str
    task: Task
    follow_up: str | None = None

    def after(self, answer: str) -> Question | None:
        """The question that follows that answer."""
        if self.follow_up is None:
            return None
        said = {"role": "assistant", "content": answer}
        asked = {"role": "user", "content": self.follow_up}
        task = replace(self.task, messages=(*self.task.messages, said, asked))
        return Question(f"{self.name}, second turn", task)


class _PublishedSet(NamedTuple):
    """A file of JSON lines, as it is published, and the turns of a line."""

    file: str
    name: str
    turns: Callable[[Mapping[str, Any]], Sequence[str]]


_PUBLISHED: dict[KindOfText, _PublishedSet] = {
    "code": _PublishedSet(
        "humaneval.jsonl", "HumanEval", lambda line: [_COMPLETE.format(line["prompt"])]
    ),
    "chat": _PublishedSet("mt-bench.jsonl", "MT-bench", lambda line: line["turns"]),
    "arithmetic": _PublishedSet("gsm8k-test.jsonl", "GSM8K", lambda line: [line["question"]]),
}


def questions_of(kind: KindOfText, folder: Path | None, most: int) -> list[Question]:
    """The first questions of a kind.

    Raises OptionError for a file that is no such set. What the folder lacks is built in.
    """
    published = _PUBLISHED.get(kind)
    if folder is None or published is None or not (folder / published.file).exists():
        tasks = [task for task in built_in_tasks() if task.kind == kind]
        return [Question(f"{kind} {n}", task) for n, task in enumerate(tasks[:most], 1)]
    path = folder / published.file
    try:
        lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        if not lines:
            raise ValueError("it is empty")
        places = [n * _STRIDE % len(lines) for n in range(min(most, len(lines)))]
        return [
            _question(f"{published.name} {place}", kind, published.turns(lines[place]))
            for place in places
        ]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise OptionError(
            f"{path} is no {published.name}: {error!r}",
            "Give the folder with the sets as they are published, as JSON lines.",
        ) from error


def _question(name: str, kind: KindOfText, turns: Sequence[str]) -> Question:
    task = Task(kind, ({"role": "user", "content": turns[0]},))
    return Question(name, task, turns[1] if len(turns) > 1 else None)
