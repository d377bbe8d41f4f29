"""Grammars of arguments: JSON, and the notations of families that write none.

These hold what the schema says of names, types, values to choose from, and what is required;
of a text's length and pattern they know nothing, which JSON's grammar does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from localspec.tools.schemas import choices, properties_of, resolved, takes_text

# As templates render them, so that what a model wrote and what it reads next are alike.
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_QUOTE = '<|"|>'
_MAX_DEPTH = 32
_DEFINITIONS = ("$defs", "definitions")

Schema = Mapping[str, Any]


class Spelling:
    """How texts stand in a grammar. tokens: ids of marks that are entries of the vocabulary."""

    def __init__(self, tokens: Mapping[str, int]) -> None:
        self._tokens = tokens
        marks = sorted(tokens, key=len, reverse=True)
        self._parts = re.compile("(" + "|".join(map(re.escape, marks)) + ")") if marks else None

    def of(self, text: str) -> str:
        """The text, with its marks as entries; "" for none."""
        parts = self._parts.split(text) if self._parts is not None else [text]
        return " ".join(
            f"<[{self._tokens[part]}]>" if part in self._tokens else json.dumps(part)
            for part in parts
            if part
        )

    def until(self, name: str, end: str) -> str:
        """A rule of that name: any text up to that one, which belongs to it."""
        if self.of(end).startswith("<["):
            return f"{name}: /(.|\\n)*/ {self.of(end)}"
        return f"{name}[lazy]: /(.|\\n)*/ {json.dumps(end)}"


def json_rule(name: str, schema: Schema) -> str:
    """A value of the schema, in one line."""
    return f"{name}: %json {json.dumps({**schema, 'x-guidance': _SPACING})}"


def tag_rules(name: str, schema: Schema, spell: Spelling) -> list[str]:
    """Each argument between tags of its own: required ones, then any of the others."""
    close = "\n</parameter>\n"
    rules: list[str] = []
    required: list[str] = []
    others: list[str] = []
    for number, (key, value) in enumerate(properties_of(schema).items()):
        rule = f"{name}_{number}"
        value = resolved(value, schema)
        opening = json.dumps(f"<parameter={key}>\n")
        if takes_text(value) and not choices(value):
            rules += [f"{rule}: {opening} {rule}_text", spell.until(f"{rule}_text", close)]
        elif takes_text(value):
            texts = " | ".join(json.dumps(str(each)) for each in choices(value) or ())
            rules.append(f"{rule}: {opening} ({texts}) {json.dumps(close)}")
        elif takes_text(value) is None:
            rules += [f"{rule}: {opening} {rule}_text", spell.until(f"{rule}_text", close)]
        else:
            rules.append(json_rule(f"{rule}_json", _with_definitions(value, schema)))
            rules.append(f"{rule}: {opening} {rule}_json {json.dumps(close)}")
        (required if key in schema.get("required", ()) else others).append(rule)
    any_other = f"({' | '.join(others)})*" if others else ""
    return [f"{name}: {' '.join([*required, any_other])}".rstrip() or f'{name}: ""', *rules]


def gemma_rules(name: str, schema: Schema, spell: Spelling) -> list[str]:
    """Gemma 4's notation, in which only texts are quoted, by <|"|>."""
    quote = spell.of(_QUOTE)
    rules = [
        f"{name}_string: {quote} {name}_text",
        spell.until(f"{name}_text", _QUOTE),
        f"{name}_any: {name}_string | {name}_plain | {name}_list | {name}_object",
        f'{name}_plain: %json {{"type": ["number", "boolean", "null"]}}',
        f'{name}_list: "[" ({name}_any ("," {name}_any)*)? "]"',
        f'{name}_object: "{{" ({name}_pair ("," {name}_pair)*)? "}}"',
        f'{name}_pair: /[A-Za-z0-9_.$-]+/ ":" {name}_any',
    ]
    writer = _GemmaWriter(name, schema, quote)
    return [f"{name}: {writer.value(schema, 0)}", *rules]


class _GemmaWriter:
    """Writes the rules of one tool's arguments, each as an expression."""

    def __init__(self, name: str, root: Schema, quote: str) -> None:
        self._name = name
        self._root = root
        self._quote = quote

    def value(self, schema: object, depth: int) -> str:
        """A value of the schema."""
        schema = resolved(schema, self._root)
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return f"{self._name}_any"
        if (values := choices(schema)) is not None:
            return "(" + " | ".join(map(self._constant, values)) + ")"
        for word in ("anyOf", "oneOf"):
            if isinstance(schema.get(word), list):
                return self._one_of(schema[word], depth)
        kind = schema.get("type")
        if isinstance(kind, list):
            return self._one_of([{**schema, "type": each} for each in kind], depth)
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            item = self.value(schema.get("items"), depth + 1)
            return f'"[" ({item} ("," {item})*)? "]"'
        if kind == "string":
            return f"{self._name}_string"
        if kind in ("integer", "number", "boolean", "null"):
            return f"%json {json.dumps(schema)}"
        return f"{self._name}_any"

    def _one_of(self, schemas: Sequence[object], depth: int) -> str:
        return "(" + " | ".join(self.value(each, depth + 1) for each in schemas) + ")"

    def _constant(self, value: object) -> str:
        if isinstance(value, str):
            return (
                f"{self._quote} {json.dumps(value)} {self._quote}"
                if value
                else (f"{self._quote} {self._quote}")
            )
        if isinstance(value, dict | list):
            return f"{self._name}_any"
        return json.dumps(json.dumps(value))

    def _object(self, schema: Schema, depth: int) -> str:
        properties = properties_of(schema)
        if not properties:
            is_empty = schema.get("additionalProperties") is False
            return '"{}"' if is_empty else f"{self._name}_object"
        required = [key for key in properties if key in schema.get("required", ())]
        others = [key for key in properties if key not in required]

        def pair(key: str) -> str:
            return f"{json.dumps(key + ':')} {self.value(properties[key], depth + 1)}"

        first = ' "," '.join(map(pair, required))
        rest = " | ".join(map(pair, others))
        if not rest:
            return f'"{{" {first} "}}"'
        if first:
            return f'"{{" {first} ("," ({rest}))* "}}"'
        return f'"{{" (({rest}) ("," ({rest}))*)? "}}"'


def _with_definitions(value: object, schema: Schema) -> Schema:
    """The schema of an argument, with what it may refer to."""
    found = value if isinstance(value, Mapping) else {}
    return {**{word: schema[word] for word in _DEFINITIONS if word in schema}, **found}
