"""`Reply.parsed`: an object of the class that an answer had to fit, or its JSON's value."""

from __future__ import annotations

import dataclasses
import json
import pickle
from typing import Literal

import pytest

import localspec
from engines import PLACES
from localspec.cli.json_output import to_json
from localspec.errors import LocalspecError, ParseError

pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")
pytest.importorskip("llguidance", reason="llguidance is not installed")

QUESTION = "Tell me a story about a fox."
STEADY = {"temperature": 0, "max_tokens": 200}


@dataclasses.dataclass
class Den:
    kind: Literal["hole", "tree"]


@dataclasses.dataclass
class Fox:
    mood: Literal["sad", "glad"]
    den: Den


class Owl(pydantic.BaseModel):
    mood: Literal["sad", "glad"]
    den: Den


class Doubtful(pydantic.BaseModel):
    mood: Literal["sad", "glad"]

    @pydantic.field_validator("mood")
    @classmethod
    def check(cls, mood: str) -> str:
        raise ValueError(f"nobody is {mood}")


SCHEMA = {
    "type": "object",
    "properties": {"mood": {"enum": ["sad", "glad"]}},
    "required": ["mood"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module", params=PLACES)
def any_engine(request):
    with request.param("demo", draft_tokens=3) as opened:
        yield opened


@pytest.fixture(scope="module")
def engine():
    with localspec.load("demo", draft_tokens=3) as opened:
        yield opened


@pytest.mark.parametrize("kind", [Fox, Owl])
def test_a_class_gives_an_object_of_it(any_engine, kind):
    """The classes are those of this file: the other process knows nothing of them."""
    reply = any_engine.generate(QUESTION, json_schema=kind, **STEADY).reply()
    said = json.loads(reply.text)
    assert isinstance(reply.parsed, kind)
    assert isinstance(reply.parsed.den, Den)
    assert (reply.parsed.mood, reply.parsed.den.kind) == (said["mood"], said["den"]["kind"])
    assert reply.parsed is reply.parsed
    assert pickle.loads(pickle.dumps(reply)).parsed == reply.parsed


@pytest.mark.parametrize("schema", [SCHEMA, json.dumps(SCHEMA)])
def test_another_schema_gives_the_value(any_engine, schema):
    reply = any_engine.generate(QUESTION, json_schema=schema, **STEADY).reply()
    assert reply.parsed == json.loads(reply.text)
    assert reply.parsed["mood"] in ("sad", "glad")
    written = to_json(reply)
    assert written["parsed"] == reply.parsed
    assert not [name for name in written if name.startswith("_")]


def test_options_of_a_class_that_are_changed_have_the_schema_of_the_change(engine):
    options = localspec.AnswerOptions(json_schema=Fox)
    same = engine.generate(QUESTION, options, **STEADY).reply()
    assert isinstance(same.parsed, Fox)
    other = engine.generate(QUESTION, options, json_schema=SCHEMA, **STEADY).reply()
    assert isinstance(other.parsed, dict)
    none = engine.generate(QUESTION, options, json_schema=None, temperature=0).reply()
    assert none.parsed is None


def test_an_answer_that_was_cut_has_none_until_it_goes_on(engine):
    """The rest of it, whose text is the rest, has the object of the whole."""
    chat = engine.chat()
    options = localspec.AnswerOptions.of(json_schema=Fox, temperature=0)
    cut = chat.send(QUESTION, options, max_tokens=3).reply()
    assert (cut.finish_reason, cut.parsed) == ("length", None)
    rest = chat.continue_answer(options, max_tokens=200).reply()
    assert not rest.text.startswith("{")
    assert rest.parsed.mood == json.loads(cut.text + rest.text)["mood"]
    stopped = engine.generate(QUESTION, options, stop="mood").reply()
    assert (stopped.finish_reason, stopped.text, stopped.parsed) == ("stop", '{"', None)
    answer = engine.generate(QUESTION, options)
    next(answer)
    answer.close()
    assert answer.reply().parsed is None


def test_what_stands_before_a_trigger_is_no_part_of_it(engine):
    """So an answer without one has none."""
    ask = {"json_schema": Fox, **STEADY}
    reply = engine.generate(QUESTION, trigger=["zzzz", "e"], **ask).reply()
    begin = reply.text.index("e") + 1
    assert begin > 1
    assert reply.parsed.mood == json.loads(reply.text[begin:])["mood"]
    assert engine.generate(QUESTION, trigger="zzzz", **ask).reply().parsed is None


def test_what_the_class_refuses_is_an_error_when_it_is_read(engine):
    reply = engine.generate(QUESTION, json_schema=Doubtful, **STEADY).reply()
    assert json.loads(reply.text)["mood"] in ("sad", "glad")
    with pytest.raises(ParseError, match=r"does not fit Doubtful: mood: .*nobody is") as caught:
        _ = reply.parsed
    assert isinstance(caught.value, LocalspecError)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value.__cause__, pydantic.ValidationError)


def test_a_class_that_cannot_be_pickled_is_left_out(engine):
    @dataclasses.dataclass
    class Local:
        mood: Literal["sad", "glad"]

    reply = engine.generate(QUESTION, json_schema=Local, **STEADY).reply()
    assert isinstance(reply.parsed, Local)
    assert pickle.loads(pickle.dumps(reply)).parsed == {"mood": reply.parsed.mood}
