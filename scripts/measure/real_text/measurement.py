"""Asks questions by kind of text, and records the answers.

The questions are of published sets in a folder, else the built-in tasks.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from localspec.errors import LocalspecError, OptionError
from localspec.evaluation.prompts import KindOfText, Task, built_in_tasks
from real_text.record import Figure, Record
from real_text.servers import Files, LlamaServer
from real_text.sides import PLAIN, Answered, Sides

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


@dataclass(frozen=True, slots=True)
class Plan:
    """The questions. prompts: a folder of published sets. write: the record's file."""

    kinds: Sequence[KindOfText]
    temperatures: Sequence[float]
    prompts: Path | None
    prompts_per_kind: int
    max_tokens: int
    minutes: float
    write: Path | None


@dataclass(slots=True)
class Measurement:
    """A measurement, with the record so far. servers: those that run at the same time."""

    plan: Plan
    sides: Sides
    servers: Sequence[Sequence[str]]
    files: Files | None
    record: Record
    ends_s: float = 0.0
    longest_s: float = 0.0

    def run(self) -> None:
        """Ask a question of each kind at each temperature, then another one of each …

        Until all are asked, or the next one might take longer than there is time. Raises
        OptionError for a file of prompts that is none.
        """
        plan = self.plan
        self.ends_s = time.perf_counter() + 60 * plan.minutes
        most = plan.prompts_per_kind
        questions = [questions_of(kind, plan.prompts, most) for kind in plan.kinds]
        self.sides.learn()
        groups = range(len(self.servers))
        for number, temperature, group in itertools.product(
            range(most), plan.temperatures, groups
        ):
            # Started anew: one of their lookups remembers the answers to other questions.
            with self._started(self.servers[group]) as servers:
                for of_kind in questions:
                    if time.perf_counter() + self.longest_s > self.ends_s:
                        return
                    if number < len(of_kind):
                        self._ask(of_kind[number], temperature, servers, is_first=group == 0)

    @contextlib.contextmanager
    def _started(self, names: Sequence[str]) -> Iterator[Mapping[str, LlamaServer]]:
        with contextlib.ExitStack() as undo:
            started = {}
            for name in names:
                assert self.files is not None
                started[name] = undo.enter_context(LlamaServer(name, self.files))
            yield started

    def _ask(
        self,
        question: Question | None,
        temperature: float,
        servers: Mapping[str, LlamaServer],
        *,
        is_first: bool,
    ) -> None:
        """Ask a question, and what follows its answer; a refusal is told, and passed over.

        is_first: whether the sides here have not answered it yet.
        """
        while question is not None:
            started = time.perf_counter()
            try:
                self.sides.check(question.task)
                names = self.sides.names if is_first else (PLAIN,)
                rounds = []
                if len(names) > 1 or not servers:
                    rounds.append(self._answers_here(question, temperature, names))
                if servers:
                    rounds.append(self._answers_of_servers(question, temperature, servers))
            except LocalspecError as error:
                print(f"{question.name} is left out: {error}", file=sys.stderr)
                return
            for number, found in enumerate(rounds):
                self._note(question, temperature, found, is_first=is_first and number == 0)
            self.longest_s = max(self.longest_s, time.perf_counter() - started)
            question = question.after(rounds[0][PLAIN].text)

    def _answers_here(
        self, question: Question, temperature: float, names: Sequence[str]
    ) -> dict[str, Answered]:
        return self.sides.answer(
            question.task, names, max_tokens=self.plan.max_tokens, temperature=temperature
        )

    def _answers_of_servers(
        self, question: Question, temperature: float, servers: Mapping[str, LlamaServer]
    ) -> dict[str, Answered]:
        """Another one is first each time."""
        prompt = self.sides.prompt(question.task)
        most = self.plan.max_tokens
        order = [PLAIN, *servers]
        first = len(self.record.figures) % len(order)
        found = {}
        for name in (*order[first:], *order[:first]):
            if name == PLAIN:
                found |= self._answers_here(question, temperature, [PLAIN])
            else:
                found[name] = servers[name].answer(
                    prompt, question.task, max_tokens=most, temperature=temperature
                )
        return {name: found[name] for name in order}

    def _note(
        self,
        question: Question,
        temperature: float,
        found: Mapping[str, Answered],
        *,
        is_first: bool,
    ) -> None:
        """Record answers that took turns, and tell them. Plain decoding's counts once."""
        plain = found[PLAIN]
        figures = [
            Figure(
                kind=question.task.kind,
                question=question.name,
                temperature=temperature,
                side=name,
                num_tokens=len(each.token_ids),
                tokens_per_s=each.tokens_per_s,
                ratio=each.speed_against(plain),
                drafted=each.drafted,
                accepted=each.accepted,
                is_same=None if temperature else self.sides.are_same(each, plain),
            )
            for name, each in found.items()
        ]
        self.record.figures += figures if is_first else figures[1:]
        if self.plan.write is not None:
            self.record.write(self.plan.write)
        rate, *ratios = (
            f"{each.side} {'-' if shown is None else f'{shown:.2f}'}"
            for each in figures
            for shown in [each.tokens_per_s if each.side == PLAIN else each.ratio]
        )
        left = max(self.ends_s - time.perf_counter(), 0.0) / 60
        print(
            f"{question.name}, temperature {temperature:g}: {rate} tokens/s; "
            f"{', '.join(ratios)} ({left:.1f} minutes left)",
            file=sys.stderr,
            flush=True,
        )
