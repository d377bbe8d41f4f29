"""Classes as JSON schemas, and their objects from JSON: what Pydantic does here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from localspec.errors import ConstraintError, ParseError
from localspec.tools.schemas import Node, changed_schema

INSTALL = "Install it: pip install 'localspec[grammar]'."


def has_fields(kind: object) -> bool:
    """Whether it is a dataclass or a Pydantic model class, which has `model_json_schema`."""
    is_dataclass = isinstance(kind, type) and dataclasses.is_dataclass(kind)
    return is_dataclass or hasattr(kind, "model_json_schema")


def class_schema(kind: Any) -> Node:
    """The JSON schema of a class that `has_fields`.

    Its objects have these fields and no others, unless a model says that it allows them.

    Raises:
        ConstraintError: Pydantic makes none of the dataclass, or is not installed.
    """
    if hasattr(kind, "model_json_schema"):
        return changed_schema(kind.model_json_schema(), close_object)
    try:
        from pydantic import TypeAdapter
    except ImportError as error:
        raise ConstraintError(
            f"Pydantic makes the JSON schema of {kind.__name__}, and is not installed",
            f"{INSTALL} Or give the schema as a dict.",
        ) from error
    try:
        schema = TypeAdapter(kind).json_schema()
    except Exception as error:  # of several kinds, all Pydantic's own
        raise ConstraintError(
            f"the dataclass {kind.__name__} has no JSON schema: {error}",
            "Use types that JSON has, and define them at the top of its module.",
        ) from error
    return changed_schema(schema, close_object)


def close_object(node: Node) -> None:
    """Allow an object the fields of its class, and no others."""
    if node.get("type") == "object" and isinstance(node.get("properties"), Mapping):
        node.setdefault("additionalProperties", False)


def class_object(kind: Any, text: str) -> Any:
    """The object of a class that `has_fields` from its JSON.

    Raises:
        ParseError: the class refuses it.
    """
    try:
        if hasattr(kind, "model_validate_json"):
            return kind.model_validate_json(text)
        from pydantic import TypeAdapter

        return TypeAdapter(kind).validate_json(text)
    except Exception as error:  # the checks of a class may raise anything
        raise ParseError(
            f"the answer does not fit {kind.__name__}: {faults(error)}",
            "The class has checks that its JSON schema does not. See the reply's text, or ask "
            "again and say what has to hold.",
        ) from error


def faults(error: Exception) -> str:
    """What is wrong with a value that Pydantic or the value's class refuses, on one line."""
    if not hasattr(error, "errors"):  # not Pydantic's
        return str(error) or type(error).__name__
    found = []
    for each in error.errors():
        place = ".".join(map(str, each["loc"]))
        found.append(f"{place}: {each['msg']}" if place else each["msg"])
    return "; ".join(found)
