"""Measures what a restart of the server costs: a long prompt's first text before and after.

    python scripts/measure/measure_restart.py demo --tokens 1500
    python scripts/measure/measure_restart.py T.gguf --tokens 20000 --rounds 3

Needs `pip install 'localspec[server]' httpx`, on Linux or macOS. A server with an empty cache
folder of its own is asked to continue a prompt of so many tokens; then it is stopped by Ctrl-C,
or killed with -9 once its caches are on disk; another one is started on the folder and asked
the same. Both are asked a short question first, so that neither has to wake up. Prints a row of
Markdown for each round: the seconds to the first text before and after, their ratio, how many
tokens of the prompt were cached, the bytes on disk, and how long stopping took. Leave the
machine alone meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx

_WORDS = "The fox of the {} hill met {} owls and told {} of them what it had seen. "
_PATIENCE_S = 3600.0


class First(NamedTuple):
    """Seconds until the first text, and how many tokens of the prompt were cached."""

    seconds: float
    num_cached: int


class Server:
    """A server of a model on any port, with a cache folder of its own."""

    def __init__(self, model: str, context_length: int, folder: Path) -> None:
        self.folder = folder
        command = [sys.executable, "-m", "localspec", "serve", model, "--port", "0"]
        command += ["--ctx", str(context_length), "--cache-disk", "64GB"]
        self._process = subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "XDG_CACHE_HOME": str(folder), "HOME": str(folder)},
            start_new_session=True,
            cwd=folder,  # not where an uninstalled localspec lies
        )
        assert self._process.stderr is not None
        line = self._process.stderr.readline()
        if not line.startswith("Listening on "):
            raise SystemExit(line + self._process.stderr.read())
        self.client = httpx.Client(base_url=line.split()[2], timeout=None, trust_env=False)

    def prompt(self, num_tokens: int) -> list[int]:
        """A text of that many tokens, which repeats no sentence."""
        text = "".join(_WORDS.format(n, n + 7, n % 11) for n in range(num_tokens // 8))
        tokens: list[int] = self.client.post("/tokenize", json={"content": text}).json()[
            "tokens"
        ]
        return tokens[:num_tokens]

    def first(self, prompt: list[int]) -> First:
        """Ask to continue the prompt."""
        asked = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "stream": True}
        asked["stream_options"] = {"include_usage": True}
        started_s, first_s, num_cached = time.perf_counter(), 0.0, 0
        with self.client.stream("POST", "/v1/completions", json=asked) as response:
            for line in response.iter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line.removeprefix("data: "))
                if not first_s and has_text(event):
                    first_s = time.perf_counter() - started_s
                if usage := event.get("usage"):
                    num_cached = usage["prompt_tokens_details"]["cached_tokens"]
        return First(first_s, num_cached)

    def kept(self) -> list[Path]:
        """The files of caches."""
        return list(self.folder.rglob("*.caches"))

    def wait_until_kept(self) -> None:
        """Until the idle server has written a file."""
        give_up_s = time.monotonic() + _PATIENCE_S
        while not self.kept() and time.monotonic() < give_up_s:
            time.sleep(0.2)

    def end(self, number: signal.Signals) -> float:
        """Stop it by a signal, with -9 all of its processes; the seconds that it took."""
        started_s = time.perf_counter()
        self.client.close()
        if self._process.poll() is not None:
            return 0.0
        if number == signal.SIGKILL:
            os.killpg(self._process.pid, number)
        else:
            self._process.send_signal(number)
        self._process.communicate()
        return time.perf_counter() - started_s


def has_text(event: dict[str, Any]) -> bool:
    """Whether an event has a text, or ends one: while a prompt is read, empty pieces come."""
    return any(choice["text"] or choice["finish_reason"] for choice in event["choices"])


@contextlib.contextmanager
def running(model: str, context_length: int, folder: Path) -> Iterator[Server]:
    """A server, awake; it has ended behind the block."""
    server = Server(model, context_length, folder)
    try:
        server.first(server.prompt(16))
        yield server
    finally:
        server.end(signal.SIGKILL)


def measured(model: str, num_tokens: int, number: signal.Signals) -> str:
    """A row: a server that is ended by that signal, and one after it."""
    context_length = num_tokens + 64
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with running(model, context_length, folder) as server:
            prompt = server.prompt(num_tokens)
            before = server.first(prompt)
            if number == signal.SIGKILL:
                server.wait_until_kept()
            stop_s = server.end(number)
        num_bytes = sum(path.stat().st_size for path in server.kept())
        with running(model, context_length, folder) as server:
            after = server.first(prompt)
    return (
        f"| {number.name} | {len(prompt)} | {before.seconds:.2f} | {after.seconds:.2f} | "
        f"{after.seconds / before.seconds:.3f} | {after.num_cached} | "
        f"{num_bytes / 1e6:.0f} | {stop_s:.1f} |"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=1)
    asked = parser.parse_args(arguments)
    path = Path(asked.model)
    model = str(path.resolve()) if path.exists() else asked.model
    print("| ended by | tokens | before, s | after, s | ratio | cached | MB | stopping, s |")
    print("|---|---|---|---|---|---|---|---|")
    for _ in range(asked.rounds):
        for number in (signal.SIGINT, signal.SIGKILL):
            print(measured(model, asked.tokens, number), flush=True)


if __name__ == "__main__":
    main()
