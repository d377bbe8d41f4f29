"""A dataclass → the JSON schema of its instances."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from typing import Any

from localspec.errors import ConstraintError

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def schema_of_dataclass(kind: type) -> dict[str, Any]:
    """An object with the fields in their order, those without a default required.

    Fields may be of the types that JSON has, Literal, Enum, unions, lists, tuples, dicts with
    keys of type str, and other dataclasses. Raises ConstraintError for another one.
    """
    definitions: dict[str, Any] = {}
    schema = _object(kind, definitions)
    return {**schema, "$defs": definitions} if definitions else schema


def _object(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(kind)
    except NameError as error:
        raise ConstraintError(
            f"{kind.__name__} has a field of an unknown type: {error}",
            "Define that type at the top of its module.",
        ) from error
    fields = [field for field in dataclasses.fields(kind) if field.init]
    required = [
        field.name
        for field in fields
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    return {
        "type": "object",
        "properties": {field.name: _schema(hints[field.name], definitions) for field in fields},
        "required": required,
        "additionalProperties": False,
    }


def _schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if kind is Any:
        return {}
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    if kind in (list, dict):
        return {"type": "array" if kind is list else "object"}
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        if kind.__name__ not in definitions:
            definitions[kind.__name__] = {}  # a field of its own may be of this class
            definitions[kind.__name__] = _object(kind, definitions)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"enum": [member.value for member in kind]}
    return _generic(kind, definitions)


def _generic(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin is typing.Annotated:
        return _schema(arguments[0], definitions)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema(each, definitions) for each in arguments]}
    if origin is list or (origin is tuple and arguments[1:] == (...,)):
        return {"type": "array", "items": _schema(arguments[0], definitions)}
    if origin is tuple:
        size = len(arguments)
        items = [_schema(each, definitions) for each in arguments]
        return {
            "type": "array", "prefixItems": items, "items": False,
            "minItems": size, "maxItems": size,
        }  # fmt: skip
    if origin is dict and arguments[0] is str:
        return {"type": "object", "additionalProperties": _schema(arguments[1], definitions)}
    raise ConstraintError(
        f"a field of the dataclass is of the type {kind!r}, which JSON does not have",
        "Use str, int, float, bool, None, lists, dicts with str keys, Literal or Enum.",
    )
