"""Chat templates: messages → prompt.

A template comes with a model file, so it is foreign code. Jinja's sandbox keeps it from the
interpreter. The length of a prompt and each operation (`sandbox`) are bounded; the number of
operations is not.
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
_MAX_REASON = 300  # characters of a template's own words in an error
_PARTS = re.compile(r"""['"]type['"]|\.type\b""")  # in templates that may look at parts
_PROBE = "localspec"  # a text that has to come out
_OURS = ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token")
NO_VARIABLES: Mapping[str, Any] = MappingProxyType({})

# Keys: role and content. An answer may have its thoughts as reasoning_content, and tool_calls;
# the result of a call has its tool_call_id and name. All may have pictures, see `chat.shown`.
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
    "gemma": (  # its models know no system messages: `system_role` puts them into questions
        "{{ bos_token }}{% for message in messages if message.role != 'system' %}"
        "{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else 'user') + '\n' }}"
        "{{ message.content | trim + '<end_of_turn>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
    ),
}


def template_source(chosen: str | None, own: str | None) -> str:
    """The chosen source, which may be a built-in template's name, or else the model's own.

    Raises TemplateError if there is neither.
    """
    if not isinstance(chosen, str | None):
        raise TemplateError(
            f"the chat template is {chosen!r}",
            f"Give its Jinja source, or one of: {', '.join(BUILT_IN)}.",
        )
    if chosen is not None:
        return BUILT_IN.get(chosen, chosen)
    if own is None:
        raise TemplateError(
            "the model file has no chat template",
            "A base model goes on with a text: engine.generate_raw(). For "
            f"questions give one, as template=chatml: {', '.join(BUILT_IN)}, or Jinja source.",
        )
    return own


class ChatTemplate:
    """A compiled template.

    Args:
        source: The Jinja source.
        bos: The text of the token that begins a text.
        eos: The text of the token that ends one.
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
        # Whether contents are lists of parts; None until the first prompt shows it.
        self._takes_parts: bool | None = None
        if not _PARTS.search(source):
            self._takes_parts = False
        try:
            if len(source) > MAX_SOURCE:
                raise TemplateRefused(
                    f"it has {len(source)} characters, more than {MAX_SOURCE}"
                )
            read = environment.reads(source)
            # Whether thoughts can be switched off.
            self.has_think_switch = "enable_thinking" in read.variables
            # Attributes and keys that the template reads of any value.
            self.keys = read.keys
            self._open = read.variables.difference(_OURS, environment.globals)
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
        """The prompt for the next answer, or the text up to the end of the last message.

        Raises TemplateError if the template refuses the messages or fails, TemplateLimitError
        for more than MAX_PROMPT characters, Interrupted once it is cancelled.

        Args:
            messages: The messages.
            is_cancelled: Whether to stop.
            tools: The tools as OpenAI declares them.
            variables: Other variables, such as reasoning_effort. The template gets those that
                it reads.
            opens_answer: True for the prompt, whose end opens the answer; False for the text up
                to the end of the last message.
        """
        # The template's own variables take precedence.
        known = {name: value for name, value in variables.items() if name in self._open}
        known |= self._variables
        if tools:  # many templates ask whether they are defined
            known["tools"] = list(tools)
        known["add_generation_prompt"] = opens_answer
        if self._takes_parts is None:  # a trial with a made-up message tells it
            self._takes_parts = self._leaves_out_texts(is_cancelled)
        return self._filled(
            messages,
            known,
            is_cancelled,
            in_parts=self._takes_parts,
        )

    def _leaves_out_texts(self, is_cancelled: CancelCheck) -> bool:
        """Whether texts come out only if they are in parts, as for some models that see."""

        def comes_out(*, in_parts: bool) -> bool:
            probe = [{"role": "user", "content": _PROBE}]
            known = {**self._variables, "add_generation_prompt": True}
            try:
                return _PROBE in self._filled(
                    probe,
                    known,
                    is_cancelled,
                    in_parts=in_parts,
                )
            except TemplateError:
                return False

        return not comes_out(in_parts=False) and comes_out(in_parts=True)

    def _filled(
        self,
        messages: Sequence[Message],
        variables: Mapping[str, Any],
        is_cancelled: CancelCheck,
        *,
        in_parts: bool,
    ) -> str:
        """The template's text.

        Args:
            messages: The messages.
            variables: All variables of the template.
            is_cancelled: Whether to stop.
            in_parts: Whether each content is given as a list with one text.
        """
        variables = copy.deepcopy(dict(variables))  # a template may change its lists
        given = copy.deepcopy([dict(message) for message in messages])
        if in_parts:
            for message in given:
                message["content"] = [{"type": "text", "text": message["content"]}]
        pieces = []
        length = 0
        before = cancel_check.set(is_cancelled)
        try:
            for piece in self._template.generate(messages=given, **variables):
                TemplateSandbox.look()
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
            cancel_check.reset(before)
        return "".join(pieces)


def _unusable(error: Exception, kind: type[TemplateError] = TemplateError) -> TemplateError:
    """The error for a template that failed with another error."""
    why = str(error)
    if not isinstance(error, TemplateRefused):
        why = f"{type(error).__name__}: {why}"
    shown = ""
    for character in why[:_MAX_REASON]:
        shown += character if character.isprintable() else " "
    return kind(
        f"the chat template cannot be used: {shown}",
        f"Give another, as template=chatml: {', '.join(BUILT_IN)}, or Jinja source.",
    )
