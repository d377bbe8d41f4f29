"""Options of sampling and of constraints on the command line, with the real demo pair."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import jsonschema
import pytest
from click.types import FloatParamType

import localspec
from command_line import run
from localspec.cli import main
from localspec.cli.shared_options import changed_sampling
from localspec.errors import OptionError

STORY = "Tell me a story about a fox."


def generate(*options: object) -> dict[str, Any]:
    """The --json answer of a greedy, short generate with more options."""
    shared = ["generate", "--json", "--temperature", "0", "--max-tokens", "60"]
    shared += ["--draft-tokens", "3"]
    result = run(*shared, *options, STORY)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def engine(demo_target):
    with localspec.load(target=demo_target) as engine:
        yield engine


def test_options_become_params(engine):
    """By name and type; 0 is a value, what was not given stays the preset's."""
    params = changed_sampling(
        engine,
        {
            "top_k": 0,
            "min_p": 0.0,
            "dry_sequence_breakers": (r"\n", "a"),
            "logit_bias": {5: 1.0},
        },
    )
    assert params == localspec.SamplingParams(
        top_k=0, min_p=0.0, dry_sequence_breakers=("\n", "a"), logit_bias={5: 1.0}
    )
    assert changed_sampling(engine, {}) == engine.sampling
    assert changed_sampling(engine, {"dry_sequence_breakers": ("none",)}) == (
        localspec.SamplingParams(dry_sequence_breakers=())
    )


def test_bans_name_tokens_by_text_or_id(engine):
    """Exactly one token: a text of several is no ban."""
    (fox,) = engine.vocabulary.tokenize(" fox", parse_special=True)
    params = changed_sampling(engine, {"ban": (" fox", "17"), "logit_bias": {fox: 1.0}})
    assert params.logit_bias == {fox: -math.inf, 17: -math.inf}
    with pytest.raises(OptionError, match=r"is \d+ tokens for this model") as caught:
        changed_sampling(engine, {"ban": ("a fox and an owl",)})
    assert "id" in caught.value.hint


def test_a_banned_token_is_never_said():
    """Whichever way it is banned, the draft knows, too."""
    plain = generate()
    first = plain["token_ids"][0]
    for ban in (["--ban", first], ["--logit-bias", f"{first}=-inf"]):
        banned = generate(*ban)
        assert first not in banned["token_ids"]
        assert banned["stats"]["num_accepted"] > 0
    assert generate("--logit-bias", f"{first}=-0.0")["token_ids"] == plain["token_ids"]


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Rika", "Ida"]},
        "age": {"type": "integer", "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def test_generate_answers_what_fits(tmp_path):
    schema, gbnf, lark = (tmp_path / name for name in ("a.json", "a.gbnf", "a.lark"))
    schema.write_text(json.dumps(SCHEMA))
    gbnf.write_text('root ::= "No" [0-9]{2}\n')
    lark.write_text('start: "No" /[0-9]{2}/\n')
    jsonschema.validate(
        json.loads(run("generate", "--json-schema", schema, "A fox?").stdout), SCHEMA
    )
    for options in (("--regex", "No[0-9]{2}"), ("--grammar", gbnf), ("--grammar", lark)):
        assert re.fullmatch("No[0-9]{2}", run("generate", *options, "A fox?").stdout.strip())
    choice = run("generate", "--choice", "yes", "--choice", "no", "--json", "A fox?")
    assert json.loads(choice.stdout)["text"] in ("yes", "no")


def test_every_answer_of_a_chat_fits():
    answers = run("chat", "--choice", "yes", "--choice", "no", stdin="One?\nTwo?\n").stdout
    assert set(answers.split()) <= {"yes", "no"}
    assert len(answers.split()) == 2


def refusal(*options):
    """What a command says that takes no such options."""
    done = run("generate", *options, "Hi")
    assert (done.exit_code, done.stdout) == (2, "")
    return done.stderr


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.lark", "start: fox", "fox"),
        ("a.lark", None, "No such file"),
    ],
)
def test_a_file_that_is_no_grammar_is_refused(tmp_path, name, text, message):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    said = refusal("--grammar", path)
    assert message in said
    assert "Hint: " in said


@pytest.fixture
def unkept(tmp_path, unrelated_draft):
    """Options with a schema of which a part is not kept to, and a model that is soon loaded."""
    path = tmp_path / "a.json"
    path.write_text(
        '{"type": "array", "items": {"enum": [1]}, "maxItems": 2, "uniqueItems": true}'
    )
    return ("--json-schema", path, "--max-tokens", 20, "--target", unrelated_draft)


@pytest.mark.parametrize(("command", "given"), [("generate", "A fox?"), ("chat", "A fox?\n")])
def test_what_is_not_kept_to_is_told(unkept, command, given):
    told = run(command, *unkept, stdin=given)
    assert told.exit_code == 0
    assert "Parts of the JSON schema that are not enforced: uniqueItems." in told.stderr
    assert "not enforced" not in told.stdout


def test_what_is_not_kept_to_is_an_error_if_asked_for(unkept):
    assert 'cannot be enforced: "uniqueItems"' in refusal(*unkept, "--strict")
    assert "--strict needs --json-schema" in refusal("--strict")


def test_no_option_takes_a_number_without_end():
    """NaN passes comparisons, and a check of NaN seconds ended at once."""
    commands = [main.commands[name] for name in ("verify", "bench", "generate")]
    numbers = {
        (command.name, param.opts[0])
        for command in commands
        for param in command.params
        if isinstance(param.type, FloatParamType)
    }
    assert {("verify", "--seconds"), ("bench", "--seconds"), ("generate", "--top-p")} <= numbers
    for name, flag in numbers:
        for number in ("nan", "inf", "-inf"):
            done = run(name, f"{flag}={number}")
            assert (done.exit_code, done.stdout) == (2, ""), (name, flag, number)
            assert re.search("not a finite number|not in the range", done.stderr)
