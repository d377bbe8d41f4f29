"""From messages to the prompt that a model reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from localspec.chat.template import Message
from localspec.isolated.isolated_engine import IsolatedEngine
from localspec.server.refusal import RequestError
from localspec.streaming.cancellation import CancelCheck, never
from localspec.streaming.options import AnswerOptions
from localspec.streaming.prompt import Prompt
from localspec.tools.tool import ToolUse


class TemplatedPrompt:
    """Messages whose prompt is asked for, and no answer.

    messages: as `checked_messages` returns them. tools: options by keyword. Raises OptionError.
    """

    def __init__(
        self, messages: Sequence[Message], tools: Mapping[str, Any], *, think: bool
    ) -> None:
        self._messages = messages
        self._use = AnswerOptions.of(**tools).tool_use(())
        self._think = think

    def tokens(self, engine: IsolatedEngine) -> list[int]:
        """The prompt. Raises RequestError, TemplateError."""
        return prompt_of(engine, self._messages, self._use, never, think=self._think).tokens


def prompt_of(
    engine: IsolatedEngine,
    messages: Sequence[Message],
    use: ToolUse,
    is_cancelled: CancelCheck,
    *,
    think: bool,
) -> Prompt:
    """The prompt that `BaseEngine._make_prompt` makes, whatever the template can do.

    One without a switch for thoughts leaves them on. One without tools gets none, and calls as
    text. Raises RequestError if the model has to call a tool then.
    """
    if not engine.takes_tools:
        if use.must:
            raise RequestError(
                "a call has to be made, and the model's chat template has no tools, or none "
                "whose calls are understood here",
                "Choose another model, or auto; a response_format can have a call's form.",
                code="unsupported_value",
                param="tool_choice",
            )
        messages, use = [_as_text(message) for message in messages], ToolUse()
    thinks = think or not engine.has_think_switch
    return engine._make_prompt(messages, use, is_cancelled, template=None, think=thinks)


def _as_text(message: Message) -> Message:
    """The message with a role and a text alone: calls and results become text."""
    text = str(message["content"])
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{text}\n</tool_response>"}
    calls = [_call_as_text(call["function"]) for call in message.get("tool_calls", ())]
    return {"role": message["role"], "content": "\n".join([text, *calls] if text else calls)}


def _call_as_text(function: Mapping[str, Any]) -> str:
    arguments = function["arguments"]
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return f"<tool_call>\n{function['name']}({written})\n</tool_call>"
