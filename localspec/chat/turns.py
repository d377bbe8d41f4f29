"""Turns of a conversation: a question, and all up to its last answer; which of them fit."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeGuard

from localspec.chat.messages import checked_message, checked_messages
from localspec.chat.shown import attached_pictures, shown_in, with_shown
from localspec.chat.template import Message
from localspec.errors import ContextError, OptionError, is_whole
from localspec.streaming.answer import Answer
from localspec.streaming.answer_text import Prompt
from localspec.streaming.record import AnswerRecord, MadePrompt, PromptSource
from localspec.tools.foreign import ForeignResult

if TYPE_CHECKING:
    from localspec.pictures.picture import PictureSource

MAX_COUNT = 2**31 - 1  # of turns
_PICTURE_SIZE = 1000  # characters of text that take about as many tokens
# The roles of messages that may follow one; "calls" is an answer that calls tools.
_FOLLOWING: dict[str, tuple[str, ...]] = {
    "": ("user",),  # at the beginning
    "user": ("assistant",),
    "assistant": ("user",),
    "calls": ("tool",),
    "tool": ("tool", "assistant"),
}
# A question and its answer; where that calls tools, their results and the next answer.
Turn = tuple[Message, ...]


def question_message(
    text: str, images: Sequence[PictureSource] = (), *, old: Message | None = None
) -> Message:
    """The user's message, with pictures before the text.

    Args:
        old: A question that it replaces, whose pictures it keeps.

    Raises:
        OptionError: For anything but a str, and for what is no picture.
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
    if text:
        return [{"role": "system", "content": text}]
    return []


def result_messages(turns: Sequence[Turn], results: Mapping[str, object]) -> Turn:
    """The results of the last answer's calls of tools, in the order of the calls.

    Args:
        results: The results by the ids of the calls; a value other than a str is written as
            JSON.

    Raises:
        OptionError: Where the answer calls no tool, a result is missing, or belongs to no call.
    """
    calls = pending_calls(turns)
    if not calls:
        raise OptionError("the last answer calls no tool", "Ask a question with tools first.")
    if not isinstance(results, Mapping):
        raise OptionError(
            f"the results are {results!r:.80}",
            "Give a dict of results by the ids of the calls.",
        )
    ids = [str(call["id"]) for call in calls]
    if results.keys() != set(ids):
        given = ", ".join(map(str, results)) or "none"
        raise OptionError(
            f"the last answer's calls are {', '.join(ids)}; results are given for {given}",
            "Give one result for each call, by its id.",
        )
    return tuple(_result_message(call, results[str(call["id"])]) for call in calls)


def _result_message(call: Message, result: object) -> Message:
    message = {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"]}
    if not isinstance(result, ForeignResult):
        return {**message, "content": result_text(result)}
    parts: list[dict[str, Any]] = [{"type": "text", "text": result.text}]
    for picture in result.pictures:
        parts.append({"type": "image_url", "image_url": {"url": picture}})
    return checked_message(0, {**message, "content": parts}, 1)


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
            "Give their results with send_tool_results, or remove the turn with undo().",
        )


def messages_of(turns: Sequence[Turn]) -> list[Message]:
    """The messages of the turns in a row."""
    return [message for turn in turns for message in turn]


def turn_size(turn: Turn) -> int:
    """Characters that the turn takes in a prompt, roughly."""
    return sum(
        len(message["content"])
        + len(message.get("reasoning_content", ""))
        + len(json.dumps(message.get("tool_calls", ""), ensure_ascii=False))
        + _PICTURE_SIZE * len(shown_in(message))
        for message in turn
    )


def with_system(system: str | None, messages: object) -> list[Message]:
    """Checked messages, after the system message if there is one.

    Raises OptionError for bad messages, and for two system messages.
    """
    checked = checked_messages(messages)
    first = system_messages(system)
    if first and checked[0]["role"] == "system":
        raise OptionError(
            "system is given, and the messages begin with a system message, too",
            "Give one of them.",
        )
    return [*first, *checked]


def turns_of(messages: object, system: str | None) -> tuple[list[Message], list[Turn]]:
    """The system message, if there is one, and whole turns.

    Args:
        messages: a conversation in OpenAI's format; it may be empty.
        system: the text of a system message in front of them.

    Raises:
        OptionError: for other messages.
    """
    is_empty = messages == [] or messages == ()
    rest = system_messages(system) if is_empty else with_system(system, messages)
    has_system = bool(rest) and rest[0]["role"] == "system"
    opening = system_messages(rest.pop(0)["content"]) if has_system else []
    turns: list[Turn] = []
    before = ""
    for message in rest:
        role = message["role"]
        allowed = _FOLLOWING[before]
        if role not in allowed:
            raise OptionError(
                f"the message {message['content']!r:.60} has the role {role!r}; it has to be "
                f"{' or '.join(map(repr, allowed))} here",
                "Give whole turns: user and assistant alternate, the results of tools follow "
                "their calls, and a system message comes first, if there is one.",
            )
        if role == "user":
            turns.append(())
        turns[-1] = (*turns[-1], message)
        before = "calls" if "tool_calls" in message else role
    if turns and turns[-1][-1]["role"] != "assistant":
        raise OptionError(
            f"the last message has the role {before!r} and no answer",
            "Leave that question out and ask it with chat.send(…), or ask with all messages: "
            "engine.generate(messages).",
        )
    return opening, turns


