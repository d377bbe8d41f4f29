"""What a JSON schema says, as far as the notations that are no JSON need it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from localspec.errors import OptionError

_MAX_REFERENCES = 32  # one after the other

Schema = Mapping[str, Any]


def takes_text(schema: object) -> bool | None:
    """Whether a value of the schema is a text; None if it can be something else, too."""
    if not isinstance(schema, Mapping):
        return None
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        kinds = {isinstance(value, str) for value in values} if values else set()
    elif isinstance(schema.get("type"), str):
        kinds = {schema["type"] == "string"}
    elif isinstance(schema.get("type"), list):
        kinds = {kind == "string" for kind in schema["type"]}
    else:
        return None
    return kinds.pop() if len(kinds) == 1 else None


def choices(schema: object) -> Sequence[object] | None:
    """The values that the schema has to choose from, if it does."""
    if not isinstance(schema, Mapping):
        return None
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) and values else None


def properties_of(schema: Schema) -> Schema:
    """The schemas of an object's properties."""
    properties = schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def resolved(schema: object, root: Schema) -> object:
    """What a reference inside of the root refers to, or the schema if it is none.

    Raises OptionError for one to nowhere.
    """
    for _ in range(_MAX_REFERENCES):
        if not isinstance(schema, Mapping) or "$ref" not in schema:
            break
        reference = schema["$ref"]
        found: object = root
        for part in str(reference).removeprefix("#/").split("/"):
            found = found.get(part) if isinstance(found, Mapping) else None
        if not str(reference).startswith("#/") or found is None:
            raise OptionError(
                f"a tool's schema refers to {reference!r:.80}, which it does not have",
                "Put what it refers to under $defs of the same schema.",
            )
        schema = found
    return schema
