"""Calls and results of tools in messages: as the field writes them → as templates want them."""

from __future__ import annotations

import hashlib
import json
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from localspec.chat.shown import joined, shown_in
from localspec.chat.template import Message
from localspec.errors import OptionError
from localspec.tools.forms import CallForm
from localspec.tools.tool import ToolCall

_NINE = re.compile(r"[A-Za-z0-9]{9}")
_NO_RESULT = {"role": "tool", "content": "[There is no result of this call.]"}


def checked_calls(number: int, calls: object) -> list[dict[str, Any]]:
    """The calls of an answer, with arguments by name where they are such, else as a text.

    number: of the message. calls: `ToolCall`s, or OpenAI's objects, their functions perhaps
    flat. Raises OptionError.
    """
    if not isinstance(calls, Sequence) or isinstance(calls, str | bytes):
        raise OptionError(f"tool_calls of message {number} is {calls!r:.80}", "Give a list.")
    return [_checked(number, index, call) for index, call in enumerate(calls)]


def with_results(messages: Sequence[Message]) -> list[Message]:
    """The messages with the results of each answer's calls right behind it, in their order.

    Templates without ids pair them by that alone. A result without the id of a call belongs to
    the first call of its tool that has none yet, else to the first of all. A note stands for
    the result of a call that has none, as where it was denied. A call whose arguments are no
    object, as where it was cut, becomes text with its result; so does a result of no call.
    Calls that nothing follows stay as they are.
    """
    stretches: list[list[Message]] = [[]]
    for message in messages:
        if message["role"] == "assistant":
            stretches.append([])
        stretches[-1].append(message)
    last = stretches.pop() if "tool_calls" in messages[-1] else []
    return [*chain.from_iterable(map(_answered, stretches)), *last]


def _answered(stretch: Sequence[Message]) -> Iterator[Message]:
    """An answer and what was said until the next, with the results where they belong."""
    said = list(stretch)
    answer = said.pop(0) if said and "tool_calls" in said[0] else {}
    whole, cut, taken = [], [], []
    for call, result in _paired(answer.get("tool_calls", ()), said):
        if not isinstance(call["function"]["arguments"], Mapping):
            cut.append(call)
            continue
        whole.append(call)
        named = {"name": call["function"]["name"], **(result or _NO_RESULT)}
        taken.append((result, {**named, "tool_call_id": call["id"]}))
    if cut:
        yield as_text({**answer, "tool_calls": cut})
        answer = {**answer, "content": "", "tool_calls": whole}
    if whole:
        yield answer
    yield from (told for _, told in taken)
    for message in said:
        if not any(message is result for result, _ in taken):
            yield as_text(message)


def _paired(
    calls: Sequence[Mapping[str, Any]], said: Sequence[Message]
) -> Iterator[tuple[Mapping[str, Any], Message | None]]:
    """Each call with its result."""
    ids = {call["id"] for call in calls}
    results = [message for message in said if message["role"] == "tool"]
    paired: dict[int, Message] = {}
    for result in sorted(results, key=lambda each: each.get("tool_call_id") not in ids):
        waiting = [number for number in range(len(calls)) if number not in paired]
        own = [n for n in waiting if calls[n]["id"] == result.get("tool_call_id")]
        if result.get("tool_call_id") not in ids:
            own += [n for n in waiting if calls[n]["function"]["name"] == result.get("name")]
            own += waiting
        for number in own[:1]:
            paired[number] = result
    for number, call in enumerate(calls):
        yield call, paired.get(number)


def as_text(message: Message) -> Message:
    """The message with only a role and a text: calls and results become text."""
    if message["role"] == "tool":
        before, behind = {"content": "<tool_response>\n"}, {"content": "\n</tool_response>"}
        return {"role": "user", **joined([before, message, behind], "")}
    calls = []
    for call in message.get("tool_calls", ()):
        name, given = call["function"]["name"], call["function"]["arguments"]
        written = given if isinstance(given, str) else json.dumps(given)
        calls.append({"content": f"<tool_call>\n{name}({written})\n</tool_call>"})
    said = [message] if message["content"] or shown_in(message) or not calls else []
    return {"role": message["role"], **joined([*said, *calls], "\n")}


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
    rest = deque(messages)
    while rest:
        message = rest.popleft()
        calls = message.get("tool_calls", ())
        if len(calls) < 2:
            yield message
            continue
        for number, call in enumerate(calls):
            first = message if number == 0 else {"role": "assistant", "content": ""}
            yield {**first, "tool_calls": [call]}
            yield rest.popleft()


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
