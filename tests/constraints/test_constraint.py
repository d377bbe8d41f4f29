"""Constrained answers of real files: they fit, whatever drafts, and leave nothing behind."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import re
import sys
from functools import partial
from typing import Literal

import pytest

import inside
import localspec
from call_families import FAMILIES
from engines import PLACES
from examples import num_examples
from localspec.chat.prompt_source import with_form
from localspec.constraints import guidance
from localspec.constraints.guidance import not_kept, problem_with
from localspec.constraints.readable import FORMATS
from localspec.constraints.spec import ConstraintSpec, schema_text
from localspec.errors import ConstraintError, OptionError
from localspec.evaluation.identity import NUMS_DRAFT_TOKENS, IdentityCheck, Rounding
from localspec.sampling.chain import Resolver
from localspec.sampling.params import SamplingParams
from localspec.speculative.policy_api import ProposerKind
from localspec.streaming.answer_options import AnswerOptions, spec_of
from localspec.streaming.answer_text import Prompt

llguidance = pytest.importorskip("llguidance", reason="llguidance is not installed")
jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")

QUESTION = [{"role": "user", "content": "Tell me a story about a fox."}]
FOX = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["fox", "owl", "a fox that is an owl"]},
        "friends": {
            "type": "array",
            "items": {"type": "string", "maxLength": 5},
            "maxItems": 2,
        },
    },
    "required": ["name", "age", "kind", "friends"],
    "additionalProperties": False,
}
GBNF = 'root ::= greeting " " [A-Z] [a-z]{2,6} "."\ngreeting ::= "Hello" | "Good day"\n'
LARK = 'start: ("Hello" | "Good day") " " /[A-Z][a-z]{2,6}/ "."\n'
GREETING = r"(Hello|Good day) [A-Z][a-z]{2,6}\."
CHOICES = ["yes", "no", "perhaps", "yes, but not today"]
SEEDED = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "max_tokens": 120}


def is_fox(text: str) -> bool:
    jsonschema.validate(json.loads(text), FOX)
    return True


WAYS = {
    "schema": ({"json_schema": FOX}, is_fox),
    "regex": ({"regex": GREETING}, partial(re.fullmatch, GREETING)),
    "gbnf": ({"grammar": GBNF}, partial(re.fullmatch, GREETING)),
    "lark": ({"grammar": LARK}, partial(re.fullmatch, GREETING)),
    "choices": ({"choices": CHOICES}, CHOICES.__contains__),
}


@pytest.fixture(scope="module", params=PLACES)
def any_engine(request):
    with request.param("demo", draft_tokens=3) as opened:
        yield opened


@pytest.mark.parametrize("way", WAYS)
def test_an_answer_fits_what_it_was_asked_to(any_engine, way):
    keywords, fits = WAYS[way]
    texts = set()
    for seed in range(8):
        reply = any_engine.generate(QUESTION, seed=seed, **SEEDED, **keywords).reply()
        assert reply.finish_reason == "stop"
        assert fits(reply.text)
        texts.add(reply.text)
    assert len(texts) > 1
    assert fits(
        any_engine.generate(QUESTION, temperature=0, max_tokens=120, **keywords).reply().text
    )


@pytest.fixture(scope="module", params=["demo_draft", "unrelated_draft", "what is forced"])
def drafted(demo_target, request):
    """What drafts, and the engine."""
    draft = request.param
    path = None if draft == "what is forced" else request.getfixturevalue(draft)
    with localspec.load(target=demo_target, draft=path) as opened:
        yield draft, opened


@pytest.mark.parametrize("way", WAYS)
def test_seeded_constrained_text_is_the_same_with_any_draft(drafted, way):
    """Token by token the target's own choice under the masks, up to near ties."""
    draft, opened = drafted
    options = AnswerOptions(**WAYS[way][0])
    use = with_form(options.tool_use(()), spec_of(options))
    prompt = inside.prompt(opened, QUESTION, use)

    def chain(tokens, said):
        constraint = inside.constraint(opened, options, prompt)
        constraint.commit(said)
        return Resolver(opened.vocabulary).chain(
            SamplingParams(), len(tokens), constraint, len(said)
        )

    rounding = Rounding()
    with inside.lent(opened) as loop:
        check = IdentityCheck(
            loop, opened.vocabulary.is_end, chain, rounding, num_wanted=1_000_000
        )
        for seed in range(num_examples(10)):
            reference = check.reference(prompt.tokens, seed)
            for num_draft_tokens in NUMS_DRAFT_TOKENS:
                check.compare(seed, reference, num_draft_tokens)
    found = check.result
    assert found.bugs(rounding.bound) == []
    assert len(found.divergences) <= found.num_texts // 10
    assert found.num_accepted > 0 or draft == "unrelated_draft"


