"""Chat templates: messages → prompt.

A template comes with a model file, so it is somebody's code. Jinja's sandbox keeps it from the
interpreter; the length of a prompt is bounded, and so is each operation (`sandbox`), but not
how many there are.
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
_PARTS = re.compile(r"""['"]type['"]|\.type\b""")  # where a template may look at parts
_PROBE = "localspec"  # a text that is to come out
_OURS = ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token")
NO_VARIABLES: Mapping[str, Any] = MappingProxyType({})

# Keys: role, content; of an answer perhaps its thoughts as reasoning_content, and tool_calls;
# of the result of a call its tool_call_id and name; perhaps pictures, see `chat.shown`.
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
    "gemma": (  # its models know no system, which `system_role` sees to
        "{{ bos_token }}{% for message in messages if message.role != 'system' %}"
        "{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else 'user') + '\n' }}"
        "{{ message.content | trim + '<end_of_turn>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
    ),
}


def template_source(chosen: str | None, own: str | None) -> str:
    """The source that was chosen, as such or by a built-in name, or else the model's own.

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

    think: False tells it that the model should not think. has_think_switch: whether it can be
    told. keys: attributes and keys that it reads of any value. Raises TemplateError if `source`
    is not valid Jinja or has no such switch.
    """

    def __init__(self, source: str, *, bos: str, eos: str, think: bool = True) -> None:
        self._variables: dict[str, str | bool] = {"bos_token": bos, "eos_token": eos}
        environment = TemplateSandbox()
        # Whether contents are lists of parts; found out where the template looks at any.
        self._takes_parts = None if _PARTS.search(source) else False
        try:
            if len(source) > MAX_SOURCE:
                raise TemplateRefused(
                    f"it has {len(source)} characters, more than {MAX_SOURCE}"
                )
            read = environment.reads(source)
            self.has_think_switch = "enable_thinking" in read.variables
            self.keys = read.keys
            self._open = read.variables.difference(_OURS, environment.globals)
            self._template = environment.from_string(source)
        # Beyond Jinja's there are the errors and limits of Python's compiler.
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
        """The prompt that asks for the next answer, or ends with the last message.

        Raises TemplateError if the template refuses the messages or fails, TemplateLimitError
        for more than MAX_PROMPT characters, Interrupted once it is cancelled.

        Args:
            tools: The tools as OpenAI declares them.
            variables: Others, such as reasoning_effort, of which those count that the template
                reads.
        """
        known = {name: each for name, each in variables.items() if name in self._open}
        known |= self._variables
        if tools:  # many templates ask whether they are defined
            known["tools"] = list(tools)
        known["add_generation_prompt"] = opens_answer
        if self._takes_parts is None:
            self._takes_parts = self._leaves_out_texts(is_cancelled)
        return self._filled(messages, known, is_cancelled, in_parts=self._takes_parts)

    def _leaves_out_texts(self, is_cancelled: CancelCheck) -> bool:
        """Whether texts come out only of parts, as in templates of some models that see."""

        def comes_out(*, in_parts: bool) -> bool:
            probe = [{"role": "user", "content": _PROBE}]
            known = {**self._variables, "add_generation_prompt": True}
            try:
                return _PROBE in self._filled(probe, known, is_cancelled, in_parts=in_parts)
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
        """The template's text. in_parts: whether each content is a list of one text."""
        variables = copy.deepcopy(dict(variables))  # a template may change its lists
        given = copy.deepcopy([dict(each) for each in messages])
        for each in given if in_parts else ():
            each["content"] = [{"type": "text", "text": each["content"]}]
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
        # The template is foreign code: whatever it raises is its own failure.
        except Exception as error:
            raise _unusable(error) from error
        finally:
            cancel_check.reset(before)
        return "".join(pieces)


def _unusable(error: Exception, kind: type[TemplateError] = TemplateError) -> TemplateError:
    why = (
        str(error) if isinstance(error, TemplateRefused) else f"{type(error).__name__}: {error}"
    )
    shown = "".join(each if each.isprintable() else " " for each in why[:_MAX_REASON])
    return kind(
        f"the chat template cannot be used: {shown}",
        f"Give another, as template=chatml: {', '.join(BUILT_IN)}, or Jinja source.",
    )
