"""Records the traces of tests/traces/: real answers to prompts of all kinds.

    python scripts/measure/record_traces.py PROMPTS OUT.jsonl TARGET [--draft DRAFT]

PROMPTS: a folder with humaneval.jsonl, mt-bench.jsonl and gsm8k-test.jsonl, as their projects
publish them. The prompts that the package has itself come on top. Half are answered greedily,
half at temperature 0.8. With --every 3 only every third prompt is asked.
tests/traces/README.md has the commands and the files.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import localspec
from localspec.checks.prompts import Task, built_in_tasks
from localspec.checks.trace import Trace, write_recording
from localspec.checks.trace_recorder import record_traces
from localspec.engine.engine import Engine
from localspec.isolated.watch import Watch
from localspec.sampling.params import SamplingParams

NUM_TOKENS = 160
# How many of each file, and each how many lines apart.
OF_HUMANEVAL, OF_MT_BENCH, OF_GSM8K = (11, 14), (10, 8), (7, 100)
SAMPLINGS = (
    SamplingParams(temperature=0),
    SamplingParams(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05),
)


def tasks(folder: Path) -> list[tuple[Task, SamplingParams]]:
    """The prompts, one of each kind after the other, and how each is answered."""
    code = [line["prompt"] for line in _lines(folder / "humaneval.jsonl", *OF_HUMANEVAL)]
    chat = [line["turns"][0] for line in _lines(folder / "mt-bench.jsonl", *OF_MT_BENCH)]
    sums = [line["question"] for line in _lines(folder / "gsm8k-test.jsonl", *OF_GSM8K)]
    complete = "Complete this function. Print the whole function.\n\n```python\n{}```"
    kinds: dict[str, list[Task]] = {}
    for task in (
        *built_in_tasks(),
        *(_task("code", complete.format(text)) for text in code),
        *(_task("chat", text) for text in chat),
        *(_task("arithmetic", text) for text in sums),
    ):
        kinds.setdefault(task.kind, []).append(task)
    return [
        (task, SAMPLINGS[(row + column) % 2])
        for row, of_each in enumerate(zip_longest(*kinds.values()))
        for column, task in enumerate(of_each)
        if task is not None
    ]


def _lines(path: Path, count: int, apart: int) -> list[dict[str, list[str]]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines[: count * apart : apart]]


def _task(kind: str, text: str) -> Task:
    return Task(kind, ({"role": "user", "content": text},))  # type: ignore[arg-type]


def record(engine: Engine, asked: list[tuple[Task, SamplingParams]], out: Path) -> None:
    """Write a trace of each task that the model can be asked; the file grows by the answer."""
    traces: list[Trace] = []
    for number, (task, sampling) in enumerate(asked):
        print(f"prompt {number + 1} of {len(asked)}", file=sys.stderr)
        if task.suits(engine):
            found = record_traces(
                engine,
                [task],
                asking={},
                samplings=[sampling],
                max_tokens=NUM_TOKENS,
                num_cost_rounds=0,
                seconds=None,
                watch=Watch(lambda _stage, _seconds_left: None),
            )
            traces += found.traces
            write_recording(out, replace(found, traces=traces))


def main() -> None:
    """Record and write."""
    parser = argparse.ArgumentParser(description="Records traces of real answers.")
    parser.add_argument("prompts", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--every", type=int, default=1)
    options = parser.parse_args()
    with localspec.load(
        target=options.target, draft=options.draft, context_length=4096, memory=False
    ) as engine:
        record(engine, tasks(options.prompts)[:: options.every], options.out)


if __name__ == "__main__":
    main()
