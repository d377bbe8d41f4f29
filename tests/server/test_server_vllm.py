"""Fields that people know from vLLM, which several protocols have."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest

pytestmark = pytest.mark.process

pytest.importorskip("llguidance", reason="llguidance is not installed")

SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["age"],
    "additionalProperties": False,
}
CHOICES = ["red fox", "brown bear"]
GRAMMAR = 'root ::= "yes" | "no"'


def is_of_schema(text):
    jsonschema.validate(json.loads(text), SCHEMA)
    return True


FORMS = [
    ({"guided_json": SCHEMA}, is_of_schema),
    ({"guided_json": json.dumps(SCHEMA)}, is_of_schema),
    ({"structured_outputs": {"json": SCHEMA}}, is_of_schema),
    (
        {"structured_outputs": {"json_object": True}},
        re.compile(r"\s*\{").match,
    ),  # it may be cut
    ({"guided_regex": "[0-9]{3}-[a-f]{2}"}, re.compile("[0-9]{3}-[a-f]{2}").fullmatch),
    ({"structured_outputs": {"regex": "[0-9]{3}"}}, re.compile("[0-9]{3}").fullmatch),
    ({"guided_choice": CHOICES}, CHOICES.__contains__),
    ({"structured_outputs": {"choice": CHOICES}}, CHOICES.__contains__),
    ({"guided_grammar": GRAMMAR}, ["yes", "no"].__contains__),
    ({"structured_outputs": {"grammar": GRAMMAR}}, ["yes", "no"].__contains__),
]
MESSAGES = [{"role": "user", "content": "Tell me a story about a fox."}]
ASKED = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 60},
    "/v1/completions": {"prompt": "Once", "max_tokens": 60},
    "/v1/responses": {"input": MESSAGES, "max_output_tokens": 60},
    "/completion": {"prompt": "Once", "n_predict": 60},
}


def text_of(path, told):
    if path == "/completion":
        return told["content"]
    if path == "/v1/responses":
        return told["output"][0]["content"][0]["text"]
    (choice,) = told["choices"]
    return choice["text"] if "text" in choice else choice["message"]["content"]


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize(("form", "fits"), FORMS)
def test_an_answer_fits_the_form_that_was_asked_for(server, path, form, fits):
    response = server.ask(path, **ASKED[path], **form, temperature=0, seed=1)
    assert response.status_code == 200, response.text
    assert fits(text_of(path, response.json()))


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize(
    ("form", "what"),
    [
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_regex and guided_choice"),
        ({"guided_json": SCHEMA, "json_schema": SCHEMA}, "json_schema and guided_json"),
        ({"structured_outputs": {"regex": "a", "json": SCHEMA}}, "json and structured_outputs"),
        ({"structured_outputs": {"structural_tag": "x"}}, "one of json, regex, choice"),
        ({"structured_outputs": "json"}, "structured_outputs is"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex is 5"),
        ({"guided_choice": [1, 2]}, "guided_choice is"),
        ({"guided_choice": []}, "choice"),
        ({"guided_regex": "("}, "regex"),
    ],
)
def test_a_form_that_cannot_be_is_refused(server, path, form, what):
    response = server.ask(path, **ASKED[path], **form)
    assert response.status_code == 400, response.text
    assert what in response.json()["error"]["message"]


def test_an_empty_schema_is_any_json_and_an_empty_grammar_is_none(server):
    """llama-server's clients send a grammar in every request, which may be empty."""
    fields = {"prompt": "Once", "n_predict": 60, "temperature": 0, "draft_tokens": 3}
    plain = server.ask("/completion", **fields).json()["content"]
    assert server.ask("/completion", **fields, grammar="").json()["content"] == plain
    text = server.ask("/completion", **fields, json_schema={}).json()["content"]
    assert text.lstrip()[0] in '{["-0123456789tfn'


def test_an_answer_names_what_gave_it(server):
    first = server.chat(max_tokens=2)["system_fingerprint"]
    assert first.startswith("fp_")
    assert server.chat(max_tokens=3)["system_fingerprint"] == first
    events = server.stream("/v1/completions", prompt="Once", max_tokens=2)
    assert {event["system_fingerprint"] for event in events} == {first}
    (model,) = server.models.all
    model.created += 1
    try:
        assert server.chat(max_tokens=2)["system_fingerprint"] != first
    finally:
        model.created -= 1
