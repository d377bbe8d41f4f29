"""Makes the prompt that a model reads from messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from localspec.chat.template import Message
from localspec.chat.tool_messages import as_text
from localspec.isolated.isolated_engine import IsolatedEngine
from localspec.server.refusal import RequestError
from localspec.streaming.cancellation import CancelCheck, never
from localspec.streaming.options import AnswerOptions
from localspec.streaming.prompt import Prompt
from localspec.tools.tool import ToolUse
from localspec.vocabulary import with_bos


class TemplatedPrompt:
    """Messages of a request that wants their prompt, or its length, but no answer.

    messages: as `checked_messages` returns them. tools: options by keyword. variables: of the
    template. Raises OptionError.
    """

    def __init__(
        self,
        messages: Sequence[Message],
        tools: Mapping[str, Any],
        variables: Mapping[str, Any],
    ) -> None:
        self._messages = messages
        self._use = AnswerOptions.of(**tools).tool_use(())
        self._variables = variables

    def tokens(self, engine: IsolatedEngine) -> list[int]:
        """The prompt. Raises RequestError, TemplateError."""
        return prompt_of(engine, self._messages, self._use, never, self._variables).tokens


def raw_prompt(engine: IsolatedEngine, given: str | Sequence[int | str]) -> Prompt:
    """The prompt without a template; a text that begins it begins as any text does.

    Raises OptionError for an unknown id.
    """
    if isinstance(given, str):
        return engine._raw_prompt(given)
    tokens: list[int] = []
    for part in given:
        if isinstance(part, int):
            tokens.append(part)
        else:
            found = engine.tokenize(part, special=True)
            tokens += found if tokens else with_bos(found, engine.vocabulary)
    return engine._raw_prompt(tokens)


def prompt_of(
    engine: IsolatedEngine,
    messages: Sequence[Message],
    use: ToolUse,
    is_cancelled: CancelCheck,
    variables: Mapping[str, Any],
) -> Prompt:
    """The prompt by `BaseEngine._make_prompt`, whatever the model's template supports.

    variables: of the template, which passes over those that it does not know. If it has no
    tools, it gets none, and earlier calls as text; then RequestError is raised if the model has
    to call a tool.
    """
    if not engine.takes_tools:
        if use.must:
            raise RequestError(
                "a tool has to be called, but the model's chat template has no tools, or the "
                "form of its calls is not known here",
                "Choose another model, or auto; or describe the call in a response_format.",
                code="unsupported_value",
                param="tool_choice",
            )
        messages, use = [as_text(message) for message in messages], ToolUse()
    return engine._make_prompt(
        messages, use, is_cancelled, template=None, think=True, variables=variables
    )