def constraint_of(engine, asked):
    return inside.constraint(engine, AnswerOptions(**asked), Prompt([1]))


def constraints(engine):
    """Of each way, and one that is bound to numbers of 32 digits."""
    numbers = {"json_schema": {"type": "array", "items": {"type": "number"}, "maxItems": 2}}
    asked = [*(keywords for keywords, _ in WAYS.values()), numbers]
    return [constraint_of(engine, keywords) for keywords in asked]


def test_validate_commit_and_mask_agree(engine):
    """Fuzzed: any tokens, the allowed ones, ends in the middle; copies are apart.

    Where one text alone can follow, a mask may leave only its usual spelling.
    """
    random_ = random.Random(7)
    ends = engine.vocabulary.ends()
    for number, fresh in enumerate(constraints(engine)):
        for _ in range(12):
            constraint, said = fresh.copy(), []
            for _ in range(40):
                mask = constraint.mask()
                if mask is None:
                    break
                allowed = mask.nonzero()[0].tolist()
                others = random_.sample(range(engine.vocabulary.size), 3)
                for token in [*random_.sample(allowed, min(3, len(allowed))), *others, *ends]:
                    may_come = constraint.validate([token])
                    is_odd = len(allowed) == 1 and engine.detokenize(allowed).startswith(
                        engine.detokenize([token])
                    )
                    assert may_come == mask[token] or is_odd, (number, said, token)
                    if not may_come:
                        with pytest.raises(ConstraintError):
                            constraint.copy().commit([token])
                said.append(random_.choice(allowed))
                constraint.commit(said[-1:])
                # All that was said may come; of what goes wrong behind it, nothing.
                assert fresh.validate(said) == len(said)
                wrong = next((t for t in others if not constraint.validate([t])), None)
                if wrong is not None:
                    assert fresh.validate([*said, wrong, *said]) == len(said)
            assert fresh.validate(said[:1]) == 1


def test_what_is_forced_may_come_and_ends_the_answer(engine):
    constraint = constraint_of(engine, {"json_schema": {"const": {"name": "Ada", "age": 36}}})
    forced = constraint.forced()
    assert engine.vocabulary.is_end(forced[-1])
    assert engine.detokenize(forced) == '{"name": "Ada", "age": 36}'
    assert constraint.validate(forced) == len(forced)
    constraint.commit(forced[:3])
    assert constraint.forced() == forced[3:]
    assert constraint.copy().forced() == forced[3:]
    constraint.commit(forced[3:-1])
    assert constraint.is_done
    assert constraint.mask().nonzero()[0].tolist() == sorted(engine.vocabulary.ends())


