"""Relaxes a JSON schema: leaves out the parts that llguidance refuses, unless it is strict."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from localspec.tools.schemas import Node, changed_schema

# Gives llguidance's message on a schema that it refuses; "" if it accepts the schema.
Judge = Callable[[Node], str]

_CIRCULAR = re.compile(r"circular references with sibling keys are not supported: \S*?(#\S*)")
_LENGTHS = ("minLength", "maxLength")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
# Keywords that do not constrain a value.
_ANNOTATIONS = {
    "title", "description", "default", "examples", "example", "deprecated", "readOnly",
    "writeOnly", "$comment", "$defs", "definitions", "$id", "$schema", "$anchor", "x-guidance",
}  # fmt: skip
_MOST_CIRCLES = 32  # circular references that are relaxed
_MOST_PARTS = 400  # parts that are judged; each takes a millisecond


def relaxed(schema: Node, judge: Judge) -> tuple[Node, set[str]]:
    """Leave out the parts of a schema that llguidance refuses.

    Returns a copy without these parts, and the omitted keywords, some with their value. A
    part that contradicts itself stays: no answer fits it anyway.

    Args:
        schema: The schema.
        judge: Gives llguidance's message on a schema.
    """
    left_out: set[str] = set()
    messages: dict[str, str] = {}  # of judged parts, by their JSON

    def judge_part(part: Node) -> str:
        """Judge each part once. After _MOST_PARTS of them, new ones count as accepted."""
        key = json.dumps(part)
        if key not in messages and len(messages) < _MOST_PARTS:
            messages[key] = judge(part)
        return messages.get(key, "")

    def relax_node(node: Node) -> None:
        _relax_text(node, judge_part, left_out)
        _relax_number(node, judge_part, left_out)
        _relax_names(node, judge_part, left_out)

    relaxed_schema = changed_schema(schema, relax_node)
    for _ in range(_MOST_CIRCLES):  # each message names one circular reference
        circle = _CIRCULAR.search(judge(relaxed_schema))
        if circle is None:
            break
        remove_siblings = _sibling_remover(circle[1], left_out)
        relaxed_schema = changed_schema(relaxed_schema, remove_siblings)
    return relaxed_schema, left_out


# The functions below change one part of a schema, `node`, in place. They add the keywords that
# they remove to `left_out`.


def _is_refused(part: Node, judge: Judge) -> bool:
    """Whether llguidance refuses a part for another reason than a contradiction in it."""
    message = judge(part)
    return bool(message) and "Unsatisfiable" not in message


def _only(node: Node, keywords: tuple[str, ...]) -> Node:
    """The part of a schema that has only these keywords."""
    return {keyword: node[keyword] for keyword in keywords if keyword in node}


def _without(node: Node, keywords: tuple[str, ...]) -> Node:
    """The schema without these keywords."""
    return {keyword: value for keyword, value in node.items() if keyword not in keywords}


def _relax_text(node: Node, judge: Judge, left_out: set[str]) -> None:
    """Remove lengths, the pattern, or both, if llguidance refuses them together."""
    if not isinstance(node.get("pattern"), str):
        return
    part = _only(node, ("pattern", "format", *_LENGTHS))
    removals = (_LENGTHS, ("pattern",), ("pattern", *_LENGTHS))
    _remove_refused(node, part, removals, judge, left_out)


def _relax_number(node: Node, judge: Judge, left_out: set[str]) -> None:
    """Remove multipleOf, bounds, or both, if llguidance refuses them together."""
    keywords = ("multipleOf", *_BOUNDS)
    part = _only(node, keywords)
    if not part:
        return
    part["type"] = "number"
    if node.get("type") == "integer":
        part["type"] = "integer"
    removals = (("multipleOf",), _BOUNDS, keywords)
    _remove_refused(node, part, removals, judge, left_out)


def _remove_refused(
    node: Node,
    part: Node,
    removals: Sequence[tuple[str, ...]],
    judge: Judge,
    left_out: set[str],
) -> None:
    """Remove the first group of keywords without which llguidance accepts a part.

    Nothing is removed if it accepts the whole part, or refuses it without any of the groups.

    Args:
        node: The schema from which the keywords are removed.
        part: The part of the schema to judge.
        removals: The groups of keywords.
        judge: Gives llguidance's message on a part.
        left_out: The removed keywords are added.
    """
    if not _is_refused(part, judge):
        return
    for keywords in removals:
        if not _is_refused(_without(part, keywords), judge):
            _remove(node, keywords, left_out)
            return


def _relax_names(node: Node, judge: Judge, left_out: set[str]) -> None:
    """Remove the patternProperties that llguidance refuses, or all of them if they overlap."""
    patterns = node.get("patternProperties")
    if not isinstance(patterns, Mapping):
        return
    if not _are_names_refused(patterns, judge):
        return
    accepted = {}
    for pattern, schema in patterns.items():
        if _are_names_refused([pattern], judge):
            left_out.add(f"patternProperties {pattern}")
        else:
            accepted[pattern] = schema
    node["patternProperties"] = accepted
    if _are_names_refused(accepted, judge):
        _remove(node, ("patternProperties",), left_out)


def _are_names_refused(patterns: Iterable[str], judge: Judge) -> bool:
    """Whether llguidance refuses these patterns of names together."""
    return _is_refused({"patternProperties": dict.fromkeys(patterns, True)}, judge)


def _remove(node: Node, keywords: tuple[str, ...], left_out: set[str]) -> None:
    """Remove those of the keywords that a schema has."""
    for keyword in keywords:
        if keyword not in node:
            continue
        value = node.pop(keyword)
        if keyword in ("pattern", "multipleOf"):
            left_out.add(f"{keyword} {value}")
        else:
            left_out.add(keyword)


def _sibling_remover(reference: str, left_out: set[str]) -> Callable[[Node], None]:
    """A function that removes the keywords next to this reference, but not annotations."""

    def remove_siblings(node: Node) -> None:
        if node.get("$ref") != reference:
            return
        siblings = node.keys() - _ANNOTATIONS - {"$ref"}
        for keyword in siblings:
            del node[keyword]
        left_out.update(siblings)

    return remove_siblings
