"""Compares two environments with localspec: the same work in each, in turn.

    python scripts/measure/ab.py OLD/bin/python NEW/bin/python --target T.gguf --draft D.gguf

Each kind of work runs in a process of its own, in both environments, another one first in each
round. Prints tokens/s and new ÷ old: medians, with the lowest and the highest.

- plain: the target alone. lookup: with what localspec drafts by itself. k4: with four tokens of
  the draft a step. All greedy, code.
- prompt: tokens of a prompt that are read a second.
- demo: stories of the demo pair, with the usual sampling and the same seeds. printed: the same,
  read by somebody who needs 1 ms for each piece.
- server1, server4: one client of `localspec serve`, and four at once.

Leave the machine alone meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

KINDS = ("plain", "lookup", "k4", "prompt", "demo", "printed", "server1", "server4")
CONTEXT = 2048
CHAT = "Explain in a few sentences why the sky is blue."
CODE = """Write this program again with type hints, and add a function standard_deviation.

def mean(values):
    total = 0
    for value in values:
        total += value
    return total / len(values)

def variance(values):
    middle = mean(values)
    total = 0
    for value in values:
        total += (value - middle) ** 2
    return total / len(values)
"""
HEROES = ("a fox", "an owl", "a lantern", "a bear", "a cat", "a boat")
START_S = 120.0


def engine_rates(kind: str, target: str, draft: str | None) -> list[float]:
    """Tokens/s of each answer of an engine, or of reading a prompt."""
    import localspec  # of the environment that runs this

    of_kind: dict[str, dict[str, Any]] = {
        "plain": {"target": target, "proposer": "none"},
        "lookup": {"target": target},
        "k4": {"target": target, "draft": draft, "draft_tokens": 4},
        "prompt": {"target": target, "proposer": "none"},
        "demo": {},
        "printed": {},
    }
    with localspec.load(**of_kind[kind], context_length=CONTEXT) as engine:

        def rate(prompt: str, max_tokens: int, **keywords: Any) -> float:
            started = time.perf_counter()
            pieces = engine.generate(prompt, max_tokens=max_tokens, **keywords)
            for _ in pieces if kind == "printed" else ():
                time.sleep(0.001)
            answer = pieces.reply()
            counted = answer.stats.prompt_tokens if kind == "prompt" else len(answer.token_ids)
            return counted / (time.perf_counter() - started)

        rate("Say hello.", 16, temperature=0)  # it has met the machine
        if kind in ("demo", "printed"):
            stories = [f"Tell me a story about {hero}." for hero in HEROES]
            return [rate(story, 200, seed=1) for story in stories]
        if kind == "prompt":
            return [rate(" ".join(f"word{n}" for n in range(160)), 1, temperature=0)]
        return [rate(CODE, 128, temperature=0)]


def server_rates(target: str, num_clients: int) -> list[float]:
    """Tokens/s of all clients' answers together."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "localspec", "serve", target, "--port", str(port)]
    command += ["--ctx", str(CONTEXT), "--parallel", "4", "--cache-disk", "0"]

    def num_answered(question: str, max_tokens: int) -> int:
        messages = [{"role": "user", "content": question}]
        body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0}
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        header = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, json.dumps(body).encode(), header)
        with urllib.request.urlopen(request) as response:
            return int(json.load(response)["usage"]["completion_tokens"])

    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_S
        while server.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                num_answered("Say hello.", 4)
                break
            time.sleep(0.2)
        questions = [f"{CHAT} Say it for reader {number}." for number in range(num_clients)]
        started = time.perf_counter()
        with ThreadPoolExecutor(num_clients) as clients:
            num_tokens = sum(clients.map(num_answered, questions, [64] * num_clients))
        return [num_tokens / (time.perf_counter() - started)]
    finally:
        server.terminate()
        server.wait()


def rates_in(python: str, kind: str, asked: argparse.Namespace) -> list[float]:
    """The rates that this file measures when that environment runs it."""
    files = [str(path.absolute()) for path in (asked.target, asked.draft) if path]
    command = [python, str(Path(__file__).absolute()), "--child", kind, *files]
    # Not here, where a folder localspec/ could be imported.
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True
        )
    rates: list[float] = json.loads(done.stdout.splitlines()[-1])
    return rates


def child(kind: str, target: str = "", draft: str | None = None) -> None:
    """Print the rates of a kind of work as JSON."""
    if kind.startswith("server"):
        rates = server_rates(target, int(kind.removeprefix("server")))
    else:
        rates = engine_rates(kind, target, draft)
    print(json.dumps(rates))


def shown(values: Sequence[float]) -> str:
    """Median, lowest and highest."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} … {max(values):.2f})"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("old", help="the Python of an environment with localspec")
    add("new", help="the Python of another one")
    add("--target", type=Path, help="GGUF file; all kinds but demo and printed need it")
    add("--draft", type=Path, help="GGUF file; k4 needs it")
    add("--kinds", nargs="+", choices=KINDS, default=KINDS, help="default: all")
    add("--rounds", type=int, default=3, help="default: 3")
    asked = parser.parse_args()
    if asked.target is None and not set(asked.kinds) <= {"demo", "printed"}:
        parser.error("all kinds but demo and printed need --target")
    if asked.draft is None and "k4" in asked.kinds:
        parser.error("k4 needs --draft")
    print("| work | old, tokens/s | new, tokens/s | new ÷ old |\n|---|---|---|---|")
    for kind in asked.kinds:
        old = list[float]()
        new = list[float]()
        for number in range(asked.rounds):
            order = [(asked.old, old), (asked.new, new)]
            for python, rates in order[:: -1 if number % 2 else 1]:
                rates += rates_in(python, kind, asked)
        ratios = [after / before for before, after in zip(old, new, strict=True)]
        print(f"| {kind} | {shown(old)} | {shown(new)} | {shown(ratios)} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        main()
