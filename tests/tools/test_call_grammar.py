"""The grammars of calls against texts that are calls of the tools, and texts that are none."""

from __future__ import annotations

import dataclasses
import json

import pytest

from call_families import FAMILIES, TOOLS, written_call
from call_grammars import after_trigger, allows, grammar_of
from localspec.chat.call_forms import tools_of
from localspec.chat.prompt import enforced_grammar
from localspec.chat.prompt_source import with_form
from localspec.errors import ConstraintError
from localspec.streaming.answer_options import AnswerOptions, spec_of
from localspec.tools.grammar import call_grammar
from localspec.tools.tool import tool_use


@pytest.mark.parametrize("name", FAMILIES)
def test_another_answer_is_kept_to_as_much_of_its_schema_as_one_without_tools(name):
    """What cannot be kept to is passed over there, too, unless that is to be strict."""
    schema = {"type": "array", "items": {"enum": [1]}, "uniqueItems": True, "format": "path"}
    options = AnswerOptions(tools=TOOLS, json_schema=schema)
    form = tools_of(FAMILIES[name].template).form
    assert (
        enforced_grammar(form, with_form(options.tool_use(()), spec_of(options)), {})
        is not None
    )
    strict = dataclasses.replace(options, strict=True)
    with pytest.raises(ConstraintError, match="uniqueItems"):
        enforced_grammar(form, with_form(strict.tool_use(()), spec_of(strict)), {})


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_calls_fit(name, choice):
    _, grammar = grammar_of(name, choice)
    family = FAMILIES[name]
    assert allows(grammar, after_trigger(grammar, family.call))
    for wrong in (
        family.call.replace("get_weather", "get_whether"),
        family.call.replace("city", "town"),
        family.call.replace("3", "3.5"),
        family.call.replace("3", "three"),
        family.call + "x",
        family.call[:-1],
    ):
        assert not allows(grammar, after_trigger(grammar, wrong)), wrong
    if family.two:
        assert allows(grammar, after_trigger(grammar, family.two))
        _, one = grammar_of(name, choice, is_parallel=False)
        assert allows(one, after_trigger(one, family.call))
        assert not allows(one, after_trigger(one, family.two))


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_no_call_fits_only_where_none_has_to_be_made(name):
    _, must = grammar_of(name, "required")
    assert not allows(must, "Hello.")
    _, named = grammar_of(name, "now")
    assert not allows(named, FAMILIES[name].call)
    form, free = grammar_of(name)
    if form.is_bare:  # it has no trigger
        assert allows(free, 'Hello {"name": "x"}')
        assert not allows(free, '{ "name": "rm"')
        assert allows(free, f"Hm. <|python_tag|>{FAMILIES[name].call}")
        entry = call_grammar(
            form, tool_use(TOOLS, "auto", is_parallel=None), {form.openings[0]: 7},
            lambda tool: tool.parameters,
        )  # fmt: skip
        assert allows(entry, "Hm. <|python_ta")
        assert not allows(entry, "Hm. <|python_tag|>x")
    else:
        assert all(each in FAMILIES[name].call for each in free.triggers)


@pytest.mark.parametrize("name", FAMILIES)
def test_an_answer_that_is_no_call_fits_its_schema(name):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    _, grammar = grammar_of(name, answer=schema)
    frame = "<|channel|>final<|message|>" if name == "gpt-oss" else ""
    assert grammar.triggers == ()
    assert allows(grammar, f'{frame}{{"a": 1}}')
    assert allows(grammar, FAMILIES[name].call)
    assert not allows(grammar, f"{frame}Hello.")


def test_thoughts_stand_before_a_message_to_a_tool():
    _, grammar = grammar_of("gpt-oss", "required")
    call = FAMILIES["gpt-oss"].call
    thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    assert allows(grammar, thought + thought + call)
    assert allows(grammar, " to=functions.now<|channel|>commentary json<|message|>{}")
    assert not allows(grammar, thought)


@pytest.mark.parametrize(
    ("arguments", "fits"),
    [
        ("tree:" + "{left:{right:" * 20 + "{}" + "}}" * 20, True),
        ("tree:{left:{right:{}},right:{next:[{},{left:{}}]}}", True),
        ("tree:{left:1}", False),
        ("tree:{next:[{left:{up:{}}}]}", False),
    ],
)
def test_a_schema_that_refers_to_itself_has_a_small_grammar_in_gemmas_notation(arguments, fits):
    node = {"$ref": "#/$defs/node"}
    some = {"left": node, "right": node, "next": {"type": "array", "items": node}}
    schema = {
        "type": "object",
        "properties": {"tree": node},
        "$defs": {"node": {"type": "object", "properties": some}},
    }
    _, grammar = grammar_of("Gemma 4", tools=[{"name": "f", "parameters": schema}])
    assert len(grammar.lark) < 2000
    assert allows(grammar, f"call:f{{{arguments}}}<tool_call|>") is fits


def tree_with(reference):
    """A schema of trees, whose inner trees are what the reference leads to."""
    tree = {"$ref": reference}
    return {
        "type": "object",
        "properties": {
            "value": {"type": "integer"},
            "best": tree,
            "others": {"type": "array", "items": tree},
            "anything": {"items": tree},  # which may be a text, too
        },
        "required": ["value"],
        "additionalProperties": False,
    }


