"""Constrained answers on the command line."""

from __future__ import annotations

import json
import re

import pytest
from command_line import run

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
pytest.importorskip("llguidance", reason="llguidance is not installed")

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
