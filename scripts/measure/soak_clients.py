"""Clients of `soak_server.py`: every protocol, read whole, slowly, or left in the middle."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import httpx

NUM_TOKENS = 24  # of an answer
_SLOW_S = 0.05  # between two lines that a slow client reads
_PATIENCE_S = 300.0
_LONG_WORDS = 700  # of the longest question

_Json = dict[str, Any]


class Protocol(NamedTuple):
    """How a streamed answer is asked for and read. path: of the server.

    body: of a question. text: that an event adds. is_end: whether it is the last one.
    """

    path: str
    body: Callable[[str], _Json]
    text: Callable[[_Json], str]
    is_end: Callable[[_Json], bool]


def _messages(text: str) -> list[_Json]:
    return [{"role": "user", "content": text}]


def _of_choice(event: _Json) -> _Json:
    found: _Json = (event.get("choices") or [{}])[0]
    return found


_OLLAMA = {"options": {"temperature": 0, "num_predict": NUM_TOKENS}}
_OF_TEXT = "response.output_text.delta"
_PLAIN = {"temperature": 0, "max_tokens": NUM_TOKENS}
PROTOCOLS = (
    Protocol(
        "/v1/chat/completions",
        lambda text: {"messages": _messages(text), **_PLAIN},
        lambda event: _of_choice(event).get("delta", {}).get("content") or "",
        lambda event: bool(_of_choice(event).get("finish_reason")),
    ),
    Protocol(
        "/v1/messages",
        lambda text: {"messages": _messages(text), **_PLAIN},
        lambda event: str(event.get("delta", {}).get("text", "")),
        lambda event: event.get("type") == "message_stop",
    ),
    Protocol(
        "/v1/responses",
        lambda text: {"input": text, "temperature": 0, "max_output_tokens": NUM_TOKENS},
        lambda event: str(event["delta"]) if event["type"] == _OF_TEXT else "",
        lambda event: event["type"] in ("response.completed", "response.incomplete"),
    ),
    Protocol(
        "/api/chat",
        lambda text: {"messages": _messages(text), **_OLLAMA},
        lambda event: event["message"]["content"],
        lambda event: event["done"],
    ),
    Protocol(
        "/api/generate",
        lambda text: {"prompt": text, **_OLLAMA},
        lambda event: event["response"],
        lambda event: event["done"],
    ),
)
_ASIDES: tuple[tuple[str, _Json | None], ...] = (
    ("/metrics", None),
    ("/props", None),
    ("/v1/models", None),
    ("/tokenize", {"content": "A fox ran."}),
    ("/v1/messages/count_tokens", {"messages": _messages("A fox ran.")}),
    ("/api/show", {"model": "any"}),
)
QUESTIONS = (
    *(f"Tell me a story about {number} foxes." for number in range(8)),
    "What is 7 times 8?",
    "Name the days of the week.",
    *(
        f"{word} " + " ".join(f"{word} of {number}" for number in range(_LONG_WORDS // 3))
        for word in ("owls", "hens")
    ),
)


class Told(NamedTuple):
    """What came of a request.

    kind: "whole" (an answer), "aside", "left", "busy", "error", "cut" or "hung". question,
    text: of a whole answer. why: in words.
    """

    kind: str
    question: str = ""
    text: str = ""
    why: str = ""


async def ask(client: httpx.AsyncClient, chance: random.Random) -> Told:
    """One request of some kind."""
    try:
        return await asyncio.wait_for(_asked(client, chance), _PATIENCE_S)
    except asyncio.TimeoutError:
        return Told("hung")
    except httpx.TransportError as error:
        return Told("cut", why=repr(error))


async def _asked(client: httpx.AsyncClient, chance: random.Random) -> Told:
    if chance.random() < 0.15:
        path, body = chance.choice(_ASIDES)
        method = "GET" if body is None else "POST"
        return _refused(await client.request(method, path, json=body)) or Told("aside")
    protocol, question = chance.choice(PROTOCOLS), chance.choice(QUESTIONS)
    how = chance.choice(("whole", "whole", "whole", "slow", "left"))
    patience = chance.randrange(6) if how == "left" else None
    body = {**protocol.body(question), "stream": True}
    if how == "left" and patience == 0:  # while the prompt waits, or is read
        whole = asyncio.create_task(_streamed(client, protocol, body, None, 0.0))
        await asyncio.wait([whole], timeout=0.2 * chance.random())
        if not whole.cancel():
            return (await whole)._replace(question=question)
        await asyncio.wait([whole])
        return Told("left")
    told = await _streamed(client, protocol, body, patience, _SLOW_S * (how == "slow"))
    return told._replace(question=question)


async def _streamed(
    client: httpx.AsyncClient,
    protocol: Protocol,
    body: _Json,
    patience: int | None,
    wait_s: float,
) -> Told:
    """An answer. patience: events after which the client leaves. wait_s: before each line."""
    said, is_whole = "", False
    async with client.stream("POST", protocol.path, json=body) as response:
        if response.status_code != 200:
            await response.aread()
            refused = _refused(response)
            assert refused is not None
            return refused
        async for line in response.aiter_lines():
            line = line.removeprefix("data: ")
            if not line.startswith("{"):
                continue
            event = json.loads(line)
            if event.get("error") or event.get("type") == "response.failed":
                return Told("error", why=line)
            said += protocol.text(event)
            is_whole = is_whole or protocol.is_end(event)
            if patience is not None and (patience := patience - 1) <= 0:
                return Told("left")
            await asyncio.sleep(wait_s)
    return Told("whole", text=said) if is_whole else Told("cut", why="the stream has no end")


def _refused(response: httpx.Response) -> Told | None:
    if response.status_code == 200:
        return None
    kind = "busy" if response.status_code == 503 else "error"
    return Told(kind, why=f"{response.status_code}: {response.text[:200]}")