REFERRING = {
    "root": tree_with("#"),
    "definition": {
        **tree_with("#/$defs/a%20tree"),
        "$defs": {"a tree": tree_with("#/$defs/a%20tree")},
    },
    "property": {
        **tree_with("#/properties/first"),
        "properties": {
            "first": tree_with("#/properties/first"),
            **tree_with("#/properties/first")["properties"],
        },
    },
}
LEAF = {"value": 3}
TREES = [
    {"value": 1, "best": {"value": 2, "others": [LEAF, LEAF]}},
    {"value": 1, "others": [LEAF, {"value": 4, "best": LEAF}]},
    {"value": 1, "anything": [LEAF]},
]
NO_TREES = [
    {"value": 1, "best": {}},
    {"value": 1, "others": [LEAF, {"value": 4, "best": {"value": "4"}}]},
    {"value": 1, "others": [3]},
]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("parameters", REFERRING.values(), ids=REFERRING)
def test_references_in_a_tool_s_schema_may_lead_to_any_part_of_it(name, parameters):
    """Also in a notation that takes the schema apart."""
    use = tool_use([{"name": "f", "parameters": parameters}], "required", is_parallel=False)
    grammar = enforced_grammar(tools_of(FAMILIES[name].template).form, use, {})
    for tree in TREES:
        assert allows(grammar, written_call(name, tree)), tree
    for tree in NO_TREES:
        assert not allows(grammar, written_call(name, tree)), tree


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("answer", REFERRING.values(), ids=REFERRING)
@pytest.mark.parametrize("parameters", REFERRING.values(), ids=REFERRING)
def test_a_call_and_another_answer_have_references_of_their_own(name, parameters, answer):
    """Also where one schema is made of both, since a call is an object, as in Llama 3."""
    listing = {**answer, "type": ["object", "array"], "items": {"type": "null"}}
    use = tool_use([{"name": "f", "parameters": parameters}], "auto", is_parallel=False)
    use = dataclasses.replace(use, answer_schema=listing)
    grammar = enforced_grammar(tools_of(FAMILIES[name].template).form, use, {})
    frame = "<|channel|>final<|message|>" if name == "gpt-oss" else ""
    for tree in TREES:
        assert allows(grammar, written_call(name, tree)), tree
        assert allows(grammar, frame + json.dumps(tree)), tree
    for tree in NO_TREES:
        assert not allows(grammar, written_call(name, tree)), tree
        assert not allows(grammar, frame + json.dumps(tree)), tree
    inner_list = {"value": 1, "best": [None]}
    is_root = answer is REFERRING["root"]
    assert allows(grammar, frame + json.dumps(inner_list)) is is_root
    assert not allows(grammar, written_call(name, inner_list))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("word", ["$defs", "definitions"])
def test_the_root_of_a_tool_s_schema_may_be_a_reference(name, word):
    """As Pydantic and zod-to-json-schema write it for what refers to itself."""
    path = f"#/{word}/tree"
    parameters = {"$ref": path, word: {"tree": tree_with(path)}, "title": "A tree"}
    use = tool_use([{"name": "f", "parameters": parameters}], "required", is_parallel=False)
    assert set(use.tools[0].parameters["properties"]) == set(TREES[0] | TREES[1] | TREES[2])
    grammar = enforced_grammar(tools_of(FAMILIES[name].template).form, use, {})
    for tree in TREES:
        assert allows(grammar, written_call(name, tree)), tree
    for tree in (*NO_TREES, {}, {"value": "x"}, {"value": 1, "more": 2}):
        assert not allows(grammar, written_call(name, tree)), tree


@pytest.mark.parametrize("name", ["Qwen3-Coder", "Gemma 4"])
def test_a_reference_that_leads_to_no_content_is_refused_where_a_call_is_required(name):
    form = tools_of(FAMILIES[name].template).form
    properties = {"a": {"$ref": "#/properties/a"}, "b": {"type": "integer"}}
    tool = {"name": "f", "parameters": {"type": "object", "properties": properties}}
    with pytest.raises(ConstraintError, match="leads to itself"):
        enforced_grammar(form, tool_use([tool], "required", is_parallel=False), {})
    assert enforced_grammar(form, tool_use([tool], "auto", is_parallel=False), {}) is None


def call_with(name, keys):
    """A call with the number 1 for each of the arguments, which may be there twice."""
    call = written_call(name, {f"key_{index}": 1 for index in range(len(keys))})
    for index, key in enumerate(keys):
        call = call.replace(f"key_{index}", key)
    return call


@pytest.mark.parametrize("name", ["Qwen3-Coder", "Gemma 4"])
@pytest.mark.parametrize("required", [[], ["a"]])
def test_an_argument_is_written_once_and_optional_ones_in_any_order(name, required):
    """What is repeated would be the same key of an object twice, which some clients refuse."""
    names = ["a", "b", "c", *(f"more_{number}" for number in range(70))]
    schema = {
        "type": "object",
        "properties": {each: {"type": "integer"} for each in names},
        "required": required,
    }
    _, grammar = grammar_of(name, "required", tools=[{"name": "f", "parameters": schema}])
    for keys in ("a", "ab", "abc", "acb"):
        assert allows(grammar, call_with(name, keys)), keys
    for keys in ("aa", "abb", "acbc"):
        assert not allows(grammar, call_with(name, keys)), keys
    assert allows(grammar, call_with(name, ["a", "more_69", "b", "more_68"]))
    assert allows(grammar, call_with(name, [])) is not bool(required)
