"""Messages as the field writes them → those that a chat template gets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby, takewhile
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
from localspec.chat.tool_messages import checked_calls, with_results
from localspec.errors import OptionError

_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")  # it goes into the prompt as it is
# The key of the text in parts of each kind. A reference names a tool that was found.
_TEXT_PARTS = dict.fromkeys(("text", "input_text", "output_text"), "text")
_TEXT_PARTS |= {"refusal": "refusal", "tool_reference": "tool_name"}
# Kinds of parts, by what their type has in it.
_OTHER_PARTS = (
    ("audio", "audio"),
    ("video", "a video"),
    ("file", "a file"),
    ("document", "a document"),
)


def checked_messages(messages: object) -> list[Message]:
    """Role and text of each message, and the calls of tools that belong to it.

    messages: a sequence of mappings with a role and a content: a str, None for no text, or
    parts such as {"type": "text", "text": …}, which become lines of one text, with pictures
    (see `shown.given_in`) in between: their positions are in "pictures". An assistant's
    may have tool_calls, and then the thoughts before them as reasoning_content; a tool's (or
    function's) tool_call_id and name. Other keys are passed over. An image without data, audio
    and files become notes in results of tools and before the last message. Calls and results:
    see `with_results`. Raises OptionError for anything else, with the message's number from 0.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise OptionError(
            f"the messages are {messages!r:.80}",
            'Give a list such as [{"role": "user", "content": "Hello!"}].',
        )
    if not messages:
        raise OptionError("there are no messages", "Give one or more.")
    checked = [
        _checked(number, message, len(messages)) for number, message in enumerate(messages)
    ]
    return with_results(checked)


def merged_messages(messages: Sequence[Message]) -> list[Message]:
    """The messages in turns that every template takes.

    The system's messages in front are one, its later ones the user's, and messages in a row of
    one role are one. Calls of tools and their results stay as they are. Some templates do not
    count them as turns: where nothing else stands between two messages of the user, an empty
    answer follows, and between two answers, the text of the first one joins the calls.
    """
    opening = list(takewhile(_is_system, messages))
    merged = [_merged("system", opening)] if opening else []
    speaker, at = "", 0  # who said the last words, and where
    for (role, is_plain), group in groupby(messages[len(opening) :], _role_in_turns):
        same = list(group)
        if not is_plain:
            merged += same
            continue
        if role == speaker == "user":
            merged.append({"role": "assistant", "content": ""})
        elif role == speaker == "assistant":
            said = [each for each in (merged.pop(at), merged[at]) if each["content"]]
            merged[at] = {**merged[at], **joined(said, "\n\n")}
        speaker, at = role, len(merged)
        merged.append(_merged(role, same))
    return merged


def _merged(role: str, messages: Sequence[Message]) -> Message:
    return {"role": role, **joined(messages, "\n\n")}


def _role_in_turns(message: Message) -> tuple[str, bool]:
    """The speaker, and whether the message is nothing but text."""
    is_plain = message["role"] != "tool" and "tool_calls" not in message
    return "user" if _is_system(message) else str(message["role"]), is_plain


def _is_system(message: Message) -> bool:
    return message["role"] in ("system", "developer")


def _checked(number: int, message: object, count: int) -> Message:
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
    # Those of a message that was checked before: JSON has no tuples.
    if isinstance(pictures, tuple) and all(isinstance(each, Shown) for each in pictures):
        checked = with_shown(checked, pictures)
    if is_tool:
        call_id, name = message.get("tool_call_id"), message.get("name")
        named = {"name": name} if isinstance(name, str) else {}
        known = {} if call_id is None else {"tool_call_id": str(call_id)}
        return {**checked, "role": "tool", **named, **known}
    if role == "assistant" and message.get("tool_calls"):
        thoughts = message.get("reasoning_content") or message.get("reasoning")
        before = {"reasoning_content": thoughts} if isinstance(thoughts, str) else {}
        calls = checked_calls(number, message["tool_calls"])
        return {**checked, **before, "tool_calls": calls}
    return checked


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
    text, shown, was_text = "", [], False
    for part in content:
        found = _found_in(number, part, is_asked=is_asked)
        if not isinstance(found, str):
            shown.append(Shown(len(text), found))
        elif found:  # some say nothing, with which a server's answer may have begun
            # No new line beside a picture, as in llama.cpp.
            text += f"\n{found}" if was_text else found
        was_text = isinstance(found, str) and bool(found or was_text)
    return with_shown({"content": text}, shown)


def _found_in(number: int, part: object, *, is_asked: bool) -> str | Given:
    """The text or the picture in a part."""
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
        for word, what in _OTHER_PARTS:
            if word not in kind:
                continue
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
