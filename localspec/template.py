"""Chat templates: messages → prompt, in Jinja's sandbox and within bounds.

A template comes with a model file, so it is somebody's code. The sandbox keeps it from the
interpreter; the bounds here keep it from using up time and memory.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from jinja2 import TemplateError as JinjaError
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from localspec.errors import TemplateError

MAX_ITERATIONS = 1_000_000
MAX_CHARACTERS = 50_000_000
MAX_OPERAND = 100_000

Message = Mapping[str, str]  # keys: role, content

_TICK = "__localspec_tick__"

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
    "gemma": (
        "{{ bos_token }}{% for message in messages %}"
        "{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else 'user') + '\n' }}"
        "{{ message.content | trim + '<end_of_turn>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
    ),
}


class ChatTemplate:
    """A compiled template. Raises TemplateError if `source` is no valid Jinja."""

    def __init__(self, source: str, *, bos: str, eos: str) -> None:
        self._variables = {"bos_token": bos, "eos_token": eos}
        self._environment = _Environment()
        try:
            tree = self._environment.parse(source)
            _count_iterations(tree)
            code = self._environment.compile(tree)
            self._template = self._environment.template_class.from_code(
                self._environment, code, self._environment.make_globals(None)
            )
        except (JinjaError, RecursionError) as error:
            raise _unusable(str(error)) from error

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt that asks for the next answer.

        Raises TemplateError if the template refuses the messages, fails, or exceeds its bounds.
        """
        self._environment.iterations = 0
        try:
            return "".join(
                _bounded(
                    self._template.generate(
                        messages=[dict(message) for message in messages],
                        add_generation_prompt=True,
                        **self._variables,
                    )
                )
            )
        except TemplateError:
            raise
        # The template is foreign code: whatever it raises is its own failure.
        except Exception as error:
            raise _unusable(f"{type(error).__name__}: {error}") from error


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja as chat templates expect it, with arithmetic that cannot grow without bound."""

    intercepted_binops = frozenset(["*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        self.iterations = 0
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.globals[_TICK] = self._tick

    def _tick(self) -> str:
        self.iterations += 1
        if self.iterations > MAX_ITERATIONS:
            raise TemplateError(f"the chat template ran through {MAX_ITERATIONS} loop steps")
        return ""

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            raise TemplateError("the chat template formats with %, which is not supported")
        sizes = [abs(x) if isinstance(x, int) else len(x) for x in (left, right) if _sized(x)]
        if operator != "%" and any(size > MAX_OPERAND for size in sizes):
            raise TemplateError(f"the chat template computes {operator} with {max(sizes)}")
        if operator == "**" and sum(sizes) > 64:
            raise TemplateError("the chat template computes too large a power")
        return super().call_binop(context, operator, left, right)


def _sized(value: Any) -> bool:
    return isinstance(value, int | str | list | tuple)


def _count_iterations(tree: nodes.Template) -> None:
    """Have every loop and macro body tell `_Environment._tick` that it runs once more."""
    loops: list[nodes.For | nodes.Macro] = [
        *tree.find_all(nodes.For),
        *tree.find_all(nodes.Macro),
    ]
    for loop in loops:
        tick = nodes.Call(nodes.Name(_TICK, "load"), [], [], None, None)
        loop.body.insert(0, nodes.Output([tick]).set_lineno(loop.lineno))


def _bounded(pieces: Iterator[str]) -> Iterator[str]:
    total = 0
    for piece in pieces:
        total += len(piece)
        if total > MAX_CHARACTERS:
            raise TemplateError(
                f"the chat template wrote more than {MAX_CHARACTERS} characters"
            )
        yield piece


def _unusable(why: str) -> TemplateError:
    return TemplateError(
        f"the chat template cannot be used: {why}",
        f"Name another with --chat-template: {', '.join(BUILT_IN)}, or a Jinja file.",
    )


def _raise_exception(message: str) -> NoReturn:
    raise _unusable(message)


def _to_json(value: Any, indent: int | None = None) -> str:
    # Not Jinja's own filter, which escapes for HTML what a model should see as it is.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _strftime_now(form: str) -> str:
    return dt.datetime.now().strftime(form)
