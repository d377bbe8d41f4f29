"""Sources of prompts. Each kind can be sent to the process in which the model is."""

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

# Questions that have nothing in common, and may merge with what a template puts before them.
_PROBES = ("a", "\n1")


@dataclass(frozen=True, slots=True)
class RawSource:
    """A prompt without a chat template."""

    prompt: str | Sequence[int | str]
    """A text, in which special tokens count, token ids, or a list of both."""

    def make(self, workshop: PromptWorkshop, is_cancelled: CancelCheck) -> MadePrompt:
        """See `PromptSource`. Raises OptionError for an id outside the vocabulary."""
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
    """A prompt that is ready, for example that of an answer which is continued."""

    prompt: Prompt

    def make(self, workshop: PromptWorkshop, is_cancelled: CancelCheck) -> MadePrompt:
        """See `PromptSource`."""
        return MadePrompt(self.prompt)


@dataclass(frozen=True, slots=True)
class MessagesSource:
    """Messages. None of them is left out."""

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
        """See `PromptSource`."""
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
    """A conversation, whose oldest turns may be left out."""

    system: Sequence[Message]
    """The system message, if there is one."""

    turns: Sequence[Turn]
    """The turns before the question."""

    asked: Turn
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
        """See `PromptSource`. Raises ContextError if the question alone does not fit."""

        def prompt_after(turns: Sequence[Turn]) -> Prompt:
            return self.prompt_after(turns, workshop, is_cancelled)

        kept = [*self.system, *self.asked]
        prompt, num_leaving = fitting_prompt(workshop, kept, self.turns, prompt_after)
        return MadePrompt(prompt, num_leaving)

    def prompt_after(
        self,
        turns: Sequence[Turn],
        workshop: PromptWorkshop,
        is_cancelled: CancelCheck,
    ) -> Prompt:
        """The prompt after other turns, whether it fits or not. Raises TemplateError."""
        messages = [*self.system, *messages_of(turns), *self.asked]
        maker = workshop.maker(self.template, think=self.think)
        return maker.prompt(messages, with_form(self.use, self.form), is_cancelled)


@dataclass(frozen=True, slots=True)
class BeginningSource:
    """The beginning of a conversation's next prompt, whatever the question will be."""

    chat: ChatSource
    """The conversation with any question."""

    def make(self, workshop: PromptWorkshop, is_cancelled: CancelCheck) -> MadePrompt:
        """See `PromptSource`."""
        first = self._with(_PROBES[0]).make(workshop, is_cancelled)
        kept = self.chat.turns[first.num_dropped_turns :]
        second = self._with(_PROBES[1]).prompt_after(kept, workshop, is_cancelled)
        common = []
        for token, other in zip(first.prompt.tokens, second.tokens, strict=False):
            if token != other:
                break
            common.append(token)
        return MadePrompt(Prompt(common))

    def _with(self, question: str) -> ChatSource:
        """The conversation with a question."""
        asked: Turn = ({"role": "user", "content": question},)
        return replace(self.chat, asked=asked)


def with_form(use: ToolUse, form: ConstraintSpec | None) -> ToolUse:
    """The tools, with the schema of an answer that calls none of them. Raises ConstraintError.

    llguidance judges the schema, so this is done where the model is.
    """
    if form is None or form.kind != "json_schema" or not use.callable:
        return use
    return replace(use, answer_schema=kept_schema(form))
