"""The constraint that a caller asks for, as text: a schema, expression or grammar."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal, NamedTuple

from localspec.constraints.bounds import (
    check_lark_depth,
    check_operators,
    check_schema_depth,
    read_lark,
)
from localspec.errors import ConstraintError, OptionError, require_unicode
from localspec.tools.schemas import ONE_LINE

# Bytes of a schema or grammar, which llguidance reads in about a second on a slow machine.
MAX_BYTES = 256 << 10

Kind = Literal["json_schema", "regex", "lark", "gbnf"]


class ConstraintSpec(NamedTuple):
    """A constraint by its text.

    is_strict: whether a keyword of a JSON schema that no answer can be kept to is an error.
    is_ours: whether localspec wrote it: only its own grammars negate expressions.
    """

    kind: Kind
    text: str
    is_strict: bool = False
    is_ours: bool = False


def constraint_spec(
    json_schema: object,
    regex: str | None,
    grammar: str | None,
    choices: Sequence[str] | None,
    *,
    is_strict: bool = False,
) -> ConstraintSpec | None:
    """The constraint among these that is given; None if none is.

    json_schema: what `schema_text` made of one. grammar: Lark, as llguidance understands it, or
    llama.cpp's GBNF, told by its "name ::=". is_strict: of a JSON schema. Raises OptionError
    for two at once, ConstraintError for one that cannot be used.
    """
    given = {
        "json_schema": json_schema, "regex": regex, "grammar": grammar, "choices": choices
    }  # fmt: skip
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise OptionError(f"{' and '.join(names)} are given", "An answer can fit one of them.")
    if choices is not None:
        return ConstraintSpec("lark", _lark_of(choices))
    return _checked(names[0], given[names[0]], is_strict=is_strict) if names else None


def calls_spec(lark: str) -> ConstraintSpec:
    """The constraint of an answer that may call tools, by its grammar.

    Raises:
        ConstraintError: the grammar is too large.
    """
    return _checked("grammar", lark, is_strict=False)._replace(kind="lark", is_ours=True)


def _checked(name: str, text: object, *, is_strict: bool) -> ConstraintSpec:
    if not isinstance(text, str):
        raise OptionError(f"{name} is {text!r:.80}", "Give a str.")
    if not text.strip():
        raise ConstraintError(f"{name} is empty", "Write one, or leave it out.")
    require_unicode(name, text, ConstraintError)
    is_in_gbnf = name == "grammar" and _RULE.search(text) is not None
    num_bytes, most = len(text.encode()), MAX_GBNF_BYTES if is_in_gbnf else MAX_BYTES
    if num_bytes > most:
        raise ConstraintError(
            f"{'the GBNF grammar' if is_in_gbnf else name} has {num_bytes} bytes; "
            f"{most} are the most",
            "Shorten it.",
        )
    if name == "json_schema":
        return ConstraintSpec("json_schema", text, is_strict)
    if name == "regex":
        return ConstraintSpec("regex", text)
    return ConstraintSpec("gbnf" if is_in_gbnf else "lark", text)


def schema_text(schema: object) -> str:
    """A JSON schema as text.

    schema: a mapping or its JSON, which stay as they are; a Pydantic model class (whatever has
    a `model_json_schema`) or a dataclass, which mean their fields and no others, unless a model
    says that it allows them. Raises OptionError for anything else, ConstraintError for JSON
    that is not a schema, and for a dataclass of which Pydantic makes none.
    """
    if isinstance(schema, str):
        try:
            found = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise ConstraintError(
                f"the JSON schema is not JSON: {error}",
                "Compare its braces, commas and quotes.",
            ) from error
    elif isinstance(schema, Mapping):
        found = dict(schema)
    elif hasattr(schema, "model_json_schema"):
        found = changed_schema(schema.model_json_schema(), _close)
    elif isinstance(schema, type) and dataclasses.is_dataclass(schema):
        found = changed_schema(_dataclass_schema(schema), _close)
    else:
        raise OptionError(
            f"json_schema is {schema!r:.80}",
            "Give a dict, its JSON, a Pydantic model class or a dataclass.",
        )
    if not isinstance(found, Mapping):
        raise ConstraintError(
            f"the JSON schema is {found!r:.80}", "It has to be an object, in braces."
        )
    try:
        return json.dumps(found, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConstraintError(
            f"the JSON schema holds what JSON cannot: {error}", "Use only what JSON can hold."
        ) from error


def _dataclass_schema(kind: type) -> Mapping[str, Any]:
    try:
        from pydantic import TypeAdapter
    except ImportError as error:
        raise ConstraintError(
            f"Pydantic makes the JSON schema of {kind.__name__}, and is not installed",
            "Install it: pip install 'localspec[grammar]'. Or give the schema as a dict.",
        ) from error
    try:
        return TypeAdapter(kind).json_schema()
    except Exception as error:  # of several kinds, all Pydantic's own
        raise ConstraintError(
            f"the dataclass {kind.__name__} has no JSON schema: {error}",
            "Use types that JSON has, and define them at the top of its module.",
        ) from error


def _close(node: Node) -> None:
    """Allow an object the fields of its class, and no others."""
    if node.get("type") == "object" and isinstance(node.get("properties"), Mapping):
        node.setdefault("additionalProperties", False)


def _lark_of(choices: Sequence[str]) -> str:
    if isinstance(choices, str) or not isinstance(choices, Sequence) or not choices:
        raise OptionError(f"choices is {choices!r:.80}", "Give a list of one text or more.")
    for choice in choices:
        if not isinstance(choice, str) or not choice:
            raise OptionError(f"a choice is {choice!r:.80}", "Give texts that are not empty.")
        require_unicode("a choice", choice)
    lark = "start: " + " | ".join(json.dumps(choice) for choice in choices)
    if len(lark) > MAX_BYTES:
        raise ConstraintError(f"the choices have {len(lark)} bytes", "Offer fewer.")
    return lark


# The formats that llguidance knows.
FORMATS = {
    "date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
}  # fmt: skip
# Lookaround and backreferences, which Rust's expressions lack.
_UNREADABLE = re.compile(r"(?<!\\)(?:\\\\)*(\(\?<?[=!]|\\[1-9])")
# A number's remainders, each of which llguidance makes a state of: 30 ms for this many.
_MAX_REMAINDERS = 10_000
_MAX_DECIMALS = 9  # beyond these, its numbers of 32 bits overflow
# To find out whether n patterns can match one text, llguidance takes 2 ** n steps.
_MAX_PATTERNS = 12
# Keywords that hold together with those of other schemas for the same value.
_HOLDING = {
    "allOf", "$ref", "pattern", "format", "properties", "patternProperties", "items",
    "prefixItems", "additionalProperties",
}  # fmt: skip
_NAMED = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
_DATA = {"const", "enum", "default", "examples", "example", "x-guidance"}

Node = dict[str, Any]


def readable_schema(spec: ConstraintSpec) -> tuple[Node, set[str]]:
    """A schema as llguidance reads it, also in a Lark grammar's `%json`: values on one line.

    And what it lacks of the original: formats that are not known, which only say what a text
    is for, and, unless it is strict, patterns that cannot be read. The schema's own wishes to
    llguidance ("x-guidance") count, but for "lenient". Raises ConstraintError for a schema that
    is nested too deeply, or joins many patterns.
    """
    passed_over: set[str] = set()
    patterns: set[tuple[str, object]] = set()
    steps = {1}
    joins = False

    def change(node: Node) -> None:
        nonlocal joins
        form, pattern = node.get("format"), node.get("pattern")
        if isinstance(form, str) and form not in FORMATS:
            del node["format"]
            passed_over.add(f"format {form}")
        if not spec.is_strict and isinstance(pattern, str) and _UNREADABLE.search(pattern):
            del node["pattern"]
            passed_over.add(f"pattern {pattern}")
        step = node.get("multipleOf")
        remainders = _remainders(step)
        steps.add(remainders)
        if remainders > _MAX_REMAINDERS:
            if spec.is_strict:
                raise ConstraintError(
                    f"the JSON schema uses what cannot be enforced: multipleOf {step}",
                    f"Give a number of at most {_MAX_REMAINDERS} and {_MAX_DECIMALS} decimals, "
                    "zeros at its end not counted, or leave out strict.",
                )
            steps.remove(remainders)
            del node["multipleOf"]
            passed_over.add(f"multipleOf {step}")
        patterns.update(
            (word, str(node[word])) for word in ("pattern", "format") if word in node
        )
        options = node.keys() & {"anyOf", "oneOf", "$ref"}
        joins |= "allOf" in node or bool(options and node.keys() & (_HOLDING - options))

    schema = changed_schema(json.loads(spec.text), change)
    check_schema_depth(schema)
    if joins and len(patterns) > _MAX_PATTERNS:
        raise ConstraintError(
            f"the JSON schema joins parts (allOf, $ref) and has {len(patterns)} patterns and "
            f"formats; {_MAX_PATTERNS} are the most where several may hold for one text",
            "Write one pattern that says it all, or leave out the joining.",
        )
    if joins and math.prod(steps) > _MAX_REMAINDERS:
        raise ConstraintError(
            f"the JSON schema joins parts (allOf, $ref) and has {len(steps) - 1} different "
            "multipleOf, which together have too many remainders",
            "Write one multipleOf that says it all, or leave out the joining.",
        )
    own = schema.get("x-guidance")
    wishes = own if isinstance(own, Mapping) else {}
    schema["x-guidance"] = {**ONE_LINE, **wishes, "lenient": not spec.is_strict}
    return schema, passed_over


def _remainders(step: object) -> int:
    """The remainders of a division by `step`, zeros at its end not counted; 1 without any."""
    if not isinstance(step, int | float) or not step or step in (math.inf, -math.inf):
        return 1  # llguidance says what is wrong
    digits = Decimal(str(abs(step))).normalize().as_tuple()
    if -int(digits.exponent) > _MAX_DECIMALS:
        return _MAX_REMAINDERS + 1
    return int("".join(map(str, digits.digits)))


def check_lark(lark: str, *, is_ours: bool) -> None:
    """Refuse a grammar that llguidance could not read with a bounded stack and memory.

    Raises:
        ConstraintError: it is nested too deeply, joins or negates expressions, or has a JSON
            schema that cannot be used.
    """
    found = read_lark(lark)
    if not is_ours:
        check_operators(found.operators)
    check_lark_depth(found.mentions)
    for schema in found.schemas:
        if isinstance(schema, Mapping):
            readable_schema(ConstraintSpec("json_schema", json.dumps(schema), is_strict=True))


def changed_schema(schema: Mapping[str, Any], change: Callable[[Node], None]) -> Node:
    """A copy with `change` called for every schema in it, the inner ones first.

    Names and data are no schemas. Raises ConstraintError for a schema that is nested too
    deeply.
    """
    try:
        changed: Node = _changed(schema, change)
    except RecursionError as error:
        raise ConstraintError(
            "the JSON schema is nested too deeply", "Make it flatter."
        ) from error
    return changed


def _changed(value: Any, change: Callable[[Node], None]) -> Any:
    if isinstance(value, list | tuple):
        return [_changed(each, change) for each in value]
    if not isinstance(value, Mapping):
        return value
    node: Node = {}
    for keyword, part in value.items():
        if keyword in _NAMED and isinstance(part, Mapping):
            node[keyword] = {name: _changed(each, change) for name, each in part.items()}
        else:
            node[keyword] = part if keyword in _DATA else _changed(part, change)
    change(node)
    return node


# The converter's time grows with the square of it: seconds for the worst of this size.
MAX_GBNF_BYTES = 32 << 10
# Of GBNF: name ::= …
_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
_PART = re.compile(
    r'(?P<text>"(?:\\.|[^"\\])*")|(?P<set>\[(?:\\.|[^\]\\])*\])|\#[^\n]*|(?P<any>\.)', re.DOTALL
)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([\[\]])|.)", re.DOTALL)
# Characters that mean something else in a character set of Rust's.
_SIGN = re.compile(r"(?P<first>\A\[\^?)-|(?P<twice>[&~-])(?P=twice)")


def for_converter(gbnf: str) -> str:
    """The grammar without what the converter would give another meaning.

    Raises ValueError for an escape that is not a character.
    """
    readable = _PART.sub(_readable_part, gbnf)
    readable.encode()  # an escape may spell half a character
    return readable


def _readable_part(found: re.Match[str]) -> str:
    part = found[0]
    if found["any"]:
        return r"[^\x00]"  # its own "." does not match the end of a line
    if found["text"]:
        return _ESCAPE.sub(lambda escape: escape[3] or _character(escape), part)
    if found["set"]:
        return _SIGN.sub(_plain_sign, _ESCAPE.sub(_character, part))
    return part


def _character(escape: re.Match[str]) -> str:
    """A character whose zeros the converter would drop, written otherwise."""
    digits = escape[1] or escape[2]
    if digits is None:
        return escape[0]
    code = int(digits, 16)
    return f"\\x{code:02x}" if code < 0x100 else chr(code)


def _plain_sign(found: re.Match[str]) -> str:
    if found["twice"]:
        return f"{found['twice']}\\x{ord(found['twice']):02x}"
    return rf"{found['first']}\x2d"
