"""Bodies of requests as real clients send them, and changed ones."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from soak_clients import PROTOCOLS, QUESTIONS
from test_server_agent_requests import CLAUDE_CODE, CODEX, OPENCODE

_Json = dict[str, Any]
_Place = tuple[Any, Any]  # an object or a list, and the key or the index in it

_LONGEST = 400  # characters of a text: a prompt of thousands of tokens takes its time
_SHORT_ANSWER = {
    "max_tokens": 3, "max_completion_tokens": 3, "max_output_tokens": 3, "n_predict": 3,
    "num_predict": 3,
}  # fmt: skip
_AGENTS = (
    ("/v1/responses", CODEX),
    ("/v1/messages", CLAUDE_CODE),
    ("/v1/chat/completions", OPENCODE),
)
_TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}},
}
_ASKED = [{"role": "user", "content": "What is 7 times 8?"}]
_RICH: tuple[tuple[str, _Json], ...] = (
    (
        "/v1/chat/completions",
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "call_1",
                            "type": "function",
                            "function": {"name": "f", "arguments": '{"a": 1}'},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "call_1", "content": "56"},
                *_ASKED,
            ],
            "tools": [_TOOL],
            "tool_choice": "auto",
            "stop": ["\n\n", "END"],
            "logit_bias": {"5": -1.5},
            "seed": 7,
            "n": 2,
            "logprobs": True,
            "top_logprobs": 3,
            "stream_options": {"include_usage": True},
        },
    ),
    (
        "/v1/chat/completions",
        {
            "messages": _ASKED,
            "response_format": {
                "type": "json_schema",
                "json_schema": {
                    "name": "n",
                    "schema": {
                        "type": "object",
                        "properties": {"n": {"type": "integer", "minimum": 0}},
                        "required": ["n"],
                    },
                },
            },
        },
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "image_url",
                            "image_url": {"url": "data:image/png;base64,aGk="},
                        }
                    ],
                }
            ]
        },
    ),
    ("/v1/completions", {"prompt": ["One", "Two"], "echo": True, "logprobs": 2, "n": 2}),
    ("/completion", {"prompt": [1, 2, "three"], "grammar": 'root ::= "a" | "b"', "n_probs": 2}),
    ("/infill", {"input_prefix": "def f(", "input_suffix": "return", "input_extra": []}),
    (
        "/api/chat",
        {
            "model": "demo:latest",
            "messages": _ASKED,
            "format": {"type": "object", "properties": {"n": {"type": "integer"}}},
            "options": {"temperature": 0.5, "top_k": 5, "stop": ["x"], "num_ctx": 128},
            "keep_alive": "5m",
            "think": False,
            "tools": [_TOOL],
        },
    ),
    ("/api/generate", {"prompt": "Hi", "system": "Be brief.", "raw": False, "images": []}),
)

_STRINGS = (
    "", "\x00", "\x1b[2J", "‮", "\ud800", "ﷺ" * 40, "<|im_start|>system", "../../../etc/passwd",
    "{{ 7*7 }}", "data:image/png;base64,!!!!", "https://127.0.0.1:1/x.png", "a" * 100_000,
    "\r\nSet-Cookie: a=b", "NaN", "-1", "9" * 400,
)  # fmt: skip
_NUMBERS = (
    0, -1, 1, 3.5, -0.0, 1e-320, 1e308, -1e308, 2**31, -(2**31) - 1, 2**63, 2**64, -(2**63) - 1,
    10**400,
)  # fmt: skip
# Put in as they are: json.dumps writes none of them.
_RAW = {
    "@nan@": "NaN", "@infinity@": "-Infinity", "@huge@": "1e999", "@digits@": "7" * 5000,
    "@deep@": "[" * 3000 + "]" * 3000, "@objects@": '{"a":' * 900 + "1" + "}" * 900,
    "@twice@": '{"role":"user","role":5,"content":"x","content":null}',
    "@half@": '"\\ud83d"', "@escape@": '"\\u00"', "@comment@": "/*x*/1", "@empty@": "",
    "@bytes@": '"\udcff\udc80"',  # no UTF-8: the two bytes FF 80
}  # fmt: skip


class Request(NamedTuple):
    """A path and a body. how: it was changed."""

    path: str
    body: bytes
    how: str


def real_bodies(document: _Json) -> list[tuple[str, _Json]]:
    """Paths and bodies: of agents, of each protocol, and examples of the OpenAPI document."""
    found = [*_AGENTS, *_RICH]
    found += [(each.path, each.body(QUESTIONS[0])) for each in PROTOCOLS]
    for path, methods in document["paths"].items():
        if "post" in methods:
            content = methods["post"]["requestBody"]["content"]["application/json"]
            found.append((path, content["example"]))
    return [(path, _shortened(body) or {"content": "Hi"}) for path, body in found]


def _shortened(value: Any) -> Any:
    if isinstance(value, str):
        return value[:_LONGEST]
    if isinstance(value, list):
        return [_shortened(each) for each in value]
    if isinstance(value, dict):
        return {name: _shortened(each) for name, each in value.items()}
    return value


def _places(value: Any) -> Iterator[_Place]:
    """Every place within it."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in list(pairs):
        yield value, key
        if isinstance(each, dict | list):
            yield from _places(each)


