"""The constraint that a caller asks for, as text: a schema, expression or grammar."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from localspec.constraints.readable import read_schema
from localspec.errors import ConstraintError, OptionError, require_unicode
from localspec.tools.python_types import class_schema, has_fields
from localspec.tools.schemas import Node

# Bytes of a schema or grammar, which llguidance reads in about a second on a slow machine.
MAX_BYTES = 256 << 10

Kind = Literal["json_schema", "regex", "lark", "gbnf"]


class ConstraintSpec(NamedTuple):
    """A constraint by its text."""

    kind: Kind
    text: str
    is_strict: bool = False
    """Whether a keyword of a JSON schema that cannot be enforced is an error."""

    is_ours: bool = False
    """Whether localspec wrote it: only its own grammars negate expressions."""


def constraint_spec(
    json_schema: object,
    regex: str | None,
    grammar: str | None,
    choices: Sequence[str] | None,
    *,
    is_strict: bool = False,
) -> ConstraintSpec | None:
    """The constraint that is given among these; None if none is.

    Raises OptionError for two at once, ConstraintError for one that cannot be used.

    Args:
        json_schema: A JSON schema as text, from `schema_text`.
        regex: A regular expression.
        grammar: Lark, as llguidance understands it, or llama.cpp's GBNF, which is recognised by
            "name ::=".
        choices: Texts, one of which is the answer.
        is_strict: Whether a JSON schema has to be enforced as a whole.
    """
    given = {
        "json_schema": json_schema, "regex": regex, "grammar": grammar, "choices": choices
    }  # fmt: skip
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise OptionError(
            f"{' and '.join(names)} are given",
            "Give one of them: an answer can match only one.",
        )
    if choices is not None:
        return ConstraintSpec("lark", _lark_of(choices))
    if names:
        return _checked(names[0], given[names[0]], is_strict=is_strict)
    return None


def calls_spec(lark: str) -> ConstraintSpec:
    """The constraint of an answer that may call tools, by its grammar.

    Raises:
        ConstraintError: The grammar is too large.
    """
    spec = _checked("grammar", lark, is_strict=False)
    return spec._replace(kind="lark", is_ours=True)


def _checked(name: str, text: object, *, is_strict: bool) -> ConstraintSpec:
    """The constraint of one argument of `constraint_spec`. Raises as that does."""
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


def _check_size(what: str, text: str, most: int) -> None:
    """Raise ConstraintError for a text with more bytes than `most`."""
    num_bytes = len(text.encode())
    if num_bytes > most:
        raise ConstraintError(
            f"{what} has {num_bytes} bytes; the limit is {most}",
            "Shorten it.",
        )


class ClassSchema(str):
    """The JSON schema of a class, as text. Another process gets only the text.

    Args:
        text: The schema.
        kind: The class.
    """

    kind: Any

    def __new__(cls, text: str, kind: object) -> ClassSchema:
        made = super().__new__(cls, text)
        made.kind = kind
        return made

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


def schema_text(schema: object) -> str:
    """A JSON schema as text; a `ClassSchema` for a class.

    Raises OptionError for anything else, ConstraintError for JSON that is not a schema, and for
    a dataclass of which Pydantic makes no schema.

    Args:
        schema: A mapping or its JSON, whose content is kept, or a class: see `class_schema`.
    """
    if isinstance(schema, ClassSchema):
        return schema
    if isinstance(schema, str):
        try:
            found = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise ConstraintError(
                f"the JSON schema is not JSON: {error}",
                "Check its braces, commas and quotes.",
            ) from error
    elif isinstance(schema, Mapping):
        found = dict(schema)
    elif has_fields(schema):
        found = class_schema(schema)
    else:
        raise OptionError(
            f"json_schema is {schema!r:.80}",
            "Give a dict, its JSON, a Pydantic model class or a dataclass.",
        )
    if not isinstance(found, Mapping):
        raise ConstraintError(
            f"the JSON schema is {found!r:.80}",
            "It has to be an object, in braces.",
        )
    try:
        text = json.dumps(found, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConstraintError(
            f"the JSON schema has a value that JSON cannot hold: {error}",
            "Use only values that JSON can hold.",
        ) from error
    if has_fields(schema):
        return ClassSchema(text, schema)
    return text


def _lark_of(choices: Sequence[str]) -> str:
    """The grammar of an answer that is one of these texts. Raises OptionError."""
    if isinstance(choices, str) or not isinstance(choices, Sequence) or not choices:
        raise OptionError(f"choices is {choices!r:.80}", "Give a list of at least one text.")
    for choice in choices:
        if not isinstance(choice, str) or not choice:
            raise OptionError(f"a choice is {choice!r:.80}", "Give texts that are not empty.")
        require_unicode("a choice", choice)
    lark = "start: " + " | ".join(json.dumps(choice) for choice in choices)
    if len(lark) > MAX_BYTES:
        raise ConstraintError(f"the choices have {len(lark)} bytes", "Offer fewer.")
    return lark


def readable_schema(spec: ConstraintSpec) -> tuple[Node, set[str]]:
    """As `read_schema`, for a constraint by a JSON schema."""
    return read_schema(spec.text, is_strict=spec.is_strict)


# The converter's time grows with the square of the size: seconds for the worst of this one.
MAX_GBNF_BYTES = 32 << 10
# A rule of GBNF: name ::= …
_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
_PART = re.compile(
    r'(?P<text>"(?:\\.|[^"\\])*")|(?P<set>\[(?:\\.|[^\]\\])*\])|\#[^\n]*|(?P<any>\.)',
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([\[\]])|.)", re.DOTALL)
# Characters with another meaning in a character set of Rust's regular expressions.
_SIGN = re.compile(r"(?P<first>\A\[\^?)-|(?P<twice>[&~-])(?P=twice)")


def for_converter(gbnf: str) -> str:
    """The grammar, with texts and sets that the converter would misread written otherwise.

    Raises ValueError for an escape that is not a character.
    """
    readable = _PART.sub(_readable_part, gbnf)
    readable.encode()  # an escape may spell half a character
    return readable


def _readable_part(found: re.Match[str]) -> str:
    """A text, set or dot of GBNF as the converter reads it rightly."""
    part = found[0]
    if found["any"]:
        return r"[^\x00]"  # its own "." does not match the end of a line
    if found["text"]:
        return _ESCAPE.sub(_character_of_text, part)
    if found["set"]:
        escaped = _ESCAPE.sub(_character, part)
        return _SIGN.sub(_plain_sign, escaped)
    return part


def _character_of_text(escape: re.Match[str]) -> str:
    """As `_character`, within a text, where brackets need no escape."""
    return escape[3] or _character(escape)


def _character(escape: re.Match[str]) -> str:
    """An escape in a form that the converter keeps: it would drop zeros of others."""
    digits = escape[1] or escape[2]
    if digits is None:
        return escape[0]
    code = int(digits, 16)
    if code < 0x100:
        return f"\\x{code:02x}"
    return chr(code)


def _plain_sign(found: re.Match[str]) -> str:
    """A character in a set, written so that it has no other meaning there."""
    if found["twice"]:
        return f"{found['twice']}\\x{ord(found['twice']):02x}"
    return rf"{found['first']}\x2d"