def result_text(result: object) -> str:
    """The result of a call as text: JSON, unless it is one. Raises OptionError."""
    if isinstance(result, str):
        return result
    try:
        return json.dumps(result, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(
            f"a result is {result!r:.80}: {error}",
            "Give a text, or a value that JSON can hold.",
        ) from error


def is_count(value: object) -> TypeGuard[int]:
    """Whether it can be a number of turns: 0 to MAX_COUNT."""
    return is_whole(value, 0, MAX_COUNT)


class Unfinished(NamedTuple):
    """An answer that was cut: a prompt with all its tokens."""

    prompt: Prompt
    turn: int
    """The number in the addresses of its random numbers."""

    revision: int
    """The conversation's revision after the answer."""


MIN_ANSWER_TOKENS = 64  # older turns leave rather than squeeze the answer below this
_CHARACTERS_PER_TOKEN = 6  # a first guess at how much text fits


class ContextLength(Protocol):
    """How many tokens a model takes."""

    @property
    def context_length(self) -> int:
        """Tokens that a prompt and its answer may have together."""

    @property
    def trained_context_length(self) -> int:
        """The longest context, in tokens, that the model was trained for."""


class ChatBackend(Protocol):
    """The engine, as far as a conversation knows it.

    A name that begins with an underscore is for this package, not for applications.
    """

    @property
    def chat_template(self) -> str | None: ...

    @property
    def tool_template(self) -> str | None: ...

    @property
    def context_length(self) -> int: ...

    def tokenize(self, text: str, *, special: bool = False) -> list[int]: ...

    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> str: ...

    def _answer(self, record: AnswerRecord) -> Answer: ...

    def _make_prompt(self, source: PromptSource) -> MadePrompt: ...

    def _prepare(self, source: PromptSource, *, owner: object) -> None: ...


def fitting_prompt(
    model: ContextLength,
    asked: Sequence[Message],
    turns: Sequence[Turn],
    make: Callable[[Sequence[Turn]], Prompt],
) -> tuple[Prompt, int]:
    """The prompt of the next answer, and how many of the oldest turns are left out of it.

    Args:
        asked: The system message, if any, and everything after the turns.
        make: The prompt with the turns that it is given.

    Raises:
        ContextError: If `asked` alone does not fit, and what `make` raises.
    """
    capacity = model.context_length
    prompts: dict[int, Prompt] = {}  # by the number of turns that leave

    def length(num_leaving: int) -> int:
        if num_leaving not in prompts:
            prompts[num_leaving] = make(turns[num_leaving:])
        return len(prompts[num_leaving].tokens)

    sizes = [turn_size(turn) for turn in turns]
    needed = min(MIN_ANSWER_TOKENS, capacity // 4)
    # Down to half, so that the kept turns are not decoded again at every question.
    num_leaving = num_to_forget(sizes, length, capacity - needed, capacity // 2)
    num_tokens = length(num_leaving)
    if num_tokens >= capacity:
        is_with_system = asked[0]["role"] == "system"
        shorter = "Shorten it or the system message" if is_with_system else "Shorten it"
        raise ContextError(
            f"the message makes a prompt of {num_tokens} tokens; the context holds {capacity}",
            longer_context(shorter, model),
            num_tokens=num_tokens,
            context_length=capacity,
        )
    return prompts[num_leaving], num_leaving


def num_to_forget(
    sizes: Sequence[int], length: Callable[[int], int], capacity: int, kept: int
) -> int:
    """0 if the whole has at most `capacity` tokens, else the fewest that leave at most `kept`.

    If no number of turns suffices, all are forgotten.

    Args:
        sizes: Characters of each turn, oldest first.
        length: Counts the tokens of the prompt without its n oldest turns. That takes time, so
            it is called as often as a binary search needs, and never for much more text than
            `capacity` tokens may be.
    """
    after = [0, *accumulate(reversed(sizes))][::-1]  # characters without the first 0, 1, 2 …
    most = capacity * _CHARACTERS_PER_TOKEN
    while True:
        begin = next(number for number, size in enumerate(after) if size <= most)
        if length(begin) > capacity:
            break
        if begin == 0:
            return 0
        most *= 2
    numbers = range(len(sizes))  # all of them, if none of these is enough
    first = min(begin + 1, len(sizes))
    return bisect_left(numbers, -kept, lo=first, key=lambda number: -length(number))


def longer_context(shorter: str, model: ContextLength) -> str:
    """The hint against too many tokens. shorter: how to have fewer."""
    trained = model.trained_context_length
    if model.context_length < trained:
        larger = f"a larger context, up to {trained} tokens (context_length=…)"
        return f"{shorter}, or load the model with {larger}."
    return f"{shorter}: this model reads at most {trained:,} tokens."