def test_what_is_forced_is_proposed_without_a_draft_model(demo_target):
    """And by nobody in a free answer, whose steps are what they were."""
    with localspec.load(target=demo_target, draft_tokens=4, memory=False) as alone:
        free = alone.generate(QUESTION, temperature=0, max_tokens=60).reply()
        reply = alone.generate(QUESTION, temperature=0, json_schema=FOX, max_tokens=120).reply()
        again = alone.generate(QUESTION, temperature=0, max_tokens=60).reply()
    assert is_fox(reply.text)
    assert reply.stats.accepted_per_proposer[ProposerKind.FORCED] > 10
    for answer in (free, again):
        assert ProposerKind.FORCED not in answer.stats.drafted_per_proposer
    assert free.token_ids == again.token_ids
    assert free.stats.steps_per_length == again.stats.steps_per_length
    with localspec.load(target=demo_target, draft_tokens=4, proposer="lookup") as lookup:
        looked_up = lookup.generate(QUESTION, temperature=0, max_tokens=60).reply()
    assert looked_up.stats.steps_per_length == free.stats.steps_per_length
    assert looked_up.stats.draft_off_steps == free.stats.draft_off_steps


def test_a_trigger_begins_what_fits(engine):
    """A text that the free answer has: up to there it is that, behind it JSON."""
    free = engine.generate(QUESTION, temperature=0, max_tokens=60).reply()
    word = free.text.split()[5]
    before = free.text[: free.text.index(word) + len(word)]
    reply = engine.generate(
        QUESTION, temperature=0, json_schema=FOX, trigger=[word, "@@"], max_tokens=120
    ).reply()
    assert reply.text.startswith(before)
    assert is_fox(reply.text[len(before) :])
    never = engine.generate(
        QUESTION, temperature=0, json_schema=FOX, trigger="@@", max_tokens=60
    ).reply()
    assert never.token_ids == free.token_ids


def test_what_clashes_or_is_none_is_refused(any_engine):
    refused = [
        ({"json_schema": FOX, "regex": "a"}, OptionError, "json_schema and regex"),
        ({"json_schema": {"not": {}}, "strict": True}, ConstraintError, '"not"'),
        ({"json_schema": {"pattern": "^(?=a)"}, "strict": True}, ConstraintError, "look-ahead"),
        ({"json_schema": "{"}, ConstraintError, "not JSON"),
        ({"json_schema": 3}, OptionError, "json_schema is 3"),
        ({"json_schema": {"$ref": "https://example.com/a"}}, ConstraintError, "example"),
        ({"regex": "("}, ConstraintError, "unclosed group"),
        ({"grammar": "root ::= fox"}, ConstraintError, "fox"),
        ({"choices": []}, OptionError, "choices"),
        ({"regex": "a", "ignore_eos": True}, OptionError, "ignore_eos"),
    ]
    for keywords, error, message in refused:
        with pytest.raises(error, match=re.escape(message)) as caught:
            any_engine.generate_raw("Hi", **keywords).reply()
        assert caught.value.hint
    token = any_engine.tokenize("x")[0]
    with pytest.raises(ConstraintError, match="no token is left"):
        any_engine.generate_raw("Hi", regex="x", logit_bias={token: float("-inf")}).reply()
    assert any_engine.generate_raw("Hi", regex="xy").reply().text == "xy"


def test_a_schema_cannot_stall_or_exhaust_the_process(engine):
    """Refused, or answered within bounds: depth, size, counts, long forced texts."""
    deep = {"type": "string"}
    for _ in range(400):
        deep = {"type": "array", "items": deep}
    with pytest.raises(ConstraintError):
        engine.generate_raw("Hi", json_schema=deep).reply()
    with pytest.raises(ConstraintError):
        engine.generate_raw("Hi", json_schema="[" * 100_000).reply()
    with pytest.raises(ConstraintError, match="bytes"):
        engine.generate_raw("Hi", json_schema={"enum": ["x" * 1000] * 400}).reply()
    # A text of this length overflows the stack where libllama is asked to tokenise it there.
    long = {"const": "word " * 40_000}
    reply = engine.generate_raw("Hi", json_schema=long, max_tokens=20).reply()
    assert (len(reply.token_ids), reply.finish_reason) == (20, "length")
    many = {"type": "array", "minItems": 10**6, "items": {"pattern": "^(a{1,900}){1,900}$"}}
    with contextlib.suppress(ConstraintError):
        engine.generate_raw("Hi", json_schema=many, max_tokens=20).reply()


