"""A JSON schema without the parts that llguidance refuses, if it need not be strict."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from localspec.tools.schemas import Node, changed_schema

# Gives llguidance's message on a schema, alone; "" if it accepts the schema.
Judge = Callable[[Node], str]

_CIRCULAR = re.compile(r"circular references with sibling keys are not supported: \S*?(#\S*)")
_LENGTHS = ("minLength", "maxLength")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
# Keywords next to a reference that do not constrain the value.
_NOTES = {
    "title", "description", "default", "examples", "example", "deprecated", "readOnly",
    "writeOnly", "$comment", "$defs", "definitions", "$id", "$schema", "$anchor", "x-guidance",
}  # fmt: skip
_MOST_CIRCLES = 32  # circular references that are removed
_MOST_PARTS = 400  # parts that are judged, each in a millisecond


def relaxed(schema: Node, judge: Judge) -> tuple[Node, set[str]]:
    """A copy without the parts that llguidance refuses, and the keywords of these parts.

    A part that contradicts itself stays: no answer fits it anyway.
    """
    passed_over: set[str] = set()
    known: dict[str, str] = {}

    def judge_part(part: Node) -> str:
        """Judge each part once. After _MOST_PARTS of them, new ones count as accepted."""
        key = json.dumps(part)
        if key not in known and len(known) < _MOST_PARTS:
            known[key] = judge(part)
        return known.get(key, "")

    def change(node: Node) -> None:
        _relax_text(node, judge_part, passed_over)
        _relax_number(node, judge_part, passed_over)
        _relax_names(node, judge_part, passed_over)

    relaxed_schema = changed_schema(schema, change)
    for _ in range(_MOST_CIRCLES):  # each message names one circular reference
        circle = _CIRCULAR.search(judge(relaxed_schema))
        if circle is None:
            break
        remove_siblings = _without_siblings(circle[1], passed_over)
        relaxed_schema = changed_schema(relaxed_schema, remove_siblings)
    return relaxed_schema, passed_over


def _is_refused(part: Node, judge: Judge) -> bool:
    """Whether llguidance refuses a part for another reason than a contradiction."""
    message = judge(part)
    return bool(message) and "Unsatisfiable" not in message


def _without(node: Node, words: tuple[str, ...]) -> Node:
    return {word: value for word, value in node.items() if word not in words}


def _relax_text(node: Node, judge: Judge, passed_over: set[str]) -> None:
    """Leave out lengths, the pattern, or both, if they are refused together."""
    if not isinstance(node.get("pattern"), str):
        return
    words = ("pattern", "format", *_LENGTHS)
    part = {word: node[word] for word in words if word in node}
    if not _is_refused(part, judge):
        return
    for dropped in (_LENGTHS, ("pattern",), ("pattern", *_LENGTHS)):
        if not _is_refused(_without(part, dropped), judge):
            _drop(node, dropped, passed_over)
            return


def _relax_number(node: Node, judge: Judge, passed_over: set[str]) -> None:
    """Leave out multipleOf, bounds, or both, if they are refused together."""
    words = ("multipleOf", *_BOUNDS)
    part = {word: node[word] for word in words if word in node}
    if not part:
        return
    part["type"] = "number"
    if node.get("type") == "integer":
        part["type"] = "integer"
    if not _is_refused(part, judge):
        return
    for dropped in (("multipleOf",), _BOUNDS, words):
        if not _is_refused(_without(part, dropped), judge):
            _drop(node, dropped, passed_over)
            return


def _relax_names(node: Node, judge: Judge, passed_over: set[str]) -> None:
    """Leave out patterns of names that are refused, or all of them if they overlap."""
    patterns = node.get("patternProperties")
    if not isinstance(patterns, Mapping):
        return
    if not _is_refused({"patternProperties": dict.fromkeys(patterns, True)}, judge):
        return
    kept = {}
    for pattern, schema in patterns.items():
        if _is_refused({"patternProperties": {pattern: True}}, judge):
            passed_over.add(f"patternProperties {pattern}")
        else:
            kept[pattern] = schema
    node["patternProperties"] = kept
    if _is_refused({"patternProperties": dict.fromkeys(kept, True)}, judge):
        _drop(node, ("patternProperties",), passed_over)


def _drop(node: Node, words: tuple[str, ...], passed_over: set[str]) -> None:
    """Remove keywords from a schema, and note them."""
    for word in words:
        if word not in node:
            continue
        value = node.pop(word)
        if word in ("pattern", "multipleOf"):
            passed_over.add(f"{word} {value}")
        else:
            passed_over.add(word)


def _without_siblings(reference: str, passed_over: set[str]) -> Callable[[Node], None]:
    """A change for `changed_schema`: removes the keywords next to a reference."""

    def change(node: Node) -> None:
        if node.get("$ref") != reference:
            return
        siblings = node.keys() - _NOTES - {"$ref"}
        for word in siblings:
            del node[word]
        passed_over.update(siblings)

    return change
