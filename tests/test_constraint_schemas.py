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


def answers(engine, num_schemas, *, strict):
    """How many answers ended how; unsupported ones by keyword. Each whole one is checked.

    Not strict, but for the keywords that it says it was not kept to.
    """
    ends, refused, passed_over = Counter(), Counter(), Counter()

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
            reply = engine.generate_raw(
                "Some JSON: ", json_schema=schema, strict=strict, seed=seed, temperature=1.0,
                top_k=0, top_p=1.0, min_p=0.0, max_tokens=80,
            ).reply()  # fmt: skip
        except ConstraintError as error:
            named = re.search(r'cannot be enforced: "(\w+)"', str(error))
            refused[named[1] if named else str(error).splitlines()[0][:60]] += 1
            ends["refused"] += 1
            return
        ends[reply.finish_reason] += 1
        assert not (strict and reply.not_kept)
        in_part = {"oneOf", "minProperties", "maxProperties"}
        assert {*reply.not_kept} <= {*UNSUPPORTED} | in_part
        passed_over.update(reply.not_kept)
        if reply.finish_reason == "stop" and in_part.isdisjoint(reply.not_kept):
            value = json.loads(reply.text)
            kind = jsonschema.Draft202012Validator
            schema = {word: schema[word] for word in schema.keys() - {*reply.not_kept}}
            kind(schema, format_checker=kind.FORMAT_CHECKER).validate(value)

    check()
    return ends, refused, passed_over


NUMBERS = [num_examples(200), pytest.param(2500, marks=pytest.mark.slow)]


@pytest.mark.parametrize("num_schemas", NUMBERS)
def test_what_no_answer_can_be_kept_to_is_named_and_the_rest_is_kept(num_schemas):
    with localspec.load("demo", draft_tokens=3) as engine:
        ends, refused, passed_over = answers(engine, num_schemas, strict=False)
    assert ends["stop"] > num_schemas / 3
    assert not {*refused} & {*UNSUPPORTED}
    assert {*passed_over} & {*UNSUPPORTED}
    if num_schemas == 2500:
        assert {*UNSUPPORTED} <= {*passed_over}


@pytest.mark.parametrize("num_schemas", NUMBERS)
def test_answers_are_valid_by_another_validator(num_schemas):
    with localspec.load("demo", draft_tokens=3) as engine:
        ends, refused, _ = answers(engine, num_schemas, strict=True)
    assert sum(ends.values()) >= num_schemas
    assert ends["stop"] > num_schemas / 3
    assert set(refused) & set(UNSUPPORTED)
    if num_schemas == 2500:
        assert set(UNSUPPORTED) <= set(refused)
