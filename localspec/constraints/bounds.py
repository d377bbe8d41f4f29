"""Limits of a schema's or grammar's depth, and operators that a grammar may not have.

llguidance calls itself for each level of a schema or grammar, and computes what some
expressions have in common by trying all their states. Without limits it could take all stack,
or all memory.
"""

from __future__ import annotations

import contextlib
import graphlib
import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from localspec.errors import ConstraintError
from localspec.tools.schemas import Schema, referred

# Levels of a schema within each other, references followed, and of rules of a grammar.
MAX_DEPTH = 64

# Keywords by what they have: a list of schemas, one schema, schemas by name.
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SCHEMAS = ("items", "additionalItems", "additionalProperties")
_BY_NAME = ("properties", "patternProperties")


def check_schema_depth(root: Schema) -> None:
    """Refuse a schema with parts more than MAX_DEPTH levels below its root.

    The depth of a part is that of the shortest way to it, so a schema may refer to itself.

    Raises:
        ConstraintError: It is nested too deeply.
    """
    level: list[object] = [root]
    known = {id(root)}
    for _ in range(MAX_DEPTH):
        below: list[object] = []
        for schema in level:
            for part in _parts(schema, root):
                if id(part) not in known:
                    known.add(id(part))
                    below.append(part)
        level = below
    if level:
        raise ConstraintError(
            "the JSON schema is nested too deeply: its parts, with what they refer to, have "
            f"more than {MAX_DEPTH} levels",
            "Make it flatter: leave out parts that only refer to another.",
        )


def _parts(schema: object, root: Schema) -> Iterator[Any]:
    """The schemas directly in a schema, and the one that it refers to."""
    if not isinstance(schema, Mapping):
        return
    for keyword in _LISTS:
        parts = schema.get(keyword)
        if isinstance(parts, list):
            yield from parts
    for keyword in _SCHEMAS:
        part = schema.get(keyword)
        if isinstance(part, Mapping):
            yield part
    for keyword in _BY_NAME:
        named = schema.get(keyword)
        if isinstance(named, Mapping):
            yield from named.values()
    target = referred(schema.get("$ref"), root)
    if target is not None:
        yield target


class _Lexeme(NamedTuple):
    """A part of a grammar's text, by its kind: a group of _LEXEME."""

    kind: str
    text: str


class LarkText(NamedTuple):
    """The names, operators and schemas of a grammar."""

    mentions: dict[str, set[str]]
    """The names that each rule's or token's definition mentions."""

    operators: list[str]
    """The `&` and `~` between expressions."""

    schemas: list[Any]
    """The JSON schemas in it."""


# As llguidance's lexer has them.
_LEXEME = re.compile(
    r"""
    (?P<line>\n)
    | (?P<comment>(?:\#|//)[^\n]*)
    | (?P<quoted>"(?:\\.|[^"\\])*"i? | /(?:\\.|[^/\\])+/[imslux]* | <[^<>\s]+>)
    | (?P<json>%(?:json|regex|llguidance))
    | (?P<number>~[ \t]*[+-]?[0-9]+)  # the number of repetitions: x~3
    | (?P<operator>[&~])
    | (?P<name>_?[a-z][_a-z0-9-]* | _?[A-Z][_A-Z0-9-]*)
    | (?P<bracket>[(){}])
    | (?P<bar>\|)
    | (?P<blank>[ \t\r!?]+)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_START = "start"


def read_lark(text: str) -> LarkText:
    """Read a grammar's text for its bounds.

    Raises:
        ConstraintError: A JSON value in it is malformed.
    """
    found = LarkText({}, [], [])
    owner = _START
    is_first = True  # in a line, or in a grammar within the grammar
    for lexeme in _lexemes(text, found.schemas):
        if lexeme.kind == "operator":
            found.operators.append(lexeme.text)
        if lexeme.kind == "name":
            if is_first:
                owner = lexeme.text
            found.mentions.setdefault(owner, set()).add(lexeme.text)
        elif is_first and lexeme.kind != "bar":
            owner = _START  # for example for %ignore
        is_first = lexeme.kind == "line" or lexeme.text == "{"
    return found


def _lexemes(text: str, schemas: list[Any]) -> Iterator[_Lexeme]:
    """The parts of a grammar's text but for blanks and comments; its schemas are added."""
    decoder = json.JSONDecoder()
    position = 0
    while position < len(text):
        found = _LEXEME.match(text, position)
        assert found is not None  # the last kind is any character
        assert found.lastgroup is not None
        position = found.end()
        if found.lastgroup == "json":
            value, position = _json_at(decoder, text, position)
            if found[0] == "%json":
                schemas.append(value)
        if found.lastgroup not in ("blank", "comment"):
            yield _Lexeme(found.lastgroup, found[0])


def _json_at(decoder: json.JSONDecoder, text: str, position: int) -> tuple[Any, int]:
    """The JSON value that begins at a position of the text, and the position after it."""
    while position < len(text) and text[position].isspace():
        position += 1
    try:
        return decoder.raw_decode(text, position)
    except (ValueError, RecursionError) as error:
        raise ConstraintError(
            f"the Lark grammar is refused: what follows %json, %regex or %llguidance is not "
            f"JSON: {error}",
            "Check its braces, commas and quotes.",
        ) from error


def check_lark_depth(mentions: Mapping[str, set[str]]) -> None:
    """Refuse rules more than MAX_DEPTH levels below the start, and tokens of such a depth.

    The depth of a rule is that of the shortest way to it, so rules may refer to themselves. A
    token is one expression with the tokens in it, so its longest way counts.

    Raises:
        ConstraintError: They are nested too deeply.
    """
    depths = _depths_of_rules(mentions)
    depth = max(max(depths.values()), _depth_of_tokens(mentions, depths))
    if depth > MAX_DEPTH:
        raise ConstraintError(
            f"the grammar is nested too deeply: its rules have {depth} levels; the limit is "
            f"{MAX_DEPTH}",
            "Make it flatter: merge rules that only refer to another.",
        )


def _depths_of_rules(mentions: Mapping[str, set[str]]) -> dict[str, int]:
    """The levels of the rules and tokens that the start leads to, by name."""
    depths = {_START: 1}
    waiting = deque([_START])
    while waiting:
        rule = waiting.popleft()
        for name in mentions.get(rule, ()):
            if name in mentions and name not in depths:
                depths[name] = depths[rule] + 1
                waiting.append(name)
    return depths


def _depth_of_tokens(mentions: Mapping[str, set[str]], used: Iterable[str]) -> int:
    """The levels of the deepest token among the used ones; 0 without any."""
    tokens = {}
    for name in filter(_is_token, used):
        inside = set(filter(_is_token, mentions.get(name, ())))
        tokens[name] = inside - {name}
    depths: dict[str, int] = {}
    with contextlib.suppress(graphlib.CycleError):  # llguidance refuses a cycle, and names it
        for name in graphlib.TopologicalSorter(tokens).static_order():
            inner = [depths[other] for other in tokens.get(name, ())]
            depths[name] = 1 + max(inner, default=0)
    return max(depths.values(), default=0)


def _is_token(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


def check_operators(operators: list[str]) -> None:
    """Refuse a grammar with `&` or `~` between its expressions.

    Raises:
        ConstraintError: It has one.
    """
    if operators:
        raise ConstraintError(
            "the Lark grammar is refused: it intersects or negates expressions "
            f"({operators[0]}), which can take all memory",
            "Write one expression that says it all, or several rules.",
        )
