"""Several answers at once from the server: who gets text when, and what goes wrong."""

from __future__ import annotations

import json
import threading

import httpx
import pytest

from gguf_maker import write_random_model
from server_runner import presets_of, running_server
from waiting import wait_until

pytestmark = pytest.mark.process

CHAT = "/v1/chat/completions"
NUM = 4
ANIMALS = ("fox", "owl", "bear", "hare")


def question(text):
    messages = [{"role": "user", "content": text}]
    return {"messages": messages, "temperature": 0, "draft_tokens": 3}


class Client(threading.Thread):
    """A streamed answer that is read in a thread. events: so far. gone: set to hang up."""

    def __init__(self, server, **fields):
        super().__init__()
        self.events, self.gone = [], threading.Event()
        self._url, self._body = server.url + CHAT, {"stream": True, **fields}
        self.start()

    def run(self):
        with (
            httpx.Client(timeout=300, trust_env=False) as client,
            client.stream("POST", self._url, json=self._body) as response,
        ):
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    self.events.append(json.loads(line.removeprefix("data: ")))
                if self.gone.is_set():
                    return

    def has_text(self):
        chosen = [event["choices"][0] for event in self.events if event.get("choices")]
        return any(each["delta"].get("content") for each in chosen)

    def hang_up(self):
        self.gone.set()
        self.join(60)
        assert not self.is_alive()


def test_four_are_answered_at_once_and_the_fifth_waits(tmp_path, demo_target):
    """By a model with a context that nobody waits for the end of."""
    path = write_random_model(tmp_path / "long.gguf", demo_target, context_length=131_072)
    with (
        presets_of(tmp_path, long=(path, 131_072)),
        running_server(presets=["long"], parallel=NUM) as server,
    ):
        endless = {"ignore_eos": True, "max_tokens": 100_000}
        asked = [Client(server, **question(f"A {each}!"), **endless) for each in ANIMALS]
        for client in asked:
            wait_until(client.has_text)
        assert server.client.get("/props").json()["total_slots"] == NUM
        body = {**question("Hi."), "max_tokens": 2, "stream": True}
        with server.client.stream("POST", CHAT, json=body) as fifth:
            assert fifth.headers["x-localspec-queue"] == "1"
            metrics = server.client.get("/metrics").text
            assert f"llamacpp:requests_processing {NUM}\n" in metrics
            assert "llamacpp:requests_deferred 1\n" in metrics
            asked[1].hang_up()
            assert fifth.read().decode().endswith("data: [DONE]\n\n")
        for client in (asked[0], *asked[2:]):
            seen = len(client.events)
            wait_until(lambda client=client, seen=seen: len(client.events) > seen + 3)
            client.hang_up()
        wait_until(lambda: "requests_processing 0\n" in server.client.get("/metrics").text)


def test_answers_to_one_request_are_given_at_once():
    """Each as if it had been asked for alone, and in the order of their numbers."""
    asked = question("Tell me a story about a fox.")
    asked |= {"temperature": 1.0, "seed": 5, "max_tokens": 60, "ignore_eos": True}
    with running_server(parallel=NUM, exact=True) as exact:
        alone = [exact.chat(**asked | {"seed": 5 + number}) for number in range(NUM)]
        expected = [each["choices"][0]["message"]["content"] for each in alone]
        whole = exact.chat(**asked, n=NUM)
        assert [each["message"]["content"] for each in whole["choices"]] == expected
        assert [each["index"] for each in whole["choices"]] == [*range(NUM)]
        assert whole["usage"]["prompt_tokens"] == alone[0]["usage"]["prompt_tokens"]
        client = Client(exact, **asked, n=NUM)
        client.join(300)
    choices = [event["choices"][0] for event in client.events if event.get("choices")]
    said = [each["index"] for each in choices if each["delta"].get("content")]
    assert said.index(NUM - 1) < len(said) - 1 - said[::-1].index(0)  # not behind the first
    for number in range(NUM):
        pieces = [
            each["delta"].get("content") or "" for each in choices if each["index"] == number
        ]
        assert "".join(pieces) == expected[number]
