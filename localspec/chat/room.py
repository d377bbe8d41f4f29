"""Which turns of a conversation its context has room for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from localspec.chat.backend import ChatBackend
from localspec.chat.forgetting import num_to_forget
from localspec.chat.prompt import PromptMaker
from localspec.chat.template import Message
from localspec.chat.turns import Turn, messages_of, turn_size
from localspec.errors import ContextError, TemplateLimitError
from localspec.streaming.cancellation import CancelCheck
from localspec.streaming.prompt import Prompt
from localspec.tools.tool import ToolUse

MIN_ANSWER_TOKENS = 64  # older turns leave rather than squeeze the answer below this


class Asked(NamedTuple):
    """What a model is asked, whatever was said before.

    turn: the last turn without its answer: a question, or all up to the results of tools.
    """

    system: Sequence[Message]
    turn: Turn
    use: ToolUse

    def behind(self, turns: Sequence[Turn]) -> list[Message]:
        """The messages that ask it behind these turns."""
        return [*self.system, *messages_of(turns), *self.turn]


class Room:
    """The context of an engine, and the template that fills it."""

    def __init__(self, engine: ChatBackend, maker: PromptMaker) -> None:
        self._engine = engine
        self._maker = maker

    def prompt(
        self, asked: Asked, turns: Sequence[Turn], is_cancelled: CancelCheck
    ) -> tuple[Prompt, int]:
        """The prompt of the next answer, and how many of the oldest turns are left out of it.

        Raises ContextError if even the question alone does not fit, TemplateError, Interrupted.
        """
        self._check_length(asked)
        capacity = self._engine.context_length
        needed = min(MIN_ANSWER_TOKENS, capacity // 4)
        prompts: dict[int, Prompt] = {}  # by the number of turns that leave
        beyond: set[int] = set()  # where there are too many turns even for the template

        def length(num_leaving: int) -> float:
            if num_leaving not in prompts and num_leaving not in beyond:
                kept = turns[num_leaving:]
                try:
                    prompts[num_leaving] = self._maker.prompt(
                        asked.behind(kept), asked.use, is_cancelled
                    )
                except TemplateLimitError:
                    if not kept:
                        raise
                    beyond.add(num_leaving)
            return math.inf if num_leaving in beyond else len(prompts[num_leaving].tokens)

        sizes = [turn_size(turn) for turn in turns]
        # Down to half, so that the kept turns are not decoded again at every question.
        num_leaving = num_to_forget(sizes, length, capacity - needed, capacity // 2)
        prompt = prompts[num_leaving]
        if len(prompt.tokens) >= capacity:
            num_tokens = len(prompt.tokens)
            raise self._too_long(
                asked,
                f"the message makes a prompt of {num_tokens} tokens; "
                f"the context holds {capacity}",
                num_tokens,
            )
        return prompt, num_leaving

    def _check_length(self, asked: Asked) -> None:
        """Refuse what cannot fit however it is tokenised, before that takes its time."""
        capacity = self._engine.context_length
        longest = self._engine.vocabulary.max_text_bytes(capacity)
        length = sum(
            len(each["content"].encode(errors="replace"))
            for each in (*asked.system, *asked.turn)
        )
        if length > longest:
            raise self._too_long(
                asked,
                f"the message has {length} bytes; the {capacity} tokens of the context "
                f"cannot hold more than {longest}",
            )

    def _too_long(self, asked: Asked, what: str, num_tokens: int | None = None) -> ContextError:
        shorter = "Shorten it or the system message" if asked.system else "Shorten it"
        return ContextError(
            what,
            longer_context(shorter, self._engine),
            num_tokens=num_tokens,
            context_length=self._engine.context_length,
        )


def longer_context(shorter: str, engine: ChatBackend) -> str:
    """What to do about too many tokens: make them fewer, or open the model with more.

    shorter: how to make them fewer.
    """
    trained = engine.trained_context_length
    if engine.context_length < trained:
        larger = f"a larger context, up to {trained} tokens (context_length=…)"
        return f"{shorter}, or load the model with {larger}."
    return f"{shorter}: the model was trained for no longer context."
