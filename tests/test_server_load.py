"""Many clients at once, of all kinds, and processes that are killed: each client is told."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time

import httpx
import psutil
import pytest

CHAT = "/v1/chat/completions"
FEW = 8  # tokens of an answer, some events of every kind

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix"),
]


class Served:
    """`localspec serve` in a process of its own, on one port however often it is started."""

    def __init__(self, folder):
        self.port = 0
        self._folder = folder

    def start(self, *before):
        """before: a command that runs another one."""
        log = self._folder / f"{time.monotonic_ns()}.log"
        command = [*before, sys.executable, "-m", "localspec", "serve"]
        command += ["--port", str(self.port)]
        with log.open("wb") as stderr:
            started = subprocess.Popen(command, stderr=stderr, cwd=self._folder)
        self.process = psutil.Process(started.pid)
        self._started = started
        while "Listening on" not in log.read_text():
            assert started.poll() is None, log.read_text()
            time.sleep(0.02)
        self.url = log.read_text().partition("Listening on ")[2].split()[0]
        self.port = int(self.url.rpartition(":")[2])

    def child(self):
        """The process of the models."""
        return max(self.process.children(), key=lambda each: each.memory_info().rss)

    def kill(self):
        self._started.kill()
        self._started.wait()

    def told(self):
        """What a greedy answer says, in steps whose sizes no clock decides."""
        body = {**question(0), "temperature": 0, "draft_tokens": 3, "max_tokens": 60}
        response = httpx.post(self.url + CHAT, json=body, timeout=300)
        return response.json()["choices"][0]["message"]["content"]


@pytest.fixture
def served(tmp_path):
    made = Served(tmp_path)
    made.start()
    yield made
    made.kill()


def question(number):
    text = f"Tell me a story about {number % 10} foxes."
    return {"messages": [{"role": "user", "content": text}], "max_tokens": FEW}


def test_a_server_that_is_killed_leaves_nothing_and_starts_again(served):
    text = served.told()
    for number in (signal.SIGKILL, signal.SIGTERM):
        children = served.process.children()
        body = {**question(1), "stream": True, "ignore_eos": True, "max_tokens": 2000}
        with (
            contextlib.suppress(httpx.RemoteProtocolError, httpx.ReadError),
            httpx.stream("POST", served.url + CHAT, json=body, timeout=300) as response,
        ):
            lines = (line for line in response.iter_lines() if line)
            next(lines)
            served.process.send_signal(number)
            seen = list(lines)
            assert "the server is stopping" in seen[-1]  # there was time to say so
        served.kill()
        gone, alive = psutil.wait_procs(children, timeout=60)
        assert gone
        assert not alive
        served.start()
        assert served.told() == text
