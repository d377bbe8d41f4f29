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

_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")  # it goes into the prompt unchanged
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
    """Check messages as clients give them, and bring them into one form.

    Each has a role and a text, and perhaps pictures, thoughts and calls of tools. The results
    of calls follow them: see `with_results`.

    Args:
        messages: A sequence of mappings, each with a role and a content. A content is a str,
            None for no text, or a list of parts such as {"type": "text", "text": …}. Parts with
            text become lines of one text. Pictures (see `shown.given_in`) go to "pictures",
            with their positions in the text. An assistant's message may have tool_calls, and
            thoughts by one of THOUGHT_KEYS. A tool's (or function's) message may have
            tool_call_id and name. Other keys are ignored. Parts that no model here can read
            become notes: images without data, audio, video and files. If they are in the last
            message, and that is not a tool's, they are refused.

    Raises:
        OptionError: For anything else. The error names the message by its number, from 0.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise OptionError(
            f"the messages are {messages!r:.80}",
            'Give a list such as [{"role": "user", "content": "Hello!"}].',
        )
    if not messages:
        raise OptionError("there are no messages", "Give one or more.")
    checked = []
    for number, message in enumerate(messages):
        checked.append(checked_message(number, message, len(messages)))
    return with_results(checked)


def merged_messages(messages: Sequence[Message]) -> list[Message]:
    """The messages in turns that every template takes.

    The system's messages at the beginning become one, and its later messages the user's.
    Neighbouring messages of one role become one. Calls of tools and their results do not
    change. Some templates do not count these as turns. So where only calls and results stand
    between two messages of the user, an empty answer follows them; between two answers, the
    text of the first one is added to the calls.
    """
    opening = list(takewhile(_is_system, messages))
    merged: list[Message] = []
    if opening:
        merged.append(_merged("system", opening))
    speaker = ""  # the role of the last plain message
    at = 0  # its place in `merged`
    for (role, is_plain), group in groupby(messages[len(opening) :], _role_in_turns):
        neighbours = list(group)
        if not is_plain:
            merged += neighbours
            continue
        if role == speaker == "user":
            merged.append({"role": "assistant", "content": ""})
        elif role == speaker == "assistant":
            answer = merged.pop(at)
            calls = merged[at]
            merged[at] = _with_text_before(calls, answer)
        speaker = role
        at = len(merged)
        merged.append(_merged(role, neighbours))
    return merged


def _with_text_before(calls: Message, answer: Message) -> Message:
    """A message with calls, with the text and the thoughts of the answer before it."""
    both = [answer, calls]
    with_content = [message for message in both if message["content"]]
    return {
        **calls,
        **joined(with_content, "\n\n"),
        **_joined_thoughts(both),
    }


def _merged(role: str, messages: Sequence[Message]) -> Message:
    """Several messages as one of this role."""
    return {
        "role": role,
        **joined(messages, "\n\n"),
        **_joined_thoughts(messages),
    }


def _joined_thoughts(messages: Sequence[Message]) -> dict[str, str]:
    """The thoughts of several answers as those of one, if there are any."""
    given = [message.get("reasoning_content", "") for message in messages]
    thoughts = "\n\n".join(filter(None, given))
    if thoughts:
        return {"reasoning_content": thoughts}
    return {}


def _role_in_turns(message: Message) -> tuple[str, bool]:
    """The speaker, and whether the message has neither calls of tools nor a result."""
    is_plain = message["role"] != "tool" and "tool_calls" not in message
    if _is_system(message):
        return "user", is_plain
    return str(message["role"]), is_plain


def _is_system(message: Message) -> bool:
    return message["role"] in ("system", "developer")


def checked_message(number: int, message: object, count: int) -> Message:
    """A single message, checked as by `checked_messages`.

    Args:
        number: Its number, from 0.
        message: The message.
        count: The number of messages.
    """
    if not isinstance(message, Mapping):
        raise OptionError(
            f"message {number} is {message!r:.80}",
            "Give a dict with role and content.",
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
        shown = [picture._replace(is_result=True) for picture in shown_in(checked)]
        checked = with_shown(checked, shown)
    pictures = message.get("pictures")
    # A tuple is from an earlier check: JSON has no tuples.
    if isinstance(pictures, tuple) and all(isinstance(one, Shown) for one in pictures):
        checked = with_shown(checked, pictures)
    elif pictures is not None:
        raise OptionError(
            f"message {number} has pictures in a form that cannot be read: {pictures!r:.80}",
            'Put each into the content, as {"type": "image_url", …}. JSON cannot hold the '
            "pictures of a transcript: save it with pickle.",
        )
    if is_tool:
        return {
            **checked,
            "role": "tool",
            **_call_of_result(message),
        }
    if role == "assistant":
        checked |= _thoughts_in(message)
        if message.get("tool_calls"):
            checked["tool_calls"] = checked_calls(number, message["tool_calls"])
    return checked


def _call_of_result(message: Mapping[Any, Any]) -> dict[str, str]:
    """The name and the id of the call that a result is of, as far as it states them."""
    found = {}
    name = message.get("name")
    if isinstance(name, str):
        found["name"] = name
    call_id = message.get("tool_call_id")
    if call_id is not None:
        found["tool_call_id"] = str(call_id)
    return found


def _thoughts_in(message: Mapping[str, Any]) -> dict[str, str]:
    """The thoughts of an answer, if there are any, by the first of THOUGHT_KEYS."""
    for key in THOUGHT_KEYS:
        thoughts = message.get(key)
        if isinstance(thoughts, str) and thoughts:
            return {"reasoning_content": thoughts}
    return {}


def _content(number: int, content: object, *, is_asked: bool) -> dict[str, Any]:
    """The text of a content, and the pictures in it.

    Args:
        number: The message's number.
        content: The content.
        is_asked: Whether it is the message to be answered, whose parts must all be readable.
    """
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
    follows_text = False
    for part in content:
        found = _found_in(number, part, is_asked=is_asked)
        if not isinstance(found, str):
            shown.append(Shown(len(text), found))
            follows_text = False  # no new line next to a picture, as in llama.cpp
        elif found:  # a server's answer may begin with an empty part
            if follows_text:
                text += "\n"
            text += found
            follows_text = True
    return with_shown({"content": text}, shown)


def _found_in(number: int, part: object, *, is_asked: bool) -> str | Given:
    """The text or the picture of a part; arguments as for `_content`."""
    kind = None
    if isinstance(part, Mapping):
        kind = part.get("type")
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
                    f"message {number} has an image in it: {error}",
                    error.hint,
                ) from error
        what = _other_kind(kind)
        if what and not is_asked:
            return f"[{what.capitalize()} was here, which this model cannot read.]"
        if what:
            raise OptionError(
                f"message {number} has {what} in it (a part of type {kind!r})",
                "Leave it out, or put its text there.",
            )
    raise OptionError(
        f"message {number} has a part that is not a text: {part!r:.80}",
        'Give {"type": "text", "text": "…"}.',
    )


def _other_kind(kind: str) -> str:
    """A kind of part that no model here reads, in words; "" for another kind."""
    for word in _OTHER_PARTS:
        if word in kind:
            return word if word == "audio" else f"a {word}"
    return ""


def checked_calls(number: int, calls: object) -> list[dict[str, Any]]:
    """The calls of an answer, with arguments by name if they are an object, else as a text.

    Raises OptionError.

    Args:
        number: The message's number.
        calls: `ToolCall`s, or OpenAI's objects, their functions perhaps flat.
    """
    if not isinstance(calls, Sequence) or isinstance(calls, str | bytes):
        raise OptionError(f"tool_calls of message {number} is {calls!r:.80}", "Give a list.")
    return [_checked_call(number, index, call) for index, call in enumerate(calls)]


def with_results(messages: Sequence[Message]) -> list[Message]:
    """The messages with the results of each answer's calls right after it, in the calls' order.

    Templates without ids pair them by their order alone. A result without the id of a call
    belongs to the first call of its tool that has no result yet, or else to the first call
    without a result. A note replaces a missing result, for example of a call that was denied.
    A call whose arguments are no object, for example because it was cut, becomes text, and so
    does its result, and a result of no call. Calls at the end do not change.
    """
    stretches: list[list[Message]] = [[]]
    for message in messages:
        if message["role"] == "assistant":
            stretches.append([])
        stretches[-1].append(message)
    last: list[Message] = []
    if "tool_calls" in messages[-1]:
        last = stretches.pop()
    answered = list(chain.from_iterable(map(_answered, stretches)))
    return answered + last


def _answered(stretch: Sequence[Message]) -> Iterator[Message]:
    """An answer and the messages up to the next one, with each result after its call."""
    following = list(stretch)
    answer: Message = {}
    if following and "tool_calls" in following[0]:
        answer = following.pop(0)
    whole = []
    cut = []
    results: list[Message] = []
    placed = set()  # results, by identity
    for call, result in _paired(answer.get("tool_calls", ()), following):
        function = call["function"]
        if not isinstance(function["arguments"], Mapping):
            cut.append(call)
            continue
        whole.append(call)
        placed.add(id(result))
        named = {"name": function["name"], **(result or _NO_RESULT)}
        results.append({**named, "tool_call_id": call["id"]})
    if cut:
        yield as_text({**answer, "tool_calls": cut})
        answer = {
            "role": "assistant",
            "content": "",
            "tool_calls": whole,
        }
    if whole:
        yield answer
    yield from results
    for message in following:
        if id(message) not in placed:
            yield as_text(message)


def _paired(
    calls: Sequence[Mapping[str, Any]],
    said: Sequence[Message],
) -> Iterator[tuple[Mapping[str, Any], Message | None]]:
    """Each call with its result; None for a call without one.

    First the results that state the id of a call are paired. Each of the others goes to the
    first call without a result: of the tool that it names, or else of any tool.

    Args:
        calls: The calls of an answer.
        said: The messages after it, up to the next answer.
    """
    # The calls' numbers in `calls`; several may have one id.
    of_id: dict[str, deque[int]] = defaultdict(deque)
    of_name: dict[str, deque[int]] = defaultdict(deque)
    for number, call in enumerate(calls):
        of_id[call["id"]].append(number)
        of_name[call["function"]["name"]].append(number)
    of_any = deque(range(len(calls)))
    paired: dict[int, Message] = {}  # results by the numbers of their calls

    def pair(result: Message, numbers: deque[int] | None) -> bool:
        """Pair it with the first of these calls that has none. Returns whether it is paired."""
        while numbers and numbers[0] in paired:
            numbers.popleft()
        if numbers:
            paired[numbers[0]] = result
        return bool(numbers)

    results = [message for message in said if message["role"] == "tool"]
    without_id = []
    for result in results:
        if result.get("tool_call_id") in of_id:
            pair(result, of_id[result["tool_call_id"]])
        else:
            without_id.append(result)
    for result in without_id:
        of_its_tool = of_name.get(result.get("name", ""))
        if not pair(result, of_its_tool):
            pair(result, of_any)
    for number, call in enumerate(calls):
        yield call, paired.get(number)


def as_text(message: Message) -> Message:
    """The message, with calls and results as text. Thoughts stay."""
    if message["role"] == "tool":
        before = {"content": "<tool_response>\n"}
        after = {"content": "\n</tool_response>"}
        return {"role": "user", **joined([before, message, after], "")}
    parts: list[Message] = []
    if message["content"] or shown_in(message):
        parts.append(message)
    for call in message.get("tool_calls", ()):
        name = call["function"]["name"]
        arguments = call["function"]["arguments"]
        if not isinstance(arguments, str):
            arguments = json_text(arguments)
        parts.append({"content": f"<tool_call>\n{name}({arguments})\n</tool_call>"})
    return {
        "role": message["role"],
        **joined(parts, "\n"),
        **_thoughts_in(message),
    }


def answer_message(text: str, calls: Sequence[ToolCall], thoughts: str) -> Message:
    """An answer with the calls that it asks for, and the model's thoughts before it.

    Some templates show a model its thoughts until it has answered the question, some always,
    and some never.
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
    fitted: Iterable[Message] = messages
    if form.is_single:
        fitted = _one_call_each(messages)
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
    """A call in OpenAI's form.

    Raises OptionError.

    Args:
        number: The message's number.
        index: The call's number in it.
        call: The call, as in `checked_calls`.
    """
    if isinstance(call, ToolCall):
        call = {
            "id": call.id,
            "name": call.name,
            "arguments": call.json,
        }
    if isinstance(call, Mapping):
        given = call.get("function", call)
        if isinstance(given, Mapping) and given.get("name"):
            arguments = _arguments(given.get("arguments"))
            function = {"name": str(given["name"]), "arguments": arguments}
            call_id = call.get("id") or f"{number:04}{index:05}"
            return {
                "id": str(call_id),
                "type": "function",
                "function": function,
            }
    raise OptionError(
        f"call {index} of message {number} is {call!r:.80}",
        'Give {"id": …, "function": {"name": …, "arguments": …}}.',
    )


