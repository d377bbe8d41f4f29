"""Many clients at once, of all kinds, and processes that are killed: each client is told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time

import httpx
import psutil
import pytest

CHAT = "/v1/chat/completions"
NUM_CLIENTS = 50
NUM_ROUNDS = 16
FEW = 8  # tokens of an answer, some events of every kind
NUM_SETTLING = 8  # rounds until caches of all questions are kept
MOST_GROWTH = 4e6  # bytes; a leak of a question and its answer would be more

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


async def ask(client, number):
    """One client of some kind; a word for what came of it."""
    kind, asked = number % 7, question(number)
    if kind == 0:
        response = await client.post("/v1/messages", json=asked)
        return response.status_code == 200 and response.json()["stop_reason"] and "whole"
    if kind == 1:
        response = await client.post("/v1/messages/count_tokens", json=asked)
        return response.status_code == 200 and response.json()["input_tokens"] and "counted"
    if kind == 2:
        response = await client.post(CHAT, content=b'{"messages": [')
        return response.status_code == 400 and response.json()["error"]["code"] and "refused"
    path, ends = CHAT, ["data: [DONE]"]
    if kind == 3:
        path, ends = "/v1/responses", ["response.completed", "response.incomplete"]
        asked = {"input": asked["messages"], "max_output_tokens": FEW}
    if kind == 6:
        path, ends = "/api/chat", ['"done":true']
        asked = {"messages": asked["messages"], "options": {"num_predict": FEW}}
    async with client.stream("POST", path, json={**asked, "stream": True}) as response:
        seen = ""
        async for line in response.aiter_lines():
            seen = line or seen
            if kind == 4 and "delta" in line:
                return "hung up"
            if kind == 5:
                await asyncio.sleep(0.02)
        return any(end in seen for end in ends) and "streamed"


async def crowd(url, how_many, first=0):
    async with httpx.AsyncClient(
        base_url=url, timeout=300, trust_env=False, limits=httpx.Limits(max_connections=None)
    ) as client:
        return await asyncio.gather(*[ask(client, first + each) for each in range(how_many)])


def test_a_crowd_is_served_in_memory_that_stays_as_it_is(served):
    text = served.told()
    sizes = []
    for _ in range(NUM_ROUNDS):
        found = asyncio.run(crowd(served.url, NUM_CLIENTS))
        assert all(found), found
        assert set(found) == {"whole", "counted", "refused", "streamed", "hung up"}
        processes = served.process, served.child()
        sizes.append([each.memory_info().rss for each in processes])
    assert served.told() == text
    for before, after in zip(sizes[NUM_SETTLING - 1], sizes[-1], strict=True):
        assert after - before < MOST_GROWTH, sizes


def test_a_child_that_is_killed_is_an_error_of_those_it_answers(served):
    """In the midst of their answers, up to four; who waits gets one."""
    text = served.told()

    async def stream(client, is_begun):
        body = {**question(1), "stream": True, "ignore_eos": True, "max_tokens": 60}
        async with client.stream("POST", CHAT, json=body) as response:
            lines = []
            async for line in response.aiter_lines():
                is_begun.set()
                lines += [line] if line else []
        assert response.status_code in (200, 500)
        return (
            json.loads(lines[-1].removeprefix("data: "))["error"]
            if lines[-1] != "data: [DONE]"
            else None
        )

    async def use():
        async with httpx.AsyncClient(base_url=served.url, timeout=300) as client:
            errors = 0
            for _ in range(3):
                is_begun = asyncio.Event()
                asked = [asyncio.create_task(stream(client, is_begun)) for _ in range(8)]
                await is_begun.wait()
                served.child().kill()
                found = await asyncio.gather(*asked)
                errors += sum(each is not None for each in found)
                for error in filter(None, found):
                    assert error["type"] == "server_error"
            return errors

    assert 1 <= asyncio.run(use()) <= 3 * 4
    assert served.told() == text


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
