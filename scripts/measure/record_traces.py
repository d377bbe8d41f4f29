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
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from trace_file import Series, Trace, write_traces

import localspec
from localspec.checks.prompts import Task, built_in_tasks
from localspec.engine.engine import Engine
from localspec.sampling.distribution import Distribution
from localspec.sampling.params import SamplingParams
from localspec.speculative.loop import SpeculativeDecoder
from localspec.speculative.metrics import Step
from localspec.speculative.policy_api import (
    MAX_DRAFT_TOKENS,
    Decision,
    DraftOff,
    DraftPolicy,
    PolicyContext,
    ProposerKind,
    ProposerState,
    StepRecord,
    UpTo,
)
from localspec.speculative.prefix import common_length
from localspec.speculative.proposers import Proposer, chance

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
            traces.append(trace_of(engine, task, sampling))
            write_traces(out, engine.description, traces)


def trace_of(
    engine: Engine, task: Task, sampling: SamplingParams, num_tokens: int = NUM_TOKENS
) -> Trace:
    """The trace of the answer to a task, by an engine without a memory."""
    policy = engine._draft_policy
    with engine.exclusively() as loop:  # emptied, so that the answer reads its whole prompt
        recorder = _Recorder(loop)
        engine._draft_policy = recorder
    reply = task.ask(engine, sampling=sampling, max_tokens=num_tokens).reply()
    engine._draft_policy = policy
    num_prompt_tokens = reply.stats.prompt_tokens
    return recorder.trace(task.kind, num_prompt_tokens, is_greedy=sampling.is_greedy)


class _Proposed(NamedTuple):
    """What a proposer would have proposed in a step. row: its first token's distribution."""

    limit: int
    confidence: float
    row: Distribution
    tokens: list[int]


class _Recorder(DraftPolicy):
    """A policy that drafts nothing, and asks every proposer what it would have proposed."""

    def __init__(self, loop: SpeculativeDecoder) -> None:
        self._loop = loop
        self.begin()

    def begin(self) -> None:
        self._tokens: list[int] = []  # of the answer
        # Of each proposer, by place in the answer: the proposal, and its first token's chance.
        self._places: dict[ProposerKind, dict[int, tuple[_Proposed, float]]] = {
            proposer.kind: {} for proposer in self._loop.proposers
        }
        self._now: dict[ProposerKind, _Proposed] = {}

    def choose(self, context: PolicyContext) -> Decision:
        for proposer, state in zip(self._loop.proposers, context.states, strict=True):
            place = self._place(proposer, state) if state.max_tokens > 0 else None
            if place is not None:
                self._now[proposer.kind] = place
        return Decision(None, draft_off=DraftOff.SET_TO_ZERO)

    def _place(self, proposer: Proposer, state: ProposerState) -> _Proposed | None:
        limit = min(state.max_tokens, MAX_DRAFT_TOKENS)
        # A draft's next tokens are known from the next places, as long as it is right.
        most = 1 if proposer.kind is ProposerKind.DRAFT else limit
        chain = self._loop._chain
        assert chain is not None
        proposal = proposer.propose(self._loop.tokens, UpTo(most), chain, _likeliest)
        if not proposal.draft_tokens:
            return None
        return _Proposed(
            limit,
            proposal.confidences[0],
            proposal.distributions[0],
            proposal.draft_tokens,
        )

    def learn(self, record: StepRecord) -> None:
        assert isinstance(record, Step)
        token, row = record.tokens[0], record.distributions[0]
        for kind, place in self._now.items():
            judged = chance(place.row, token, row.prob(token))
            self._places[kind][len(self._tokens)] = place, judged
        self._now.clear()
        self._tokens += record.tokens

    def trace(self, kind: str, num_prompt_tokens: int, *, is_greedy: bool) -> Trace:
        """The trace of the answer that has just ended."""
        return Trace(
            kind,
            is_greedy,
            num_prompt_tokens,
            len(self._tokens),
            {
                proposer: self._series(proposer, places, is_greedy=is_greedy)
                for proposer, places in self._places.items()
                if places
            },
        )

    def _series(
        self,
        kind: ProposerKind,
        places: dict[int, tuple[_Proposed, float]],
        *,
        is_greedy: bool,
    ) -> Series:
        limits, accepted = ([0] * len(self._tokens) for _ in range(2))
        confidences, chances = ([0.0] * len(self._tokens) for _ in range(2))
        for index, (place, judged) in places.items():
            limits[index], confidences[index] = place.limit, place.confidence
            chances[index] = judged
            accepted[index] = common_length(place.tokens, self._tokens[index:])
        # A head's drawn tokens would be others, and a draft's follow from the chances.
        is_certain = kind in (ProposerKind.LOOKUP, ProposerKind.FORCED)
        has_accepted = is_certain or (is_greedy and kind is ProposerKind.HEAD)
        return Series(
            tuple(limits),
            tuple(confidences),
            tuple(chances),
            tuple(accepted) if has_accepted else (),
        )


def _likeliest(_index: int, row: Distribution) -> int:
    return int(row.ids[row.probs.argmax()])


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
