"""The constraint that a caller asks for, as text: a schema, expression or grammar."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from localspec.constraints import gbnf
from localspec.constraints.readable_schema import (
    Node,
    Readable,
    changed_schema,
    readable_schema,
)
from localspec.errors import ConstraintError, OptionError, require_unicode

# Bytes of a schema or grammar, which llguidance reads in about a second on a slow machine.
MAX_BYTES = 256 << 10
# One line, as json.dumps writes it: what stands between two values is known then, and no
# answer ends in blanks without end.
_ONE_LINE = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}

Kind = Literal["json_schema", "regex", "lark", "gbnf"]


class ConstraintSpec(NamedTuple):
    """A constraint by its text.

    is_strict: whether a keyword of a JSON schema that no answer can be kept to is an error.
    """

    kind: Kind
    text: str
    is_strict: bool = False


def constraint_spec(
    json_schema: object,
    regex: str | None,
    grammar: str | None,
    choices: Sequence[str] | None,
    *,
    is_strict: bool = False,
) -> ConstraintSpec | None:
    """The one that is given; None if none is.

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
    for name, text in (("json_schema", json_schema), ("regex", regex), ("grammar", grammar)):
        if text is not None:
            return _checked(name, text, is_strict=is_strict)
    return None


def _checked(name: str, text: object, *, is_strict: bool) -> ConstraintSpec:
    if not isinstance(text, str):
        raise OptionError(f"{name} is {text!r:.80}", "Give a str.")
    if not text.strip():
        raise ConstraintError(f"{name} is empty", "Write one, or leave it out.")
    require_unicode(name, text, ConstraintError)
    is_gbnf = name == "grammar" and gbnf.is_gbnf(text)
    num_bytes, most = len(text.encode()), gbnf.MAX_GBNF_BYTES if is_gbnf else MAX_BYTES
    if num_bytes > most:
        raise ConstraintError(
            f"{'the GBNF grammar' if is_gbnf else name} has {num_bytes} bytes; "
            f"{most} are the most",
            "Shorten it.",
        )
    if name == "json_schema":
        return ConstraintSpec("json_schema", text, is_strict)
    if name == "regex":
        return ConstraintSpec("regex", text)
    return ConstraintSpec("gbnf" if is_gbnf else "lark", text)


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
    """Pydantic's schema of a dataclass. Raises ConstraintError where it has none."""
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


def with_spacing(spec: ConstraintSpec) -> Readable:
    """A schema as llguidance reads it, also in a Lark grammar's `%json`: values on one line.

    What the schema asks of llguidance itself ("x-guidance") comes first, but for which keywords
    are passed over. Raises ConstraintError for one that would take too much to understand.
    """
    readable = readable_schema(json.loads(spec.text), is_strict=spec.is_strict)
    schema = readable.schema
    own = schema.get("x-guidance")
    wishes = own if isinstance(own, Mapping) else {}
    ours = {**_ONE_LINE, **wishes, "lenient": not spec.is_strict}
    return readable._replace(schema={**schema, "x-guidance": ours})


def _close(node: Node) -> None:
    """An object has the fields of its class, and no others."""
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
