"""Where a small model finds no end in JSON, it ends; no value that programs write is lost."""

from __future__ import annotations

import json
import re

import pytest
from call_families import FAMILIES

import inside
from localspec.constraints import guidance
from localspec.constraints.guidance import not_kept, problem_with
from localspec.constraints.spec import FORMATS, ConstraintSpec, readable_schema
from localspec.errors import ConstraintError
from localspec.streaming.options import AnswerOptions
from localspec.streaming.prompt import Prompt

llguidance = pytest.importorskip("llguidance", reason="llguidance is not installed")

QUESTION = [{"role": "user", "content": "Tell me a story about a fox."}]
OPEN = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}


def fields(**schemas):
    return {
        "type": "object", "properties": schemas, "required": [*schemas],
        "additionalProperties": False,
    }  # fmt: skip


NUMBERS = {
    "number": {"type": "number"},
    "integer": {"type": "integer"},
    "between": {"type": "number", "minimum": 0, "maximum": 1},
    "above": {"type": "number", "exclusiveMinimum": 0},
    "cents": {"type": "number", "multipleOf": 0.01},
    "either": {"anyOf": [{"type": "number"}, {"type": "null"}]},
    "kinds": {"type": ["number", "boolean"]},
}


@pytest.fixture
def digits(engine):
    """What makes the demo pair a model that goes on with a number for ever."""
    texts = engine.vocabulary.spelled_out()
    return {t: 60.0 for t, text in enumerate(texts) if re.fullmatch(rb"[0-9]+|[.eE]", text)}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_model_that_never_ends_a_value_ends_it(engine, digits, name):
    schema = fields(it=NUMBERS[name])
    for temperature, seed in ((0, 0), (1, 0), (1, 1)):
        reply = engine.generate(
            QUESTION, json_schema=schema, temperature=temperature, seed=seed,
            logit_bias=digits, max_tokens=200, **OPEN,
        ).reply()  # fmt: skip
        assert reply.finish_reason == "stop", reply.text
        json.loads(reply.text)


def test_so_do_the_arguments_of_calls(engine):
    """Where their notation is JSON; here the Qwen family's."""
    tool = {"name": "sell", "parameters": fields(price={"type": "number"})}
    options = AnswerOptions(tools=[tool], tool_choice="required")
    use = options.tool_use(())
    template = FAMILIES["Qwen"].template
    prompt = inside.prompt(engine, QUESTION, use, template)
    constraint = inside.constraint(engine, options, prompt)
    begun = tokens_of(engine, '<tool_call>\n{"name": "sell", "arguments": {"price": 1')
    assert constraint.validate(begun) == len(begun)
    constraint.commit(begun)
    zeros = [single(engine, "0")] * 100
    assert constraint.validate(zeros) == guidance.MOST_DIGITS - 1


def tokens_of(engine, text):
    return engine.vocabulary.tokenize(text, parse_special=False)


def single(engine, text):
    return engine.vocabulary.spelled_out().index(text.encode())


def constraint_of(engine, schema):
    return inside.constraint(engine, AnswerOptions(json_schema=schema), Prompt([1]))


def fits(engine, schema, text):
    """Whether the answer may be the text."""
    tokens = [*tokens_of(engine, text), *engine.vocabulary.ends()[:1]]
    return constraint_of(engine, schema).validate(tokens) == len(tokens)


def test_more_digits_are_none(engine):
    number = {"type": "number"}
    for text in ("1" * 32, "-0." + "3" * 32, "1e308"):
        assert fits(engine, number, text), text
    for text in ("1" * 33, "0." + "3" * 33, "1e" + "0" * 33):
        assert not fits(engine, number, text), text
    assert fits(engine, {"type": "string"}, json.dumps("1" * 99 + '"' + "2" * 99))
    for longer in ({"const": 10**35}, {"enum": [10**35, 7]}):  # which say so
        assert fits(engine, longer, str(10**35))


def test_a_bound_moves_no_law(engine):
    """What a draft proposes past the bound is judged: greedy and seeded texts are the same."""
    bias = {single(engine, text): 60.0 for text in "0123456789"}
    for options in ({"temperature": 0}, {"temperature": 1.0, "seed": 4}):
        texts = {
            engine.generate(
                QUESTION, json_schema=fields(it={"type": "number"}, at={"type": "number"}),
                logit_bias=bias, draft_tokens=k, max_tokens=120, **OPEN, **options,
            ).reply().token_ids
            for k in (0, 1, 4)
        }  # fmt: skip
        assert len(texts) == 1


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_formats_that_are_kept_to_are_known_to_llguidance(name):
    raw = llguidance.LLMatcher.grammar_from_json_schema(json.dumps({"format": name}))
    assert llguidance.LLMatcher.validate_grammar(raw) == ""
    assert (
        not_kept(ConstraintSpec("json_schema", json.dumps({"format": name}), is_strict=True))
        == ()
    )


def test_what_is_not_kept_to_is_named():
    def found(**schema):
        asked = ConstraintSpec("json_schema", json.dumps(schema))
        assert problem_with(asked) is None
        return not_kept(asked)

    part = {"$ref": "#/components/schemas/it"}  # where only a reference leads
    inner = {"components": {"schemas": {"it": {"type": "string", "format": "path"}}}}
    assert found(properties={"a": part}, **inner) == ("format path",)
    names = {"properties": {"format": {"type": "string"}, "default": {"format": "binary"}}}
    assert found(**names) == ("format binary",)
    assert found(const={"format": "path"}, default={"format": "path"}) == ()
    assert found(pattern="^(?=a)b") == ("pattern ^(?=a)b",)
    assert found(pattern=r"^\(?=a\\1") == ()
    assert found(oneOf=[{"type": "object"}, {"type": "object"}]) == ("oneOf",)
    both = found(properties={"a": {}, "b": {}}, minProperties=2, maxProperties=3)
    assert both == ("maxProperties", "minProperties")
    assert found(properties={"a": {}, "b": {}}, maxProperties=3) == ("maxProperties",)


def test_a_schema_that_is_too_deep_is_an_error():
    deep = '{"items":' * 600 + "{}" + "}" * 600
    with pytest.raises(ConstraintError, match="deep"):
        readable_schema(ConstraintSpec("json_schema", deep))
