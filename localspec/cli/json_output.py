"""The option --json, and the output of commands with it."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import math
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import click

from localspec.cli.flags import Decorator, option


def json_option(content: str) -> Decorator:
    """Decorate a command with --json.

    Args:
        content: what the JSON is, as the end of the option's help, such as "array of names".
    """
    return option(
        "as_json",
        flags=["--json"],
        heading="Output",
        is_flag=True,
        help=f"Print one JSON {content}.",
    )


def write_json(value: Any, **more: Any) -> None:
    """Print a value as one line of JSON, converted by `to_json`.

    Args:
        value: the value. With `more`, its JSON has to be an object.
        more: additional keys of that object.
    """
    converted = to_json(value)
    if more:
        converted |= to_json(more)
    click.echo(json.dumps(converted, allow_nan=False))


def to_json(value: Any) -> Any:
    """The value in the types that `json` can write.

    A dataclass becomes a dict of its public fields and properties, a named tuple a dict of its
    fields, a set a sorted list, an enum's member its value; paths and bytes become texts.
    Infinity and NaN, which JSON does not have, become None.
    """
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, Path):
        return str(value)
    if dataclasses.is_dataclass(value):
        names = _public_names(type(value))
        return {name: to_json(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(to_json(key)): to_json(inner) for key, inner in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return to_json(value._asdict())
    if isinstance(value, Set):
        value = sorted(value)
    if isinstance(value, list | tuple):
        return [to_json(inner) for inner in value]
    return value


def _public_names(kind: type) -> list[str]:
    """The names of a dataclass's public fields and properties."""
    names = [field.name for field in dataclasses.fields(kind)]
    properties = inspect.getmembers(kind, lambda member: isinstance(member, property))
    names += [name for name, _ in properties]
    return [name for name in names if not name.startswith("_")]
