"""What bounds drafts from memory, by counts: no decode is timed.

    python scripts/measure/count_remembering.py MODEL ANSWERS.jsonl --record
    python scripts/measure/count_remembering.py MODEL ANSWERS.jsonl

First the model answers what measure_remembering.py asks, greedily, and the answers are kept.
Then each is followed through the real loop at the costs of a decode that --costs gives: v(1),
v(2) … of one token's, with lines between the sizes. Four ways of drafting, each better informed
than the next:

- any: of all that was asked and answered so far, the tokens that agree longest with what comes;
- matched: the same, but only behind places where the last two tokens stood;
- ended: what the lookup proposes, as far as it comes true;
- policy: the same, ended by the automatic policy, which does not know what comes.

For each: tokens per second ÷ plain decoding's, and tokens a step.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from real_text.agent import NUM_WARM, Session, people
from simulated import Clock

import localspec
from localspec.checks.prompts import Task
from localspec.constraints.guidance import Guide
from localspec.constraints.spec import constraint_spec
from localspec.constraints.spelling import Spelling
from localspec.engine.arguments import question_messages
from localspec.engine.engine import Engine
from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.sampling.chain import SamplerChain
from localspec.sampling.constraint import Constraint
from localspec.sampling.distribution import CERTAIN, Distribution, Logits
from localspec.sampling.params import SamplingParams
from localspec.speculative.forced import Forced
from localspec.speculative.lookup import Lookup
from localspec.speculative.loop import Request, SpeculativeDecoder
from localspec.speculative.memory import GAP, TextMemory
from localspec.speculative.metrics import Step
from localspec.speculative.policy_api import (
    CERTAIN_CONFIDENCE,
    MAX_DRAFT_TOKENS,
    UpTo,
)
from localspec.speculative.prefix import common_length
from localspec.speculative.randomness import Randomness
from localspec.speculative.rules import make_rule
from localspec.speculative.thread_policy import FixedThreads
from localspec.streaming.cancellation import never
from localspec.streaming.options import AnswerOptions

_GREEDY = SamplingParams(temperature=0)
_COSTS = {1: 1.0, 2: 1.75, 3: 2.11, 4: 2.57, 5: 3.17, 16: 7.7}
_FLAT = {1: 1.0, 17: 1.05}
_MATCHED = 2  # tokens


class Recorded(NamedTuple):
    """An answer. kind: of its question. schema: JSON; empty of free text."""

    kind: str
    prompt: list[int]
    answer: list[int]
    schema: str


class Sums(NamedTuple):
    """Tokens behind the first of each answer, what they cost, and in how many steps."""

    tokens: int
    cost: float
    steps: int

    def __str__(self) -> str:
        if not self.steps:
            return "-"
        return f"{self.tokens / self.cost:.2f} / {self.tokens / self.steps:.1f}"


def record(engine: Engine, path: Path, max_tokens: int) -> None:
    """Write the answers, each as soon as it is there."""
    with path.open("w", encoding="utf-8") as file:

        def ask(kind: str, task: Task) -> str:
            use = AnswerOptions.of(None, **task.keywords).tool_use(())
            messages = question_messages(task.messages, None)
            prompt = engine._make_prompt(messages, use, never, template=None, think=True)
            reply = task.ask(engine, max_tokens=max_tokens, temperature=0.0).reply()
            schema = task.keywords.get("json_schema")
            kept = Recorded(
                kind,
                list(prompt.tokens),
                list(reply.token_ids),
                json.dumps(schema) if schema else "",
            )
            file.write(json.dumps(kept) + "\n")
            file.flush()
            return reply.text

        session = Session()
        for kind, task in session.turns():
            session.take(ask(kind, task))
        for task in people():
            ask("json", task)


class _Known(SamplerChain):
    """Gives the recorded text, whatever the logits."""

    text: Sequence[int] = ()

    def distributions(
        self, rows: Logits, tokens: Sequence[int], draft_tokens: Sequence[int]
    ) -> list[Distribution]:
        places = range(len(tokens), len(tokens) + len(draft_tokens) + 1)
        return [
            Distribution(np.array([self.text[min(at, len(self.text) - 1)]]), CERTAIN)
            for at in places
        ]


class _Target:
    """Decodes take as long as the costs say, and give nothing."""

    vocab_size = 1
    context_length = max_rollback = 1 << 20
    max_outputs = MAX_DRAFT_TOKENS + 1
    num_cached = 0

    def __init__(self, clock: Clock, costs: Sequence[float]) -> None:
        self._clock, self._costs = clock, costs

    def decode(self, tokens: Sequence[int], num_logits: int) -> Logits:
        size = len(tokens)
        largest = len(self._costs) - 1
        self._clock.now += self._costs[min(size, largest)] * max(size / largest, 1.0)
        self.num_cached += size
        return np.zeros((num_logits, 1), np.float32)

    def truncate(self, num_cached: int) -> None:
        self.num_cached = num_cached

    def checkpoint(self) -> None:
        """Nothing to do: it comes back to anywhere."""


class Follower:
    """Follows answers through the real loop, as one engine would give them."""

    def __init__(self, engine: Engine, costs: Sequence[float], *, remembers: bool) -> None:
        self._is_end = engine.vocabulary.is_end
        self._engine, self._costs = engine, costs
        self._clock = Clock()
        self.lookup = Lookup(self._is_end, TextMemory() if remembers else None)
        proposers = [Forced(self._is_end), self.lookup]
        policy = AdaptiveDraftPolicy({each.kind: 0.0 for each in proposers}, 1)
        self._loop = SpeculativeDecoder(
            _Target(self._clock, costs), proposers, policy, FixedThreads(1), None, self._clock
        )
        spelling = Spelling(engine.vocabulary, engine._decoder.target.vocab_size)
        self._guide: Callable[[], Guide] = lambda: Guide(spelling)

    def chain(self, recorded: Recorded) -> _Known:
        """That of an answer, at its beginning."""
        constraint: Constraint | None = None
        if recorded.schema:
            guide = self._guide()
            self._guide = lambda: guide
            spec = constraint_spec(recorded.schema, None, None, None)
            assert spec is not None
            constraint = guide.constraint(spec)
        chain = _Known(_GREEDY, num_prompt_tokens=len(recorded.prompt), constraint=constraint)
        chain.text = recorded.prompt + recorded.answer
        return chain

    def follow(self, recorded: Recorded) -> tuple[Sums, list[Step]]:
        """The answer by the policy, from its second token on."""
        self._loop.truncate(0)
        self._loop.start(list(recorded.prompt))
        rule = make_rule(None, is_greedy=True, seed=None, randomness=Randomness(0))
        request = Request(self.chain(recorded), rule, len(recorded.answer), self._is_end)
        steps = self._loop.steps(request)
        next(steps)
        started = self._clock.now
        rest = list(steps)
        assert self._loop.tokens == recorded.prompt + recorded.answer
        return Sums(len(recorded.answer) - 1, self._clock.now - started, len(rest)), rest

    def ended(self, recorded: Recorded) -> Sums:
        """The answer by the lookup alone, ended where it turns wrong."""
        self.lookup.truncate(0)
        chain, text = self.chain(recorded), recorded.prompt + recorded.answer
        self.lookup.begin(chain)
        num_right = [0]
        for place in range(1, len(recorded.answer)):
            chain.commit(recorded.answer[place - 1 : place])
            at = len(recorded.prompt) + place
            drafted: list[int] = []
            if self.lookup.state(text[:at]).max_tokens:
                drafted = self.lookup.propose(
                    text[:at], UpTo(MAX_DRAFT_TOKENS), chain, lambda _, row: int(row.ids[0])
                ).draft_tokens
            num_right.append(common_length(drafted, text[at:]))
        return cheapest(num_right, self._costs)


def cheapest(num_right: Sequence[int], costs: Sequence[float]) -> Sums:
    """The cheapest steps through an answer, of which so many tokens can be drafted rightly.

    num_right: of each place; nothing is drafted at the first.
    """
    num_tokens = len(num_right)
    behind = [Sums(0, 0.0, 0)] * (num_tokens + 1)
    for place in range(num_tokens - 1, 0, -1):
        behind[place] = min(
            (
                Sums(num_tokens - place, costs[1 + count] + after.cost, 1 + after.steps)
                for count in range(min(num_right[place], num_tokens - place - 1) + 1)
                for after in [behind[place + count + 1]]
            ),
            key=lambda sums: sums.cost,
        )
    return behind[1] if num_tokens > 1 else behind[-1]


def copied(before: NDArray[np.int32], recorded: Recorded, matched: int) -> list[int]:
    """Of each place, the most tokens that any earlier place goes on with rightly.

    before: all earlier texts. matched: tokens that have to agree in front of such a place.
    """
    text = np.array([*before, *recorded.prompt, *recorded.answer], np.int32)
    found = [0]
    for place in range(len(text) - len(recorded.answer) + 1, len(text)):
        starts = np.arange(matched, place)
        for back in range(1, matched + 1):
            starts = starts[text[starts - back] == text[place - back]]
        count = 0
        while len(starts) and count < min(MAX_DRAFT_TOKENS, len(text) - place):
            starts = starts[text[starts + count] == text[place + count]]
            count += len(starts) > 0
        found.append(count)
    return found


def total(sums: Sequence[Sums]) -> Sums:
    """All together."""
    return Sums(*(sum(column) for column in zip(*sums, strict=True))) if sums else Sums(0, 0, 0)


def joined(steps: Sequence[Step]) -> str:
    """Which steps drafted what is forced, what is remembered, both, or nothing."""
    found: Counter[str] = Counter()
    for step in steps:
        forced = step.confidences.count(CERTAIN_CONFIDENCE)
        remembered = len(step.confidences) - forced
        names = [name for name, n in (("forced", forced), ("found", remembered)) if n]
        found[" and ".join(names) or "nothing"] += 1
    return ", ".join(f"{name} {number}" for name, number in found.most_common())


def count(
    engine: Engine, answers: Sequence[Recorded], num_known: int, costs: Sequence[float]
) -> Iterator[str]:
    """The cells of a row: of the answers behind the first num_known."""
    before, best = np.empty(0, np.int32), list[tuple[Sums, Sums]]()
    for each in answers:
        best.append(
            (
                cheapest(copied(before, each, 0), costs),
                cheapest(copied(before, each, _MATCHED), costs),
            )
        )
        before = np.array([*before, *each.prompt, *each.answer, GAP], np.int32)
    for column in range(2):
        yield str(total([sums[column] for sums in best[num_known:]]))
    for remembers in (True, False):
        follower = Follower(engine, costs, remembers=remembers)
        ended = [follower.ended(each) for each in answers]
        yield str(total(ended[num_known:]))
        follower = Follower(engine, costs, remembers=remembers)
        followed = [follower.follow(each) for each in answers][num_known:]
        yield str(total([sums for sums, _ in followed]))
        if remembers:
            steps = joined([step for _, steps in followed for step in steps])
    yield steps


def curve(text: str) -> list[float]:
    """v(0) … v(17) of "1:1 2:1.75 …"."""
    known = {int(size): float(cost) for size, cost in (e.split(":") for e in text.split())}
    slope = max(known.values()) / max(known)
    sizes = range(MAX_DRAFT_TOKENS + 2)
    inner = np.interp(sizes, sorted(known), [known[size] for size in sorted(known)])
    return [
        float(max(c, slope * n * (n > max(known)))) for n, c in zip(sizes, inner, strict=True)
    ]


def main() -> None:
    """Record, or count and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--tokens", type=int, default=160, help="of an answer, recorded")
    parser.add_argument("--costs", nargs="+", help="each such as '1:1 2:1.75 16:7.7'")
    asked = parser.parse_args()
    with localspec.load(target=asked.model, context_length=2048) as engine:
        assert isinstance(engine, Engine)
        if asked.record:
            record(engine, asked.answers, asked.tokens)
        lines = asked.answers.read_text("utf-8").splitlines()
        answers = [Recorded(*json.loads(line)) for line in lines]
        session = [each for each in answers if each.kind != "json"]
        forms = [each for each in answers if each.kind == "json"]
        parts = {
            f"session, {len(session)} turns": (session, 0),
            "the same again": (session * 2, len(session)),
            f"JSON after {NUM_WARM}": (forms, NUM_WARM),
        }
        defaults = [" ".join(f"{n}:{v}" for n, v in costs.items()) for costs in (_COSTS, _FLAT)]
        for costs in asked.costs or defaults:
            print(f"\nv(n) = {costs}\n")
            print("| what | any | matched | memory: ended | policy | lookup alone: ended "
                  "| policy | memory's steps drafted |")  # fmt: skip
            print("|---|---|---|---|---|---|---|---|")
            for name, (texts, num_known) in parts.items():
                cells = " | ".join(count(engine, texts, num_known, curve(costs)))
                print(f"| {name} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
