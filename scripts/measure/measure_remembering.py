"""Measures what drafting from memory gains on really trained models.

    python scripts/measure/measure_remembering.py FOLDER
    python scripts/measure/measure_remembering.py FOLDER --llama-server PATH --exact

FOLDER holds the model, by default Qwen2.5-Coder 1.5B; docs/performance.md says how to get it.

1. An agent works for twenty turns on four files of this repository: tool calls as JSON, edits
   that print a file again, tests. What the model prints becomes the file of later turns. Each
   turn is a conversation of its own, as after a compaction. Sides: plain; lookup, in the text
   alone; memory, of what was asked and answered before; with --llama-server its lookups, each
   in one server that stays up.
2. The same session again.
3. JSON by one schema: ten answers that are only remembered, then those that count.
4. Chat beside a million tokens of unrelated memory: this repository's text.

The sides answer at once, a token of each in turn, on shared weights, and greedily; llama-server
answers after them. Policies know nothing at first, and go on from answer to answer. Times are
those of all tokens but the first. Each part ends with its share of --minutes; what was measured
by then is printed as Markdown. Leave the machine alone meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "compare"))

from measure_real import TARGET
from real_text.agent import NUM_WARM, Session, chats, people, unrelated_texts
from real_text.servers import LOOKUPS, SERVER, Files, LlamaServer
from real_text.sides import PLAIN, Answered, Sides, Weights, target_options

from comparison.options import positive, run
from localspec.checks.prompts import Task
from localspec.engine.engine import Engine
from localspec.machine import num_usable_cores
from localspec.speculative.memory import MOST_REMEMBERED

_LOOKUP, _MEMORY = "lookup", "memory"
# Parts of the time at which the parts of the measurement end
_ENDS = (0.55, 0.75, 0.88, 1.0)


@dataclass(slots=True)
class Row:
    """What a part showed. tokens, seconds: of each side; same: answers that are plain's."""

    what: str
    num_answers: int = 0
    tokens: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    same: dict[str, int] = field(default_factory=dict)

    def add(self, sides: Sides, found: dict[str, Answered]) -> None:
        """Count the answers to a question."""
        self.num_answers += 1
        for name, each in found.items():
            self.tokens[name] = self.tokens.get(name, 0) + len(each.token_ids) - 1
            self.seconds[name] = self.seconds.get(name, 0.0) + each.seconds
            is_same = sides.are_same(each, found[PLAIN])
            self.same[name] = self.same.get(name, 0) + is_same

    def speed(self, name: str) -> float:
        """Tokens per second; 0 where none came."""
        seconds = self.seconds.get(name, 0.0)
        return self.tokens[name] / seconds if seconds else 0.0

    def lines(self) -> Iterator[str]:
        """Its lines of the table."""
        plain, lookup = self.speed(PLAIN), self.speed(_LOOKUP)
        for name in self.tokens:
            speed = self.speed(name)
            ratios = [f"{speed / each:.2f}" if each else "-" for each in (plain, lookup)]
            same = f"{self.same[name]} of {self.num_answers}"
            yield f"| {self.what} | {name} | {speed:.1f} | {' | '.join(ratios)} | {same} |"


