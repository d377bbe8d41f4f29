"""Turns of a conversation: a question, and everything up to its last answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

from localspec.chat.messages import checked_messages
from localspec.chat.shown import attached_pictures, shown_in, with_shown
from localspec.chat.template import Message
from localspec.errors import OptionError
from localspec.streaming.prompt import Prompt

if TYPE_CHECKING:
    from localspec.pictures.picture import PictureSource

MAX_COUNT = 2**31 - 1  # of turns
_PICTURE_SIZE = 1000  # characters of text that take about as many tokens
# A question and its answer; where that calls tools, their results and the next answer.
Turn = tuple[Message, ...]


def question_message(
    text: str, images: Sequence[PictureSource] = (), *, old: Message | None = None
) -> Message:
    """The user's message, with pictures before the text.

    old: a question that it replaces, whose pictures it keeps. Raises OptionError for anything
    but a str, and for what is no picture.
    """
    if not isinstance(text, str):
        raise OptionError(f"the message is {text!r}", "Give a str.")
    shown = attached_pictures(images)
    if old is not None:
        is_same = old["content"] == text
        shown += [each if is_same else each._replace(at=0) for each in shown_in(old)]
    return with_shown({"role": "user", "content": text}, shown)


def system_messages(text: str | None) -> list[Message]:
    """The system message, if there is one. Raises OptionError for anything but a str."""
    if not isinstance(text, str | None):
        raise OptionError(f"the system message is {text!r}", "Give a str, or None.")
    return [{"role": "system", "content": text}] if text else []


def result_messages(turns: Sequence[Turn], results: Mapping[str, object]) -> Turn:
    """The results of the last answer's calls of tools, in the order of the calls.

    results: by the ids of the calls; a value other than a str is written as JSON. Raises
    OptionError where the answer calls no tool, a result is missing, or belongs to no call.
    """
    calls = pending_calls(turns)
    if not calls:
        raise OptionError("the last answer calls no tool", "Ask, with tools.")
    if not isinstance(results, Mapping):
        raise OptionError(f"the results are {results!r:.80}", "Give a dict, by ids of calls.")
    ids = [str(call["id"]) for call in calls]
    if results.keys() != set(ids):
        given = ", ".join(map(str, results)) or "none"
        raise OptionError(
            f"the last answer's calls are {', '.join(ids)}; results are given of {given}",
            "Give one result for each call, by its id.",
        )
    return tuple(
        {
            "role": "tool",
            "content": _text(results[str(call["id"])]),
            "tool_call_id": call["id"],
            "name": call["function"]["name"],
        }
        for call in calls
    )


def pending_calls(turns: Sequence[Turn]) -> Sequence[Message]:
    """The calls of the last answer, whose results are missing."""
    if not turns:
        return ()
    calls: Sequence[Message] = turns[-1][-1].get("tool_calls", ())
    return calls


def require_no_calls(turns: Sequence[Turn]) -> None:
    """Raise OptionError where the last answer waits for the results of its calls."""
    if pending_calls(turns):
        raise OptionError(
            "the last answer calls tools, and their results are missing",
            "Give their results with send_tool_results, or take the turn back with undo().",
        )


def messages_of(turns: Sequence[Turn]) -> list[Message]:
    """The messages of the turns in a row."""
    return [message for turn in turns for message in turn]


def turn_size(turn: Turn) -> int:
    """Characters that the turn takes in a prompt, roughly."""
    return sum(
        len(message["content"])
        + len(json.dumps(message.get("tool_calls", "")))
        + _PICTURE_SIZE * len(shown_in(message))
        for message in turn
    )


def turns_of(messages: Sequence[Message]) -> tuple[str | None, list[Turn]]:
    """The text of a system message in front, if there is one, and whole turns.

    Raises OptionError for other messages.
    """
    checked = [] if messages == [] or messages == () else checked_messages(messages)
    has_system = bool(checked) and checked[0]["role"] == "system"
    system = str(checked.pop(0)["content"]) if has_system else None
    turns: list[Turn] = []
    for message in checked:
        if message["role"] == "user":
            turns.append(())
        if turns:
            turns[-1] = (*turns[-1], message)
    if sum(map(len, turns)) != len(checked) or not all(map(_is_whole, turns)):
        raise OptionError(
            f"the messages' roles are {', '.join(repr(each['role']) for each in messages)}",
            "Give user and assistant in turn, after at most one system message.",
        )
    return system, turns


def _is_whole(turn: Turn) -> bool:
    """Whether each answer but the last calls tools, and is followed by the results."""
    rest = list(turn[1:])
    while rest and rest[0]["role"] == "assistant":
        answer = rest.pop(0)
        if not rest:
            return True
        if "tool_calls" not in answer or rest[0]["role"] != "tool":
            return False
        while rest and rest[0]["role"] == "tool":
            rest.pop(0)
    return False


def _text(result: object) -> str:
    if isinstance(result, str):
        return result
    try:
        return json.dumps(result, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(
            f"a result is {result!r:.80}: {error}", "Give a text, or what JSON can hold."
        ) from error


def is_count(value: object) -> TypeGuard[int]:
    """Whether it can be a number of turns: 0 to MAX_COUNT."""
    return isinstance(value, int) and 0 <= value <= MAX_COUNT


class Unfinished(NamedTuple):
    """An answer that was cut: a prompt with all its tokens.

    turn: the number in the addresses of its random numbers. revision: of the conversation,
    after the answer.
    """

    prompt: Prompt
    turn: int
    revision: int
