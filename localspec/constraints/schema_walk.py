"""Every schema within a JSON schema, told from the names and the data in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from localspec.errors import ConstraintError

_NAMED = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
_DATA = {"const", "enum", "default", "examples", "example", "x-guidance"}

Node = dict[str, Any]


def changed_schema(schema: Mapping[str, Any], change: Callable[[Node], None]) -> Node:
    """A copy in which `change` has had every object that may be a schema, the inner ones first.

    Also those that only a reference leads to, wherever they stand. Raises ConstraintError for
    a schema that is nested too deeply.
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
