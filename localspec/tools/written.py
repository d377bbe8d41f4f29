"""How calls are written, read back: from the text of a call to its name and arguments.

Each reader gets the text between a form's opening and closing, and the tools. It returns the
calls in it, or None if it is no call of these tools: then it is a text like any other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from localspec.tools.schemas import properties_of, resolved, takes_text
from localspec.tools.tool import Tool

_MAX_DEPTH = 64  # of values in Gemma's notation


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
        if not isinstance(each, dict):
            return None
        function = each.get("function")
        given = function if isinstance(function, dict) else each
        arguments = given.get("arguments", given.get("parameters", {}))
        written = _call(given.get("name"), arguments, tools)
        if written is None:
            return None
        calls.append(written)
    return calls or None


def read_named(text: str, tools: Sequence[Tool]) -> list[Written] | None:
    """Mistral's name[ARGS]{…}, perhaps with an id; further ones behind [TOOL_CALLS]."""
    calls = []
    for part in text.split("[TOOL_CALLS]"):
        name, _, arguments = part.partition("[ARGS]")
        name, _, own_id = name.strip().partition("[CALL_ID]")
        written = _call(name.strip(), _parsed(arguments), tools)
        if written is None:
            return None
        calls.append(written._replace(id=own_id.strip() or None))
    return calls


def read_message(text: str, tools: Sequence[Tool]) -> list[Written] | None:
    """A recipient, a line's end, and the arguments: as gpt-oss's messages are handed on."""
    name, _, arguments = text.partition("\n")
    written = _call(name, _parsed(arguments), tools)
    return None if written is None else [written]


def read_gemma(text: str, tools: Sequence[Tool]) -> list[Written] | None:
    """Gemma 4's call:name{key:value,…}, whose strings stand between <|"|>."""
    found = re.fullmatch(r"\s*call:([^\s{]+)\s*(\{.*\})\s*", text, re.DOTALL)
    if found is None:
        return None
    try:
        value, end = _gemma_value(found[2], 0, 0)
    except ValueError:
        return None
    written = _call(found[1], value, tools) if end == len(found[2]) else None
    return None if written is None else [written]


_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>\n?(.*?)\n?</function>\s*", re.DOTALL)
_PARAMETER = re.compile(
    r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>(?=\s*(?:<parameter=|$))", re.DOTALL
)


def read_tags(text: str, tools: Sequence[Tool]) -> list[Written] | None:
    """Qwen3-Coder's <function=name> with a <parameter=…> for each argument."""
    found = _FUNCTION.fullmatch(text)
    if found is None:
        return None
    schemas = _properties(found[1].strip(), tools)
    arguments, at = {}, 0
    while each := _PARAMETER.match(found[2], at):
        at = each.end()
        arguments[each[1].strip()] = _typed(each[2], schemas.get(each[1].strip()))
    if found[2][at:].strip():
        return None
    written = _call(found[1].strip(), arguments, tools)
    return None if written is None else [written]


def _typed(text: str, schema: object) -> Any:
    """What a text between tags stands for."""
    if takes_text(schema):
        return text
    try:
        return json.loads(text, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return text


def _properties(name: str, tools: Sequence[Tool]) -> dict[str, object]:
    for tool in tools:
        if tool.name == name:
            found = properties_of(tool.parameters)
            return {key: resolved(value, tool.parameters) for key, value in found.items()}
    return {}


def _call(name: object, arguments: object, tools: Sequence[Tool]) -> Written | None:
    if isinstance(arguments, str):
        arguments = _parsed(arguments)  # some write the object as a text
    if not isinstance(arguments, dict) or name not in [tool.name for tool in tools]:
        return None
    return Written(str(name), json.dumps(arguments, ensure_ascii=False))


def _parsed(text: str) -> Any:
    """JSON's value; None if it is none."""
    try:
        return json.loads(text, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return None


def _no_json(name: str) -> Any:
    raise ValueError(name)


_QUOTE = '<|"|>'
_PLAIN = re.compile(r"[^\s,:\[\]{}]+")


def _gemma_value(text: str, at: int, depth: int) -> tuple[Any, int]:
    """The value that begins there, and where it ends. Raises ValueError if there is none."""
    if depth > _MAX_DEPTH:
        raise ValueError("too deep")
    if text.startswith(_QUOTE, at):
        end = text.index(_QUOTE, at + len(_QUOTE))
        return text[at + len(_QUOTE) : end], end + len(_QUOTE)
    if text.startswith("{", at):
        return _gemma_object(text, at, depth)
    if text.startswith("[", at):
        return _gemma_list(text, at, depth)
    plain = _PLAIN.match(text, at)
    if plain is None:
        raise ValueError("no value")
    return json.loads(plain[0], parse_constant=_no_json), plain.end()


def _gemma_object(text: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}
    at = _behind_space(text, at + 1)
    while not text.startswith("}", at):
        if text.startswith(_QUOTE, at):
            key, at = _gemma_value(text, at, depth)
        else:
            end = text.index(":", at)
            key, at = text[at:end].strip(), end
        at = _behind_space(text, at)
        if not text.startswith(":", at):
            raise ValueError("no colon")
        found[key], at = _gemma_value(text, _behind_space(text, at + 1), depth + 1)
        at = _next_item(text, at, "}")
    return found, at + 1


def _gemma_list(text: str, at: int, depth: int) -> tuple[list[Any], int]:
    found = []
    at = _behind_space(text, at + 1)
    while not text.startswith("]", at):
        value, at = _gemma_value(text, at, depth + 1)
        found.append(value)
        at = _next_item(text, at, "]")
    return found, at + 1


def _next_item(text: str, at: int, closing: str) -> int:
    """Where the next item or the closing is. Raises ValueError if there is neither."""
    at = _behind_space(text, at)
    if text.startswith(",", at):
        return _behind_space(text, at + 1)
    if not text.startswith(closing, at):
        raise ValueError("no end")
    return at


def _behind_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at
