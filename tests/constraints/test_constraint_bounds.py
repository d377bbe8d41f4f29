"""Schemas and grammars that would take all stack or all memory are refused, others are not."""

from __future__ import annotations

import json
import math
import threading

import pytest

import localspec
from call_families import FAMILIES
from engines import PLACES
from localspec.chat.call_forms import tools_of
from localspec.chat.prompt import enforced_grammar
from localspec.constraints.guidance import not_kept, problem_with
from localspec.constraints.spec import ConstraintSpec, constraint_spec
from localspec.errors import ConstraintError
from localspec.tools.tool import tool_use

pytest.importorskip("llguidance", reason="llguidance is not installed")


def chain(num_links):
    """A schema in which each definition leads to the next."""
    links = {
        f"d{number}": {"anyOf": [{"$ref": f"#/$defs/d{number + 1}"}, {"type": "null"}]}
        for number in range(num_links)
    }
    links[f"d{num_links}"] = {"type": "string"}
    return {"$defs": links, "$ref": "#/$defs/d0"}


def with_shortcuts(num_links):
    """The same, where the root leads to each of them, and the last to the first."""
    schema = chain(num_links)
    schema["$defs"][f"d{num_links}"] = {"items": {"$ref": "#/$defs/d0"}}
    every = [{"$ref": f"#/$defs/d{number}"} for number in range(num_links)]
    return {"$defs": schema["$defs"], "anyOf": every}


def judged(schema, *, is_strict=False):
    return problem_with(ConstraintSpec("json_schema", json.dumps(schema), is_strict))


def nested(levels, wrap):
    schema = {"type": "string"}
    for _ in range(levels):
        schema = wrap(schema)
    return schema


WRAPS = {
    "items": lambda schema: {"items": schema},
    "properties": lambda schema: {"properties": {"a": schema}, "required": ["a"]},
    "anyOf": lambda schema: {"anyOf": [schema, {"type": "null"}]},
    "patternProperties": lambda schema: {"patternProperties": {"^a": schema}},
    "prefixItems": lambda schema: {"prefixItems": [schema]},
}


def test_a_chain_of_references_is_refused_in_the_thread_that_asks():
    """1,500 of them would end the process, by an answer's schema and by a tool's."""
    for schema in (chain(1500), chain(64)):
        assert "more than 64 levels" in str(judged(schema))
        assert not_kept(ConstraintSpec("json_schema", json.dumps(schema))) == ()
    assert judged(chain(30)) is None


def test_a_tool_with_such_a_schema_is_refused_where_it_has_to_be_kept_to():
    tool = {"name": "look", "parameters": {"type": "object", "properties": {"x": chain(1500)}}}
    tool["parameters"]["$defs"] = chain(1500)["$defs"]
    for family in FAMILIES.values():
        form = tools_of(family.template).form
        assert (
            enforced_grammar(form, tool_use([tool], "auto", is_parallel=False), {}) is not None
        )
        with pytest.raises(ConstraintError, match="64 levels"):
            enforced_grammar(form, tool_use([tool], "required", is_parallel=False), {})


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_depth_counts_nesting_of_all_kinds(wrap):
    with pytest.raises(ConstraintError, match="nested too deeply"):
        raise judged(nested(64, wrap))
    assert judged(nested(30, wrap)) is None


