"""Measures the cost of the server: the same answers from it and from an engine.

    python scripts/measure/measure_server.py --threads 1
    python scripts/measure/measure_server.py --target T.gguf --draft D.gguf

Needs `pip install 'localspec[server]' httpx`. Server and engine are processes of their own with
the same models, threads and number of draft tokens; this one is the server's client, which
reads every event of a streamed answer as JSON. They answer the same question in turn, and
another one is first each time. Prints a Markdown table: tokens/s from the question to the end,
which is the engine's where it alone is asked, the milliseconds until the first text, and by how
much the server is behind: medians, with the lowest and the highest. Leave the machine alone
meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import httpx

import localspec
from localspec.isolated.isolated_engine import IsolatedEngine
from localspec.presets.preset import Preset
from localspec.presets.presets import find_preset
from localspec.server.app import Limits, Server
from localspec.server.guard import AccessRules
from localspec.server.running import Runner, listen
from localspec.server.served_models import ServedModel, ServedModels

MESSAGES = [{"role": "user", "content": "Tell me a story about a fox."}]
CONTEXT_LENGTH = 2048


class Timed(NamedTuple):
    """Tokens of an answer, and seconds from the question to its first text and to its end."""

    num_tokens: int
    first_s: float
    total_s: float

    @property
    def rate(self) -> float:
        return self.num_tokens / self.total_s


Ask = Callable[[int], Timed]  # the seed


def be_engine(line: Connection, preset: Preset, options: dict[str, Any], threads: int) -> None:
    """The process of the engine: answers for every seed that comes."""
    with localspec.load(preset, num_threads=threads, memory=False) as engine:
        line.send(None)
        while (seed := line.recv()) is not None:
            started = time.perf_counter()
            first_s = 0.0
            stream = engine.generate(MESSAGES, seed=seed, **options)
            for piece in stream:
                if piece.text and not first_s:
                    first_s = time.perf_counter() - started
            total_s = time.perf_counter() - started
            line.send(Timed(len(stream.reply().token_ids), first_s, total_s))


def be_server(line: Connection, preset: Preset, threads: int) -> None:
    """The process of the server; it sends its port."""
    model = ServedModel(preset, None)
    model.engine = IsolatedEngine(preset, num_threads=threads, memory=False)
    server = Server(ServedModels([model], takes_any_name=True), Limits())
    app = server.app(AccessRules(keys=(), hosts=(), origins=()))
    with listen("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        Runner(app, lambda: line.send(port), server.stop).run(sockets=[listening])


@contextlib.contextmanager
def process(work: Callable[..., None], *arguments: Any) -> Iterator[Connection]:
    """The line to a process that has said something, until the block is left."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    started = context.Process(target=work, args=(there, *arguments))
    started.start()
    there.close()
    try:
        yield here
    finally:
        started.terminate()
        started.join()


def ask_server(client: httpx.Client, options: dict[str, Any], seed: int) -> Timed:
    """An answer as its client has it."""
    fields = {**options, "messages": MESSAGES, "seed": seed, "stream": True}
    fields["stream_options"] = {"include_usage": True}
    started = time.perf_counter()
    first_s, num_tokens = 0.0, 0
    with client.stream("POST", "/v1/chat/completions", json=fields) as response:
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if event["choices"]:
                if event["choices"][0]["delta"].get("content") and not first_s:
                    first_s = time.perf_counter() - started
            else:
                num_tokens = event["usage"]["completion_tokens"]
    return Timed(num_tokens, first_s, time.perf_counter() - started)


def ask_engine(line: Connection, seed: int) -> Timed:
    """An answer as the process of the engine has it."""
    line.send(seed)
    timed: Timed = line.recv()
    return timed


def in_turn(sides: Sequence[Ask], num_answers: int) -> list[list[Timed]]:
    """The answers of each side, to the same seeds."""
    answers: list[list[Timed]] = [[] for _ in sides]
    for seed in range(num_answers + 1):
        order = list(enumerate(sides))
        for index, ask in order if seed % 2 else order[::-1]:
            answers[index].append(ask(seed))
    return [each[1:] for each in answers]  # the first one has a prompt to read


def spread(values: Sequence[float], digits: int) -> str:
    """Median, lowest and highest."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f} … {high:.{digits}f})"


def row(engine: Sequence[Timed], server: Sequence[Timed]) -> str:
    """Of the table."""
    pairs = list(zip(engine, server, strict=True))
    cells = [
        spread([each.rate for each in engine], 0),
        spread([each.rate for each in server], 0),
        f"**{spread([theirs.rate / ours.rate for ours, theirs in pairs], 3)}**",
        spread([1000 * each.first_s for each in engine], 1),
        spread([1000 * each.first_s for each in server], 1),
        spread([1000 * (theirs.first_s - ours.first_s) for ours, theirs in pairs], 1),
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what the server costs.")
    add = parser.add_argument
    add("--target", type=Path, help="GGUF file (default: the demo pair)")
    add("--draft", type=Path, help="GGUF file")
    add("--threads", type=int, default=1, help="of each side (default: 1)")
    add("--draft-tokens", type=int, default=3, help="of each step (default: 3)")
    add("--max-tokens", type=int, default=256, help="of an answer (default: 256)")
    add("--answers", type=int, default=20, help="of each side (default: 20)")
    asked = parser.parse_args()
    preset = find_preset("demo")
    if asked.target is not None:
        draft = None if asked.draft is None else localspec.LocalModel(path=asked.draft)
        preset = Preset(
            name="measured",
            target=localspec.LocalModel(path=asked.target),
            draft=draft,
            context_length=CONTEXT_LENGTH,
        )
    options = {"max_tokens": asked.max_tokens, "ignore_eos": True, "temperature": 0.7}
    options["draft_tokens"] = asked.draft_tokens
    with (
        process(be_engine, preset, options, asked.threads) as engine,
        process(be_server, preset, asked.threads) as server,
    ):
        engine.recv()
        url = f"http://127.0.0.1:{server.recv()}"
        with httpx.Client(base_url=url, timeout=None, trust_env=False) as client:
            sides: list[Ask] = [
                lambda seed: ask_engine(engine, seed),
                lambda seed: ask_server(client, options, seed),
            ]
            answers = in_turn(sides, asked.answers)
    titles = ["engine, tokens/s", "server, tokens/s", "server ÷ engine"]
    titles += ["engine, first text, ms", "server, first text, ms", "later, ms"]
    print(f"| {' | '.join(titles)} |\n{'|---' * len(titles)}|")
    print(row(*answers))


if __name__ == "__main__":
    main()
