"""Converts messages as clients write them to messages as a chat template takes them.

A call is a tool call in an answer, in OpenAI's form: a dict with an id and a function, which
has a name and arguments. A result is a message of the role "tool".
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, takewhile
from typing import Any, TypeGuard

from localspec.chat.shown import (
    PICTURE_NOTE,
    PictureData,
    Shown,
    joined_content,
    picture_in,
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
# The key of the text in a part of a content, by the part's type. A tool_reference names a tool.
_TEXT_PARTS = dict.fromkeys(("text", "input_text", "output_text"), "text")
_TEXT_PARTS |= {"refusal": "refusal", "tool_reference": "tool_name"}
# Descriptions of parts that no model here reads, by a word in the type of such a part.
_UNREADABLE_PARTS = {
    "audio": "audio", "video": "a video", "file": "a file", "document": "a document",
}  # fmt: skip
# The keys of an answer's thoughts in llama.cpp, in vLLM and OpenRouter, and in Ollama.
THOUGHT_KEYS = ("reasoning_content", "reasoning", "thinking")
_NINE = re.compile(r"[A-Za-z0-9]{9}")
_NO_RESULT = {"role": "tool", "content": "[There is no result of this call.]"}


def checked_messages(messages: object) -> list[Message]:
    """Check messages as clients give them, and convert them to the form of a `Message`.

    Each then has a role and a text, and perhaps pictures, thoughts and calls of tools. The
    results of calls directly follow their calls: see `with_results`.

    Args:
        messages: A sequence of mappings, each with a role and a content. A content is a str,
            None for no text, or a list of parts such as {"type": "text", "text": …}. Parts with
            text become lines of one text. Pictures (see `shown.picture_in`) go to "pictures",
            with their positions in the text; a message that was checked before has them there.
            An assistant's message may have tool_calls, and thoughts under one of THOUGHT_KEYS.
            The message of a tool (or function) may have tool_call_id and name. Other keys are
            ignored. Parts that no model here can read become notes: images without data, audio,
            video and files. They are refused in the last message, unless it is a tool's.

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
    """The messages with alternating roles, which every template accepts.

    System messages at the beginning become one message; later ones become the user's.
    Neighbouring messages of one role become one message. Calls of tools and their results do
    not change.

    Some templates do not count calls and results as turns. For them, two messages of the user
    must not have only calls and results between them: an empty answer is added after these. The
    same holds for two answers: the text of the first one is moved into the first call's
    message.
    """
    opening = list(takewhile(_is_system, messages))
    merged: list[Message] = []
    if opening:
        merged.append(_merged("system", opening))
    plain_role = ""  # of the last message without calls and results
    plain_index = 0  # the index of that message in `merged`
    for (role, is_plain), group in groupby(messages[len(opening) :], _role_in_turns):
        neighbours = list(group)
        if not is_plain:
            merged += neighbours
            continue
        # Between two groups of one role, which were not neighbours, are only calls and results.
        if role == plain_role == "user":
            merged.append({"role": "assistant", "content": ""})
        elif role == plain_role == "assistant":
            answer = merged.pop(plain_index)
            calls = merged[plain_index]
            merged[plain_index] = _with_text_before(calls, answer)
        plain_role = role
        plain_index = len(merged)
        merged.append(_merged(role, neighbours))
    return merged


def _with_text_before(calls: Message, answer: Message) -> Message:
    """The message `calls`, with the text and the thoughts of `answer` before its own."""
    both = [answer, calls]
    with_content = [message for message in both if message["content"]]
    return {
        **calls,
        **joined_content(with_content, "\n\n"),
        **_joined_thoughts(both),
    }


def _merged(role: str, messages: Sequence[Message]) -> Message:
    """One message of this role with the contents and thoughts of several messages."""
    return {
        "role": role,
        **joined_content(messages, "\n\n"),
        **_joined_thoughts(messages),
    }


def _joined_thoughts(messages: Sequence[Message]) -> dict[str, str]:
    """The thoughts of all messages, joined, as reasoning_content; {} if there are none."""
    parts = [message.get("reasoning_content", "") for message in messages]
    thoughts = "\n\n".join(filter(None, parts))
    if thoughts:
        return {"reasoning_content": thoughts}
    return {}


def _role_in_turns(message: Message) -> tuple[str, bool]:
    """The role that `merged_messages` gives a message, and whether the message is plain.

    A plain message has no calls of tools and is no result.
    """
    is_plain = message["role"] != "tool" and "tool_calls" not in message
    if _is_system(message):
        return "user", is_plain
    return str(message["role"]), is_plain


