"""Messages as the field writes them → as a chat template takes them, calls and results, too."""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, takewhile
from typing import Any

from localspec.chat.shown import (
    PICTURE_NOTE,
    Given,
    Shown,
    given_in,
    joined,
    shown_in,
    with_shown,
)
from localspec.chat.template import Message
from localspec.chat.tool_words import with_calls_in_words
from localspec.errors import OptionError
from localspec.tools.call_form import CallForm
from localspec.tools.forms import IN_WORDS
from localspec.tools.tool import ToolCall, json_text

_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")  # it goes into the prompt as it is
# The key of the text in parts of each kind. A reference names a tool that was found.
_TEXT_PARTS = dict.fromkeys(("text", "input_text", "output_text"), "text")
_TEXT_PARTS |= {"refusal": "refusal", "tool_reference": "tool_name"}
# Kinds of parts, each a word in their type.
_OTHER_PARTS = ("audio", "video", "file", "document")
# The keys of an answer's thoughts: of llama.cpp, of vLLM and OpenRouter, of Ollama.
THOUGHT_KEYS = ("reasoning_content", "reasoning", "thinking")
_NINE = re.compile(r"[A-Za-z0-9]{9}")
_NO_RESULT = {"role": "tool", "content": "[There is no result of this call.]"}


def checked_messages(messages: object) -> list[Message]:
    """Role and text of each message, and the calls of tools that belong to it.

    Args:
        messages: A sequence of mappings with a role and a content: a str, None for no text, or
            parts such as {"type": "text", "text": …}, which become lines of one text, with
            pictures (see `shown.given_in`) in between: their positions are in "pictures". An
            assistant's may have tool_calls, and its thoughts by one of THOUGHT_KEYS; a tool's
            (or function's) tool_call_id and name. Other keys are passed over. An image without
            data, audio and files become notes in results of tools and before the last message.
            Calls and results: see `with_results`.

    Raises:
        OptionError: For anything else, with the message's number from 0.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise OptionError(
            f"the messages are {messages!r:.80}",
            'Give a list such as [{"role": "user", "content": "Hello!"}].',
        )
    if not messages:
        raise OptionError("there are no messages", "Give one or more.")
    checked = [
        checked_message(number, message, len(messages))
        for number, message in enumerate(messages)
    ]
    return with_results(checked)


def merged_messages(messages: Sequence[Message]) -> list[Message]:
    """The messages in turns that every template takes.

    The system's messages in front are one, its later ones the user's, and messages in a row of
    one role are one. Calls of tools and their results stay as they are. Some templates do not
    count these as turns: where nothing else stands between two messages of the user, an empty
    answer follows, and between two answers, the text of the first one joins the calls.
    """
    opening = list(takewhile(_is_system, messages))
    merged = [_merged("system", opening)] if opening else []
    speaker = ""
    at = 0  # who said the last words, and where
    for (role, is_plain), group in groupby(messages[len(opening) :], _role_in_turns):
        same = list(group)
        if not is_plain:
            merged += same
            continue
        if role == speaker == "user":
            merged.append({"role": "assistant", "content": ""})
        elif role == speaker == "assistant":
            both = [merged.pop(at), merged[at]]
            said = [each for each in both if each["content"]]
            merged[at] = {**merged[at], **joined(said, "\n\n"), **_joined_thoughts(both)}
        speaker = role
        at = len(merged)
        merged.append(_merged(role, same))
    return merged


def _merged(role: str, messages: Sequence[Message]) -> Message:
    return {"role": role, **joined(messages, "\n\n"), **_joined_thoughts(messages)}


def _joined_thoughts(messages: Sequence[Message]) -> dict[str, str]:
    """The thoughts of several answers as those of one, if there are any."""
    given = (message.get("reasoning_content", "") for message in messages)
    thoughts = "\n\n".join(filter(None, given))
    if thoughts:
        return {"reasoning_content": thoughts}
    return {}


def _role_in_turns(message: Message) -> tuple[str, bool]:
    """The speaker, and whether the message is nothing but text."""
    is_plain = message["role"] != "tool" and "tool_calls" not in message
    return "user" if _is_system(message) else str(message["role"]), is_plain


def _is_system(message: Message) -> bool:
    return message["role"] in ("system", "developer")


def checked_message(number: int, message: object, count: int) -> Message:
    """A message of `count`, checked as by `checked_messages`, but for what stands around it."""
    if not isinstance(message, Mapping):
        raise OptionError(
            f"message {number} is {message!r:.80}", "Give a dict with role and content."
        )
    role = message.get("role")
    if not isinstance(role, str) or not _ROLE.fullmatch(role):
        raise OptionError(
            f"the role of message {number} is {role!r:.80}",
            "Give system, user, assistant, or another name that the chat template knows.",
        )
    is_tool = role in ("tool", "function")
    is_asked = number == count - 1 and not is_tool
    checked = {"role": role, **_content(number, message.get("content"), is_asked=is_asked)}
    if is_tool:
        shown = [each._replace(is_result=True) for each in shown_in(checked)]
        checked = with_shown(checked, shown)
    pictures = message.get("pictures")
    # A tuple is from an earlier check: JSON has no tuples.
    if isinstance(pictures, tuple) and all(isinstance(each, Shown) for each in pictures):
        checked = with_shown(checked, pictures)
    elif pictures is not None:
        raise OptionError(
            f"message {number} has pictures in a form that cannot be read: {pictures!r:.80}",
            'Put each into the content, as {"type": "image_url", …}. JSON cannot hold the '
            "pictures of a transcript: save it with pickle.",
        )
    if is_tool:
        call_id = message.get("tool_call_id")
        name = message.get("name")
        named = {"name": name} if isinstance(name, str) else {}
        known = {} if call_id is None else {"tool_call_id": str(call_id)}
        return {**checked, "role": "tool", **named, **known}
    if role == "assistant":
        checked |= _thoughts_in(message)
        if message.get("tool_calls"):
            checked["tool_calls"] = checked_calls(number, message["tool_calls"])
    return checked


def _thoughts_in(message: Mapping[str, Any]) -> dict[str, str]:
    """The thoughts of an answer, if there are any, by the first of THOUGHT_KEYS."""
    given = (message.get(key) for key in THOUGHT_KEYS)
    thoughts = [each for each in given if isinstance(each, str) and each]
    if thoughts:
        return {"reasoning_content": thoughts[0]}
    return {}


def _content(number: int, content: object, *, is_asked: bool) -> dict[str, Any]:
    """The text of a content, and the pictures in it. is_asked: whether a user says it now."""
    if content is None:
        return {"content": ""}
    if isinstance(content, str):
        return {"content": content}
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise OptionError(
            f"the content of message {number} is {content!r:.80}",
            "Give a str, None, or a list of parts.",
        )
    text = ""
    shown = []
    was_text = False
    for part in content:
        found = _found_in(number, part, is_asked=is_asked)
        if not isinstance(found, str):
            shown.append(Shown(len(text), found))
        elif found:  # a server's answer may begin with an empty part
            # No new line next to a picture, as in llama.cpp.
            text += f"\n{found}" if was_text else found
        was_text = isinstance(found, str) and bool(found or was_text)
    return with_shown({"content": text}, shown)


def _found_in(number: int, part: object, *, is_asked: bool) -> str | Given:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if isinstance(part, Mapping) and isinstance(kind, str):
        text = part.get(_TEXT_PARTS.get(kind))
        if isinstance(text, str):
            return str(text)
        if "image" in kind:
            try:
                return given_in(part)
            except OptionError as error:
                if not is_asked:
                    return PICTURE_NOTE
                raise OptionError(
                    f"message {number} has an image in it: {error}", error.hint
                ) from error
        if word := next((word for word in _OTHER_PARTS if word in kind), None):
            what = word if word == "audio" else f"a {word}"
            if not is_asked:
                return f"[{what.capitalize()} was here, which this model cannot read.]"
            raise OptionError(
                f"message {number} has {what} in it (a part of type {kind!r})",
                "Leave it out, or put its text there.",
            )
    raise OptionError(
        f"message {number} has a part that is not a text: {part!r:.80}",
        'Give {"type": "text", "text": "…"}.',
    )


def checked_calls(number: int, calls: object) -> list[dict[str, Any]]:
    """The calls of an answer, with arguments by name where they are such, else as a text.

    Raises OptionError.

    Args:
        number: The message's number.
        calls: `ToolCall`s, or OpenAI's objects, their functions perhaps flat.
    """
    if not isinstance(calls, Sequence) or isinstance(calls, str | bytes):
        raise OptionError(f"tool_calls of message {number} is {calls!r:.80}", "Give a list.")
    return [_checked_call(number, index, call) for index, call in enumerate(calls)]


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
    whole = []
    cut = []
    taken = []
    for call, result in _paired(answer.get("tool_calls", ()), said):
        if not isinstance(call["function"]["arguments"], Mapping):
            cut.append(call)
            continue
        whole.append(call)
        named = {"name": call["function"]["name"], **(result or _NO_RESULT)}
        taken.append((result, {**named, "tool_call_id": call["id"]}))
    if cut:
        yield as_text({**answer, "tool_calls": cut})
        answer = {"role": "assistant", "content": "", "tool_calls": whole}
    if whole:
        yield answer
    yield from (told for _, told in taken)
    placed = {id(result) for result, _ in taken}
    for message in said:
        if id(message) not in placed:
            yield as_text(message)


def _paired(
    calls: Sequence[Mapping[str, Any]], said: Sequence[Message]
) -> Iterator[tuple[Mapping[str, Any], Message | None]]:
    of_id: dict[str, deque[int]] = defaultdict(deque)
    of_name: dict[str, deque[int]] = defaultdict(deque)
    for number, call in enumerate(calls):
        of_id[call["id"]].append(number)
        of_name[call["function"]["name"]].append(number)
    every = deque(range(len(calls)))
    paired: dict[int, Message] = {}

    def pair(result: Message, numbers: deque[int] | None) -> bool:
        """Give the result to the first of the calls that has none yet, if there is one."""
        while numbers and numbers[0] in paired:
            numbers.popleft()
        if numbers:
            paired[numbers[0]] = result
        return bool(numbers)

    results = [message for message in said if message["role"] == "tool"]
    others = []
    for result in results:
        if result.get("tool_call_id") in of_id:
            pair(result, of_id[result["tool_call_id"]])
        else:
            others.append(result)
    for result in others:
        if not pair(result, of_name.get(result.get("name", ""))):
            pair(result, every)
    for number, call in enumerate(calls):
        yield call, paired.get(number)


def as_text(message: Message) -> Message:
    """The message without calls: these and results become text. Thoughts stay."""
    if message["role"] == "tool":
        before = {"content": "<tool_response>\n"}
        behind = {"content": "\n</tool_response>"}
        return {"role": "user", **joined([before, message, behind], "")}
    calls = []
    for call in message.get("tool_calls", ()):
        name = call["function"]["name"]
        given = call["function"]["arguments"]
        written = given if isinstance(given, str) else json_text(given)
        calls.append({"content": f"<tool_call>\n{name}({written})\n</tool_call>"})
    said = [message] if message["content"] or shown_in(message) or not calls else []
    return {"role": message["role"], **joined([*said, *calls], "\n"), **_thoughts_in(message)}


def answer_message(text: str, calls: Sequence[ToolCall], thoughts: str) -> Message:
    """An answer with the calls that it asks for, and what the model thought before.

    Templates show a model its thoughts until it has answered what was asked, or for ever; the
    others leave them out.
    """
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = checked_calls(0, calls)
    if thoughts:
        message["reasoning_content"] = thoughts
    return message


def fit_to_form(messages: Sequence[Message], form: CallForm) -> list[Message]:
    """The messages with calls as templates of the form take them.

    Results without a call are left to the template.
    """
    has_calls = any("tool_calls" in message for message in messages)
    fitted: Iterable[Message] = _one_call_each(messages) if form.is_single else messages
    if has_calls and not form.is_shown:
        fitted = with_calls_in_words(fitted, form)
    if has_calls and form is IN_WORDS:
        fitted = merged_messages(list(fitted))
    if form.recipient:
        fitted = map(_with_thinking, fitted)
    if form.has_ids:
        return [_with_short_ids(message) for message in fitted]
    return list(fitted)


def _checked_call(number: int, index: int, call: object) -> dict[str, Any]:
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
    """Arguments by name if `given` is the JSON of an object, else a text or an object."""
    if given is None or given == "":
        return {}
    if isinstance(given, str):
        try:
            found = json.loads(given)
        except (ValueError, RecursionError):
            return given
        if isinstance(found, dict):
            return found
        return given
    if isinstance(given, Mapping):
        return given
    return json_text(given)


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
    """The calls with their thoughts by gpt-oss's name, to which their text is added."""
    if "reasoning_content" not in message or "tool_calls" not in message:
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
    """The id in nine letters and digits, always the same for the same id."""
    if _NINE.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode(errors="replace")).hexdigest()[:9]
