"""Chat templates: messages → the text of a prompt.

A template comes with a model file, so it is foreign code. Jinja's sandbox keeps it away from
the interpreter. The length of a prompt and the size of each operation's result are limited (see
`sandbox`); the number of operations is not.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from localspec.chat.sandbox import (
    MAX_TEXT,
    TemplateRefused,
    TemplateSandbox,
    TextTooLong,
    cancel_check,
)
from localspec.errors import Interrupted, TemplateError, TemplateLimitError
from localspec.streaming.cancellation import CancelCheck, never

MAX_SOURCE = 200_000  # characters
MAX_PROMPT = MAX_TEXT  # characters
_MAX_REASON = 300  # characters of the reason in an error, which may be the template's own text
# Matches in templates that may read contents as lists of parts.
_PARTS = re.compile(r"""['"]type['"]|\.type\b""")
_PROBE = "localspec"  # the text of a made-up message, which has to be in its prompt
# Variables that callers of `render` cannot set.
_RESERVED = ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token")
NO_VARIABLES: Mapping[str, Any] = MappingProxyType({})

# A dict with role and content, a text. An answer may also have its thoughts, under
# reasoning_content, and tool_calls. The result of a call has its tool_call_id and name. Any
# message may have pictures: see `chat.shown`.
Message = Mapping[str, Any]

BUILT_IN = {
    "chatml": (
        "{% for message in messages %}"
        "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "llama-3": (
        "{{ bos_token }}{% for message in messages %}"
        "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' }}"
        "{{ message.content | trim + '<|eot_id|>' }}{% endfor %}"
        "{% if add_generation_prompt %}"
        "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
    ),
    "gemma": (  # shows no system messages: `system_role` puts them into questions
        "{{ bos_token }}{% for message in messages if message.role != 'system' %}"
        "{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else 'user') + '\n' }}"
        "{{ message.content | trim + '<end_of_turn>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
    ),
}


