"""Kills a server, or the process of its models, by -9 in each phase of its life.

What has to hold: no process is left, whoever was asking is told or cut off within a minute, and
the next answer, of the server itself or of one started anew on the same caches, is the one that
was told before.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
from fault_classes.tried import Tried
from soak_server import Server

PATIENCE_S = 60.0
CHAT = "/v1/chat/completions"
# Long enough for a file of its own (`CacheStore`).
LONG = "Tell me of a fox. " + " ".join(f"It met {n} owls on hill {n + 7}." for n in range(40))
_MOST_VAIN = 40  # tries, until each phase has a kill
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


def kill(process: psutil.Process | None) -> bool:
    """Kill it by -9; whether it was still alive."""
    with contextlib.suppress(psutil.NoSuchProcess):
        if process is not None and process.status() != psutil.STATUS_ZOMBIE:
            process.kill()
            return True
    return False


def _processes_of(home: Path) -> list[psutil.Process]:
    """Those of servers of that home, first the server itself."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it is gone
            if str(home) in process.cwd():
                found.append(process)
    return found


def end_all(home: Path) -> None:
    """Kill what servers of that home have left."""
    for process in _processes_of(home):
        kill(process)


def _ends(line: str) -> bool:
    """Whether an event has the reason for which its answer is whole."""
    data = line.removeprefix("data: ")
    if not data.startswith("{"):
        return False
    return any(choice.get("finish_reason") for choice in json.loads(data).get("choices", ()))


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
        began = time.monotonic()
        server = _started(home)
        self._start_s = time.monotonic() - began
        with client_of(server) as client:
            self._expected = answer_of(client, LONG)
        server.end(signal.SIGINT)

    def tries(self, seconds: float) -> Iterator[Tried]:
        """A row for each phase, of about the same number of tries; each counts its kills."""
        counts = dict.fromkeys(PHASES, 0)
        losses: dict[str, list[str]] = {phase: [] for phase in PHASES}
        until_s, number = time.monotonic() + seconds, 0
        while time.monotonic() < until_s or (
            number < _MOST_VAIN and not all(counts[each] or losses[each] for each in PHASES)
        ):
            phase = PHASES[number % len(PHASES)]
            try:
                chance = random.Random(f"{self._seed}/{number}")
                is_kill, fault = self._killed(phase, chance)
            except (Exception, SystemExit) as error:  # SystemExit: with a server's log
                is_kill, fault = False, f"{type(error).__name__}: {str(error)[-300:]!r}"
            counts[phase] += is_kill
            if fault:
                end_all(self._home)  # what it left disturbs no other
                losses[phase].append(f"kill {number} of seed {self._seed}, {phase}: {fault}")
            number += 1
        holds = "No process is left, nobody waits on, and the next answer is right"
        for phase in PHASES:
            what = f"kill -9 of the server, or of its models' process, while it is {phase}"
            yield Tried(what, holds, counts[phase], losses[phase])

    def _killed(self, phase: str, chance: random.Random) -> tuple[bool, str]:
        """Whether something was killed in that phase, and what went wrong, or ""."""
        if phase == "starting":
            is_kill, fault = self._while_starting(chance)
            return is_kill, fault or self._next_one()
        server, is_whole = _started(self._home), chance.random() < 0.5
        victim = server.process if is_whole else server.models_process()
        children = _children(server)
        if phase.startswith("being stopped"):
            with client_of(server) as client:
                said = answer_of(client, LONG)
            server.process.send_signal(signal.SIGINT)
            time.sleep(0.5 * chance.random())
            is_kill = kill(victim)
            fault = "" if said == self._expected else f"it answered {said!r}"
            return is_kill, fault or _end(server, children) or self._next_one()
        is_kill, fault = self._while_asked(server, victim, phase, chance)
        if not fault and not is_whole:
            with client_of(server) as client:
                fault = self._wrong(client)
        return is_kill, fault or _end(server, children) or self._next_one()

    def _while_starting(self, chance: random.Random) -> tuple[bool, str]:
        seen: list[psutil.Process] = []
        killed: list[bool] = []
        has_started = threading.Event()
        left_s, is_whole = self._start_s * chance.random(), chance.random() < 0.5

        def strike() -> None:
            if has_started.wait(left_s):
                return
            seen.extend(_processes_of(self._home))
            if seen:
                killed.append(kill(seen[0] if is_whole else seen[-1]))

        striker = threading.Thread(target=strike)
        striker.start()
        try:
            server = _started(self._home)
        except SystemExit as ended:  # with its log
            striker.join()
            if not any(killed):
                return False, f"it ended by itself: {str(ended)[-300:]!r}"
            left = psutil.wait_procs(seen, timeout=PATIENCE_S)[1]
            return True, "a process was left" if left else _traceback(str(ended))
        has_started.set()
        striker.join()
        return any(killed), _end(server, seen)

    def _while_asked(
        self, server: Server, victim: psutil.Process | None, phase: str, chance: random.Random
    ) -> tuple[bool, str]:
        text = f"{chance.random()} {LONG}"  # of which nothing is cached
        begun, told = threading.Event(), list[str]()

        def ask() -> None:
            with client_of(server) as client:
                body = {**asked(text, 200), "stream": True, "ignore_eos": True}
                is_whole = False
                try:
                    with client.stream("POST", CHAT, json=body) as response:
                        for line in response.iter_lines():
                            if "content" in line:
                                begun.set()
                            is_whole |= _ends(line)
                    told.append("answered" if is_whole else "refused")
                except httpx.TimeoutException:
                    told.append("hung")
                except httpx.TransportError:
                    told.append("cut")
                except Exception as error:
                    told.append(repr(error))

        asking = threading.Thread(target=ask)
        asking.start()
        if phase == "answering":
            begun.wait(PATIENCE_S)
            time.sleep(0.1 * chance.random())
        else:
            time.sleep(0.3 * chance.random())
        is_kill = kill(victim)
        asking.join(2 * PATIENCE_S)
        if not told or told[0] == "hung":
            return is_kill, "its client waited for ever"
        fault = "" if told[0] in ("answered", "refused", "cut") else f"its client got {told[0]}"
        return is_kill and told[0] != "answered", fault  # one that ended first was not hit

    def _next_one(self) -> str:
        server = _started(self._home)
        with client_of(server) as client:
            fault = self._wrong(client)
        return fault or server.end(signal.SIGINT) or _traceback(server.said().decode())

    def _wrong(self, client: httpx.Client) -> str:
        try:
            said = answer_of(client, LONG)
        except Exception as error:
            return f"the next question got {error!r}"
        return "" if said == self._expected else f"the next answer was {said!r}"


def _children(server: Server) -> list[psutil.Process]:
    try:
        return server.process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _traceback(log: str) -> str:
    where = log.find("Traceback")
    return "" if where < 0 else f"its log has {log[where:][-300:]!r}"
