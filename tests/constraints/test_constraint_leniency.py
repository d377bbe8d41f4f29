"""What of a JSON schema is taken, passed over with a word, or refused at once."""

from __future__ import annotations

import json
import re

import pytest

import inside
import localspec
from localspec.constraints.guidance import not_kept, problem_with
from localspec.constraints.spec import ConstraintSpec
from localspec.errors import ConstraintError
from localspec.streaming.answer_options import AnswerOptions
from localspec.streaming.answer_text import Prompt

pytest.importorskip("llguidance", reason="llguidance is not installed")

WORDS = r"^(?:\S+\s+){0,49}\S+$"
NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node", "maxProperties": 2}}}
SEEDED = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


@pytest.fixture(scope="module")
def engine():
    with localspec.load(draft_tokens=0) as opened:
        yield opened


def fits(engine, schema, text):
    constraint = inside.constraint(engine, AnswerOptions(json_schema=schema), Prompt([1]))
    tokens = [*engine.tokenize(text), engine.vocabulary.eos]
    return constraint.validate(tokens) == len(tokens)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"const": 5.0}, "5", "6"),
        ({"enum": [5.0, {"a": [2.0]}]}, '{"a": [2]}', "4"),
        ({"type": "integer", "multipleOf": 5.0}, "15", "16"),
        ({"type": "array", "maxItems": 2.0, "minItems": 1.0}, "[1, 2]", "[1, 2, 3]"),
        ({"type": "string", "minLength": 2.0, "maxLength": 3.0}, '"ab"', '"abcd"'),
    ],
)
def test_whole_numbers_may_have_a_fraction_of_zero(engine, schema, good, bad):
    for is_strict in (False, True):
        assert (
            problem_with(ConstraintSpec("json_schema", json.dumps(schema), is_strict)) is None
        )
    assert not_kept(ConstraintSpec("json_schema", json.dumps(schema))) == ()
    assert fits(engine, schema, good)
    assert not fits(engine, schema, bad)


def test_a_keyword_that_says_nothing_is_no_reason_to_refuse_a_schema(engine):
    """Zod says that names are texts, and Go writes null for an empty list."""
    schema = {
        "type": "object",
        "properties": {
            "a": {"const": None, "enum": None},
            "b": {
                "type": "object",
                "propertyNames": {"type": "string"},
                "additionalProperties": {"type": "integer"},
                "properties": None,
            },
        },
        "required": ["a"],
        "propertyNames": None,
    }
    spec = ConstraintSpec("json_schema", json.dumps(schema), is_strict=True)
    assert problem_with(spec) is None
    assert not_kept(spec) == ()
    assert fits(engine, schema, '{"a": null, "b": {"x": 1}}')
    assert not fits(engine, schema, '{"a": null, "b": {"x": "1"}}')
    assert not fits(engine, schema, '{"a": 1}')


PASSED_OVER = {
    "word boundary": ({"pattern": r"\bfox\b"}, (r"pattern \bfox\b",)),
    "backspace": ({"pattern": r"[\b]"}, (r"pattern [\b]",)),
    "end in the middle": ({"pattern": "^(a|b$)c"}, ("pattern ^(a|b$)c",)),
    "overlapping names": (
        {"patternProperties": {"a": {"type": "string"}, "b": {"type": "null"}}},
        ("patternProperties",),
    ),
    "look-around in a name": (
        {"patternProperties": {"^x": {"type": "null"}, "^(?=a)": {}}},
        ("patternProperties ^(?=a)",),
    ),
    "boundary in a name": ({"patternProperties": {r"\ba": {}}}, (r"patternProperties \ba",)),
    "circle with siblings": ({"$defs": {"node": NODE}, **NODE}, ("maxProperties",)),
    "circle to the root": (
        {"type": "object", "properties": {"a": {"$ref": "#", "minProperties": 1}}},
        ("minProperties",),
    ),
    "length and words": (
        {"type": "string", "pattern": WORDS, "maxLength": 500},
        ("maxLength",),
    ),
    "length that cannot be judged": (
        {"type": "string", "pattern": "a.{40}b", "maxLength": 5000},
        ("maxLength",),
    ),
    "divisor": ({"type": "number", "multipleOf": 0.00012345}, ("multipleOf 0.00012345",)),
    "large divisor": ({"type": "number", "multipleOf": 1e16}, ("multipleOf 1e+16",)),
    "range": ({"type": "number", "minimum": 1e300}, ("minimum",)),
}


@pytest.mark.parametrize("name", PASSED_OVER)
def test_what_cannot_be_kept_to_is_passed_over_with_a_word(engine, name):
    """Also within other schemas; strict, it is refused at once."""
    schema, words = PASSED_OVER[name]
    inner = {"$defs": schema.pop("$defs")} if "$defs" in schema else {}
    whole = {**schema, **inner}
    for each in (
        whole,
        {"type": "array", "items": {"$ref": "#/$defs/it"}, "$defs": {"it": whole}},
    ):
        if "circle" in name and each is not whole:
            continue
        reply = engine.generate_raw("Hi", json_schema=each, max_tokens=3, **SEEDED).reply()
        assert reply.not_kept == words
        with pytest.raises(ConstraintError) as caught:
            engine.generate_raw("Hi", json_schema=each, strict=True).reply()
        assert caught.value.hint


def test_the_rest_of_such_a_schema_is_kept_to(engine):
    names = {"patternProperties": {"^x": {"type": "null"}, "^(?=a)": {}}, "type": "object"}
    names["additionalProperties"] = False
    assert fits(engine, names, '{"xy": null}')
    assert not fits(engine, names, '{"xy": 1}')
    text = {"type": "string", "minLength": 2, "pattern": r"\ba"}
    assert fits(engine, text, '"bc"')
    assert not fits(engine, text, '"b"')


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "const": "a", "minLength": 3},
        {"type": "object", "required": ["a"], "properties": {"a": False}},
        {"type": "array", "maxItems": 2.5},
        {"type": "string", "minLength": -1},
        {"type": "fox"},
    ],
)
def test_what_is_wrong_or_contradicts_itself_is_refused(engine, schema):
    with pytest.raises(ConstraintError, match="the JSON schema is refused"):
        engine.generate_raw("Hi", json_schema=schema).reply()


def test_an_answer_of_many_words_lives_to_its_end(engine):
    for pattern, length in ((WORDS, 500), (WORDS, 5000), (r"^(?:\S+\s+){0,9}\S+$", 2000)):
        schema = {"type": "string", "pattern": pattern, "maxLength": length}
        reply = engine.generate_raw(
            "Once upon a time", json_schema=schema, seed=1, max_tokens=120, **SEEDED
        ).reply()
        if reply.finish_reason == "stop":
            assert re.fullmatch(pattern, json.loads(reply.text))
        else:
            assert len(reply.token_ids) == 120