def test_what_refers_to_itself_is_not_deep():
    tree = {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#/$defs/twig"}}}
    tree["$defs"] = {
        "twig": {"anyOf": [{"$ref": "#"}, {"$ref": "#/$defs/twig"}, {"items": tree}]}
    }
    tree["$defs"]["twig"]["anyOf"].pop()
    assert judged(tree) is None


def test_definitions_that_each_refer_to_the_next_twice_are_counted_at_once():
    """There are 2 ** 30 ways through them."""
    links = {
        f"d{number}": {"prefixItems": [{"$ref": f"#/$defs/d{number + 1}"}] * 2}
        for number in range(30)
    }
    links["d30"] = {"type": "string"}
    assert judged({"$defs": links, "$ref": "#/$defs/d0"}) is None


def test_what_llguidance_reads_deeply_has_room():
    """No part is far from the root, but llguidance goes from each to the next."""
    found = []
    schema = with_shortcuts(1500)
    usual = threading.stack_size(512 << 10)
    try:
        asking = threading.Thread(target=lambda: found.append(judged(schema)))
        asking.start()
    finally:
        threading.stack_size(usual)
    asking.join()
    assert found == [None]


def rules(num_links, *, is_token=False):
    name = "R" if is_token else "r"
    lines = [f"start: {name}0"]
    lines += [f"{name}{i}: {name}{i + 1} {name}{i + 1}" for i in range(num_links)]
    return "\n".join([*lines, f'{name}{num_links}: "a"'])


def in_gbnf(num_links):
    lines = ["root ::= r0", *(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(num_links))]
    return "\n".join([*lines, f'r{num_links} ::= "a"'])


def problem(grammar):
    return problem_with(constraint_spec(None, None, grammar, None))


def test_rules_that_lead_on_and_on_are_refused():
    for grammar in (rules(3000), in_gbnf(1000), rules(70, is_token=True), in_gbnf(70)):
        with pytest.raises(ConstraintError, match="nested too deeply: its rules have"):
            raise problem(grammar)
    for grammar in (rules(30), in_gbnf(10), 'start: "(" start ")" | r\nr: start "!" | "a"'):
        assert problem(grammar) is None


def test_tokens_count_with_the_longest_way():
    """A token is one expression, with all that is in it."""
    short = "start: " + " | ".join(f"R{number}" for number in range(70)) + "\n"
    with pytest.raises(ConstraintError, match="have 71 levels"):
        raise problem(short + rules(70, is_token=True).partition("\n")[2])


@pytest.mark.parametrize(
    "grammar",
    [
        "start: " + "(" * 5000 + '"a"' + ")" * 5000,
        "start: /" + "(" * 5000 + "a" + ")" * 5000 + "/",
        "start: %json " + '{"items":' * 5000 + "{}" + "}" * 5000,
        "start: %json " + json.dumps(chain(1500)),
        'start: x::0\nx::_: "a" %if ' + "not(" * 20_000 + ")" * 20_000,
    ],
    ids=["groups", "expression", "JSON", "references", "conditions"],
)
def test_what_is_nested_in_a_grammar_is_refused(grammar):
    with pytest.raises(ConstraintError):
        raise problem(grammar)


EXPLOSIVE = """start: A
A: /(.*a.{40}b.*)/ & /(.*c.{41}d.*)/ & ~/(.*e.{42}f.*)/"""


@pytest.mark.parametrize(
    "grammar",
    [
        EXPLOSIVE,
        "start: /a+/ & /b+/",
        "start: ~A\nA: /a/",
        'start: "a"\n    | ~ ("b" | "c")',
        'start: %lark {\nstart: A\nA: ~"b"\n}',
        'start: "a" b\nb: // a " in a comment\n  /x/ & /y/',
    ],
)
def test_a_grammar_joins_and_negates_no_expressions(grammar):
    """The first would take 10 GB, and minutes."""
    with pytest.raises(ConstraintError, match="intersects or negates expressions") as caught:
        raise problem(grammar)
    assert caught.value.hint


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "a & ~b" /[&~]+/ x~2 y{3}  // not & nor ~\nx: "x" # & ~\ny: "y"',
        r'start: "\"&" /\/~/ "~"i' + "\n",
        'start: %json {"const": "a & ~b"}',
        'start: x ~ 2..3\nx: "a"',
        'root ::= [&~] "&~"\n',
    ],
)
def test_in_texts_and_expressions_these_are_letters(grammar):
    assert problem(grammar) is None


@pytest.mark.parametrize("opened", PLACES)
def test_an_engine_refuses_such_a_grammar_and_lives_on(opened, demo_target):
    with opened(target=demo_target) as engine:
        for grammar in (EXPLOSIVE, rules(3000), in_gbnf(1000)):
            with pytest.raises(ConstraintError):
                engine.generate_raw("Hi", grammar=grammar, max_tokens=3).reply()
        with pytest.raises(ConstraintError):
            engine.generate_raw("Hi", json_schema=chain(1500), max_tokens=3).reply()
        assert engine.generate_raw("Hi", regex="xy").reply().text == "xy"


def test_a_divisor_with_many_remainders_is_passed_over(demo_target):
    """llguidance makes a state of each remainder, in all memory, whatever its limits."""
    with localspec.load(target=demo_target) as engine:
        for step in (1_234_567, 999_983, 4_000_000_007, 0.0000000001, 1.23456789):
            schema = {"type": "integer", "minimum": 1, "maximum": 3, "multipleOf": step}
            reply = engine.generate_raw("Hi", json_schema=schema, max_tokens=5).reply()
            assert reply.not_kept == (f"multipleOf {step}",)
            with pytest.raises(ConstraintError, match="multipleOf"):
                engine.generate_raw("Hi", json_schema=schema, strict=True).reply()
        for step in (7, 0.01, 86_400, 3_000_000, 9999):
            schema = {"type": "number", "multipleOf": step}
            reply = engine.generate_raw("Hi", json_schema=schema, max_tokens=2).reply()
            assert reply.not_kept == ()


@pytest.mark.parametrize("step", [math.nan, math.inf])
def test_a_divisor_that_is_no_number_of_json_is_left_out_or_refused(step):
    schema = {"type": "number", "multipleOf": step}
    assert judged(schema) is None
    assert isinstance(judged(schema, is_strict=True), ConstraintError)


@pytest.mark.parametrize("step", [-1, -0.5, 0])
def test_a_divisor_has_to_be_above_0(step):
    """Else it is left out with a word, or if strict an error."""
    schema = {"type": "number", "multipleOf": step}
    assert judged(schema) is None
    spec = ConstraintSpec("json_schema", json.dumps(schema))
    assert not_kept(spec) == (f"multipleOf {step}",)
    assert "the JSON schema is refused" in str(judged(schema, is_strict=True))


def test_divisors_that_meet_are_bounded_together():
    met = {"allOf": [{"multipleOf": step} for step in (997, 1009)]}
    with pytest.raises(ConstraintError, match="2 different multipleOf"):
        raise judged(met)
    assert judged({"allOf": [{"multipleOf": 4}, {"multipleOf": 6}]}) is None
