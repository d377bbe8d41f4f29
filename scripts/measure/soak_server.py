"""Soaks a server: many clients, slow ones and ones that leave, kills and restarts.

    python scripts/measure/soak_server.py --minutes 10
    python scripts/measure/soak_server.py T.gguf --minutes 60 --clients 50

Needs `pip install 'localspec[server]' httpx psutil`, on Linux or macOS. First a server that
answers one question at a time tells each of some questions greedily. Half of the time another
one, with --parallel 4, answers clients of every protocol, which read whole answers, read them
slowly, or leave: its memory is to stay as it is. The other half, servers are started again and
again on the same caches; the process of their models is killed, and then they themselves, by
-9 or by Ctrl-C. With --exact, as every other server has, each whole answer has to be the one
that was told alone. Anything that no kill explains is a fault: an error, a stream that is cut,
a client that nobody answers, a process that is left. Prints counts, and the faults; with
faults, or if memory has grown by more than a twentieth, the exit code is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import httpx
import psutil
from soak_clients import PROTOCOLS, QUESTIONS, Told, ask

CACHE_DISK = "50MB"
LIFE_S = 20.0  # of a server that is killed
LOOK_S = 1.0  # between two looks at memory
MOST_GROWTH = 1.05
LEAST_CACHED = 256  # tokens: a short question has fewer, which are not worth a file
_SETTLED = 0.4  # of the calm time, after which memory is to stay as it is
_END_S = 60.0  # for a server to end, and its processes
_EXCUSED_S = 2.0  # after a kill, until everybody knows of it
_MOST_SHOWN = 20


class Server:
    """`localspec serve` on any port, with a home of its own. more: options."""

    def __init__(self, model: str, home: Path, *more: str, parallel: int, exact: bool) -> None:
        command = [sys.executable, "-m", "localspec", "serve", model, "--port", "0"]
        command += ["--cache-disk", CACHE_DISK, "--parallel", str(parallel)]
        command += ["--exact" if exact else "--no-exact", *more]
        own = {"XDG_CACHE_HOME": str(home), "HOME": str(home)}
        self._log = (home / f"{time.monotonic_ns()}.log").open("w+b")
        self._started = subprocess.Popen(
            command, stderr=self._log, env={**os.environ, **own}, cwd=home
        )
        self.process = psutil.Process(self._started.pid)
        while b"Listening on " not in (said := self.said()):
            if self._started.poll() is not None:
                self._log.close()
                raise SystemExit(said.decode())
            time.sleep(0.02)
        self.url = said.partition(b"Listening on ")[2].split()[0].decode()

    def said(self) -> bytes:
        """Its log."""
        return Path(self._log.name).read_bytes()

    def models_process(self) -> psutil.Process | None:
        """That of the models; None before one is started again."""
        found = self.process.children()
        return max(found, key=lambda each: each.memory_info().rss, default=None)

    def sizes(self) -> tuple[int, int]:
        """Resident bytes of the server and of the models' process."""
        models = self.models_process()
        return self.process.memory_info().rss, 0 if models is None else models.memory_info().rss

    def end(self, number: signal.Signals) -> str:
        """Stop it; what was wrong with that, or ""."""
        children = self.process.children(recursive=True)
        self._started.send_signal(number)
        try:
            status = self._started.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._started.kill()
            return f"it had not ended {_END_S:.0f} s after {number.name}"
        finally:
            self._log.close()
        if psutil.wait_procs(children, timeout=_END_S)[1]:
            return f"a process was left after {number.name}"
        is_wrong = number == signal.SIGINT and status != 0
        return f"it ended with status {status} after {number.name}" if is_wrong else ""


