"""How calls are written, read back: from the text of a call to its name and arguments.

Each reader gets the text between a form's opening and closing, and the tools. It returns the
calls in it, or None for a text that is not a call of these tools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from localspec.tools.arguments import ArgumentReader, GemmaArguments, TagArguments
from localspec.tools.schemas import fits
from localspec.tools.tool import Tool, json_text, json_value


class Written(NamedTuple):
    """A call as a model wrote it. json: its arguments. id: the model's own name for it."""

    name: str
    json: str
    id: str | None = None


Reader = Callable[[str, Sequence[Tool]], list[Written] | None]


def read_objects(text: str, tools: Sequence[Tool]) -> list[Written] | None:
    """An object with name and arguments (or parameters), or a list of such."""
    found = _parsed(text)
    calls = []
    for each in found if isinstance(found, list) else [found]:
        written = _of_object(each, tools)
        if written is None:
            return None
        calls.append(written)
    return calls or None


def _of_object(value: object, tools: Sequence[Tool]) -> Written | None:
    if not isinstance(value, dict):
        return None
    function = value.get("function")
    given = function if isinstance(function, dict) else value
    arguments = given.get("arguments") or given.get("parameters") or {}  # some write null
    return _call(given.get("name"), arguments, tools)


def read_named(text: str, tools: Sequence[Tool]) -> list[Written] | None:
    """Mistral's name[ARGS]{…}, perhaps with an id; further ones behind [TOOL_CALLS]."""
    calls: list[Written] = []
    rest = text
    while rest.strip() or not calls:
        head, _, arguments = rest.removeprefix("[TOOL_CALLS]").partition("[ARGS]")
        name, _, own_id = head.strip().partition("[CALL_ID]")
        # A mark can also stand inside of a text of the arguments.
        value, rest = _first_value(arguments)
        written = _call(name.strip(), value, tools)
        if written is None or (rest and not rest.startswith("[TOOL_CALLS]")):
            return None
        calls.append(written._replace(id=own_id.strip() or None))
    return calls


def read_unmarked(text: str, tools: Sequence[Tool]) -> list[Written] | None:
    """Objects with a tool's name and arguments that fit, perhaps in a fence each, or lists of
    such: as models write calls that do not keep to their family's form. An object may begin
    with two braces, as Qwen2.5-Coder's template shows it.
    """
    calls: list[Written] = []
    schemas = {tool.name: tool.parameters for tool in tools}
    rest = text
    while rest := _FENCES.sub("", rest):
        inner = _DOUBLED.sub("", rest)
        value, behind = _first_value(inner)
        rest = behind if inner == rest else behind.removeprefix("}")
        objects = value if isinstance(value, list) else [value]
        found = [_of_object(each, tools) for each in objects]
        for each in found:
            if each is None:
                return None
            schema = schemas[each.name]
            if not fits(json.loads(each.json), schema, schema):
                return None
            calls.append(each)
        if not objects:
            return None
    return calls or None


_FENCES = re.compile(r"\A\s*(?:(?:```(?:json)?|</?tools>)\s*)*", re.IGNORECASE)
_DOUBLED = re.compile(r"\A\{\s*(?=\{)")


def read_message(text: str, tools: Sequence[Tool]) -> list[Written] | None:
    """A recipient, a line's end, and the arguments: as gpt-oss's messages are handed on."""
    name, _, arguments = text.partition("\n")
    written = _call(name, _parsed(arguments), tools)
    return None if written is None else [written]


def read_gemma(text: str, tools: Sequence[Tool]) -> list[Written] | None:
    """Gemma 4's call:name{key:value,…}, whose strings stand between <|"|>."""
    found = re.fullmatch(r"\s*call:([^\s{]+)\s*(\{.*\})\s*", text, re.DOTALL)
    return (
        None if found is None else _read_arguments(GemmaArguments, found[1], [found[2]], tools)
    )


_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>\n?(.*?)\n?(</function>)\s*", re.DOTALL)


def read_tags(text: str, tools: Sequence[Tool]) -> list[Written] | None:
    """Qwen3-Coder's <function=name> with a <parameter=…> for each argument."""
    found = _FUNCTION.fullmatch(text)
    if found is None:
        return None
    return _read_arguments(TagArguments, found[1].strip(), found.groups()[1:], tools)


def _read_arguments(
    kind: type[ArgumentReader], name: str, texts: Sequence[str], tools: Sequence[Tool]
) -> list[Written] | None:
    """The call of that name, whose arguments are these texts, one after the other."""
    tool = next((tool for tool in tools if tool.name == name), None)
    if tool is None:
        return None
    reader = kind(tool, is_kept=False)
    try:
        arguments = "".join(map(reader.push, texts))
    except ValueError:
        return None
    written = None if reader.rest.strip() else _call(name, arguments, tools)
    return None if written is None else [written]


def _call(name: object, arguments: object, tools: Sequence[Tool]) -> Written | None:
    if isinstance(arguments, str):
        arguments = _parsed(arguments)  # some write the object as a text
    if not isinstance(arguments, dict) or name not in [tool.name for tool in tools]:
        return None
    return Written(str(name), json_text(arguments))


def _parsed(text: str) -> Any:
    """The value of a JSON text; None for any other text."""
    try:
        return json_value(text)
    except ValueError:
        return None


def _first_value(text: str) -> tuple[Any, str]:
    """The JSON value at the beginning of a text, or None, and the text behind it."""
    text = text.lstrip()
    try:
        _, end = _DECODER.raw_decode(text)
        return json_value(text[:end]), text[end:].lstrip()
    except (ValueError, RecursionError):
        return None, ""


_DECODER = json.JSONDecoder()