def _is_system(message: Message) -> bool:
    return message["role"] in ("system", "developer")


def checked_message(number: int, message: object, count: int) -> Message:
    """Check and convert one message, as `checked_messages` does. Raises OptionError.

    Args:
        number: The message's number, from 0, for errors.
        message: The message.
        count: The number of all messages.
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
    is_result = role in ("tool", "function")
    is_question = number == count - 1 and not is_result
    content = _content(number, message.get("content"), is_question=is_question)
    checked = {"role": role, **content}
    if is_result:
        result_pictures = [picture._replace(is_result=True) for picture in shown_in(checked)]
        checked = with_shown(checked, result_pictures)
    pictures = message.get("pictures")
    if _is_checked_pictures(pictures):
        checked = with_shown(checked, pictures)
    elif pictures is not None:
        raise OptionError(
            f"message {number} has pictures in a form that cannot be read: {pictures!r:.80}",
            'Put each into the content, as {"type": "image_url", …}. JSON cannot hold the '
            "pictures of a transcript: save it with pickle.",
        )
    if is_result:
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


def _is_checked_pictures(pictures: object) -> TypeGuard[tuple[Shown, ...]]:
    """Whether these are the pictures of a message that was checked before.

    They are in a tuple, which no message from JSON has.
    """
    if not isinstance(pictures, tuple):
        return False
    return all(isinstance(picture, Shown) for picture in pictures)


def _call_of_result(message: Mapping[Any, Any]) -> dict[str, str]:
    """The tool's name and the call's id in the message of a result, if it has them."""
    keys = {}
    name = message.get("name")
    if isinstance(name, str):
        keys["name"] = name
    call_id = message.get("tool_call_id")
    if call_id is not None:
        keys["tool_call_id"] = str(call_id)
    return keys


def _thoughts_in(message: Mapping[str, Any]) -> dict[str, str]:
    """The thoughts of an answer, as reasoning_content; {} if there are none.

    They are the value of the first of THOUGHT_KEYS that has a text.
    """
    for key in THOUGHT_KEYS:
        thoughts = message.get(key)
        if isinstance(thoughts, str) and thoughts:
            return {"reasoning_content": thoughts}
    return {}


def _content(number: int, content: object, *, is_question: bool) -> dict[str, Any]:
    """The keys "content", with the text of a content, and "pictures" if there are any.

    Raises OptionError.

    Args:
        number: The message's number, for errors.
        content: The content as a client gives it: see `checked_messages`.
        is_question: Whether it is the message to be answered, whose parts must all be readable.
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
    pictures = []
    follows_text = False
    for part in content:
        text_or_picture = _read_part(number, part, is_question=is_question)
        if not isinstance(text_or_picture, str):
            pictures.append(Shown(len(text), text_or_picture))
            follows_text = False  # no new line next to a picture, as in llama.cpp
        elif text_or_picture:  # a server's answer may begin with an empty part
            if follows_text:
                text += "\n"
            text += text_or_picture
            follows_text = True
    return with_shown({"content": text}, pictures)


def _read_part(number: int, part: object, *, is_question: bool) -> str | PictureData:
    """The text or the picture of one part of a content.

    Audio, video, files, and an image that cannot be read become a note, or raise OptionError if
    `is_question`. A part of another kind always raises OptionError.

    Arguments as for `_content`.
    """
    kind = None
    if isinstance(part, Mapping):
        kind = part.get("type")
    if isinstance(part, Mapping) and isinstance(kind, str):
        text = part.get(_TEXT_PARTS.get(kind))
        if isinstance(text, str):
            return str(text)
        if "image" in kind:
            try:
                return picture_in(part)
            except OptionError as error:
                if not is_question:
                    return PICTURE_NOTE
                raise OptionError(
                    f"message {number} has an image in it: {error}",
                    error.hint,
                ) from error
        unreadable = _unreadable_kind(kind)
        if unreadable and not is_question:
            return f"[{unreadable.capitalize()} was here, which this model cannot read.]"
        if unreadable:
            raise OptionError(
                f"message {number} has {unreadable} in it (a part of type {kind!r})",
                "Leave it out, or put its text there.",
            )
    raise OptionError(
        f"message {number} has a part that is not a text: {part!r:.80}",
        'Give {"type": "text", "text": "…"}.',
    )


def _unreadable_kind(kind: str) -> str:
    """The description of a part of this type that no model here reads; "" for other types."""
    for word, description in _UNREADABLE_PARTS.items():
        if word in kind:
            return description
    return ""