class Soak:
    """Counts what came of all requests. alone: what each question was told alone."""

    def __init__(self, model: str, home: Path, num_clients: int, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.sizes: list[tuple[int, int]] = []
        self._model, self._home, self._num_clients = model, home, num_clients
        self._chance = random.Random(seed)
        self._alone: dict[str, str] = {}
        self._is_exact = True
        self._disturbed_s = 0.0  # when a process was killed last

    def ask_alone(self) -> None:
        """Every question, one at a time."""
        server = Server(self._model, self._home, parallel=1, exact=True)
        with httpx.Client(base_url=server.url, timeout=None, trust_env=False) as client:
            for question in QUESTIONS:
                body = {**PROTOCOLS[0].body(question), "stream": False}
                answer = client.post(PROTOCOLS[0].path, json=body).raise_for_status().json()
                self._alone[question] = answer["choices"][0]["message"]["content"]
        self._note_end(server.end(signal.SIGINT))

    def live(self, seconds: float, number: signal.Signals, *, exact: bool, kills: int) -> None:
        """A server's life, ended by a signal. kills: of its models' process, on the way."""
        server = Server(self._model, self._home, parallel=4, exact=exact)
        self._is_exact = exact
        self.counts["servers"] += 1
        asyncio.run(self._life(server, seconds, number, kills))

    async def _life(
        self, server: Server, seconds: float, number: signal.Signals, kills: int
    ) -> None:
        is_over = asyncio.Event()
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=server.url, timeout=None, trust_env=False, limits=limits
        ) as client:
            clients = [
                asyncio.create_task(self._be_client(client, is_over, self._chance.random()))
                for _ in range(self._num_clients)
            ]
            until_s = time.monotonic() + seconds
            moments = sorted(until_s - seconds * self._chance.random() for _ in range(kills))
            while time.monotonic() < until_s:
                await asyncio.sleep(min(LOOK_S, seconds / 10))
                if moments and time.monotonic() >= moments[0]:
                    moments.pop(0)
                    self._kill_models(server)
                elif not kills:
                    self.sizes.append(server.sizes())
            is_over.set()
            self._disturbed_s = time.monotonic() + _END_S  # until it has ended
            self._note_end(await asyncio.to_thread(server.end, number))
            await asyncio.gather(*clients)
            self._disturbed_s = 0.0

    async def _be_client(
        self, client: httpx.AsyncClient, is_over: asyncio.Event, seed: float
    ) -> None:
        chance = random.Random(seed)
        while not is_over.is_set():
            started_s = time.monotonic()
            self._note(await ask(client, chance), started_s)

    def _kill_models(self, server: Server) -> None:
        models = server.models_process()
        if models is not None:
            self._disturbed_s = time.monotonic()
            models.kill()
            self.counts["kills of the models' process"] += 1

    def _note(self, told: Told, started_s: float) -> None:
        self.counts["requests"] += 1
        kind = told.kind
        if kind == "whole":
            is_same = told.text == self._alone[told.question]
            kind = "told as alone" if is_same else "told otherwise"
            kind += " (exact)" if self._is_exact else " (not exact)"
            if self._is_exact and not is_same:
                self.faults.append(f"{told.text!r} for {told.question[:40]!r}")
        elif kind == "hung":
            self.faults.append("a client that nobody answered")
        elif kind in ("error", "cut"):
            if self._disturbed_s + _EXCUSED_S < started_s:
                self.faults.append(f"{kind}: {told.why}")
            kind = "ended by a kill or a stop"
        self.counts[kind] += 1

    def _note_end(self, fault: str) -> None:
        if fault:
            self.faults.append(fault)

    def check_caches(self) -> None:
        """A last server finds what is on disk, and no more than may be there."""
        server = Server(self._model, self._home, parallel=1, exact=True)
        with httpx.Client(base_url=server.url, timeout=None, trust_env=False) as client:
            for question in QUESTIONS:
                body = {**PROTOCOLS[0].body(question), "stream": False}
                answer = client.post(PROTOCOLS[0].path, json=body).raise_for_status().json()
                cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
                if cached > LEAST_CACHED:
                    self.counts["long prompts found on disk"] += 1
                self._note(
                    Told("whole", question, answer["choices"][0]["message"]["content"]), 0.0
                )
        self._note_end(server.end(signal.SIGINT))

    def grown(self) -> tuple[float, float]:
        """Memory at the end of the calm time ÷ once it had settled: server, models."""
        settled = self.sizes[int(len(self.sizes) * _SETTLED) :]
        part = max(1, len(settled) // 5)
        means = [
            [sum(column) / len(some) for column in zip(*some, strict=True)]
            for some in (settled[:part], settled[-part:])
        ]
        (before, models_before), (after, models_after) = means
        return after / before, models_after / models_before


def soak(model: str, minutes: float, num_clients: int, seed: int) -> bool:
    """Run it and print what came of it; whether all is well."""
    with tempfile.TemporaryDirectory() as home:
        one = Soak(model, Path(home), num_clients, seed)
        one.ask_alone()
        calm_s = 30 * minutes
        one.live(calm_s, signal.SIGINT, exact=False, kills=0)
        end_s, exact = time.monotonic() + 30 * minutes, True
        while time.monotonic() < end_s:
            number = random.Random(seed + one.counts["servers"]).choice(
                (signal.SIGKILL, signal.SIGINT)
            )
            one.live(min(LIFE_S, calm_s), number, exact=exact, kills=1)
            exact = not exact
        one.check_caches()
        on_disk = sum(path.stat().st_size for path in Path(home).rglob("*.caches"))
    server, models = one.grown()
    print(", ".join(f"{number} {what}" for what, number in one.counts.items()))
    first, last = one.sizes[int(len(one.sizes) * _SETTLED)], one.sizes[-1]
    for name, ratio, before, after in zip(
        ("server", "models"), (server, models), first, last, strict=True
    ):
        sizes = f"{before / 1e6:.1f} → {after / 1e6:.1f} MB"
        print(f"memory of the {name}: {sizes}, {ratio:.3f} times")
    print(f"caches on disk: {on_disk / 1e6:.1f} MB of {CACHE_DISK}; {len(one.faults)} faults")
    for fault in one.faults[:_MOST_SHOWN]:
        print(f"- {fault}")
    return not one.faults and max(server, models) <= MOST_GROWTH


def main(arguments: Sequence[str] | None = None) -> None:
    """Soak as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    path = Path(asked.model)
    model = str(path.resolve()) if path.exists() else asked.model
    raise SystemExit(not soak(model, asked.minutes, asked.clients, asked.seed))


if __name__ == "__main__":
    main()
