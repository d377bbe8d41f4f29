"""Reads and changes the parts of a JSON schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from localspec.errors import ConstraintError

_MAX_REFERENCES = 32  # that are followed from one to the next

# Options for llguidance: JSON on one line, as json.dumps and templates write it. So a later
# prompt has the text that the model wrote, the text between two values is known, and a model
# cannot write endless blanks.
ONE_LINE = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}

# Keywords with schemas by name, and those with data, in which no schemas are.
_DEFINITIONS = {"$defs", "definitions"}
_NAMED = {"properties", "patternProperties", "dependentSchemas", *_DEFINITIONS}
_DATA = {"const", "enum", "default", "examples", "example", "x-guidance"}

Schema = Mapping[str, Any]
Node = dict[str, Any]  # a schema that is a copy, to be changed
_ANYTHING: Schema = {}
# Results so far, by the identity of a schema (and a value), so that each is looked at once.
_AreTexts = dict[int, bool | None]
_DoFit = dict[tuple[int, int], bool]


def takes_text(schema: object, root: Schema) -> bool | None:
    """True if every value of the schema is a text, False if none is; None if some may be.

    None for a schema that is nested too deeply.
    """
    try:
        return _takes_text(schema, root, {})
    except RecursionError:
        return None


def _takes_text(schema: object, root: Schema, known: _AreTexts) -> bool | None:
    """`takes_text`, with the results so far."""
    schema = followed(schema, root)
    if not isinstance(schema, Mapping):
        if schema is False:
            return False
        return None
    if id(schema) in known:
        return known[id(schema)]
    known[id(schema)] = None  # until the result is known: the schema may refer to itself
    values = choices(schema)
    options = alternatives(schema)
    kinds: set[bool | None]
    if values is not None:
        kinds = {isinstance(value, str) for value in values}
    elif isinstance(schema.get("type"), str | list):
        kinds = {kind == "string" for kind in types_of(schema)}
    elif options is not None:
        kinds = {_takes_text(option, root, known) for option in options}
    else:
        parts = schema.get("allOf") or ()
        kinds = {_takes_text(part, root, known) for part in parts}
        kinds.discard(None)
    if len(kinds) == 1:
        known[id(schema)] = kinds.pop()
    return known[id(schema)]


def types_of(schema: Schema) -> Sequence[object]:
    """The names of the types that a value may have; empty if the schema names none."""
    types = schema.get("type")
    if isinstance(types, str):
        return [types]
    if isinstance(types, list):
        return types
    return []


def alternatives(schema: Schema) -> Sequence[object] | None:
    """The schemas of an anyOf or oneOf, if it has any."""
    for word in ("anyOf", "oneOf"):
        if isinstance(schema.get(word), list) and schema[word]:
            options: list[object] = schema[word]
            return options
    return None


def choices(schema: object) -> Sequence[object] | None:
    """The values of an enum or const; None for a schema without them."""
    if not isinstance(schema, Mapping):
        return None
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    if isinstance(values, list) and values:
        return values
    return None


def branches(schema: object, root: Schema) -> list[object]:
    """The alternatives of a schema, each replaced by its own; the schema alone without any."""
    ends: list[object] = []  # schemas without alternatives
    waiting = [schema]
    seen = set[int]()
    while waiting:
        branch = followed(waiting.pop(), root)
        if id(branch) in seen:
            continue
        seen.add(id(branch))
        options = None
        if isinstance(branch, Mapping) and "type" not in branch and choices(branch) is None:
            options = alternatives(branch)
        if options is None:
            ends.append(branch)
        else:
            waiting += reversed(options)
    return ends


def properties_of(schema: Schema) -> Schema:
    """The schemas of an object's properties."""
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        return properties
    return {}


def referred(reference: object, root: Schema) -> Any:
    """The part of the root that a reference like #/$defs/x names; the root itself for #.

    None for any other reference, and if there is no such part.
    """
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    node: Any = root
    for step in filter(None, reference[1:].split("/")):
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping):
            node = node.get(name)
        elif isinstance(node, list) and name.isdecimal() and int(name) < len(node):
            node = node[int(name)]
        else:
            return None
    return node


def resolved(schema: object, root: Schema) -> object:
    """The schema itself, or if it is a reference the part of the root that it names.

    An allOf of a single schema, without a type beside it, counts as that schema. Raises
    ConstraintError for a reference to a part that the root lacks, or that leads to no content.
    """
    for _ in range(_MAX_REFERENCES):
        if not isinstance(schema, Mapping):
            return schema
        if "$ref" not in schema:
            parts = schema.get("allOf")
            if not isinstance(parts, list) or len(parts) != 1 or "type" in schema:
                return schema
            schema = parts[0]
            continue
        reference = schema["$ref"]
        schema = referred(reference, root)
        if schema is None:
            raise ConstraintError(
                f"a tool's schema refers to {reference!r:.80}, which it does not have",
                "Put what it refers to under $defs of the same schema.",
            )
    raise ConstraintError(
        "a tool's schema has a reference that leads to itself, or to more than "
        f"{_MAX_REFERENCES} further ones",
        "Put a type, properties or choices where it leads to.",
    )


