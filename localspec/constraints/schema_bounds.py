"""Bounds on the work to understand a JSON schema, beyond those that llguidance has itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from localspec.errors import ConstraintError
from localspec.tools.schemas import referred

# Patterns that hold for one text: to find out whether n of them can all match, llguidance takes
# time and memory that grow with 2 ** n. A dozen take some 30 ms, 25 more than anybody has.
_MAX_PATTERNS = 12
_MAX_PLACES = 20_000  # looked at in a schema
_HOLDING = {
    "allOf", "$ref", "pattern", "format", "properties", "patternProperties", "items",
    "prefixItems", "additionalProperties",
}  # fmt: skip


def check_bounds(schema: Mapping[str, Any]) -> None:
    """Raise ConstraintError for a schema in which too many patterns hold for one text."""
    _Walk(schema).run()


class _Walk:
    """All places of a schema, each with the schemas that hold there together."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._waiting: list[list[Any]] = [[root]]
        self._seen: set[frozenset[int]] = set()

    def run(self) -> None:
        """Look at every place."""
        while self._waiting:
            together = self._together(self._waiting.pop())
            key = frozenset(map(id, together))
            if not key or key in self._seen:
                continue
            self._seen.add(key)
            num_patterns = sum(("pattern" in each) + ("format" in each) for each in together)
            if num_patterns > _MAX_PATTERNS:
                raise ConstraintError(
                    f"in the JSON schema {num_patterns} patterns or formats hold for one text; "
                    f"{_MAX_PATTERNS} are the most",
                    "Write one pattern that says it all.",
                )
            if len(self._seen) > _MAX_PLACES:
                raise ConstraintError(
                    "the JSON schema refers to itself in too many ways", "Make it simpler."
                )
            self._wait_for_parts(together)

    def _together(self, schemas: Sequence[Any]) -> list[Mapping[str, Any]]:
        """The schemas and all that has to hold with them; options, too, if more does.

        The options of a mere choice are places of their own, and nothing is together.
        """
        waiting = list(schemas)
        found: dict[int, Mapping[str, Any]] = {}
        while waiting:
            schema = waiting.pop()
            if not isinstance(schema, Mapping) or id(schema) in found:
                continue
            options = [*_listed(schema.get("anyOf")), *_listed(schema.get("oneOf"))]
            if options and not found and not waiting and not _HOLDING & schema.keys():
                self._waiting += [[option] for option in options]
                return []
            found[id(schema)] = schema
            waiting += [*_listed(schema.get("allOf")), *options]
            waiting.append(referred(schema.get("$ref"), self._root))
        return list(found.values())

    def _wait_for_parts(self, together: Sequence[Mapping[str, Any]]) -> None:
        """Look at properties and items: those of one name hold together, others with them."""
        parts: dict[object, list[Any]] = {}
        others = []
        for schema in together:
            others += [schema.get("additionalProperties"), schema.get("items")]
            for keyword in ("properties", "patternProperties", "$defs", "definitions"):
                named = schema.get(keyword)
                for name, each in named.items() if isinstance(named, Mapping) else ():
                    parts.setdefault((keyword, name), []).append(each)
            for index, each in enumerate(_listed(schema.get("prefixItems"))):
                parts.setdefault(index, []).append(each)
        self._waiting += [others, *([*each, *others] for each in parts.values())]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
