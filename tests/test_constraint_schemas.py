"""Answers of the demo pair to thousands of schemas, each checked by another validator."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import localspec
from examples import num_examples
from localspec.errors import ConstraintError

pytest.importorskip("llguidance", reason="llguidance is not installed")
jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")

WORDS = st.sampled_from(["a", "name", "age", "kind of it", "Größe", 'quo"te', "x_1", "0"])
PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-9, 999),
    st.sampled_from(["", "fox", "an owl", "ü\n"]),
)
PATTERNS = st.sampled_from(["^[a-c]{2,4}$", "[0-9]", "^x", r"^\d+(\.\d)?$", "^(fox|owl)s?$"])
# No dates: Python, which the validator asks, knows no year 0.
FORMATS = st.sampled_from(["time", "ipv4", "ipv6", "uuid", "email"])
# What llguidance says that it cannot do: the answer is an error which names it.
UNSUPPORTED = {
    "not": {"type": "string"}, "if": {"type": "string"}, "uniqueItems": True,
    "contains": {"type": "null"}, "propertyNames": {"maxLength": 3},
    "dependentRequired": {"a": ["age"]}, "unevaluatedProperties": False,
}  # fmt: skip
# What it can keep to in part.
IN_PART = {"oneOf", "minProperties", "maxProperties"}


@st.composite
def strings(draw):
    schema = {"type": "string"}
    how = draw(st.integers(0, 4))
    if how == 0:
        schema["pattern"] = draw(PATTERNS)
    elif how == 1:
        schema["format"] = draw(FORMATS)
    else:
        shortest = draw(st.integers(0, 4))
        schema |= {"minLength": shortest, "maxLength": shortest + draw(st.integers(0, 8))}
    return schema


@st.composite
def numbers(draw):
    schema = {"type": draw(st.sampled_from(["integer", "integer", "number"]))}
    lowest = draw(st.integers(-200, 200))
    for key, value in (
        ("minimum", lowest),
        ("maximum", lowest + draw(st.integers(0, 90))),
        ("multipleOf", draw(st.sampled_from([1, 2, 5]))),
    ):
        if draw(st.booleans()):
            schema[key] = value
    return schema


@st.composite
def objects(draw, values):
    properties = draw(st.dictionaries(WORDS, values, max_size=4))
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    if properties:
        schema["required"] = draw(st.lists(st.sampled_from(list(properties)), unique=True))
    if draw(st.booleans()):
        schema["additionalProperties"] = draw(values)
        schema["maxProperties"] = draw(st.integers(len(properties), 5))
    if draw(st.integers(0, 5)) == 0:
        schema = {"type": "object", "patternProperties": {"^[ab]$": draw(values)}}
        schema["additionalProperties"] = False
    return schema


@st.composite
def arrays(draw, values):
    fewest = draw(st.integers(0, 2))
    schema = {"type": "array", "minItems": fewest, "maxItems": fewest + draw(st.integers(0, 2))}
    schema["items"] = draw(values)
    if draw(st.integers(0, 3)) == 0:
        schema["prefixItems"] = draw(st.lists(values, min_size=1, max_size=2))
    return schema


def nested(values):
    some = st.lists(values, min_size=1, max_size=3)
    return st.one_of(
        objects(values),
        objects(values),
        arrays(values),
        st.builds(lambda each: {"anyOf": each}, some),
        st.builds(lambda each: {"oneOf": each}, some),
        st.builds(lambda each: {"allOf": [each, {}]}, values),
    )


LEAVES = st.one_of(
    strings(),
    strings(),
    numbers(),
    st.builds(lambda value: {"const": value}, PLAIN),
    st.builds(lambda values: {"enum": values}, st.lists(PLAIN, min_size=1, max_size=4)),
    st.sampled_from([{"type": "boolean"}, {"type": ["null", "boolean"]}, {"type": "null"}]),
)


@st.composite
def schemas(draw):
    schema = draw(st.recursive(LEAVES, nested, max_leaves=8))
    if draw(st.integers(0, 7)) == 0:
        schema = {"$defs": {"it": schema}, "type": "object", "additionalProperties": False}
        schema["properties"] = {"one": {"$ref": "#/$defs/it"}, "more": {"$ref": "#/$defs/it"}}
        schema["required"] = ["one"]
    if draw(st.integers(0, 9)) == 0:
        keyword = draw(st.sampled_from(sorted(UNSUPPORTED)))
        schema = {**schema, keyword: UNSUPPORTED[keyword]}
    return schema


def checked(engine, schema, seed, *, strict, max_tokens=80):
    """An answer that is whole fits the schema, but for the keywords it was not kept to."""
    reply = engine.generate_raw(
        "Some JSON: ", json_schema=schema, strict=strict, seed=seed, temperature=1.0,
        top_k=0, top_p=1.0, min_p=0.0, max_tokens=max_tokens,
    ).reply()  # fmt: skip
    if reply.finish_reason == "stop" and IN_PART.isdisjoint(reply.not_kept):
        kind = jsonschema.Draft202012Validator
        kept = {word: schema[word] for word in schema.keys() - {*reply.not_kept}}
        kind(kept, format_checker=kind.FORMAT_CHECKER).validate(json.loads(reply.text))
    return reply


@pytest.mark.parametrize(
    "num_schemas",
    [num_examples(200), pytest.param(num_examples(2500), marks=pytest.mark.slow)],
)
def test_answers_are_valid_by_another_validator_and_what_they_are_not_kept_to_is_named(
    num_schemas,
):
    """Strict, the schema is refused; else the answer names the keyword, and keeps the rest."""
    ends, refused, passed_over, unsatisfiable = Counter(), Counter(), Counter(), []

    @settings(
        max_examples=num_schemas,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(schemas(), st.integers(0, 2**32))
    def check(schema, seed):
        jsonschema.Draft202012Validator.check_schema(schema)
        try:
            reply = checked(engine, schema, seed, strict=True)
        except ConstraintError as error:
            named = re.search(r'cannot be enforced: "(\w+)"', str(error))
            refused[named[1] if named else str(error).splitlines()[0][:60]] += 1
        else:
            ends["strict", reply.finish_reason] += 1
            assert not reply.not_kept
            # It is the same grammar, and the same answer: its beginning is enough.
            assert not checked(engine, schema, seed, strict=False, max_tokens=1).not_kept
            return
        try:
            reply = checked(engine, schema, seed, strict=False)
        except ConstraintError as error:
            unsatisfiable.append(str(error))
            return
        ends["not strict", reply.finish_reason] += 1
        assert {*reply.not_kept} <= {*UNSUPPORTED} | IN_PART
        assert reply.not_kept
        passed_over.update(reply.not_kept)

    with localspec.load("demo", draft_tokens=3) as engine:
        check()
    assert ends["strict", "stop"] > num_schemas / 3
    assert ends["not strict", "stop"] > num_schemas / 15
    assert not any("cannot be enforced" in words for words in unsatisfiable)
    assert {*passed_over} & {*UNSUPPORTED}
    assert {*refused} & {*UNSUPPORTED}
    if num_schemas >= 2500:
        assert {*UNSUPPORTED} <= {*passed_over}
        assert {*UNSUPPORTED} <= {*refused}