def followed(schema: object, root: Schema) -> object:
    """`resolved`; for a reference for which that raises an error, a schema of any value."""
    try:
        return resolved(schema, root)
    except ConstraintError:
        return _ANYTHING


def moved(part: Schema, root: Schema, prefix: str = "") -> tuple[Node, Node]:
    """A part of a schema, made ready to stand in another schema.

    There, references like #/$defs/x or # would lead to other parts, or nowhere.

    Args:
        part: The part.
        root: The schema to whose parts it refers.
        prefix: The beginning of the names of definitions.

    Returns:
        A copy whose references lead to definitions, and these by name, for the $defs of the
        other schema. Only those are included to which the references lead.

    Raises:
        ConstraintError: It is nested too deeply.
    """
    names: dict[str, str] = {}  # of definitions, by their references in the root
    waiting: list[str] = []  # references whose definitions are still to be made

    def move_reference(node: Node) -> None:
        node.pop("$id", None)  # references would be looked up below it
        reference = node.get("$ref")
        if not isinstance(reference, str) or referred(reference, root) is None:
            return
        if reference not in names:
            names[reference] = f"{prefix}{len(names)}"
            waiting.append(reference)
        node["$ref"] = f"#/$defs/{names[reference]}"

    def moved_copy(schema: Schema) -> Node:
        kept = {key: value for key, value in schema.items() if key not in _DEFINITIONS}
        return changed_schema(kept, move_reference)

    moved_part = moved_copy(part)
    definitions: Node = {}
    while waiting:
        reference = waiting.pop()
        definition = referred(reference, root)
        if isinstance(definition, Mapping):
            definition = moved_copy(definition)
        definitions[names[reference]] = definition
    return moved_part, definitions


def fits(value: object, schema: object, root: Schema) -> bool:
    """Whether a value fits the schema's types, choices, anyOf, allOf, properties and items.

    Lengths, ranges, patterns and the like are ignored; oneOf counts as anyOf. Any value fits a
    schema that is nested too deeply.
    """
    try:
        return _does_fit(value, schema, root, {})
    except RecursionError:
        return True


def _does_fit(
    value: object,
    schema: object,
    root: Schema,
    known: _DoFit,
) -> bool:
    """`fits`, with the results so far."""
    schema = followed(schema, root)
    if not isinstance(schema, Mapping):
        return schema is not False
    key = (id(value), id(schema))
    if key not in known:
        known[key] = True  # until the result is known: the schema may refer to itself
        known[key] = _fits(value, schema, root, known)
    return known[key]


def _fits(
    value: object,
    schema: Schema,
    root: Schema,
    known: _DoFit,
) -> bool:
    """`_does_fit` for a schema that is no reference and has no result yet."""
    values = choices(schema)
    if values is not None and not any(_is_equal(value, choice) for choice in values):
        return False
    types = types_of(schema)
    if types and not any(_has_type(value, kind) for kind in types):
        return False
    options = alternatives(schema)
    if options and not any(_does_fit(value, option, root, known) for option in options):
        return False
    parts = schema.get("allOf") or ()
    if not all(_does_fit(value, part, root, known) for part in parts):
        return False
    if isinstance(value, list):
        items = schema.get("items", True)
        return all(_does_fit(item, items, root, known) for item in value)
    if isinstance(value, Mapping):
        return _properties_fit(value, schema, root, known)
    return True


def _properties_fit(
    value: Mapping[str, Any],
    schema: Schema,
    root: Schema,
    known: _DoFit,
) -> bool:
    """Whether an object has the required properties, and all of its properties fit."""
    required = schema.get("required")
    if isinstance(required, list) and not all(name in value for name in required):
        return False
    named = properties_of(schema)
    others = schema.get("additionalProperties", True)
    if "patternProperties" in schema:
        others = True
    for name, item in value.items():
        if not _does_fit(item, named.get(name, others), root, known):
            return False
    return True


def _is_equal(value: object, other: object) -> bool:
    """Whether two values of JSON are equal. In JSON, true is not 1."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


_TYPES: Mapping[object, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "object": (Mapping,),
    "array": (list,),
    "number": (int, float),
}


def _has_type(value: object, kind: object) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer":
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return isinstance(value, _TYPES.get(kind, (object,)))


def changed_schema(schema: Mapping[str, Any], change: Callable[[Node], None]) -> Node:
    """A copy of a schema, changed by `change`, which is called for each schema in it.

    Inner schemas come first. Raises ConstraintError for a schema that is nested too deeply.
    """
    try:
        changed: Node = _changed(schema, change)
    except RecursionError as error:
        raise ConstraintError(
            "the JSON schema is nested too deeply",
            "Make it flatter.",
        ) from error
    return changed


def _changed(value: Any, change: Callable[[Node], None]) -> Any:
    """`changed_schema` for any part of a schema."""
    if isinstance(value, list | tuple):
        return [_changed(item, change) for item in value]
    if not isinstance(value, Mapping):
        return value
    node: Node = {}
    for keyword, part in value.items():
        if keyword in _NAMED and isinstance(part, Mapping):
            node[keyword] = {name: _changed(inner, change) for name, inner in part.items()}
        elif keyword in _DATA:
            node[keyword] = part
        else:
            node[keyword] = _changed(part, change)
    change(node)
    return node
