"""Turns of a conversation, and how many of them fit the context.

A turn is a question and all messages up to the last answer to it.
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

MAX_COUNT = 2**31 - 1  # the largest number of turns
_PICTURE_SIZE = 1000  # characters of text that take about as many tokens as a picture
# The roles that may follow a message's role; "calls" stands for an answer that calls tools.
_NEXT_ROLES: dict[str, tuple[str, ...]] = {
    "": ("user",),  # at the beginning
    "user": ("assistant",),
    "assistant": ("user",),
    "calls": ("tool",),
    "tool": ("tool", "assistant"),
}
# A question and its answer. If an answer calls tools, their results and another answer follow.
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
        old: The question that this one replaces, whose pictures are added after `images`; None
            for a new question. Its pictures keep their positions if the text is the same, and
            otherwise stand before the text.

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
    """A list with the system message of this text; [] for None or "".

    Raises OptionError for anything but a str or None.
    """
    if not isinstance(text, str | None):
        raise OptionError(f"the system message is {text!r}", "Give a str, or None.")
    if text:
        return [{"role": "system", "content": text}]
    return []


def result_messages(turns: Sequence[Turn], results: Mapping[str, object]) -> Turn:
    """The messages with the results of the last answer's calls, in the order of the calls.

    Args:
        turns: The turns of the conversation.
        results: The results by the ids of the calls: texts, values that are written as JSON, or
            `ForeignResult`s.

    Raises:
        OptionError: The answer calls no tool, or a result is missing, belongs to no call, or
            cannot be written as JSON.
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
        result_ids = ", ".join(map(str, results)) or "none"
        raise OptionError(
            f"the last answer's calls are {', '.join(by_id)}; results are given for "
            f"{result_ids}",
            "Give one result for each call, by its id.",
        )
    messages = []
    for call in calls:
        result = results[str(call["id"])]
        messages.append(_result_message(call, result))
    return tuple(messages)


def _result_message(call: Message, result: object) -> Message:
    """The message with the result of a call, and with its pictures if it has any."""
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
    """The calls of the last answer, which wait for their results; () if it has none."""
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
    """The length of a text that takes about as many tokens as the turn, in characters."""
    size = 0
    for message in turn:
        size += len(message["content"])
        size += len(message.get("reasoning_content", ""))
        calls_text = json.dumps(message.get("tool_calls", ""), ensure_ascii=False)
        size += len(calls_text)
        size += _PICTURE_SIZE * len(shown_in(message))
    return size


def with_system(system: str | None, messages: object) -> list[Message]:
    """Check messages, and put a system message before them.

    Raises OptionError for bad messages, and for two system messages.

    Args:
        system: The text of the system message; None or "" for none.
        messages: The messages, as for `checked_messages`.
    """
    checked = checked_messages(messages)
    system_message = system_messages(system)
    if system_message and checked[0]["role"] == "system":
        raise OptionError(
            "system is given, and the messages begin with a system message, too",
            "Give one of them.",
        )
    return [*system_message, *checked]


def turns_of(messages: object, system: str | None) -> tuple[list[Message], list[Turn]]:
    """Split a conversation into its system message and its turns.

    Returns a list with the system message ([] if there is none), and the turns.

    Args:
        messages: A conversation in OpenAI's format; it may be empty.
        system: The text of a system message before them; None or "" for none.

    Raises:
        OptionError: If the messages are bad, or are not whole turns.
    """
    if messages == [] or messages == ():
        return system_messages(system), []
    checked = with_system(system, messages)
    system_message: list[Message] = []
    if checked[0]["role"] == "system":
        system_message = system_messages(checked.pop(0)["content"])
    turns: list[Turn] = []
    previous_role = ""
    for message in checked:
        role = message["role"]
        allowed = _NEXT_ROLES[previous_role]
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
        previous_role = role
        if "tool_calls" in message:
            previous_role = "calls"
    if turns and turns[-1][-1]["role"] != "assistant":
        raise OptionError(
            f"the last message has the role {previous_role!r} and no answer",
            "Leave that question out and ask it with chat.send(…), or ask with all messages: "
            "engine.generate(messages).",
        )
    return system_message, turns


def result_text(result: object) -> str:
    """The result of a call as text: a str as it is, another value as JSON.

    Raises OptionError for a value that JSON cannot hold.
    """
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
    """Whether a value can be a number of turns: an int from 0 to MAX_COUNT."""
    return is_whole(value, 0, MAX_COUNT)


class Unfinished(NamedTuple):
    """An answer that was cut, and can be continued."""

    prompt: Prompt
    """The prompt of the answer, with the answer's tokens at its end."""

    turn_number: int
    """As in `AnswerRecord`."""

    revision: int
    """The chat's count of changes (`Chat._revision`) directly after the answer."""


MIN_ANSWER_TOKENS = 64  # room that turns have to leave for the answer, in tokens
_CHARACTERS_PER_TOKEN = 6  # a first guess at the length of a text that fits


