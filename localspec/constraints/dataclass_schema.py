"""A dataclass → the JSON schema of its instances."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from typing import Any

from localspec.errors import ConstraintError

_PLAIN: dict[Any, dict[str, Any]] = {
    Any: {}, str: {"type": "string"}, int: {"type": "integer"}, float: {"type": "number"},
    bool: {"type": "boolean"}, type(None): {"type": "null"}, list: {"type": "array"},
    dict: {"type": "object"},
}  # fmt: skip


def schema_of_dataclass(kind: type) -> dict[str, Any]:
    """An object with the fields in their order, those without a default required.

    Fields may be of the types that JSON has, Literal, Enum, unions, lists, tuples, dicts with
    keys of type str, and other dataclasses. Raises ConstraintError for another type.
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
    missing = dataclasses.MISSING
    return {
        "type": "object",
        "properties": {field.name: _schema(hints[field.name], definitions) for field in fields},
        "required": [
            field.name
            for field in fields
            if field.default is missing and field.default_factory is missing
        ],
        "additionalProperties": False,
    }


def _schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if dataclasses.is_dataclass(kind):
        name = kind.__name__  # type: ignore[union-attr]
        if name not in definitions:
            definitions[name] = {}  # a field of its own may be of this class
            definitions[name] = _object(kind, definitions)
        return {"$ref": f"#/$defs/{name}"}
    if isinstance(kind, enum.EnumMeta):
        return {"enum": [member.value for member in kind]}  # type: ignore[var-annotated]
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    inner = [_schema(each, definitions) for each in arguments if each is not ...]
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": inner}
    if origin is list or (origin is tuple and arguments[1:] == (...,)):
        return {"type": "array", "items": inner[0]}
    if origin is tuple:
        size = {"minItems": len(inner), "maxItems": len(inner)}
        return {"type": "array", "prefixItems": inner, "items": False, **size}
    if origin is dict and arguments[0] is str:
        return {"type": "object", "additionalProperties": inner[1]}
    raise ConstraintError(
        f"a field of the dataclass is of the type {kind!r}, which JSON does not have",
        "Use str, int, float, bool, None, lists, dicts with str keys, Literal or Enum.",
    )