def changed(real: list[tuple[str, _Json]], chance: random.Random) -> Request:
    """One of the bodies, changed in one to three places, and at times in its bytes."""
    path, plain = chance.choice(real)
    body: _Json = copy.deepcopy(plain)
    for name in _SHORT_ANSWER.keys() & body.keys() or {"max_tokens"}:
        body[name] = 3
    if path.startswith("/api/"):
        body["options"] = {**body.get("options", {}), "num_predict": 3}
    body["stream"] = chance.random() < 0.5
    names = [_change(body, real, chance) for _ in range(chance.choice((1, 1, 2, 3)))]
    text = json.dumps(body, ensure_ascii=chance.random() < 0.5)
    for mark, raw in _RAW.items():
        text = text.replace(f'"{mark}"', raw)
    # Halves of characters become bytes that are no UTF-8, where there are such.
    data = re.sub("[\ud800-\udc7f\udd00-\udfff]", "?", text).encode("utf-8", "surrogateescape")
    if chance.random() < 0.15:
        names.append("bytes")
        data = _damaged(data, chance)
    return Request(path, data, "+".join(names))


def _change(body: _Json, real: list[tuple[str, _Json]], chance: random.Random) -> str:
    """Change one place; what was done to it."""
    holder, key = chance.choice(list(_places(body)))
    how = chance.choice(("value", "value", "value", "drop", "graft", "repeat", "wrap", "field"))
    if how == "value":
        holder[key] = _odd(chance)
    elif how == "drop":
        del holder[key]
    elif how == "graft":  # a part of another client's request
        other, where = chance.choice(list(_places(chance.choice(real)[1])))
        holder[key] = copy.deepcopy(other[where])
    elif how == "repeat":
        holder[key] = [copy.deepcopy(holder[key]) for _ in range(chance.choice((0, 2, 70)))]
    elif how == "wrap":
        holder[key] = {str(key): holder[key]}
    else:  # a field that another request has
        name, value = chance.choice(list(chance.choice(real)[1].items()))
        body[name] = chance.choice((copy.deepcopy(value), _odd(chance)))
    return how


def _odd(chance: random.Random) -> Any:
    simple = (None, True, False, [], {}, [[]], [None], {"": ""})
    kind: tuple[Any, ...] = chance.choice((_STRINGS, _NUMBERS, tuple(_RAW), simple))
    return copy.deepcopy(chance.choice(kind))


def _damaged(data: bytes, chance: random.Random) -> bytes:
    """With a byte changed, a piece cut off, or one put in."""
    at = chance.randrange(len(data) + 1)
    how = chance.randrange(4)
    if how == 0:
        return data[:at]
    if how == 1:
        return data[:at] + chance.randbytes(chance.randrange(1, 9)) + data[at:]
    if how == 2:
        return data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
    return data[at:] + data[:at]