def template_source(chosen: str | None, own_source: str | None) -> str:
    """The Jinja source of the template to use.

    Args:
        chosen: A source, or the name of a built-in template; None for the model's own.
        own_source: The source in the model's file, if there is one.

    Raises:
        TemplateError: `chosen` is not a str, or both are None.
    """
    if not isinstance(chosen, str | None):
        raise TemplateError(
            f"the chat template is {chosen!r}",
            f"Give its Jinja source, or one of: {', '.join(BUILT_IN)}.",
        )
    if chosen is not None:
        return BUILT_IN.get(chosen, chosen)
    if own_source is None:
        raise TemplateError(
            "the model file has no chat template",
            "A base model continues a text: engine.generate_raw(). For "
            f"questions give one, as template=chatml: {', '.join(BUILT_IN)}, or Jinja source.",
        )
    return own_source


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: The Jinja source.
        bos: The text of the token that begins a prompt.
        eos: The text of the token that ends an answer.
        think: False asks the template for an answer without thoughts.

    Raises:
        TemplateError: `source` is not valid Jinja, or has no switch for thoughts.
    """

    def __init__(
        self,
        source: str,
        *,
        bos: str,
        eos: str,
        think: bool = True,
    ) -> None:
        self._variables: dict[str, str | bool] = {"bos_token": bos, "eos_token": eos}
        environment = TemplateSandbox()
        # Whether contents have to be lists of parts; None until the first prompt is made.
        self._needs_parts: bool | None = None
        if not _PARTS.search(source):
            self._needs_parts = False
        try:
            if len(source) > MAX_SOURCE:
                raise TemplateRefused(
                    f"it has {len(source)} characters, more than {MAX_SOURCE}"
                )
            names = environment.reads(source)
            # Whether thoughts can be switched off.
            self.has_think_switch = "enable_thinking" in names.variables
            # The attributes and keys that the template may read from any value.
            self.keys = names.keys
            # The variables that the template reads and that callers may set.
            self._free_variables = names.variables.difference(_RESERVED, environment.globals)
            self._template = environment.from_string(source)
        # Jinja's errors, and those of Python's compiler.
        except Exception as error:
            raise _unusable(error) from error
        if not think:
            if not self.has_think_switch:
                raise TemplateError(
                    "the chat template has no switch for thinking (enable_thinking)",
                    "Leave out think=False.",
                )
            self._variables["enable_thinking"] = False

    def render(
        self,
        messages: Sequence[Message],
        is_cancelled: CancelCheck = never,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] = NO_VARIABLES,
        opens_answer: bool = True,
    ) -> str:
        """The text that the template writes for the messages.

        Args:
            messages: The messages.
            is_cancelled: Whether to stop.
            tools: The tools as OpenAI declares them.
            variables: Other variables, such as reasoning_effort. Those in _RESERVED, and those
                that the template does not read, are ignored.
            opens_answer: True for a prompt, which ends with the head of the next answer; False
                for the text up to the end of the last message.

        Raises:
            TemplateError: The template refuses the messages, or fails.
            TemplateLimitError: The text has more than MAX_PROMPT characters.
            Interrupted: It was cancelled.
        """
        all_variables: dict[str, Any] = {}
        for name, value in variables.items():
            if name in self._free_variables:
                all_variables[name] = value
        all_variables |= self._variables  # these take precedence
        if tools:  # many templates ask whether `tools` is defined
            all_variables["tools"] = list(tools)
        all_variables["add_generation_prompt"] = opens_answer
        if self._needs_parts is None:
            self._needs_parts = self._shows_only_parts(is_cancelled)
        return self._render_bounded(
            messages,
            all_variables,
            is_cancelled,
            in_parts=self._needs_parts,
        )

    def _shows_only_parts(self, is_cancelled: CancelCheck) -> bool:
        """Whether the template shows contents only as lists of parts.

        So do templates of some models that see. It is tried with a made-up message.
        """

        def shows_probe(*, in_parts: bool) -> bool:
            """Whether the prompt of the made-up message has its text."""
            messages = [{"role": "user", "content": _PROBE}]
            variables = {**self._variables, "add_generation_prompt": True}
            try:
                prompt = self._render_bounded(
                    messages,
                    variables,
                    is_cancelled,
                    in_parts=in_parts,
                )
            except TemplateError:
                return False
            return _PROBE in prompt

        return not shows_probe(in_parts=False) and shows_probe(in_parts=True)

    def _render_bounded(
        self,
        messages: Sequence[Message],
        variables: Mapping[str, Any],
        is_cancelled: CancelCheck,
        *,
        in_parts: bool,
    ) -> str:
        """The text that the template writes. Raises as `render` does.

        Args:
            messages: The messages.
            variables: All variables of the template but `messages`.
            is_cancelled: Whether to stop.
            in_parts: Whether each content becomes a list with one part.
        """
        # Copies, because a template may change lists.
        variables = copy.deepcopy(dict(variables))
        own_messages = copy.deepcopy([dict(message) for message in messages])
        if in_parts:
            for message in own_messages:
                message["content"] = [{"type": "text", "text": message["content"]}]
        pieces = []
        length = 0
        previous_check = cancel_check.set(is_cancelled)
        try:
            for piece in self._template.generate(messages=own_messages, **variables):
                TemplateSandbox.check_cancelled()
                length += len(piece)
                if length > MAX_PROMPT:
                    raise TextTooLong
                pieces.append(piece)
        except Interrupted:
            raise
        except TextTooLong as error:
            raise _unusable(error, TemplateLimitError) from error
        # The template is foreign code: any other error is its failure.
        except Exception as error:
            raise _unusable(error) from error
        finally:
            cancel_check.reset(previous_check)
        return "".join(pieces)


def _unusable(error: Exception, kind: type[TemplateError] = TemplateError) -> TemplateError:
    """The TemplateError to raise for a template that failed with another error.

    Args:
        error: The error by which the template failed.
        kind: The class of the result.
    """
    reason = str(error)
    if not isinstance(error, TemplateRefused):
        reason = f"{type(error).__name__}: {reason}"
    printable_reason = ""
    for character in reason[:_MAX_REASON]:
        if not character.isprintable():
            character = " "
        printable_reason += character
    return kind(
        f"the chat template cannot be used: {printable_reason}",
        f"Give another, as template=chatml: {', '.join(BUILT_IN)}, or Jinja source.",
    )
