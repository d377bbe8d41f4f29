"""The OpenAPI document, made by letting each route read an example and noting the fields."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from localspec._version import __version__
from localspec.errors import LocalspecError
from localspec.server.fields import MOST_TEXTS, Fields
from localspec.server.form import Aside, Form
from localspec.server.refusal import error_schema

_TYPES = {"/slots": "array"}  # of responses that are no objects
_REFUSALS = ("400", "401", "403", "404", "408", "413", "500", "501", "503")


def document(gets: Sequence[str], posts: Mapping[str, type[Form | Aside]]) -> dict[str, Any]:
    """The document, OpenAPI 3.1. gets, posts: the paths; what reads a request to each."""
    paths: dict[str, Any] = {}
    for path in gets:
        operation: dict[str, Any] = {"responses": _responses(path)}
        if "{name}" in path:
            name = {"name": "name", "in": "path", "required": True}
            operation["parameters"] = [{**name, "schema": {"type": "string"}}]
        paths[path] = {"get": operation}
    for path, kind in posts.items():
        properties = _properties(kind)
        schema = {"type": "object", "properties": properties}
        content = {"application/json": {"schema": schema, "example": kind.example}}
        paths[path] = {
            "post": {
                "requestBody": {"required": True, "content": content},
                "responses": _responses(path, kind),
            }
        }
    info = {"title": "localspec", "version": __version__}
    return {"openapi": "3.1.0", "info": info, "paths": paths}


def _responses(path: str, kind: type[Form | Aside] | None = None) -> dict[str, Any]:
    good: dict[str, Any] = {
        "application/json": {"schema": {"type": _TYPES.get(path, "object")}}
    }
    if path == "/metrics":
        good = {"text/plain": {}}
    if kind is not None and issubclass(kind, Form):
        good[kind.content_type] = {}
    refused = {
        "description": "refused",
        "content": {"application/json": {"schema": error_schema(path)}},
    }
    return {
        "200": {"description": "answered", "content": good},
        **dict.fromkeys(_REFUSALS, refused),
    }


def _properties(kind: type[Form | Aside]) -> dict[str, Any]:
    """The schema of each field that is read, in the example or not."""
    properties: dict[str, Any] = {}
    kind(_Noting(kind.example, properties, opens_missing=False))
    with contextlib.suppress(LocalspecError):  # an object that is there may need a field
        kind(_Noting(kind.example, properties, opens_missing=True))
    return properties


class _Noting(Fields):
    """Notes each field that is read, and its type.

    opens_missing: whether a missing object is taken for an empty one, so that the fields that
    would be read of it are noted, too.
    """

    def __init__(
        self, values: Mapping[str, Any], properties: dict[str, Any], *, opens_missing: bool
    ) -> None:
        super().__init__(values)
        self._properties = properties
        self._opens_missing = opens_missing

    def any(self, name: str) -> Any:
        self._properties.setdefault(name, {})
        return super().any(name)

    def text(self, name: str) -> str | None:
        self._note(name, "string")
        return super().text(name)

    def flag(self, name: str) -> bool | None:
        self._note(name, "boolean")
        return super().flag(name)

    def number(self, name: str) -> float | None:
        self._note(name, "number")
        return super().number(name)

    def whole(self, name: str) -> int | None:
        self._note(name, "integer")
        return super().whole(name)

    def texts(self, name: str) -> list[str] | None:
        several = {"type": "array", "items": {"type": "string"}, "maxItems": MOST_TEXTS}
        self._properties[name] = {"anyOf": [{"type": ["string", "null"]}, several]}
        return super().texts(name)

    def object(self, name: str) -> Fields | None:
        schema = self._note(name, "object")
        if super().object(name) is None and not self._opens_missing:
            return None
        return self._inner(super().any(name) or {}, schema)

    def objects(self, name: str) -> list[Fields] | None:
        schema = self._note(name, "array")
        items = schema.setdefault("items", {"type": "object"})
        found = super().objects(name)
        return found and [self._inner(each, items) for each in super().any(name)]

    def _inner(self, values: Mapping[str, Any], schema: dict[str, Any]) -> Fields:
        properties = schema.setdefault("properties", {})
        return _Noting(values, properties, opens_missing=self._opens_missing)

    def _note(self, name: str, kind: str) -> dict[str, Any]:
        schema: dict[str, Any] = self._properties.setdefault(name, {})
        schema["type"] = [kind, "null"]
        return schema
