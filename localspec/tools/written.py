"""How calls are written, read back: from the text of a call to its name and arguments.

Each reader gets the text between a form's opening and closing, and the tools. It returns the
calls in it, or None for a text that is not a call of these tools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from localspec.errors import OptionError
from localspec.tools.schemas import branches, choices, fits, properties_of, takes_text
from localspec.tools.tool import Tool, json_text, json_value
from localspec.tools.values import QUOTE, in_tags

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
    arguments = given.get("arguments", given.get("parameters", {}))
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
    such: as models write calls that do not keep to their family's form.
    """
    calls: list[Written] = []
    rest = text
    while rest := _FENCES.sub("", rest):
        value, rest = _first_value(rest)
        objects = value if isinstance(value, list) else [value]
        found = [_of_object(each, tools) for each in objects]
        written = [each for each in found if each is not None and _is_fit(each, tools)]
        if not objects or len(written) < len(objects):
            return None
        calls += written
    return calls or None


_FENCES = re.compile(r"\A\s*(?:```(?:json)?\s*)*", re.IGNORECASE)


def _is_fit(written: Written, tools: Sequence[Tool]) -> bool:
    schema = next(tool.parameters for tool in tools if tool.name == written.name)
    return fits(json.loads(written.json), schema, schema)


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
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>")
_END = re.compile(r"\n?</parameter>(?=\s*(?:<parameter=|\Z))")


def read_tags(text: str, tools: Sequence[Tool]) -> list[Written] | None:
    """Qwen3-Coder's <function=name> with a <parameter=…> for each argument."""
    found = _FUNCTION.fullmatch(text)
    if found is None:
        return None
    name, body = found[1].strip(), found[2]
    schema = next((tool.parameters for tool in tools if tool.name == name), {})
    known = sorted(properties_of(schema), key=len, reverse=True)
    arguments, at = {}, 0
    while opening := _tag_at(body, at, known):
        key, at = opening
        try:
            arguments[key], at = _tagged(body, at, properties_of(schema).get(key), schema)
        except ValueError:
            return None
    if body[at:].strip():
        return None
    written = _call(name, arguments, tools)
    return None if written is None else [written]


def _tag_at(text: str, at: int, known: Sequence[str]) -> tuple[str, int] | None:
    """The name in the tag that begins there, and where its value does; None without a tag.

    known: names that are looked for first, which may hold what no other name can.
    """
    at = _behind_space(text, at)
    key = next((key for key in known if text.startswith(f"<parameter={key}>", at)), None)
    if key is not None:
        end = at + len(f"<parameter={key}>")
    elif found := _PARAMETER.match(text, at):
        key, end = found[1].strip(), found.end()
    else:
        return None
    return key, end + text.startswith("\n", end)


def _tagged(text: str, at: int, schema: object, root: Mapping[str, Any]) -> tuple[Any, int]:
    """The value between tags that begins there, and where its closing tag ends.

    Raises ValueError if it has none.
    """
    is_text = takes_text(schema, root)
    for end in _END.finditer(text, at):
        written = text[at : end.start()]
        if is_text is not False or not _is_cut(written):
            return _typed(written, schema, root, is_text=is_text), end.end()
    raise ValueError("no end")


def _is_cut(text: str) -> bool:
    """Whether it is JSON that ends inside a string, to which the tag behind it belongs."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string")
    except (ValueError, RecursionError):
        return False
    return False


def _branches(schema: object, root: Mapping[str, Any]) -> list[object]:
    try:
        return branches(schema, root)
    except OptionError:  # a reference to nowhere
        return []


def _typed(text: str, schema: object, root: Mapping[str, Any], *, is_text: bool | None) -> Any:
    """The value that a text between tags stands for."""
    for branch in _branches(schema, root):
        for choice in choices(branch) or ():
            if in_tags(choice) == text:
                return choice
    if is_text:
        return text
    try:
        value = json_value(text)
    except ValueError:
        return text
    if is_text is False:
        return value
    # A text stands there without quotes, and may look like another value, as 1e5 does.
    is_odd = isinstance(value, str) or (isinstance(value, float) and "e" in text.lower())
    return text if is_odd or not fits(value, schema, root) else value


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


_PLAIN = re.compile(r"[^\s,:\[\]{}]+")


def _gemma_value(text: str, at: int, depth: int) -> tuple[Any, int]:
    """The value that begins there, and where it ends. Raises ValueError without one."""
    if depth > _MAX_DEPTH:
        raise ValueError("too deep")
    if text.startswith(QUOTE, at):
        end = text.index(QUOTE, at + len(QUOTE))
        return text[at + len(QUOTE) : end], end + len(QUOTE)
    if text.startswith("{", at):
        return _gemma_object(text, at, depth)
    if text.startswith("[", at):
        return _gemma_list(text, at, depth)
    plain = _PLAIN.match(text, at)
    if plain is None:
        raise ValueError("no value")
    return json_value(plain[0]), plain.end()


def _gemma_object(text: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}
    at = _behind_space(text, at + 1)
    while not text.startswith("}", at):
        if text.startswith(QUOTE, at):
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
