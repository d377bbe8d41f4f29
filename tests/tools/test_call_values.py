"""What a grammar of calls allows is read back to the same values, in every notation."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from call_families import FAMILIES, in_tags, written_call
from call_grammars import after_trigger, allows, grammar_of
from call_reading import read_answer
from examples import num_examples
from localspec.errors import ConstraintError
from localspec.tools.arguments import GemmaArguments
from localspec.tools.schemas import branches, fits, takes_text
from localspec.tools.tool import Tool, tool_use

pytest.importorskip("llguidance", reason="llguidance is not installed")

# What notations are made of.
PIECES = [
    "</parameter>", "\n", "<parameter=a>", "</function>", "</tool_call>", "<tool_call>", "null",
    "true", "12345", "1e5", '["a"]', '{"a": 1}', "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>",
    '<|"|>', "<tool_call|>", "<|end|>", "<|channel|>", "<|start|>", "<|message|>", ":", ",",
    "{", "}", "]", '"', "\\", " ", "a", "é", "日", "\U0001f600", "</think>", "```", "name",
]  # fmt: skip
texts = st.lists(st.sampled_from(PIECES), max_size=5).map("".join)
names = st.one_of(
    st.sampled_from(
        ["city", "a", "b:c", "x>y", "a b", ":", "}", "日", '"', "x\n", '<|"|>', ""]
    ),
    texts,
)
numbers = st.one_of(
    st.integers(-(10**20), 10**20),
    st.floats(-(10.0**15), 10.0**15).map(lambda x: round(x, 6) + 0.0),
)
keys = st.sampled_from(["a", "b:c", ":", "x.y", ""])  # where a schema names none
plain = st.one_of(st.none(), st.booleans(), st.integers(-99, 99), texts)
any_json = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(keys, inner, max_size=2),
    max_leaves=4,
)


def of(schema, values):
    """A schema with each of the values."""
    return values.map(lambda value: (schema, value))


SIMPLE = st.one_of(
    of({"type": "string"}, texts),
    of({"type": "integer"}, st.integers(-(10**20), 10**20)),
    of({"type": "number"}, numbers),
    of({"type": "boolean"}, st.booleans()),
    of({}, any_json),
    of({"description": "Anything."}, any_json),
    of({"anyOf": [{"type": "string"}, {"type": "null"}]}, st.none() | texts),  # Pydantic's
    of({"type": ["integer", "string"]}, st.integers() | texts),
    of({"type": "array"}, st.lists(any_json, max_size=2)),
    of({"type": "object"}, st.dictionaries(keys, any_json, max_size=2)),
)


@st.composite
def choosing(draw, values, more):
    found = draw(st.lists(values, min_size=1, max_size=4))
    return {"enum": found, **more}, draw(st.sampled_from(found))


@st.composite
def compound(draw, inner):
    (one, value), (two, other) = draw(inner), draw(inner)
    kind = draw(st.sampled_from(["array", "union", "all", "object"]))
    if kind == "array":
        return {"type": "array", "items": one}, [value] * draw(st.integers(0, 2))
    if kind == "union":
        return {"anyOf": [one, two]}, draw(st.sampled_from([value, other]))
    if kind == "all":
        return {"allOf": [one]}, value
    return draw(objects(inner))


@st.composite
def objects(draw, inner):
    """A schema of an object, what is required first, and one of it."""
    found = draw(st.dictionaries(names, inner, max_size=3))
    num_required = draw(st.integers(0, len(found)))
    required = list(found)[:num_required]
    schema = {
        "type": "object",
        "properties": {name: each for name, (each, _) in found.items()},
        "required": required,
        "additionalProperties": False,
    }
    kept = [name for name in found if name in required or draw(st.booleans())]
    return schema, {name: found[name][1] for name in kept}


typed = st.recursive(
    SIMPLE | choosing(texts, {"type": "string"}) | choosing(any_json, {}),
    compound,
    max_leaves=4,
)


def texts_of(value):
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [text for each in value for text in texts_of(each)]
    if isinstance(value, dict):
        return [text for key, each in value.items() for text in (key, *texts_of(each))]
    return []


def names_of(value):
    if isinstance(value, list):
        return [name for each in value for name in names_of(each)]
    if isinstance(value, dict):
        return [*value, *(name for each in value.values() for name in names_of(each))]
    return []


def is_carried(name, schema, arguments):
    """Whether the notation has a way to say it."""
    if name == "Gemma 4":
        # The template writes names bare. A quote at their beginning is read as one.
        is_quote = any(each.startswith(('"', "'")) for each in names_of(arguments))
        return not is_quote and not any('<|"|>' in text for text in texts_of(arguments))
    if name != "Qwen3-Coder":
        return True
    free = [v for key, v in arguments.items() if is_free(schema["properties"][key])]
    return not any(">\n" in key for key in arguments) and not any(
        "</parameter>" in in_tags(value) for value in free
    )


def is_free(schema):
    """Whether some of its values are written as a text or a choice, which may be anything."""
    return any(
        "enum" in each or takes_text(each, {}) is not False for each in branches(schema, {})
    )


def same(name, schema, found, arguments):
    """Whether they are the same; between tags also what is written alike."""
    if name != "Qwen3-Coder":
        return as_json(found) == as_json(arguments)
    return found.keys() == arguments.keys() and all(
        as_json(found[key]) == as_json(arguments[key])
        or (
            is_free(schema["properties"][key])
            and schema["properties"][key].get("type") != "string"
            and in_tags(found[key]) == in_tags(arguments[key])
            and fits(found[key], schema["properties"][key], schema)
        )
        for key in arguments
    )


def as_json(value):
    return json.dumps(value, sort_keys=True)


def grammar_for(name, schema):
    """The grammar, None where the notation cannot say it."""
    try:
        return grammar_of(name, tools=[{"name": "f", "parameters": schema}])[1]
    except ConstraintError:
        return None


SLOW = settings(
    max_examples=num_examples(20), suppress_health_check=list(HealthCheck),
    derandomize=True,
)  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
@SLOW
@given(drawn=objects(typed), seed=st.integers(0, 9))
def test_values_are_written_allowed_and_read_back(name, drawn, seed):
    schema, arguments = drawn
    call = written_call(name, arguments)
    grammar = grammar_for(name, schema)
    is_allowed = grammar is not None and allows(grammar, after_trigger(grammar, call))
    if is_carried(name, schema, arguments) and grammar is not None:
        assert is_allowed, call
    if not is_allowed:
        return
    use = tool_use([{"name": "f", "parameters": schema}], "auto", is_parallel=True)
    for is_kept in (True, False):
        sizes = random.Random(seed) if seed else None
        said, thought, calls = read_answer(name, call, use=use, is_kept=is_kept, sizes=sizes)
        assert (said, thought, len(calls)) == ("", "", 1)
        assert same(name, schema, calls[0][1], arguments), call


@pytest.mark.parametrize("name", FAMILIES)
@SLOW
@given(drawn=objects(typed), data=st.data())
def test_whatever_the_grammar_allows_is_read(name, drawn, data):
    """Also what no writer made: a call that something was put into, or taken out of."""
    schema, arguments = drawn
    call = written_call(name, arguments)
    begin = data.draw(st.integers(len(call) // 3, len(call)))
    end = data.draw(st.integers(begin, min(begin + 9, len(call))))
    middle = data.draw(
        st.sampled_from([*PIECES, "1e400", "NaN", "-0", "0.0", "\\ud800", "\\u00e4"])
    )
    call = call[:begin] + middle + call[end:]
    grammar = grammar_for(name, schema)
    assume(grammar is not None and allows(grammar, after_trigger(grammar, call)))
    before = call.partition(grammar.triggers[0])[0].rstrip() if grammar.triggers else ""
    use = tool_use([{"name": "f", "parameters": schema}], "auto", is_parallel=True)
    for is_kept in (True, False):
        said, thought, calls = read_answer(name, call, use=use, is_kept=is_kept)
        assert said in ("", before), call
        assert (thought, len(calls)) == ("", 1), call
        json.dumps(calls[0][1], allow_nan=False, ensure_ascii=False).encode()
        assert fits(calls[0][1], schema, schema), call


@pytest.mark.parametrize("word", ["anyOf", "allOf"])
def test_schemas_that_refer_to_one_another_in_many_ways_are_read_at_once(word):
    """Thirty of them, each naming the next one twice: 2 ** 30 ways to the last."""
    schemas = {str(n): {word: [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(30)}
    root = {"$defs": {**schemas, "30": {"type": "integer"}}}
    first = {"$ref": "#/$defs/0"}
    assert takes_text(first, root) is False
    assert fits(1, first, root)
    assert not fits("1", first, root)
    assert branches(first, root)[-1] == (root["$defs"]["30" if word == "anyOf" else "0"])


@pytest.mark.parametrize(
    ("escape", "value"),
    [
        (r"\n", "\n"),
        (r"\u00e9", "é"),
        (r"\x41", "A"),
        (r"\'", "'"),
        (r"\d", r"\d"),
        ("\\\n", "\\\n"),
        ("\\\t", "\\\t"),
        (r"\users", r"\users"),
        (r"\u00e", r"\u00e"),
        (r"\xampp", r"\xampp"),
    ],
)
def test_an_escape_that_json_lacks_is_text(escape, value):
    reader = GemmaArguments(Tool("f", "", {}), is_enforced=False)
    arguments = "".join(map(reader.push, f'{{text:"a{escape} b"}}'))
    assert reader.is_over
    assert json.loads(arguments) == {"text": f"a{value} b"}
