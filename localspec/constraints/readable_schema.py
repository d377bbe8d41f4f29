"""A JSON schema as llguidance understands it, with bounds where a small model finds no end."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from localspec.constraints.schema_walk import Node, changed_schema

# The formats that llguidance knows, each with the most characters of a text that has no bound
# of its own; None if the format is one itself.
FORMATS: Mapping[str, int | None] = {
    "date": None, "time": 32, "date-time": 48, "duration": 64, "email": 128, "hostname": 253,
    "ipv4": None, "ipv6": None, "uuid": None, "uri": 2083,
}  # fmt: skip
_LOWEST, _HIGHEST = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
_MULTIPLES_WITHIN = 10**18  # as far as llguidance counts
_BLANKS = r"[\x20\x0A\x0D\x09]{1,64}"  # between values, if a schema wants them free
# What Rust's expressions lack: lookaround and backreferences.
_UNREADABLE = re.compile(r"(?<!\\)(?:\\\\)*(\(\?<?[=!]|\\[1-9])")
# Pydantic's for a Decimal: not nothing but signs and a point.
_NUMBER_TEXT = "^(?!^[-+.]*$)"
_MOST_OF_NUMBER = 64  # characters of a number that is a text


class Readable(NamedTuple):
    """A schema that can be read. passed_over: the parts of the original that it lacks."""

    schema: Node
    passed_over: tuple[str, ...]


def readable_schema(schema: Mapping[str, Any], *, is_strict: bool) -> Readable:
    """The schema without formats that are not known, which say nothing but what a text is for.

    Unless it is strict, without patterns that cannot be read, too. Raises ConstraintError for
    one that is nested too deeply.
    """
    passed_over: set[str] = set()

    def change(node: Node) -> None:
        form = node.get("format")
        if isinstance(form, str):
            if form in FORMATS:
                _bound(node, FORMATS[form])
            else:
                del node["format"]
                passed_over.add(f"format {form}")
        pattern = node.get("pattern")
        if isinstance(pattern, str):
            _read_pattern(node, pattern)
            if not is_strict and _UNREADABLE.search(node["pattern"]):
                del node["pattern"]
                passed_over.add(f"pattern {pattern}")
        if "multipleOf" in node:
            _bound_multiples(node)

    found = changed_schema(schema, change)
    wishes = found.get("x-guidance")
    if isinstance(wishes, Mapping) and wishes.get("whitespace_flexible") is True:
        found["x-guidance"] = {"whitespace_pattern": _BLANKS, **wishes}
    return Readable(found, tuple(sorted(passed_over)))


def _bound(node: Node, most: int | None) -> None:
    """The most characters of a text, if the schema does not say."""
    if most is not None and "maxLength" not in node:
        least = node.get("minLength")
        node["maxLength"] = max(most, least) if isinstance(least, int) else most


def _read_pattern(node: Node, pattern: str) -> None:
    """Without looking around: in what is left it says that there is a digit."""
    others = node.get("allOf", [])
    if pattern.startswith(_NUMBER_TEXT) and isinstance(others, list):
        node["pattern"] = "^" + pattern.removeprefix(_NUMBER_TEXT)
        node["allOf"] = [*others, {"pattern": "[^-+.]"}]
        _bound(node, _MOST_OF_NUMBER)


def _bound_multiples(node: Node) -> None:
    """The size of a multiple, if the schema does not say.

    Else one that its bound of characters ends might be none.
    """
    own = [node[name] for name in (*_LOWEST, *_HIGHEST) if name in node]
    if any(isinstance(bound, int | float) and abs(bound) > _MULTIPLES_WITHIN for bound in own):
        return
    for names, most in ((_LOWEST, -_MULTIPLES_WITHIN), (_HIGHEST, _MULTIPLES_WITHIN)):
        if not any(name in node for name in names):
            node[names[0]] = most
