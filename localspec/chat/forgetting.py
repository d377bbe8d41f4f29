"""Prompts that fit the context: a long conversation forgets its oldest turns."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Protocol

from localspec.chat.template import Message
from localspec.chat.turns import Turn, turn_size
from localspec.errors import ContextError
from localspec.pictures.vision import Vision
from localspec.streaming.answer import Answer
from localspec.streaming.cancellation import CancelCheck
from localspec.streaming.exchange import Exchange
from localspec.streaming.prompt import Prompt
from localspec.vocabulary import Vocabulary

MIN_ANSWER_TOKENS = 64  # older turns leave rather than squeeze the answer below this
_CHARACTERS_PER_TOKEN = 6  # a first guess at how much text fits


class ChatBackend(Protocol):
    """The engine, as far as a conversation knows it.

    A name that begins with an underscore is for this package, not for applications.
    """

    trained_context_length: int

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def vision(self) -> Vision | None: ...

    @property
    def context_length(self) -> int: ...

    @property
    def chat_template(self) -> str | None: ...

    def _answer(self, exchange: Exchange) -> Answer: ...

    def _prepare(
        self, make_tokens: Callable[[CancelCheck], list[int]], *, owner: object
    ) -> None: ...


def fitting_prompt(
    engine: ChatBackend,
    asked: Sequence[Message],
    turns: Sequence[Turn],
    make: Callable[[Sequence[Turn]], Prompt],
) -> tuple[Prompt, int]:
    """The prompt of the next answer, and how many of the oldest turns are left out of it.

    asked: the system message, if any, and everything after the turns. make: the prompt with the
    turns that it is given. Raises ContextError if `asked` alone does not fit, and what `make`
    raises.
    """
    capacity = engine.context_length
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
            longer_context(shorter, engine),
            num_tokens=num_tokens,
            context_length=capacity,
        )
    return prompts[num_leaving], num_leaving


def num_to_forget(
    sizes: Sequence[int], length: Callable[[int], int], capacity: int, kept: int
) -> int:
    """0 if the whole has at most `capacity` tokens, else the fewest that leave at most `kept`.

    sizes: characters of each turn, oldest first. length: tokens of the prompt without so many
    oldest turns, which takes time: it is asked as often as a search by halves needs, and never
    about much more text than `capacity` tokens may be. If no number of turns suffices, all are
    forgotten.
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


def longer_context(shorter: str, engine: ChatBackend) -> str:
    """The hint against too many tokens. shorter: how to have fewer."""
    trained = engine.trained_context_length
    if engine.context_length < trained:
        larger = f"a larger context, up to {trained} tokens (context_length=…)"
        return f"{shorter}, or load the model with {larger}."
    return f"{shorter}: the model was trained for no longer context."