def checked_calls(number: int, calls: object) -> list[dict[str, Any]]:
    """Check the calls of an answer, and convert them to OpenAI's form.

    Arguments become a dict if they are one or are its JSON; otherwise they become a text.
    Raises OptionError.

    Args:
        number: The message's number, for errors and for ids of calls without one.
        calls: `ToolCall`s, or dicts in OpenAI's form. Name and arguments may also stand in the
            call itself.
    """
    if not isinstance(calls, Sequence) or isinstance(calls, str | bytes):
        raise OptionError(f"tool_calls of message {number} is {calls!r:.80}", "Give a list.")
    return [_checked_call(number, index, call) for index, call in enumerate(calls)]


def with_results(messages: Sequence[Message]) -> list[Message]:
    """The messages, with the results of each answer's calls right after it.

    The results are in the order of the calls, because templates without ids pair calls and
    results by their order. A result without the id of a call belongs to the first call of its
    tool that has no result yet, or else to the first call without a result. A note replaces a
    missing result, for example of a call that was denied. A call whose arguments are no object,
    for example because it was cut, becomes text, and so does its result. A result of no call
    becomes text, too. If the last message has calls, these do not change.
    """
    # Each answer with the messages up to the next one; first the messages before any answer.
    sections: list[list[Message]] = [[]]
    for message in messages:
        if message["role"] == "assistant":
            sections.append([])
        sections[-1].append(message)
    last_calls: list[Message] = []
    if "tool_calls" in messages[-1]:
        last_calls = sections.pop()
    ordered: list[Message] = []
    for section in sections:
        ordered += _with_ordered_results(section)
    return ordered + last_calls


def _with_ordered_results(section: Sequence[Message]) -> Iterator[Message]:
    """An answer and the messages up to the next one, with its results as in `with_results`."""
    following = list(section)
    answer: Message = {}
    if following and "tool_calls" in following[0]:
        answer = following.pop(0)
    complete_calls = []
    cut_calls = []  # whose arguments are no object
    results: list[Message] = []
    placed_ids = set()  # Python's ids of the messages that are in `results`
    for call, result in _paired(answer.get("tool_calls", ()), following):
        function = call["function"]
        if not isinstance(function["arguments"], Mapping):
            cut_calls.append(call)
            continue
        complete_calls.append(call)
        placed_ids.add(id(result))
        named_result = {"name": function["name"], **(result or _NO_RESULT)}
        results.append({**named_result, "tool_call_id": call["id"]})
    if cut_calls:
        yield as_text({**answer, "tool_calls": cut_calls})
        answer = {
            "role": "assistant",
            "content": "",
            "tool_calls": complete_calls,
        }
    if complete_calls:
        yield answer
    yield from results
    for message in following:
        if id(message) not in placed_ids:
            yield as_text(message)


def _paired(
    calls: Sequence[Mapping[str, Any]],
    following: Sequence[Message],
) -> Iterator[tuple[Mapping[str, Any], Message | None]]:
    """Each call with its result; None in place of a missing result.

    First the results that have the id of a call are paired. Then each remaining result goes to
    the first call without a result: a call of the tool that it names, or else any call.

    Args:
        calls: The calls of an answer.
        following: The messages after the answer, up to the next answer.
    """
    # Indexes of calls. Several calls may have one id.
    calls_by_id: dict[str, deque[int]] = defaultdict(deque)
    calls_by_name: dict[str, deque[int]] = defaultdict(deque)
    for index, call in enumerate(calls):
        calls_by_id[call["id"]].append(index)
        calls_by_name[call["function"]["name"]].append(index)
    all_calls = deque(range(len(calls)))
    result_of: dict[int, Message] = {}  # by the index of the call

    def pair(result: Message, candidates: deque[int] | None) -> bool:
        """Give a result to the first candidate without one. Returns False if there is none."""
        while candidates and candidates[0] in result_of:
            candidates.popleft()
        if candidates:
            result_of[candidates[0]] = result
        return bool(candidates)

    results = [message for message in following if message["role"] == "tool"]
    without_id = []
    for result in results:
        candidates = calls_by_id.get(result.get("tool_call_id", ""))
        if candidates is None:
            without_id.append(result)
        else:
            pair(result, candidates)
    for result in without_id:
        calls_of_tool = calls_by_name.get(result.get("name", ""))
        if not pair(result, calls_of_tool):
            pair(result, all_calls)
    for index, call in enumerate(calls):
        yield call, result_of.get(index)


