"""Kills a server, or the process of its models, by -9 in each phase of its life.

What has to hold: no process is left, whoever was asking is told or cut off within a minute, and
the next answer, of the server itself or of one started anew on the same caches, is the one that
was told before.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
from fault_classes.tried import Tried
from soak_server import Server

PATIENCE_S = 60.0
CHAT = "/v1/chat/completions"
# Long enough for a file of its own (`CacheStore`).
LONG = "Tell me of a fox. " + " ".join(f"It met {n} owls on hill {n + 7}." for n in range(40))
PHASES = ("starting", "reading a prompt", "answering", "being stopped, so saving caches")


def asked(text: str, tokens: int) -> dict[str, object]:
    """The body of a greedy question."""
    message = {"role": "user", "content": text}
    return {"messages": [message], "temperature": 0, "max_tokens": tokens}


def answer_of(client: httpx.Client, text: str, tokens: int = 8) -> str:
    """The whole answer to it. Raises what httpx raises."""
    response = client.post(CHAT, json=asked(text, tokens)).raise_for_status()
    return str(response.json()["choices"][0]["message"]["content"])


def client_of(server: Server) -> httpx.Client:
    """A client that waits as long as anybody should have to."""
    return httpx.Client(base_url=server.url, timeout=PATIENCE_S, trust_env=False)


def _started(home: Path) -> Server:
    return Server("demo", home, parallel=2, exact=True)


def _kill(process: psutil.Process | None) -> None:
    if process is not None:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _end(server: Server, children: list[psutil.Process]) -> str:
    """Stop it, if it was not killed; what is wrong with what is left of it."""
    fault = server.end(signal.SIGINT)
    if psutil.wait_procs(children, timeout=PATIENCE_S)[1]:
        return "a process was left"
    return "" if fault.startswith("it ended with status -9") else fault


class Kills:
    """Kills in one phase after the other. home: with the caches of all these servers."""

    def __init__(self, home: Path, seed: int) -> None:
        self._home = home
        self._seed = seed
        server = _started(home)
        with client_of(server) as client:
            self._expected = answer_of(client, LONG)
        server.end(signal.SIGINT)

    def tries(self, seconds: float) -> Iterator[Tried]:
        """A row for each phase, of about the same number of kills."""
        counts = dict.fromkeys(PHASES, 0)
        losses: dict[str, list[str]] = {phase: [] for phase in PHASES}
        until_s, number = time.monotonic() + seconds, 0
        while number < len(PHASES) or time.monotonic() < until_s:
            phase = PHASES[number % len(PHASES)]
            fault = self._killed(phase, random.Random(f"{self._seed}/{number}"))
            counts[phase] += 1
            if fault:
                losses[phase].append(f"kill {number} of seed {self._seed}, {phase}: {fault}")
            number += 1
        holds = "No process is left, nobody waits on, and the next answer is right"
        for phase in PHASES:
            what = f"kill -9 of the server, or of its models' process, while it is {phase}"
            yield Tried(what, holds, counts[phase], losses[phase])

    def _killed(self, phase: str, chance: random.Random) -> str:
        """One kill; what went wrong, or ""."""
        if phase == "starting":
            return self._while_starting(chance) or self._next_one()
        server, is_whole = _started(self._home), chance.random() < 0.5
        victim = server.process if is_whole else server.models_process()
        children = _children(server)
        if phase.startswith("being stopped"):
            with client_of(server) as client:
                said = answer_of(client, LONG)
            server.process.send_signal(signal.SIGINT)
            time.sleep(0.5 * chance.random())
            _kill(victim)
            fault = "" if said == self._expected else f"it answered {said!r}"
            return fault or _end(server, children) or self._next_one()
        fault = self._while_asked(server, victim, phase, chance)
        if not fault and not is_whole:
            with client_of(server) as client:
                fault = self._wrong(client)
        return fault or _end(server, children) or self._next_one()

    def _while_starting(self, chance: random.Random) -> str:
        seen: list[psutil.Process] = []
        left_s, is_whole = 3.0 * chance.random(), chance.random() < 0.5

        def strike() -> None:
            time.sleep(left_s)
            for process in psutil.Process().children(recursive=True):
                with process.oneshot():
                    if str(self._home) in process.cwd():
                        seen.append(process)
            if seen:
                _kill(seen[0] if is_whole else seen[-1])

        striker = threading.Thread(target=_but_for_what_is_gone(strike))
        striker.start()
        try:
            server = _started(self._home)
        except SystemExit as ended:  # with its log
            striker.join()
            left = psutil.wait_procs(seen, timeout=PATIENCE_S)[1]
            return "a process was left" if left else _traceback(str(ended))
        striker.join()
        return _end(server, seen)

    def _while_asked(
        self, server: Server, victim: psutil.Process | None, phase: str, chance: random.Random
    ) -> str:
        text = f"{chance.random()} {LONG}"  # of which nothing is cached
        begun, told = threading.Event(), list[str]()

        def ask() -> None:
            with client_of(server) as client:
                body = {**asked(text, 200), "stream": True, "ignore_eos": True}
                try:
                    with client.stream("POST", CHAT, json=body) as response:
                        for line in response.iter_lines():
                            if "content" in line:
                                begun.set()
                    told.append("ended")
                except httpx.TimeoutException:
                    told.append("hung")
                except httpx.TransportError:
                    told.append("cut")

        asking = threading.Thread(target=ask)
        asking.start()
        if phase == "answering":
            begun.wait(PATIENCE_S)
            time.sleep(0.1 * chance.random())
        else:
            time.sleep(0.3 * chance.random())
        _kill(victim)
        asking.join(2 * PATIENCE_S)
        return "" if told and told[0] != "hung" else "its client waited for ever"

    def _next_one(self) -> str:
        server = _started(self._home)
        with client_of(server) as client:
            fault = self._wrong(client)
        return fault or server.end(signal.SIGINT) or _traceback(server.said().decode())

    def _wrong(self, client: httpx.Client) -> str:
        try:
            said = answer_of(client, LONG)
        except httpx.HTTPError as error:
            return f"the next question got {error!r}"
        return "" if said == self._expected else f"the next answer was {said!r}"


def _children(server: Server) -> list[psutil.Process]:
    try:
        return server.process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _but_for_what_is_gone(act: Callable[[], None]) -> Callable[[], None]:
    def acting() -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            act()

    return acting


def _traceback(log: str) -> str:
    where = log.find("Traceback")
    return "" if where < 0 else f"its log has {log[where:][-300:]!r}"
