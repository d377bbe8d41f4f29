"""A JSON schema as llguidance understands it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from localspec.errors import ConstraintError

# The formats that llguidance knows.
FORMATS = {
    "date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
}  # fmt: skip
# What Rust's expressions lack: lookaround and backreferences.
_UNREADABLE = re.compile(r"(?<!\\)(?:\\\\)*(\(\?<?[=!]|\\[1-9])")
# To find out whether n patterns can match one text, llguidance takes 2 ** n steps.
_MAX_PATTERNS = 12
# Keywords that hold together with those of other schemas for the same value.
_HOLDING = {
    "allOf", "$ref", "pattern", "format", "properties", "patternProperties", "items",
    "prefixItems", "additionalProperties",
}  # fmt: skip
_NAMED = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
_DATA = {"const", "enum", "default", "examples", "example", "x-guidance"}

Node = dict[str, Any]


class Readable(NamedTuple):
    """A schema that can be read. passed_over: the parts of the original that it lacks."""

    schema: Node
    passed_over: tuple[str, ...]


def readable_schema(schema: Mapping[str, Any], *, is_strict: bool) -> Readable:
    """The schema without formats that are not known, which say nothing but what a text is for.

    Unless it is strict, without patterns that cannot be read, too. Raises ConstraintError for
    a schema that is nested too deeply, or joins many patterns.
    """
    passed_over: set[str] = set()
    patterns: set[tuple[str, object]] = set()
    joins = False

    def change(node: Node) -> None:
        nonlocal joins
        form, pattern = node.get("format"), node.get("pattern")
        if isinstance(form, str) and form not in FORMATS:
            del node["format"]
            passed_over.add(f"format {form}")
        if not is_strict and isinstance(pattern, str) and _UNREADABLE.search(pattern):
            del node["pattern"]
            passed_over.add(f"pattern {pattern}")
        patterns.update(
            (word, str(node[word])) for word in ("pattern", "format") if word in node
        )
        options = node.keys() & {"anyOf", "oneOf", "$ref"}
        joins |= "allOf" in node or bool(options and node.keys() & (_HOLDING - options))

    found = changed_schema(schema, change)
    if joins and len(patterns) > _MAX_PATTERNS:
        raise ConstraintError(
            f"the JSON schema joins parts (allOf, $ref) and has {len(patterns)} patterns and "
            f"formats; {_MAX_PATTERNS} are the most where several may hold for one text",
            "Write one pattern that says it all, or leave out the joining.",
        )
    return Readable(found, tuple(sorted(passed_over)))


def changed_schema(schema: Mapping[str, Any], change: Callable[[Node], None]) -> Node:
    """A copy in which `change` has had every object that may be a schema, the inner ones first.

    Names and data are told from schemas. Raises ConstraintError for a schema that is nested too
    deeply.
    """
    try:
        return _changed(schema, change)
    except RecursionError as error:
        raise ConstraintError(
            "the JSON schema is nested too deeply", "Make it flatter."
        ) from error


def _changed(schema: Mapping[str, Any], change: Callable[[Node], None]) -> Node:
    node: Node = {}
    for keyword, value in schema.items():
        if keyword in _NAMED and isinstance(value, Mapping):
            node[keyword] = {name: _part(each, change) for name, each in value.items()}
        else:
            node[keyword] = value if keyword in _DATA else _part(value, change)
    change(node)
    return node


def _part(value: Any, change: Callable[[Node], None]) -> Any:
    if isinstance(value, Mapping):
        return _changed(value, change)
    if isinstance(value, list | tuple):
        return [_part(each, change) for each in value]
    return value
