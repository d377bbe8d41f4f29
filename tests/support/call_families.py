"""Chat templates that render calls as the families' own do, and what models say then."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gguf_maker import write_scripted_model

TOOLS = [
    {
        "name": "get_weather",
        "description": "What the weather is.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "unit": {"enum": ["C", "F"]},
            },
            "required": ["city"],
        },
    },
    {"name": "now", "description": "What time it is."},
]
ARGUMENTS = {"city": "Rome", "days": 3}
# Few arguments, so that any model soon has some that fit; and what a model says of a call.
FEW = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rome", "Oslo"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
SAID = ["Let me see. ", "<tool_call>", '\n{"name": "get_weather", "arg', "uments",
        '": {"city": "Rome", "days": 3}}\n', "</tool_call>"]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Family:
    """template: renders two turns at most. call: `ARGUMENTS` for the first of the tools.

    marks: entries of the vocabulary in it.
    """

    template: str
    call: str
    marks: tuple[str, ...]
    two: str = ""


_SYSTEM = "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
_TURN = "<|im_start|>{{ m.role }}\n{{ m.content }}"
_END = "<|im_end|>\n"


def _chatml(call: str) -> str:
    """call: of one call `c`, a function."""
    return (
        f"{_SYSTEM}{{% for m in messages %}}{_TURN}{{% for t in m.tool_calls %}}"
        f"{{% set c = t.function %}}{call}{{% endfor %}}{_END}{{% endfor %}}"
        "<|im_start|>assistant{{ '\n' }}"
    )


FAMILIES = {
    "Qwen": Family(
        _chatml(
            '{{ "\\n" }}<tool_call>\n'
            '{"name": "{{ c.name }}", "arguments": {{ c.arguments | tojson }}}'
            "\n</tool_call>"
        ),
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome", "days": 3}}\n'
        "</tool_call>",
        ("<tool_call>", "</tool_call>"),
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome", "days": 3}}\n'
        '</tool_call>\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    ),
    "Qwen3-Coder": Family(
        _chatml(
            "{{ '\\n' }}<tool_call>\n<function={{ c.name }}>\n"
            "{% for k, v in c.arguments | items %}"
            "<parameter={{ k }}>\n{{ v if v is string else v | tojson }}\n</parameter>\n"
            "{% endfor %}</function>\n</tool_call>"
        ),
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        ("<tool_call>", "</tool_call>"),
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=now>\n</function>\n</tool_call>",
    ),
    "Llama 3": Family(
        "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
        "{% if loop.first and tools %}{{ tools | tojson }}{% endif %}"
        "{% if 'tool_calls' in m %}{% if m.tool_calls | length > 1 %}"
        "{{ raise_exception('only single tool-calls') }}{% endif %}"
        "{% set c = m.tool_calls[0].function %}"
        '{{ \'{"name": "\' + c.name + \'", "parameters": \' }}'
        "{{ c.arguments | tojson }}{{ '}' }}"
        "{% else %}{{ m.content }}{% endif %}<|eot_id|>{% endfor %}"
        "<|start_header_id|>assistant<|end_header_id|>{{ '\n\n' }}",
        '{"name": "get_weather", "parameters": {"city": "Rome", "days": 3}}',
        ("<|python_tag|>",),
    ),
    "Mistral Nemo": Family(
        "{% for m in messages %}{% if m.role == 'user' %}{% if tools and loop.last %}"
        "[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
        "[INST]{{ m.content }}[/INST]{% elif m.tool_calls %}[TOOL_CALLS]["
        "{% for t in m.tool_calls %}{% if t.id | length != 9 %}"
        "{{ raise_exception('ids should have length 9') }}{% endif %}"
        "{{ (t.function | tojson)[:-1] + ', \"id\": \"' + t.id + '\"}' }}"
        "{{ ', ' if not loop.last }}{% endfor %}]</s>{% elif m.role == 'tool' %}"
        '[TOOL_RESULTS]{"content": {{ m.content }}, "call_id": "{{ m.tool_call_id }}"}'
        "[/TOOL_RESULTS]{% else %}{{ m.content }}</s>{% endif %}{% endfor %}",
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Rome", "days": 3}}]',
        ("[TOOL_CALLS]",),
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Rome", "days": 3}}, '
        '{"name": "now", "arguments": {}}]',
    ),
    "Mistral Small": Family(
        "{% for m in messages %}{% if m.role == 'user' %}{% if tools and loop.last %}"
        "[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
        "[INST]{{ m.content }}[/INST]{% elif m.tool_calls %}{% for t in m.tool_calls %}"
        "[TOOL_CALLS]{{ t.function.name }}[CALL_ID]{{ t.id }}[ARGS]"
        "{{ t.function.arguments | tojson }}{% endfor %}</s>{% elif m.role == 'tool' %}"
        "[TOOL_RESULTS]{{ m.tool_call_id }}[TOOL_CONTENT]{{ m.content }}[/TOOL_RESULTS]"
        "{% else %}{{ m.content }}</s>{% endif %}{% endfor %}",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Rome", "days": 3}',
        ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Rome", "days": 3}[TOOL_CALLS]now[ARGS]{}',
    ),
    "gpt-oss": Family(
        "{% if tools %}<|start|>developer<|message|>{{ tools | tojson }}<|end|>{% endif %}"
        "{% for m in messages %}{% if m.role == 'user' %}<|start|>user<|message|>"
        "{{ m.content }}<|end|>{% elif 'tool_calls' in m %}"
        "{% set c = m.tool_calls[0].function %}<|start|>assistant to="
        '{{ "functions." + c.name }}<|channel|>commentary json<|message|>'
        "{{ c.arguments | tojson }}<|call|>{% elif m.role == 'tool' %}<|start|>functions "
        "to=assistant<|channel|>commentary<|message|>{{ m.content | tojson }}<|end|>{% else %}"
        "<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>{% endif %}"
        "{% endfor %}<|start|>assistant",
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        '{"city": "Rome", "days": 3}',
        ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>"),
    ),
    "Gemma 4": Family(
        '{% macro w(v) %}{% if v is string %}<|"|>{{ v }}<|"|>{% elif v is mapping %}'
        "{{ '{' }}{% for k, e in v.items() %}{{ k }}:{{ w(e) }}{{ ',' if not loop.last }}"
        "{% endfor %}{{ '}' }}{% elif v is iterable %}[{% for e in v %}{{ w(e) }}"
        "{{ ',' if not loop.last }}{% endfor %}]{% else %}{{ v | tojson }}{% endif %}"
        "{% endmacro %}{% for m in messages %}<|turn>"
        "{{ 'model' if m.role == 'assistant' else m.role }}\n"
        "{% if loop.first %}{% for t in tools %}"
        "<|tool>{{ t.function.name }}<tool|>{% endfor %}{% endif %}{% for t in m.tool_calls %}"
        "{{ '<|tool_call>call:' + t.function.name + '{' }}"
        "{% for k, v in t.function.arguments | dictsort %}{{ k }}:{{ w(v) }}"
        "{{ ',' if not loop.last }}{% endfor %}{{ '}' }}<tool_call|>{% endfor %}"
        "{{ m.content }}<turn|>\n{% endfor %}"
        "<|turn>model{{ '\n' }}",
        '<|tool_call>call:get_weather{city:<|"|>Rome<|"|>,days:3}<tool_call|>',
        ("<|tool_call>", "<tool_call|>", '<|"|>'),
        '<|tool_call>call:get_weather{city:<|"|>Rome<|"|>,days:3}<tool_call|>'
        "<|tool_call>call:now{}<tool_call|>",
    ),
}


def in_gemma(value: Any, *, is_key: bool = False) -> str:
    if isinstance(value, str):
        is_plain = value and value == value.strip() and ":" not in value
        if is_key and is_plain and not value.startswith(("}", '<|"|>')):
            return value
        return f'<|"|>{value}<|"|>'
    if isinstance(value, list):
        return f"[{','.join(map(in_gemma, value))}]"
    if isinstance(value, dict):
        pairs = (
            f"{in_gemma(key, is_key=True)}:{in_gemma(each)}" for key, each in value.items()
        )
        return "{" + ",".join(pairs) + "}"
    return json.dumps(value)


def in_tags(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def written_call(name: str, arguments: dict[str, Any]) -> str:
    """A call of a tool f as the family writes it."""
    text = json.dumps(arguments, ensure_ascii=False)
    if name == "Gemma 4":
        return f"<|tool_call>call:f{in_gemma(arguments)}<tool_call|>"
    if name == "Qwen3-Coder":
        each = "".join(
            f"<parameter={key}>\n{in_tags(value)}\n</parameter>\n"
            for key, value in arguments.items()
        )
        return f"<tool_call>\n<function=f>\n{each}</function>\n</tool_call>"
    call = FAMILIES[name].call.replace("get_weather", "f")
    return call.replace('{"city": "Rome", "days": 3}', text)


def write_calling_model(path: Path, name: str, said: Sequence[str]) -> Path:
    """A model that says that in its first turn, and Done. when it was told what came of it.

    Its tokens are those texts; the marks of the family are control tokens.
    """
    family = FAMILIES[name]
    template = family.template + "{% if messages[-1].role == 'tool' %}t{% endif %}"
    follow = {**dict(itertools.pairwise(["<0x0A>", *said])), "t": "Done."}
    return write_scripted_model(path, follow, control=family.marks, template=template)


def write_tool_caller(path: Path, tool: str) -> Path:
    """A model that calls that tool after each question, among whatever others, and says Done.

    A grammar forces all of the call but the name, which follows a quotation mark. The marks of
    turns and calls are control tokens.
    """
    family = FAMILIES["Qwen"]
    template = family.template + "{% if messages[-1].role == 'tool' %}t{% endif %}"
    follow = {"<0x0A>": "<tool_call>", '"': tool, "t": "Done."}
    control = (*family.marks, "<|im_start|>", "<|im_end|>")
    return write_scripted_model(path, follow, control=control, template=template)
