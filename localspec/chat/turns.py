"""Turns of a conversation: a question and all messages up to its last answer.

Which turns fit the context is decided here, too.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain
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
# A question and its answer. If that calls tools, their results and the next answer follow.
Turn = tuple[Message, ...]


def question_message(
    text: str,
    images: Sequence[PictureSource] = (),
    *,
    old: Message | None = None,
) -> Message:
    """The user's message, with pictures before the text.

    Args:
        text: The text.
        images: The pictures.
        old: A question that it replaces. Its pictures are kept.

    Raises:
        OptionError: The text is not a str, or a picture is not one.
    """
    if not isinstance(text, str):
        raise OptionError(f"the message is {text!r}", "Give a str.")
    shown = attached_pictures(images)
    if old is not None:
        for picture in shown_in(old):
            if old["content"] != text:
                picture = picture._replace(at=0)
            shown.append(picture)
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
        turns: The conversation.
        results: The results by the ids of the calls; a value other than a str is written as
            JSON.

    Raises:
        OptionError: The answer calls no tool, a result is missing, or belongs to no call.
    """
    calls = pending_calls(turns)
    if not calls:
        raise OptionError("the last answer calls no tool", "Ask a question with tools first.")
    if not isinstance(results, Mapping):
        raise OptionError(
            f"the results are {results!r:.80}",
            "Give a dict of results by the ids of the calls.",
        )
    by_id = {str(call["id"]): call for call in calls}
    if results.keys() != by_id.keys():
        given = ", ".join(map(str, results)) or "none"
        raise OptionError(
            f"the last answer's calls are {', '.join(by_id)}; results are given for {given}",
            "Give one result for each call, by its id.",
        )
    messages = []
    for call in calls:
        result = results[str(call["id"])]
        messages.append(_result_message(call, result))
    return tuple(messages)


def _result_message(call: Message, result: object) -> Message:
    """The message with the result of a call."""
    message = {
        "role": "tool",
        "tool_call_id": call["id"],
        "name": call["function"]["name"],
    }
    if not isinstance(result, ForeignResult):
        return {**message, "content": result_text(result)}
    parts: list[dict[str, Any]] = [{"type": "text", "text": result.text}]
    for picture in result.pictures:
        url = {"url": picture}
        parts.append({"type": "image_url", "image_url": url})
    return checked_message(0, {**message, "content": parts}, 1)


def pending_calls(turns: Sequence[Turn]) -> Sequence[Message]:
    """The calls of the last answer, whose results are missing."""
    if not turns:
        return ()
    calls: Sequence[Message] = turns[-1][-1].get("tool_calls", ())
    return calls


def require_no_calls(turns: Sequence[Turn]) -> None:
    """Raise OptionError if the last answer waits for the results of its calls."""
    if pending_calls(turns):
        raise OptionError(
            "the last answer calls tools, and their results are missing",
            "Give their results with send_tool_results, or remove the turn with undo().",
        )


def messages_of(turns: Sequence[Turn]) -> list[Message]:
    """The messages of all turns, in order."""
    return list(chain.from_iterable(turns))


def turn_size(turn: Turn) -> int:
    """Characters that the turn takes in a prompt, roughly."""
    size = 0
    for message in turn:
        size += len(message["content"])
        size += len(message.get("reasoning_content", ""))
        size += len(json.dumps(message.get("tool_calls", ""), ensure_ascii=False))
        size += _PICTURE_SIZE * len(shown_in(message))
    return size


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
        messages: A conversation in OpenAI's format; it may be empty.
        system: The text of a system message before them.

    Raises:
        OptionError: For other messages.
    """
    if messages == [] or messages == ():
        return system_messages(system), []
    checked = with_system(system, messages)
    opening: list[Message] = []
    if checked[0]["role"] == "system":
        opening = system_messages(checked.pop(0)["content"])
    turns: list[Turn] = []
    before = ""
    for message in checked:
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
        before = role
        if "tool_calls" in message:
            before = "calls"
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


MIN_ANSWER_TOKENS = 64  # older turns are left out, so that the answer has as many
_CHARACTERS_PER_TOKEN = 6  # a first guess at the length of a text that fits


class ContextLength(Protocol):
    """How many tokens a model takes."""

    @property
    def context_length(self) -> int:
        """Tokens that a prompt and its answer may have together."""

    @property
    def trained_context_length(self) -> int:
        """The longest context, in tokens, that the model was trained for."""


class ChatBackend(Protocol):
    """The part of the engine that a conversation uses.

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
    """The prompt of the next answer, and the number of oldest turns that it leaves out.

    Args:
        model: The lengths of its context.
        asked: The system message, if any, and all messages after the turns.
        turns: The turns before the question.
        make: Makes the prompt with given turns.

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
    # Forget down to half, so that the kept turns are not decoded again for every question.
    num_leaving = num_to_forget(sizes, length, capacity - needed, capacity // 2)
    num_tokens = length(num_leaving)
    if num_tokens >= capacity:
        shorter = "Shorten it"
        if asked[0]["role"] == "system":
            shorter = "Shorten it or the system message"
        raise ContextError(
            f"the message makes a prompt of {num_tokens} tokens; the context holds {capacity}",
            longer_context(shorter, model),
            num_tokens=num_tokens,
            context_length=capacity,
        )
    return prompts[num_leaving], num_leaving


def num_to_forget(
    sizes: Sequence[int],
    length: Callable[[int], int],
    capacity: int,
    kept: int,
) -> int:
    """The number of oldest turns to forget.

    It is 0 if the prompt with all turns has at most `capacity` tokens, else the smallest number
    that leaves at most `kept`. If no number suffices, all turns are forgotten.

    Args:
        sizes: Characters of each turn, oldest first.
        length: Counts the tokens of the prompt without its n oldest turns. That takes time, so
            it is called only as often as a binary search needs, and never for much more text
            than `capacity` tokens may be.
        capacity: The limit for a prompt with all turns, in tokens.
        kept: The limit for a prompt without the oldest turns, in tokens.
    """
    sums = [0, *accumulate(reversed(sizes))]
    sizes_after = sums[::-1]  # characters without the first 0, 1, 2 … turns
    most = capacity * _CHARACTERS_PER_TOKEN
    while True:
        begin = _first_up_to(most, sizes_after)
        if length(begin) > capacity:
            break
        if begin == 0:
            return 0
        most *= 2
    numbers = range(len(sizes))  # all turns leave if none of these numbers is enough
    first = min(begin + 1, len(sizes))
    return bisect_left(
        numbers,
        -kept,
        lo=first,
        key=lambda number: -length(number),
    )


def _first_up_to(most: int, sizes: Sequence[int]) -> int:
    """The index of the first size that is at most `most`; the sizes descend to 0."""
    index = 0
    while sizes[index] > most:
        index += 1
    return index


def longer_context(shorter: str, model: ContextLength) -> str:
    """The hint against too many tokens.

    Args:
        shorter: How to have fewer tokens, in words.
        model: The lengths of its context.
    """
    trained = model.trained_context_length
    if model.context_length < trained:
        larger = f"a larger context, up to {trained} tokens (context_length=…)"
        return f"{shorter}, or load the model with {larger}."
    return f"{shorter}: this model reads at most {trained:,} tokens."