@dataclass(slots=True)
class Measurement:
    """The parts, one after the other. servers: llama-servers that answer in the first."""

    weights: Weights
    servers: Sequence[LlamaServer]
    max_tokens: int
    minutes: float
    started_s: float = field(default_factory=time.perf_counter)
    rows: list[Row] = field(default_factory=list)

    def run(self) -> None:
        """Measure all parts, each within its share of the time."""
        with contextlib.closing(self._sides()) as sides:
            asked = self._session(sides)
            self._answer(Row("the same session again"), sides, asked, _ENDS[1])
        with contextlib.closing(self._sides()) as sides:
            before, after = people()[:NUM_WARM], people()[NUM_WARM:]
            self._answer(Row(f"JSON, the first {NUM_WARM} answers"), sides, before, _ENDS[2])
            self._answer(Row(f"JSON after {NUM_WARM} answers"), sides, after, _ENDS[2])
        with contextlib.closing(self._sides()) as sides:
            num_tokens = _remember(sides.engines[_MEMORY], unrelated_texts())
            what = f"chat beside {num_tokens} unrelated tokens"
            self._answer(Row(what), sides, chats(), _ENDS[3])

    def _sides(self) -> Sides:
        return Sides(self.weights, None, [PLAIN, _LOOKUP], [_MEMORY])

    def _session(self, sides: Sides) -> list[Task]:
        """The agent's session; returns what was asked, turn by turn."""
        row, session, asked = Row("an agent's session"), Session(), []
        kinds = {kind: Row(f"of it: {kind}") for kind in ("call", "edit", "test")}
        self.rows += [row, *kinds.values()]
        for kind, task in session.turns():
            if self._is_over(_ENDS[0]):
                break
            found = self._ask(sides, task, self.servers)
            for each in (row, kinds[kind]):
                each.add(sides, found)
            session.take(found[PLAIN].text)
            asked.append(task)
        return asked

    def _answer(self, row: Row, sides: Sides, tasks: Iterable[Task], end: float) -> None:
        self.rows.append(row)
        for task in tasks:
            if self._is_over(end):
                break
            row.add(sides, self._ask(sides, task, ()))

    def _ask(
        self, sides: Sides, task: Task, servers: Sequence[LlamaServer]
    ) -> dict[str, Answered]:
        found = sides.answer(task, sides.names, max_tokens=self.max_tokens, temperature=0.0)
        prompt = sides.prompt(task)
        for server in servers:
            found[server.name] = server.answer(
                prompt, task, max_tokens=self.max_tokens, temperature=0.0
            )
        speeds = (f"{name} {each.tokens_per_s or 0.0:.1f}" for name, each in found.items())
        print(f"{time.perf_counter() - self.started_s:.0f} s: {', '.join(speeds)}",
              file=sys.stderr, flush=True)  # fmt: skip
        return found

    def _is_over(self, share: float) -> bool:
        return time.perf_counter() - self.started_s > share * 60 * self.minutes


def _remember(engine: Engine, texts: Iterable[str]) -> int:
    """Remember texts until the memory is nearly full; returns their tokens."""
    num_tokens = 0
    for text in texts:
        tokens = engine.tokenize(text)
        if num_tokens + len(tokens) > 0.99 * MOST_REMEMBERED:
            break
        engine.remember(tokens)
        num_tokens += len(tokens)
    return num_tokens


def measure(asked: argparse.Namespace) -> None:
    """Do what the command line asks for."""
    target = asked.folder / asked.target
    threads = asked.threads or num_usable_cores()
    with contextlib.ExitStack() as undo:
        # What is measured here does not stay.
        folder = undo.enter_context(tempfile.TemporaryDirectory())
        os.environ["XDG_CACHE_HOME"] = folder
        weights = Weights(target, target_options(asked.ctx, asked.threads, exact=asked.exact))
        undo.callback(weights.close)
        servers = []
        if asked.llama_server is not None:
            files = Files(asked.llama_server, target, None, asked.ctx, threads)
            names = [f"{SERVER}-ngram-{kind}" for kind in asked.lookups]
            servers = [undo.enter_context(LlamaServer(name, files)) for name in names]
        measurement = Measurement(weights, servers, asked.tokens, asked.minutes)
        with contextlib.suppress(KeyboardInterrupt):
            measurement.run()
    print("| what | side | tokens/s | ÷ plain | ÷ lookup | answers that are plain's |")
    print("|---|---|---|---|---|---|")
    for row in measurement.rows:
        for line in row.lines():
            print(line)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = [name.removeprefix(f"{SERVER}-ngram-") for name in LOOKUPS]
    add = parser.add_argument
    add("folder", type=Path, help="of the model")
    add("--target", default=TARGET, help="file in it (default: %(default)s)")
    add("--llama-server", type=Path, metavar="PATH", help="of the program")
    add("--lookups", nargs="+", choices=kinds, default=["simple", "map-k", "mod"],
        help="of llama-server (default: simple map-k mod)")  # fmt: skip
    add("--tokens", type=positive, default=160, help="of an answer (default: 160)")
    add("--minutes", type=float, default=20.0, help="after which it ends (default: 20)")
    add("--ctx", type=positive, default=2048, help="context in tokens (default: 2048)")
    add("--threads", type=positive, help="of each side (default: as localspec)")
    add("--exact", action="store_true", help="exact settings, see docs/lossless.md")
    run(parser, measure)


if __name__ == "__main__":
    main()