class ContextLength(Protocol):
    """The context lengths of a model."""

    @property
    def context_length(self) -> int:
        """The limit for a prompt and its answer together, in tokens."""

    @property
    def trained_context_length(self) -> int:
        """The longest context, in tokens, that the model was trained for."""


class ChatBackend(Protocol):
    """The part of the engine's interface that a conversation uses.

    Names that begin with an underscore are for localspec only.
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

    def _prepare_next_prompt(self, source: PromptSource, *, owner: object) -> None: ...


def fitting_prompt(
    model: ContextLength,
    always_kept: Sequence[Message],
    turns: Sequence[Turn],
    make: Callable[[Sequence[Turn]], Prompt],
) -> tuple[Prompt, int]:
    """Make a prompt that fits the context.

    If the prompt with all turns does not fit, the oldest turns are left out: as few as possible
    so that it takes at most half of the context, or else all. Returns the prompt, and the
    number of turns that it leaves out.

    Args:
        model: The model, for the length of its context.
        always_kept: The messages that no prompt leaves out, for the error: the system message,
            if there is one, and all messages after the turns.
        turns: The turns before the question, oldest first.
        make: Makes the prompt of `always_kept` and some of the turns.

    Raises:
        ContextError: If the prompt without any of the turns does not fit. Also what `make`
            raises.
    """
    capacity = model.context_length
    prompts: dict[int, Prompt] = {}  # by the number of turns that are left out

    def num_tokens_without(num_dropped_turns: int) -> int:
        if num_dropped_turns not in prompts:
            prompts[num_dropped_turns] = make(turns[num_dropped_turns:])
        return len(prompts[num_dropped_turns].tokens)

    sizes = [turn_size(turn) for turn in turns]
    answer_room = min(MIN_ANSWER_TOKENS, capacity // 4)
    # Down to half the context, so that the kept turns are not decoded again for every question.
    num_dropped_turns = num_to_forget(
        sizes,
        num_tokens_without,
        capacity - answer_room,
        capacity // 2,
    )
    num_tokens = num_tokens_without(num_dropped_turns)
    if num_tokens >= capacity:
        advice = "Shorten it"
        if always_kept[0]["role"] == "system":
            advice = "Shorten it or the system message"
        raise ContextError(
            f"the message makes a prompt of {num_tokens} tokens; the context holds {capacity}",
            longer_context(advice, model),
            num_tokens=num_tokens,
            context_length=capacity,
        )
    return prompts[num_dropped_turns], num_dropped_turns


def num_to_forget(
    sizes: Sequence[int],
    num_tokens_without: Callable[[int], int],
    capacity: int,
    capacity_after: int,
) -> int:
    """The number of oldest turns to leave out of a prompt.

    It is 0 if the prompt with all turns has at most `capacity` tokens. Otherwise it is the
    smallest number with which the prompt has at most `capacity_after` tokens. If no number
    suffices, it is the number of all turns.

    Args:
        sizes: The characters of each turn, roughly, oldest first.
        num_tokens_without: Counts the tokens of the prompt without its n oldest turns. This is
            slow, so it is called only as often as a binary search needs, and never for much
            more text than `capacity` tokens may be.
        capacity: The limit for a prompt with all turns, in tokens.
        capacity_after: The limit for a prompt without the oldest turns, in tokens.
    """
    sums = [0, *accumulate(reversed(sizes))]
    sizes_without = sums[::-1]  # characters without the 0, 1, 2 … oldest turns
    most_characters = capacity * _CHARACTERS_PER_TOKEN
    # Try the newest turns that may fit by their length, then twice as much text, and so on,
    # until the prompt does not fit or has all turns.
    while True:
        num_dropped_turns = _first_up_to(most_characters, sizes_without)
        if num_tokens_without(num_dropped_turns) > capacity:
            break
        if num_dropped_turns == 0:
            return 0
        most_characters *= 2
    # This number is not enough, since `capacity_after` is less. If no larger one below the
    # number of all turns is enough, the search gives the number of all turns.
    numbers = range(len(sizes))
    first = min(num_dropped_turns + 1, len(sizes))
    # Negative, because the search needs ascending keys.
    return bisect_left(
        numbers,
        -capacity_after,
        lo=first,
        key=lambda number: -num_tokens_without(number),
    )


def _first_up_to(most: int, sizes: Sequence[int]) -> int:
    """The index of the first size that is at most `most`; the sizes descend to 0."""
    index = 0
    while sizes[index] > most:
        index += 1
    return index


def longer_context(advice: str, model: ContextLength) -> str:
    """The hint for an error about too many tokens.

    Args:
        advice: How to have fewer tokens, without a full stop.
        model: The model, for the lengths of its context.
    """
    trained_length = model.trained_context_length
    if model.context_length < trained_length:
        larger = f"a larger context, up to {trained_length} tokens (context_length=…)"
        return f"{advice}, or load the model with {larger}."
    return f"{advice}: this model reads at most {trained_length:,} tokens."