@dataclasses.dataclass
class _Fox:
    name: str
    mood: Literal["sad", "glad"]
    friends: list[str] = dataclasses.field(default_factory=list)


def test_pydantic_makes_the_schema_of_a_dataclass(monkeypatch):
    """Of its fields, and no others."""
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")
    schema, fox = json.loads(schema_text(_Fox)), {"name": "Rika", "mood": "glad"}
    jsonschema.validate(fox, schema)
    for wrong in ({"mood": "angry"}, {"friends": [1]}, {"age": 3}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**fox, **wrong}, schema)
    odd = dataclasses.make_dataclass("Odd", [("when", re.Match)])
    model = pydantic.create_model(
        "Odd", when=(re.Match, ...), __config__={"arbitrary_types_allowed": True}
    )
    for kind in (odd, model):
        with pytest.raises(ConstraintError, match="class Odd has no JSON schema"):
            schema_text(kind)
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(ConstraintError, match="is not installed"):
        schema_text(_Fox)


def test_a_pydantic_class_means_its_fields():
    """Also those in it, and in lists of it; unless it allows others, or is a dict."""
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")
    part = pydantic.create_model("Part", size=(Literal[1, 2], ...))
    open_ = pydantic.create_model(
        "Open", __config__=pydantic.ConfigDict(extra="allow"), part=(part, ...)
    )
    fox = pydantic.create_model(
        "Fox",
        default=(part, ...),  # a name that a schema uses otherwise
        parts=(list[part] | None, None),
        notes=(dict[str, bool], ...),
        open=(open_, ...),
    )
    schema = json.loads(schema_text(fox))
    example = {
        "default": {"size": 1}, "parts": [{"size": 2}], "notes": {"new": True},
        "open": {"part": {"size": 1}, "more": 3},
    }  # fmt: skip
    jsonschema.validate(example, schema)
    for wrong in (
        {"more": 1}, {"default": {"size": 1, "more": 1}}, {"parts": [{"size": 2, "more": 1}]},
        {"open": {"part": {"size": 1, "more": 1}}}, {"notes": {"new": 3}},
    ):  # fmt: skip
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**example, **wrong}, schema)
    as_dict = fox.model_json_schema()
    assert json.loads(schema_text(as_dict)) == as_dict  # as it was written


SCHEMAS = [
    {"type": "string", "pattern": "^(fox|owl)s?$"},
    {"type": "number", "minimum": -9, "maximum": 3, "multipleOf": 0.5},
    {"enum": ["", 'quo"te', "ü\n", -1, None, True, [1, {"a": []}]]},
    {"oneOf": [{"const": "a"}, {"type": "integer", "minimum": 1, "maximum": 7}]},
    {
        "$defs": {"it": {"type": "boolean"}}, "type": "object", "additionalProperties": False,
        "properties": {"Größe": {"$ref": "#/$defs/it"}, 'x"y': {"$ref": "#/$defs/it"}},
    },
]  # fmt: skip


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_answers_are_valid_by_another_validator(engine, schema):
    options = {"json_schema": schema, "strict": "oneOf" not in schema, **SEEDED}
    for seed in range(4):
        reply = engine.generate_raw("Some JSON: ", seed=seed, **options).reply()
        assert reply.finish_reason == "stop"
        jsonschema.Draft202012Validator(schema).validate(json.loads(reply.text))


UNSUPPORTED = {
    "not": {"type": "string"}, "if": {"type": "string"}, "uniqueItems": True,
    "contains": {"type": "null"}, "propertyNames": {"maxLength": 3},
    "dependentRequired": {"a": ["age"]}, "unevaluatedProperties": False,
}  # fmt: skip


