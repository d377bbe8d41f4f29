"""Constraints as callers write them: the text of a schema, regular expression or grammar."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from localspec.constraints.readable import read_schema
from localspec.errors import ConstraintError, OptionError, require_unicode
from localspec.tools.python_types import class_schema, has_fields
from localspec.tools.schemas import Node

# Bytes of a schema or grammar. llguidance reads as many in about a second on a slow machine.
MAX_BYTES = 256 << 10

Kind = Literal["json_schema", "regex", "lark", "gbnf"]


class ConstraintSpec(NamedTuple):
    """A constraint by its text."""

    kind: Kind
    text: str
    is_strict: bool = False
    """Whether a keyword of a JSON schema that cannot be enforced is an error."""

    is_ours: bool = False
    """Whether localspec wrote it. Only its own grammars may negate expressions."""


def constraint_spec(
    json_schema: object,
    regex: str | None,
    grammar: str | None,
    choices: Sequence[str] | None,
    *,
    is_strict: bool = False,
) -> ConstraintSpec | None:
    """The constraint that one of four arguments describes; None if all are None.

    Args:
        json_schema: A JSON schema as text, from `schema_text`.
        regex: A regular expression.
        grammar: Lark, as llguidance understands it, or llama.cpp's GBNF, which is recognised by
            "name ::=".
        choices: Texts, one of which is the answer.
        is_strict: Whether a JSON schema has to be enforced as a whole.

    Raises:
        OptionError: More than one of them is not None, or one has a wrong type.
        ConstraintError: The constraint cannot be used.
    """
    arguments = {
        "json_schema": json_schema, "regex": regex, "grammar": grammar, "choices": choices
    }  # fmt: skip
    names = [name for name, value in arguments.items() if value is not None]
    if len(names) > 1:
        raise OptionError(
            f"{' and '.join(names)} are given",
            "Give one of them: an answer can match only one.",
        )
    if choices is not None:
        return ConstraintSpec("lark", _lark_of(choices))
    if not names:
        return None
    name = names[0]
    return _checked(name, arguments[name], is_strict=is_strict)


def calls_spec(lark: str) -> ConstraintSpec:
    """The constraint of an answer that may call tools.

    Args:
        lark: The grammar of the answer, from `tools.grammar`.

    Raises:
        ConstraintError: The grammar is too large.
    """
    spec = _checked("grammar", lark, is_strict=False)
    return spec._replace(kind="lark", is_ours=True)


def _checked(name: str, text: object, *, is_strict: bool) -> ConstraintSpec:
    """The constraint that an argument of `constraint_spec` describes. Raises its errors.

    Args:
        name: The argument's name: json_schema, regex or grammar.
        text: Its value.
        is_strict: As for `constraint_spec`.
    """
    if not isinstance(text, str):
        raise OptionError(f"{name} is {text!r:.80}", "Give a str.")
    if not text.strip():
        raise ConstraintError(f"{name} is empty", "Write one, or leave it out.")
    require_unicode(name, text, ConstraintError)
    if name == "grammar" and _RULE.search(text) is not None:
        _check_size("the GBNF grammar", text, MAX_GBNF_BYTES)
        return ConstraintSpec("gbnf", text)
    _check_size(name, text, MAX_BYTES)
    if name == "json_schema":
        return ConstraintSpec("json_schema", text, is_strict)
    if name == "regex":
        return ConstraintSpec("regex", text)
    return ConstraintSpec("lark", text)


def _check_size(what: str, text: str, most_bytes: int) -> None:
    """Raise ConstraintError for a text, named by `what`, with more than `most_bytes`."""
    num_bytes = len(text.encode())
    if num_bytes > most_bytes:
        raise ConstraintError(
            f"{what} has {num_bytes} bytes; the limit is {most_bytes}",
            "Shorten it.",
        )


class ClassSchema(str):
    """The JSON schema of a class, as text that remembers the class.

    Pickled, as for another process, it is the text alone.

    Args:
        text: The schema.
        kind: The class.
    """

    kind: Any

    def __new__(cls, text: str, kind: object) -> ClassSchema:
        schema = super().__new__(cls, text)
        schema.kind = kind
        return schema

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """Pickle as a plain str."""
        return str, (str(self),)


def schema_text(schema: object) -> str:
    """A JSON schema as text; for a class, a `ClassSchema`.

    Args:
        schema: A mapping, its JSON, or a class: see `class_schema`.

    Raises:
        OptionError: It is none of these.
        ConstraintError: It is JSON but not a schema, or a dataclass of which Pydantic makes no
            schema.
    """
    if isinstance(schema, ClassSchema):
        return schema
    value: object
    if isinstance(schema, str):
        try:
            value = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise ConstraintError(
                f"the JSON schema is not JSON: {error}",
                "Check its braces, commas and quotes.",
            ) from error
    elif isinstance(schema, Mapping):
        value = dict(schema)
    elif has_fields(schema):
        value = class_schema(schema)
    else:
        raise OptionError(
            f"json_schema is {schema!r:.80}",
            "Give a dict, its JSON, a Pydantic model class or a dataclass.",
        )
    if not isinstance(value, Mapping):
        raise ConstraintError(
            f"the JSON schema is {value!r:.80}",
            "It has to be an object, in braces.",
        )
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConstraintError(
            f"the JSON schema has a value that JSON cannot hold: {error}",
            "Use only values that JSON can hold.",
        ) from error
    if has_fields(schema):
        return ClassSchema(text, schema)
    return text


def _lark_of(choices: Sequence[str]) -> str:
    """The Lark grammar of an answer that is one of these texts.

    Raises OptionError for anything but texts, ConstraintError if they are too long together.
    """
    if isinstance(choices, str) or not isinstance(choices, Sequence) or not choices:
        raise OptionError(f"choices is {choices!r:.80}", "Give a list of at least one text.")
    quoted_choices = []
    for choice in choices:
        if not isinstance(choice, str) or not choice:
            raise OptionError(f"a choice is {choice!r:.80}", "Give texts that are not empty.")
        require_unicode("a choice", choice)
        quoted_choices.append(json.dumps(choice))
    lark = "start: " + " | ".join(quoted_choices)
    if len(lark) > MAX_BYTES:
        raise ConstraintError(f"the choices have {len(lark)} bytes", "Offer fewer.")
    return lark


def readable_schema(spec: ConstraintSpec) -> tuple[Node, set[str]]:
    """`read_schema` of the text of a constraint of the kind json_schema."""
    return read_schema(spec.text, is_strict=spec.is_strict)


# GBNF is converted to Lark by llguidance's converter. Its time grows with the square of the
# size: it is seconds for the worst grammar of this size.
MAX_GBNF_BYTES = 32 << 10
# A rule of GBNF: name ::= …
_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
# A quoted text, a character set, a comment, or the dot for any character.
_PART = re.compile(
    r'(?P<text>"(?:\\.|[^"\\])*")|(?P<set>\[(?:\\.|[^\]\\])*\])|\#[^\n]*|(?P<any>\.)',
    re.DOTALL,
)
# An escaped character: \u or \U with its code, a bracket, or another one.
_ESCAPE = re.compile(
    r"\\(?:u(?P<u4>[0-9a-fA-F]{4})|U(?P<u8>[0-9a-fA-F]{8})|(?P<bracket>[\[\]])|.)", re.DOTALL
)
# Characters with another meaning in a character set of Rust's regular expressions than in GBNF:
# a hyphen at the beginning of the set, and &&, ~~ and --.
_MISREAD_IN_SET = re.compile(r"(?P<set_begin>\A\[\^?)-|(?P<doubled>[&~-])(?P=doubled)")


def for_converter(gbnf: str) -> str:
    """The same grammar, without spellings that llguidance's converter would misread.

    Raises ValueError for an escape that is not a character.
    """
    rewritten = _PART.sub(_rewritten_part, gbnf)
    rewritten.encode()  # raises ValueError if an escape spells half a surrogate pair
    return rewritten


def _rewritten_part(match: re.Match[str]) -> str:
    """A match of _PART, rewritten so that the converter reads it correctly."""
    part = match[0]
    if match["any"]:
        return r"[^\x00]"  # the converter's "." does not match the end of a line
    if match["text"]:
        return _ESCAPE.sub(_rewritten_escape_in_text, part)
    if match["set"]:
        with_escapes = _ESCAPE.sub(_rewritten_escape, part)
        return _MISREAD_IN_SET.sub(_escaped_in_set, with_escapes)
    return part


def _rewritten_escape_in_text(escape: re.Match[str]) -> str:
    """As `_rewritten_escape`; brackets, which need no escape in a text, lose it."""
    return escape["bracket"] or _rewritten_escape(escape)


def _rewritten_escape(escape: re.Match[str]) -> str:
    r"""A match of _ESCAPE, with \x or the character itself in place of \u and \U.

    The converter drops zeros from \u and \U.
    """
    digits = escape["u4"] or escape["u8"]
    if digits is None:
        return escape[0]
    code = int(digits, 16)
    if code < 0x100:
        return f"\\x{code:02x}"
    return chr(code)


def _escaped_in_set(match: re.Match[str]) -> str:
    """A match of _MISREAD_IN_SET, with an escape that keeps its meaning."""
    doubled = match["doubled"]
    if doubled:
        return f"{doubled}\\x{ord(doubled):02x}"
    return rf"{match['set_begin']}\x2d"
