"""Constrained answers on the command line."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from localspec.cli import main

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


def run(*arguments, given=""):
    return CliRunner().invoke(main, [*map(str, arguments)], input=given, catch_exceptions=False)


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
    answers = run("chat", "--choice", "yes", "--choice", "no", given="One?\nTwo?\n").stdout
    assert set(answers.split()) <= {"yes", "no"}
    assert len(answers.split()) == 2


def refused(folder, *options):
    """As a program of its own, away from the checkout."""
    return subprocess.run(
        [sys.executable, "-m", "localspec", "generate", *options, "Hi"],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        cwd=folder,
    )


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", 'root ::= "a"', "ends in .lark or .gbnf"),
        ("a.lark", 'root ::= "a"', "the content is not lark"),
        ("a.gbnf", 'start: "a"', "the content is not gbnf"),
        ("a.lark", "start: fox", "fox"),
        ("a.lark", None, "No such file"),
    ],
)
def test_a_file_that_is_no_grammar_is_refused(tmp_path, name, text, message):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    done = refused(tmp_path, "--grammar", path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Hint: " in done.stderr


@pytest.mark.process
def test_what_is_not_kept_to_is_told_or_an_error(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(
        '{"type": "array", "items": {"enum": [1]}, "maxItems": 2, "uniqueItems": true}'
    )
    asked = ("--json-schema", path, "--max-tokens", "20")
    told = run("generate", *asked, "A fox?")
    assert "Parts of the JSON schema that are not enforced: uniqueItems." in told.stderr
    assert "not enforced" not in told.stdout
    as_object = run("generate", *asked, "--json", "A fox?").stdout
    assert json.loads(as_object)["not_kept"] == ["uniqueItems"]
    assert "uniqueItems" in run("chat", *asked, given="One?\n").stderr
    strict = refused(tmp_path, *map(str, asked), "--strict")
    assert strict.returncode == 2
    assert 'cannot be enforced: "uniqueItems"' in strict.stderr
    alone = refused(tmp_path, "--strict")
    assert alone.returncode == 2
    assert "--strict needs --json-schema" in alone.stderr


@pytest.mark.process
def test_two_at_once_are_refused(tmp_path):
    (tmp_path / "a.json").write_text("{}")
    done = refused(tmp_path, "--json-schema", tmp_path / "a.json", "--regex", "a")
    assert done.returncode == 2
    assert "json_schema and regex are given" in done.stderr