@pytest.mark.parametrize("word", UNSUPPORTED)
def test_what_an_answer_is_not_kept_to_is_named(engine, word):
    """Strict, the schema is refused; else the answer names the keyword, and keeps the rest."""
    schema = {"enum": [[1], {"age": 1}], word: UNSUPPORTED[word]}
    with pytest.raises(ConstraintError, match=f'cannot be enforced: "{word}"'):
        engine.generate_raw("Some JSON: ", json_schema=schema, strict=True).reply()
    reply = engine.generate_raw("Some JSON: ", json_schema=schema, **SEEDED).reply()
    assert json.loads(reply.text) in schema["enum"]
    assert reply.not_kept == (word,)


def test_without_llguidance_the_error_says_how_to_install_it(demo_target, monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with localspec.load(target=demo_target) as alone:
        for keywords, _ in WAYS.values():
            with pytest.raises(ConstraintError, match="not installed") as caught:
                alone.generate(QUESTION, **keywords).reply()
            assert "localspec[grammar]" in caught.value.hint
        assert alone.generate(QUESTION, max_tokens=2).reply().token_ids


PATTERNS = [{"type": "string", "pattern": f"a.{{{number}}}b"} for number in range(30)]
TANGLED = {
    "allOf": {"allOf": PATTERNS},
    "allOf of properties": {"allOf": [{"properties": {"x": each}} for each in PATTERNS]},
    "references": {
        "$defs": {
            f"d{i}": {**each, "$ref": f"#/$defs/d{i + 1}"} for i, each in enumerate(PATTERNS)
        },
        "$ref": "#/$defs/d0",
    },
    "a reference beside alternatives": {
        "$defs": {
            **{f"p{i}": each for i, each in enumerate(PATTERNS)},
            **{
                f"d{i}": {"$ref": f"#/$defs/p{i}", "anyOf": [{"$ref": f"#/$defs/d{i + 1}"}]}
                for i in range(29)
            },
            "d29": {"$ref": "#/$defs/p29"},
        },
        "$ref": "#/$defs/d0",
    },
}


@pytest.mark.parametrize("name", TANGLED)
def test_a_schema_in_which_too_many_patterns_meet_is_refused_at_once(engine, name):
    """llguidance would take more than a minute, and as much memory as there is."""
    with pytest.raises(ConstraintError, match="30 patterns and formats; the limit is 12"):
        engine.generate_raw("Hi", json_schema=TANGLED[name]).reply()


@pytest.mark.parametrize("keyword", ["allOf", "$ref", "anyOf"])
def test_a_schema_in_which_too_many_remainders_meet_is_refused_at_once(engine, keyword):
    part = {"type": "integer", "multipleOf": 9967}
    joined = {"$ref": "#/$defs/part"} if keyword == "$ref" else {keyword: [part]}
    schema = {"$defs": {"part": part}, "type": "integer", "multipleOf": 9973, **joined}
    with pytest.raises(ConstraintError, match="2 different multipleOf"):
        engine.generate_raw("Hi", json_schema=schema).reply()


def test_many_patterns_apart_are_no_trouble(engine):
    apart = {"$defs": {"x": PATTERNS[3]}, "type": "object"}
    apart["properties"] = {f"p{i}": each for i, each in enumerate(PATTERNS)}
    apart["properties"]["choice"] = {"anyOf": [*PATTERNS, {"$ref": "#/$defs/x"}]}
    apart["properties"]["self"] = {"$ref": "#"}
    assert (
        engine.generate_raw("Hi", json_schema=apart, max_tokens=5).reply().finish_reason
        == "length"
    )


@pytest.mark.parametrize(
    ("grammar", "fits", "others"),
    [
        (r'root ::= "\u00e9\U0001F98A" [\u0041-\u0043]', ["é🦊B"], ["é🦊D"]),
        (r'root ::= "\x41\u000a\[x\]\u0022\\u0041"', ['A\n[x]"\\u0041'], ['A\n[x]"A']),
        (r"root ::= [a&&b] [^a~~b] [\[\]]", ["ac]", "&c["], ["aa]", "a~]"]),
        (r"root ::= [+--/] [--/]", ["+.", "/-"], ["..", "+,"]),
        ('root ::= "a" . "." # "."\n', ["a\n.", "ab."], ["a.b"]),
        ('root ::= x root "a" | "b"\nx ::= y\ny ::= ""', ["b", "baa"], ["ab"]),
        ('root ::= ("(" root ")" | [a-z]{2,3})+', ["ab", "(abc)xy"], ["a", "(ab"]),
        ('rule-one ::= [0-9]+\nroot ::= rule-one "%"?', ["12", "1%"], ["%"]),
        ('start: "::=" /[a-z]/', ["::=a"], ["a"]),  # Lark, whatever it spells
    ],
)
def test_a_gbnf_grammar_means_what_it_does_in_llama_cpp(engine, grammar, fits, others):
    for text in fits + others:
        constraint = constraint_of(engine, {"grammar": grammar})
        tokens = [*engine.tokenize(text), engine.vocabulary.eos]
        assert (constraint.validate(tokens) == len(tokens)) == (text in fits), text


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ("root ::= fox", "Rule 'fox' not found"),
        ('root ::= ("a"{2,3}){2,3}', "Expected value"),
        ('root ::= start\nstart ::= "a"', "Rule 'start' already exists"),
        (r'root ::= "\ud83e"', "surrogates"),
        ("root ::= " + "(" * 5000, "recursion"),
    ],
)
def test_what_of_gbnf_is_not_supported_is_refused(engine, grammar, message):
    with pytest.raises(ConstraintError, match=re.escape(message)) as caught:
        engine.generate_raw("Hi", grammar=grammar).reply()
    assert "the GBNF grammar is refused" in str(caught.value)
    assert "GBNF that is not supported" in caught.value.hint


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