def as_text(message: Message) -> Message:
    """The message with its calls written as text, or a result as text of the user.

    Thoughts stay.
    """
    if message["role"] == "tool":
        before = {"content": "<tool_response>\n"}
        after = {"content": "\n</tool_response>"}
        return {"role": "user", **joined_content([before, message, after], "")}
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
        **joined_content(parts, "\n"),
        **_thoughts_in(message),
    }


def answer_message(text: str, calls: Sequence[ToolCall], thoughts: str) -> Message:
    """The message of an answer, with its text, its calls of tools and its thoughts.

    The template decides whether the model sees its thoughts again: some show them until the
    question is answered, some always, and some never.
    """
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = checked_calls(0, calls)
    if thoughts:
        message["reasoning_content"] = thoughts
    return message


def fit_to_form(messages: Sequence[Message], form: CallForm) -> list[Message]:
    """The messages, with calls and results as templates with this form of calls accept them."""
    has_calls = any("tool_calls" in message for message in messages)
    adapted: Iterable[Message] = messages
    if form.is_single:
        adapted = _with_one_call_each(messages)
    if has_calls and not form.is_shown:
        adapted = with_calls_in_words(adapted, form)
    if has_calls and form is IN_WORDS:
        adapted = merged_messages(list(adapted))
    if form.recipient:  # gpt-oss
        adapted = map(_with_thinking, adapted)
    if form.has_ids:
        return [_with_short_ids(message) for message in adapted]
    return list(adapted)


def _checked_call(number: int, index: int, call: object) -> dict[str, Any]:
    """Check one call, and convert it to OpenAI's form.

    Raises OptionError.

    Args:
        number: The message's number.
        index: The call's index in the message.
        call: The call, as in `checked_calls`.
    """
    if isinstance(call, ToolCall):
        call = {
            "id": call.id,
            "name": call.name,
            "arguments": call.json,
        }
    if isinstance(call, Mapping):
        function = call.get("function", call)
        if isinstance(function, Mapping) and function.get("name"):
            name = str(function["name"])
            try:
                arguments = _checked_arguments(function.get("arguments"))
            except (TypeError, ValueError, RecursionError) as error:
                raise OptionError(
                    f"the arguments of call {index} of message {number} are not JSON: {error}",
                    "Give a dict of values that JSON can hold, or its JSON.",
                ) from error
            call_id = call.get("id") or f"{number:04}{index:05}"
            return {
                "id": str(call_id),
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
    raise OptionError(
        f"call {index} of message {number} is {call!r:.80}",
        'Give {"id": …, "function": {"name": …, "arguments": …}}.',
    )


def _checked_arguments(arguments: object) -> object:
    """The arguments of a call: a dict if they are one or its JSON, otherwise a text.

    Raises TypeError, ValueError or RecursionError if JSON cannot hold them.
    """
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, str):
        try:
            value = json.loads(arguments)
        except (ValueError, RecursionError):
            return arguments
        if isinstance(value, dict):
            return value
        return arguments
    if isinstance(arguments, Mapping):
        json_text({**arguments})  # raises what JSON raises
        return arguments
    return json_text(arguments)


def _with_one_call_each(messages: Sequence[Message]) -> Iterator[Message]:
    """The messages, with each call in a message of its own, followed by its result.

    The text and the thoughts of an answer with several calls stay with the first call.
    """
    following = deque(messages)
    while following:
        message = following.popleft()
        calls = message.get("tool_calls", ())
        if len(calls) < 2:
            yield message
            continue
        for call in calls:
            yield {**message, "tool_calls": [call]}
            yield following.popleft()  # the result of the call
            message = {"role": "assistant", "content": ""}


def _with_thinking(message: Message) -> Message:
    """The message with its thoughts and text under "thinking", if it has calls and thoughts.

    gpt-oss's template reads that key.
    """
    if "reasoning_content" not in message or "tool_calls" not in message:
        return message
    thinking = message["reasoning_content"]
    if message["content"]:
        thinking += f"\n\n{message['content']}"
    return {**message, "thinking": thinking, "content": ""}


def _with_short_ids(message: Message) -> Message:
    """The message with ids of nine letters and digits, which some templates require."""
    adapted = dict(message)
    if "tool_call_id" in adapted:
        adapted["tool_call_id"] = _short_id(adapted["tool_call_id"])
    if "tool_calls" in adapted:
        calls = []
        for call in adapted["tool_calls"]:
            calls.append({**call, "id": _short_id(call["id"])})
        adapted["tool_calls"] = calls
    return adapted


def _short_id(call_id: str) -> str:
    """An id of nine letters and digits, always the same for the same call id."""
    if _NINE.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode(errors="replace")).hexdigest()[:9]
