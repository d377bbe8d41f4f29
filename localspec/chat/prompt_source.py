"""Sources of prompts: what a prompt is made from, and how.

A source can be pickled and sent to the process that has the model, which makes the prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from localspec.chat.template import Message
from localspec.chat.turns import Turn, fitting_prompt, messages_of
from localspec.chat.workshop import PromptWorkshop, known_ids
from localspec.constraints.guidance import kept_schema
from localspec.constraints.spec import ConstraintSpec
from localspec.streaming.answer_text import Prompt
from localspec.streaming.cancellation import CancelCheck
from localspec.streaming.record import MadePrompt
from localspec.tools.tool import ToolUse
from localspec.vocabulary import with_bos

# Two questions without a common beginning: a token that one of them forms with the text before
# it is not in the other's prompt.
_PROBES = ("a", "\n1")


@dataclass(frozen=True, slots=True)
class RawSource:
    """The source of a prompt without a chat template."""

    prompt: str | Sequence[int | str]
    """A text, in which control tokens may be written, or a list of token ids and such texts."""

    def make(self, workshop: PromptWorkshop, is_cancelled: CancelCheck) -> MadePrompt:
        """The prompt: the texts in tokens, and the token ids, in order.

        A text at the beginning gets the bos token that the vocabulary asks for. Raises
        OptionError for an id outside the vocabulary. See `PromptSource`.
        """
        vocabulary = workshop.vocabulary
        parts: Sequence[int | str] = self.prompt
        if isinstance(self.prompt, str):
            parts = [self.prompt]
        tokens: list[int] = []
        after = None
        for number, part in enumerate(parts):
            if not isinstance(part, str):
                tokens.append(part)
            else:
                tokens += vocabulary.tokenize(part, parse_special=True, after=after)
                if number == 0:
                    tokens = with_bos(tokens, vocabulary)
            if tokens:
                after = tokens[-1]
        return MadePrompt(Prompt(known_ids(tokens, vocabulary)))


@dataclass(frozen=True, slots=True)
class ReadySource:
    """The source of a prompt that was made before, such as that of an answer to continue."""

    prompt: Prompt

    def make(self, workshop: PromptWorkshop, is_cancelled: CancelCheck) -> MadePrompt:
        """The prompt as it is. See `PromptSource`."""
        return MadePrompt(self.prompt)


@dataclass(frozen=True, slots=True)
class MessagesSource:
    """The source of a prompt of messages, none of which is left out."""

    messages: Sequence[Message]
    """As `checked_messages` returns them."""

    use: ToolUse
    """The tools that may be called."""

    template: str | None = None
    """The chat template, as `PromptWorkshop.maker` takes it."""

    think: bool = True
    """Whether a reasoning model may think before it answers."""

    variables: Mapping[str, Any] = field(default_factory=dict)
    """Other variables of the template, which ignores unknown ones."""

    form: ConstraintSpec | None = None
    """The constraint of an answer that calls no tool."""

    def make(self, workshop: PromptWorkshop, is_cancelled: CancelCheck) -> MadePrompt:
        """The prompt of all messages, by the chat template. See `PromptSource`."""
        maker = workshop.maker(self.template, think=self.think)
        prompt = maker.prompt(
            self.messages,
            with_form(self.use, self.form),
            is_cancelled,
            may_merge=True,
            variables=self.variables,
        )
        return MadePrompt(prompt)

    def text(self, workshop: PromptWorkshop, *, opens_answer: bool) -> str:
        """The prompt as the template writes it: see `PromptMaker.text`."""
        maker = workshop.maker(self.template, think=self.think)
        use = with_form(self.use, self.form)
        return maker.text(
            self.messages,
            use,
            variables=self.variables,
            opens_answer=opens_answer,
        )


@dataclass(frozen=True, slots=True)
class ChatSource:
    """The source of a conversation's prompt. Oldest turns that do not fit are left out."""

    system: Sequence[Message]
    """The system message, if there is one."""

    turns: Sequence[Turn]
    """The turns before the question."""

    turn_start: Turn
    """The question, or all messages from the question to the results of tools."""

    use: ToolUse
    """The tools that may be called."""

    template: str | None
    """The chat template, as `PromptWorkshop.maker` takes it."""

    think: bool
    """Whether a reasoning model may think before it answers."""

    form: ConstraintSpec | None = None
    """The constraint of an answer that calls no tool."""

    def make(self, workshop: PromptWorkshop, is_cancelled: CancelCheck) -> MadePrompt:
        """The prompt, without the oldest turns if not all turns fit. See `PromptSource`.

        `fitting_prompt` says how many are left out. Raises ContextError if the prompt without
        any turns before the question does not fit the context.
        """

        def prompt_after(turns: Sequence[Turn]) -> Prompt:
            return self.prompt_after(turns, workshop, is_cancelled)

        always_kept = [*self.system, *self.turn_start]
        prompt, num_dropped_turns = fitting_prompt(
            workshop, always_kept, self.turns, prompt_after
        )
        return MadePrompt(prompt, num_dropped_turns)

    def prompt_after(
        self,
        turns: Sequence[Turn],
        workshop: PromptWorkshop,
        is_cancelled: CancelCheck,
    ) -> Prompt:
        """The prompt with these turns before the question, whether it fits the context or not.

        Raises TemplateError.
        """
        messages = [*self.system, *messages_of(turns), *self.turn_start]
        maker = workshop.maker(self.template, think=self.think)
        return maker.prompt(messages, with_form(self.use, self.form), is_cancelled)


@dataclass(frozen=True, slots=True)
class BeginningSource:
    """The source of the part of a conversation's next prompt that precedes any question."""

    chat: ChatSource
    """The conversation. Its question does not matter."""

    def make(self, workshop: PromptWorkshop, is_cancelled: CancelCheck) -> MadePrompt:
        """The common beginning of two different questions' prompts. See `PromptSource`."""
        first_question, second_question = _PROBES
        first = self._with_question(first_question).make(workshop, is_cancelled)
        kept_turns = self.chat.turns[first.num_dropped_turns :]
        second_source = self._with_question(second_question)
        second_prompt = second_source.prompt_after(kept_turns, workshop, is_cancelled)
        common = []
        pairs = zip(first.prompt.tokens, second_prompt.tokens, strict=False)
        for token, other_token in pairs:
            if token != other_token:
                break
            common.append(token)
        return MadePrompt(Prompt(common))

    def _with_question(self, question: str) -> ChatSource:
        """The conversation with this question."""
        turn_start: Turn = ({"role": "user", "content": question},)
        return replace(self.chat, turn_start=turn_start)


def with_form(use: ToolUse, form: ConstraintSpec | None) -> ToolUse:
    """The tools, with the JSON schema of an answer that calls none of them.

    Returns `use` as it is if no tool may be called, or `form` is not a JSON schema. llguidance
    judges the schema, so this is done in the process that has the model. Raises
    ConstraintError.
    """
    if form is None or form.kind != "json_schema" or not use.callable:
        return use
    return replace(use, answer_schema=kept_schema(form))
