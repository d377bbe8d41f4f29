"""A model's answers: who waits, what is told meanwhile, and clients that go away."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import re
import threading
from types import SimpleNamespace

import httpx
import pytest

from gguf_maker import write_random_model
from localspec.presets.presets import find_preset
from localspec.server import answering, form
from localspec.server.answering import NewPiece, Service
from localspec.server.anthropic_messages import MessageForm
from localspec.server.app import Limits
from localspec.server.completions import ChatCompletion, Completion
from localspec.server.form import in_thread
from localspec.server.guard import BodyReader
from localspec.server.llama_completion import Infill, LlamaCompletion
from localspec.server.ollama import OllamaChat, OllamaGenerate
from localspec.server.refusal import RequestError
from localspec.server.responses import ResponseForm
from localspec.server.served_models import ServedModel, ServedModels
from localspec.speculative.metrics import Provenance
from localspec.streaming.reply import Piece
from server_runner import presets_of, running_server

CHAT = "/v1/chat/completions"
LONG = {"ignore_eos": True, "max_tokens": 2000}
QUESTION = [{"role": "user", "content": "Tell me a story about a fox."}]


@pytest.fixture(scope="module")
def server():
    """Five may wait, and are told so soon."""
    with running_server(limits=Limits(num_waiting=5, patience_s=0.05)) as running:
        running.chat(max_tokens=1)
        yield running


@pytest.fixture(scope="module")
def endless(tmp_path_factory, demo_target):
    """Of a model with a context that no test waits for the end of."""
    folder = tmp_path_factory.mktemp("config")
    path = write_random_model(folder / "long.gguf", demo_target, context_length=131_072)
    with presets_of(folder, long=(path, 131_072)), running_server(presets=["long"]) as running:
        running.chat(max_tokens=1)
        yield running


def streaming(server, **fields):
    body = {"messages": QUESTION, "stream": True, **fields}
    return server.client.stream("POST", CHAT, json=body)


def events_of(response):
    """An iterator over its events; where that is dropped, httpx hangs up."""
    for line in response.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


@pytest.mark.process
def test_who_comes_later_waits_and_who_comes_last_is_refused(server):
    with contextlib.ExitStack() as open_ones:
        events = []
        for position in range(6):
            response = open_ones.enter_context(streaming(server, **LONG))
            assert response.headers["x-localspec-queue"] == str(position)
            events.append(events_of(response))
            event = next(events[-1])
            assert event.get("queue_position", 0) == position
        refused = server.ask(CHAT, messages=QUESTION, stream=True)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "overloaded"
        assert int(refused.headers["retry-after"]) > 0
        for each in events[:-1]:
            each.close()
        while "queue_position" in event:
            event = next(events[-1])
        assert event["choices"]


@pytest.mark.process
@pytest.mark.parametrize(
    ("path", "fields", "failed"),
    [
        (CHAT, {"messages": 1}, '"code":"context_length_exceeded"'),
        ("/v1/completions", {"prompt": 1}, '"code":"context_length_'),
        ("/v1/responses", {"input": 1}, "event: response.failed"),
        ("/v1/messages", {"messages": 1}, "event: error"),
        ("/api/chat", {"messages": 1}, '{"error":'),
    ],
)
def test_who_waits_gets_events_and_what_goes_wrong_then_is_one(server, path, fields, failed):
    """The answer to a prompt that does not fit has begun by then, as far as HTTP knows."""
    text = "fox " * 4000
    messages = [{"role": "user", "content": text}]
    fields = dict.fromkeys(fields, messages if "messages" in fields else text)
    with streaming(server, **LONG) as running:
        events = events_of(running)
        next(events)
        body = {**fields, "stream": True}
        with server.client.stream("POST", path, json=body) as response:
            assert response.status_code == 200
            lines = response.iter_lines()
            seen = next(lines)
            while '"queue_position":1' not in seen:
                seen += next(lines)
            events.close()
            seen += "".join(lines)
    assert failed in seen
    assert "2048" in seen
    assert "[DONE]" not in seen


@pytest.mark.process
@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_client_that_goes_away_frees_the_engine(endless, is_streamed):
    """Whenever it goes: each time is another one."""
    options = {"ignore_eos": True, "max_tokens": 100_000}
    for number in range(10):
        if is_streamed:
            with streaming(endless, **options) as running:
                events = events_of(running)
                for _ in range(number + 1):
                    next(events)
        else:
            body = {"messages": QUESTION, **options}
            with pytest.raises(httpx.ReadTimeout):
                endless.client.post(CHAT, json=body, timeout=0.2)
        assert endless.chat(max_tokens=1)["choices"]


def test_a_cancellation_that_comes_as_what_is_waited_for_ends_is_not_lost():
    async def use():
        gate = asyncio.Event()

        async def receive():
            await gate.wait()
            return {"type": "http.request", "body": b"{}"}

        waiting = asyncio.create_task(BodyReader(1000, 60).read(receive))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        gate.set()  # the wait has ended, and the reader does not know yet
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(use())


def test_a_cancelled_call_in_a_thread_has_ended():
    """Else threads would pile up behind clients that ask and hang up."""

    async def use():
        gate, has_ended = threading.Event(), []

        def call():
            gate.wait()
            has_ended.append(True)

        waiting = asyncio.create_task(in_thread(call))
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.sleep(0.01)
        assert not waiting.done()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert has_ended

    asyncio.run(use())


@pytest.mark.process
def test_who_goes_away_while_waiting_is_forgotten(server):
    with streaming(server, **LONG) as running:
        events = events_of(running)
        next(events)
        with streaming(server, **LONG) as waiting:
            next(events_of(waiting))
        position = ""
        while position != "1":  # once that is noticed
            with streaming(server, max_tokens=1) as next_one:
                position = next_one.headers["x-localspec-queue"]
        events.close()


@pytest.mark.process
@pytest.mark.parametrize("look_s", [0.1, 10.0])
def test_a_long_prompt_tells_how_far_it_is(endless, caplog, monkeypatch, look_s):
    """In events, which are more than comments: some clients wait for these alone.

    The log has a line for each ten seconds.
    """
    caplog.set_level(logging.INFO)
    looks = itertools.count()  # each takes look_s, however quick the machine is
    clock = SimpleNamespace(monotonic=lambda: next(looks) * look_s)
    monkeypatch.setattr(answering, "time", clock)
    endless.models.all[0].token_s = 1.0  # as if prompts had been slow before
    body = [{"role": "user", "content": f"{look_s} one two three " * 1500}]  # not cached
    with streaming(endless, messages=body, max_tokens=1) as response:
        events = list(events_of(response))
    progress = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    assert len(progress) > 1
    assert all(each["processed"] <= each["total"] for each in progress)
    first, *_, last = (each["left_s"] for each in progress)
    assert first > last >= 0
    lines = [each for each in caplog.messages if each.startswith("read ")]
    said = r"read [\d,]+ of [\d,]+ tokens of the prompt, about \d+ (minutes|s) left"
    assert all(re.fullmatch(said, each) for each in lines)
    assert len(lines) == len(set(lines))
    if look_s < 1.0:
        assert len(lines) == 1
    else:
        assert len(lines) > 1
    assert progress == sorted(progress, key=lambda each: each["processed"])


HELLO = {"messages": [{"role": "user", "content": "Hello!"}]}
FORMS = {
    ChatCompletion: HELLO,
    MessageForm: HELLO,
    OllamaChat: HELLO,
    ResponseForm: {"input": "Hello!"},
    Completion: {"prompt": "Hello"},
    LlamaCompletion: {"prompt": "Hello"},
    OllamaGenerate: {"prompt": "Hello"},
    Infill: {"input_prefix": "def ", "input_suffix": "\n"},
}


@pytest.mark.parametrize("kind", FORMS)
def test_a_stream_that_has_nothing_to_show_gives_signs_of_life(monkeypatch, kind):
    """Tokens come all the time, of a call that is held back, say."""
    piece = Piece("", (1,), Provenance.PLAIN)
    model = ServedModel(find_preset("demo"), 256)
    written = []

    class Held:
        position = 0
        not_kept = ()
        has_tool_words = False

        def __init__(self, _service, _question):
            self.model = model

        async def events(self):
            for _ in range(3):
                yield [NewPiece(0, piece, 7, 0)]
                written.append(b"|")
            raise RequestError("that was all")

        async def aclose(self):
            pass

    async def use():
        models = ServedModels([model], takes_any_name=True)
        service = Service(models=models, num_waiting=8, patience_s=0.0)
        body = json.dumps({**FORMS[kind], "stream": True}).encode()
        received = [{"type": "http.request", "body": body}]

        async def receive():
            if received:
                return received.pop()
            return await asyncio.Future()

        async def send(message):
            written.append(message.get("body", b""))

        scope = {"path": "/", "headers": [], form.CLIENT: "", form.ANSWERING: None}
        await form.PostEndpoint(service, BodyReader(10_000, 10), kind)(scope, receive, send)

    monkeypatch.setattr(form, "Answering", Held)
    asyncio.run(use())
    assert all(b"".join(written).split(b"|"))