@pytest.mark.parametrize("name", NUMBERS)
def test_a_model_that_never_ends_a_value_ends_it(engine, name):
    texts = engine.vocabulary.spelled_out()
    digits = {t: 60.0 for t, text in enumerate(texts) if re.fullmatch(rb"[0-9]+|[.eE]", text)}
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


def may_be(engine, schema, text):
    """Whether the answer may be the text."""
    tokens = [*tokens_of(engine, text), *engine.vocabulary.ends()[:1]]
    return constraint_of(engine, {"json_schema": schema}).validate(tokens) == len(tokens)


def test_more_digits_are_none(engine):
    number = {"type": "number"}
    for text in ("1" * 32, "-0." + "3" * 32, "1e308"):
        assert may_be(engine, number, text), text
    for text in ("1" * 33, "0." + "3" * 33, "1e" + "0" * 33):
        assert not may_be(engine, number, text), text
    assert may_be(engine, {"type": "string"}, json.dumps("1" * 99 + '"' + "2" * 99))
    for longer in ({"const": 10**35}, {"enum": [10**35, 7]}):  # which say so
        assert may_be(engine, longer, str(10**35))


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


def test_formats_that_are_kept_to_are_known_to_llguidance():
    for name in FORMATS:
        schema = json.dumps({"format": name})
        raw = llguidance.LLMatcher.grammar_from_json_schema(schema)
        assert llguidance.LLMatcher.validate_grammar(raw) == "", name
        assert not_kept(ConstraintSpec("json_schema", schema, is_strict=True)) == (), name


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


@pytest.mark.parametrize(
    "schema", [{"$ref": "#"}, {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}]
)
def test_a_schema_that_refers_only_to_itself_is_refused_in_words(engine, schema):
    with pytest.raises(ConstraintError, match="no token fits") as caught:
        engine.generate("Hi", json_schema=schema).reply()
    assert "refers only to itself" in caught.value.hint
