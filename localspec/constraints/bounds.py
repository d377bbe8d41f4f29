"""Checks that llguidance can read a schema or a grammar with a bounded stack and memory.

llguidance recurses for each level of a schema or grammar, so their depth is limited. For the
operators `&` and `~` of a grammar it tries all states of two expressions, so a user's grammar
may not have them.
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

# Levels of nested parts of a schema, with what they refer to, and of nested rules of a grammar.
MAX_DEPTH = 64

# Keywords whose value is a list of schemas, one schema, or schemas by name.
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SCHEMAS = ("items", "additionalItems", "additionalProperties")
_BY_NAME = ("properties", "patternProperties")


def check_schema_depth(root: Schema) -> None:
    """Raise ConstraintError for a schema with parts more than MAX_DEPTH levels below its root.

    The depth of a part is the length of the shortest path to it, so a schema may refer to
    itself.

    Raises:
        ConstraintError: It is nested too deeply.
    """
    # A breadth-first search, level by level.
    level: list[object] = [root]
    known_ids = {id(root)}  # Python's ids of the parts
    for _ in range(MAX_DEPTH):
        next_level: list[object] = []
        for schema in level:
            for part in _parts(schema, root):
                if id(part) not in known_ids:
                    known_ids.add(id(part))
                    next_level.append(part)
        level = next_level
    if level:
        raise ConstraintError(
            "the JSON schema is nested too deeply: its parts, with what they refer to, have "
            f"more than {MAX_DEPTH} levels",
            "Make it flatter: leave out parts that only refer to another.",
        )


def _parts(schema: object, root: Schema) -> Iterator[Any]:
    """The parts of a schema one level below it, and the part that its `$ref` points to.

    Only references that are pointers (#/…) are followed.
    """
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
    """A lexeme of a grammar's text: a name, a quoted text, a bracket or the like."""

    kind: str
    """The name of a group of _LEXEME."""

    text: str


class LarkText(NamedTuple):
    """What a Lark grammar contains, as far as its limits need it."""

    mentions: dict[str, set[str]]
    """The names in the definition of each rule and each token, by its name."""

    operators: list[str]
    """All `&` and `~` between expressions."""

    schemas: list[Any]
    """The values of all `%json`."""


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
    """Read what the limits of a Lark grammar need from its text.

    Raises:
        ConstraintError: A JSON value in it is malformed.
    """
    grammar = LarkText({}, [], [])
    defined_name = _START  # of the definition that is read
    is_first = True  # whether the lexeme is the first of a line, or of a nested grammar
    for lexeme in _lexemes(text, grammar.schemas):
        if lexeme.kind == "operator":
            grammar.operators.append(lexeme.text)
        if lexeme.kind == "name":
            if is_first:
                defined_name = lexeme.text
            # Its own name, too, so that `mentions` has every definition.
            grammar.mentions.setdefault(defined_name, set()).add(lexeme.text)
        elif is_first and lexeme.kind != "bar":  # a line with a bar continues the definition
            defined_name = _START  # for example for %ignore
        is_first = lexeme.kind == "line" or lexeme.text == "{"
    return grammar


def _lexemes(text: str, schemas: list[Any]) -> Iterator[_Lexeme]:
    """Yield the lexemes of a grammar's text, without blanks, comments and JSON values.

    Args:
        text: The grammar.
        schemas: The values of all `%json` are appended.
    """
    decoder = json.JSONDecoder()
    position = 0
    while position < len(text):
        lexeme = _LEXEME.match(text, position)
        assert lexeme is not None  # the group "other" matches any character
        kind = lexeme.lastgroup
        assert kind is not None
        position = lexeme.end()
        if kind == "json":
            value, position = _json_at(decoder, text, position)
            if lexeme[0] == "%json":
                schemas.append(value)
        if kind not in ("blank", "comment"):
            yield _Lexeme(kind, lexeme[0])


def _json_at(decoder: json.JSONDecoder, text: str, position: int) -> tuple[Any, int]:
    """Read the JSON value after a position of the text, and after blank space there.

    Returns the value, and the position after it. Raises ConstraintError.
    """
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
    """Raise ConstraintError for rules or tokens of a grammar with more than MAX_DEPTH levels.

    The depth of a rule is the length of the shortest path to it from the start, so rules may
    refer to themselves. A token and the tokens in it make one expression, so the longest path
    of nested tokens counts.

    Args:
        mentions: As `LarkText.mentions`.

    Raises:
        ConstraintError: They are nested too deeply.
    """
    depths = _depths_below_start(mentions)
    deepest_rule = max(depths.values())
    depth = max(deepest_rule, _depth_of_tokens(mentions, depths))
    if depth > MAX_DEPTH:
        raise ConstraintError(
            f"the grammar is nested too deeply: its rules have {depth} levels; the limit is "
            f"{MAX_DEPTH}",
            "Make it flatter: merge rules that only refer to another.",
        )


def _depths_below_start(mentions: Mapping[str, set[str]]) -> dict[str, int]:
    """The depths of the rules and tokens that the rule `start` uses, by name.

    `start` has depth 1. A breadth-first search finds the shortest paths.
    """
    depths = {_START: 1}
    queue = deque([_START])
    while queue:
        rule = queue.popleft()
        for name in mentions.get(rule, ()):
            if name in mentions and name not in depths:
                depths[name] = depths[rule] + 1
                queue.append(name)
    return depths


def _depth_of_tokens(mentions: Mapping[str, set[str]], used_names: Iterable[str]) -> int:
    """The levels of the most deeply nested token; 0 if no token is used.

    Args:
        mentions: As `LarkText.mentions`.
        used_names: The names of the rules and tokens that `start` uses.
    """
    tokens_in: dict[str, set[str]] = {}  # by the name of the token around them
    for name in filter(_is_token, used_names):
        mentioned_tokens = set(filter(_is_token, mentions.get(name, ())))
        tokens_in[name] = mentioned_tokens - {name}
    depths: dict[str, int] = {}
    with contextlib.suppress(graphlib.CycleError):  # llguidance refuses a cycle, and names it
        for name in graphlib.TopologicalSorter(tokens_in).static_order():
            depth_inside = 0
            for inner_name in tokens_in.get(name, ()):
                depth_inside = max(depth_inside, depths[inner_name])
            depths[name] = depth_inside + 1
    return max(depths.values(), default=0)


def _is_token(name: str) -> bool:
    """Whether a name in a Lark grammar is a token's, which has capitals, not a rule's."""
    return name.lstrip("_")[:1].isupper()


def check_operators(operators: list[str]) -> None:
    """Raise ConstraintError for a grammar with `&` or `~` between its expressions.

    Args:
        operators: As `LarkText.operators`.
    """
    if operators:
        raise ConstraintError(
            "the Lark grammar is refused: it intersects or negates expressions "
            f"({operators[0]}), which can take all memory",
            "Write one expression that says it all, or several rules.",
        )
