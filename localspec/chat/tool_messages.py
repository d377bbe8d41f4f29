"""Calls and results of tools in messages: as the field writes them → as templates want them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from localspec.chat.template import Message
from localspec.errors import OptionError
from localspec.tools.forms import CallForm
from localspec.tools.tool import ToolCall

_NINE = re.compile(r"[A-Za-z0-9]{9}")


def checked_calls(number: int, calls: object) -> list[dict[str, Any]]:
    """The calls of an answer, with arguments by name where they are such, else as a text.

    number: of the message. calls: `ToolCall`s, or OpenAI's objects, their functions perhaps
    flat. Raises OptionError.
    """
    if not isinstance(calls, Sequence) or isinstance(calls, str | bytes):
        raise OptionError(f"tool_calls of message {number} is {calls!r:.80}", "Give a list.")
    return [_checked(number, index, call) for index, call in enumerate(calls)]


def call_message(text: str, calls: Sequence[ToolCall], thoughts: str) -> Message:
    """An answer with the calls that it asks for, and the thoughts before these.

    Templates show a model what it thought until it has answered what was asked.
    """
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = checked_calls(0, calls)
    if calls and thoughts:
        message["reasoning_content"] = thoughts
    return message


def fit_to_form(messages: Sequence[Message], form: CallForm) -> list[Message]:
    """The messages with calls as templates of the form take them."""
    fitted = _one_call_each(messages) if form.is_single else messages
    if form.recipient:
        fitted = map(_with_thinking, fitted)
    return [_with_short_ids(message) for message in fitted] if form.has_ids else list(fitted)


def _checked(number: int, index: int, call: object) -> dict[str, Any]:
    if isinstance(call, ToolCall):
        call = {"id": call.id, "name": call.name, "arguments": call.json}
    given = call.get("function", call) if isinstance(call, Mapping) else None
    name = given.get("name") if isinstance(given, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(given, Mapping) or not name:
        raise OptionError(
            f"call {index} of message {number} is {call!r:.80}",
            'Give {"id": …, "function": {"name": …, "arguments": …}}.',
        )
    call_id = call.get("id") or f"{number:04}{index:05}"
    function = {"name": str(name), "arguments": _arguments(given.get("arguments"))}
    return {"id": str(call_id), "type": "function", "function": function}


def _arguments(given: object) -> object:
    """By name, if they are the text of an object; else as they are."""
    if given is None or given == "":
        return {}
    if isinstance(given, str):
        try:
            found = json.loads(given)
        except (ValueError, RecursionError):
            return given
        return found if isinstance(found, dict) else given
    return given if isinstance(given, Mapping) else json.dumps(given)


def _one_call_each(messages: Sequence[Message]) -> Iterator[Message]:
    """Each call in a message of its own, followed by its result."""
    rest = list(messages)
    while rest:
        message = rest.pop(0)
        calls = message.get("tool_calls", ())
        if len(calls) < 2:
            yield message
            continue
        results = []
        while rest and rest[0]["role"] == "tool":
            results.append(rest.pop(0))
        for number, call in enumerate(calls):
            first = message if number == 0 else {"role": "assistant", "content": ""}
            yield {**first, "tool_calls": [call]}
            own = [each for each in results if each.get("tool_call_id") == call["id"]]
            yield from own
            results = [each for each in results if each not in own]
        yield from results


def _with_thinking(message: Message) -> Message:
    """With the thoughts by gpt-oss's name for them, which has no place for a text beside."""
    if "reasoning_content" not in message:
        return message
    fitted = {**message, "thinking": message["reasoning_content"]}
    if message["content"]:
        fitted["thinking"] += f"\n\n{message['content']}"
    return {**fitted, "content": ""}


def _with_short_ids(message: Message) -> Message:
    fitted = dict(message)
    if "tool_call_id" in fitted:
        fitted["tool_call_id"] = _short(fitted["tool_call_id"])
    if "tool_calls" in fitted:
        fitted["tool_calls"] = [
            {**call, "id": _short(call["id"])} for call in fitted["tool_calls"]
        ]
    return fitted


def _short(call_id: str) -> str:
    """The id in nine letters and digits, the same for the same."""
    if _NINE.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode(errors="replace")).hexdigest()[:9]