def _arguments(given: object) -> object:
    """Arguments by name if `given` is an object or its JSON, else a text."""
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
    following = deque(messages)
    while following:
        message = following.popleft()
        calls = message.get("tool_calls", ())
        if len(calls) < 2:
            yield message
            continue
        for call in calls:
            yield {**message, "tool_calls": [call]}
            yield following.popleft()
            message = {"role": "assistant", "content": ""}


def _with_thinking(message: Message) -> Message:
    """The calls with their thoughts by gpt-oss's key, which get their text, too."""
    if "reasoning_content" not in message or "tool_calls" not in message:
        return message
    fitted = {**message, "thinking": message["reasoning_content"]}
    if message["content"]:
        fitted["thinking"] += f"\n\n{message['content']}"
    return {**fitted, "content": ""}


def _with_short_ids(message: Message) -> Message:
    """The message with ids of nine letters and digits, which some templates require."""
    fitted = dict(message)
    if "tool_call_id" in fitted:
        fitted["tool_call_id"] = _short(fitted["tool_call_id"])
    if "tool_calls" in fitted:
        calls = []
        for call in fitted["tool_calls"]:
            calls.append({**call, "id": _short(call["id"])})
        fitted["tool_calls"] = calls
    return fitted


def _short(call_id: str) -> str:
    """The id in nine letters and digits, always the same for the same id."""
    if _NINE.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode(errors="replace")).hexdigest()[:9]
