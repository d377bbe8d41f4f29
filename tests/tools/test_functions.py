"""Python functions as tools: what they declare, what they are given, what is refused."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import functools
import pickle
import sys
from typing import Annotated, Any, Literal

import pytest

import localspec
from call_families import SAID, write_calling_model
from engines import PLACES
from localspec.errors import OptionError
from localspec.tools.functions import read_docstring
from localspec.tools.tool import Tool, checked_tools

pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")


class Unit(enum.Enum):
    CELSIUS = "C"
    FAHRENHEIT = "F"


@dataclasses.dataclass
class Place:
    """A place on a map."""

    city: str
    height: float = 0.0


class Note(pydantic.BaseModel):
    text: str


def get_weather(city: str, days: int = 1) -> dict[str, object]:
    """What the weather will be.

    Args:
        city: Where.
        days: For how many
            days.

    Returns:
        The forecast.
    """
    return {"city": city, "days": days}


def declared(function: Any) -> Tool:
    (tool,) = checked_tools([function])
    return tool


def properties_of(function: Any) -> Any:
    return declared(function).parameters["properties"]


def test_what_a_function_declares():
    tool = declared(get_weather)
    assert (tool.name, tool.description) == ("get_weather", "What the weather will be.")
    assert tool.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where."},
            "days": {"type": "integer", "default": 1, "description": "For how many days."},
        },
        "required": ["city"],
        "additionalProperties": False,
    }


def test_the_types_of_arguments():
    def book(
        number: float,
        is_sure: bool,
        nothing: None,
        several: list[str],
        pair: tuple[int, str],
        counts: dict[str, int],
        mood: Literal["sad", "glad"],
        either: int | str,
        described: Annotated[str, pydantic.Field(description="Said.")],
        anything,
        perhaps: int | None = None,
    ) -> None: ...

    found = properties_of(book)
    assert {name: schema.get("type") for name, schema in found.items()} == {
        "number": "number", "is_sure": "boolean", "nothing": "null", "several": "array",
        "pair": "array", "counts": "object", "mood": "string", "either": None,
        "described": "string", "anything": None, "perhaps": None,
    }  # fmt: skip
    assert found["several"]["items"] == {"type": "string"}
    assert found["counts"]["additionalProperties"] == {"type": "integer"}
    assert found["mood"]["enum"] == ["sad", "glad"]
    assert found["either"]["anyOf"] == [{"type": "integer"}, {"type": "string"}]
    assert found["described"]["description"] == "Said."
    assert found["anything"] == {}
    assert found["perhaps"]["anyOf"] == [{"type": "integer"}, {"type": "null"}]


def test_objects_have_their_fields_and_no_others():
    def go(place: Place, unit: Unit, note: Note, day: dt.date, **more: int) -> object:
        return [place, unit, note, day, more]

    tool = declared(go)
    parts = tool.parameters["$defs"]
    assert parts["Unit"] == {"type": "string", "enum": ["C", "F"]}
    assert parts["Note"]["additionalProperties"] is False
    assert parts["Place"]["additionalProperties"] is False
    assert tool.parameters["additionalProperties"] == {"type": "integer"}
    given = {"place": {"city": "Rome"}, "unit": "F", "note": {"text": "x"}, "day": "2030-01-31"}
    assert tool.function is not None
    assert tool.function(**given, more=3) == [
        {"city": "Rome", "height": 0.0}, "F", {"text": "x"}, "2030-01-31", {"more": 3},
    ]  # fmt: skip


def test_what_is_given_becomes_what_the_function_takes():
    taken = []

    def go(place: Place, unit: Unit, pair: tuple[int, str], number: int = 7) -> None:
        taken.append((place, unit, pair, number))

    call = declared(go).function
    assert call is not None
    call(place={"city": "Rome"}, unit="C", pair=["1", "a"])  # a number as a text is one
    assert taken == [(Place("Rome"), Unit.CELSIUS, (1, "a"), 7)]
    for given, what in (
        ({}, "place: Missing required argument; unit: "),
        ({"place": {"town": ""}, "unit": "C", "pair": [1, "a"]}, "place.city: Field required"),
        ({"place": {"city": ""}, "unit": "K", "pair": [1, "a"]}, "unit: Input should be 'C'"),
        ({"place": {"city": ""}, "unit": "C", "pair": [1, ""], "x": 1}, "x: Unexpected"),
    ):
        with pytest.raises(ValueError, match=what):
            call(**given)
    assert len(taken) == 1


class Home:
    def heat(self, degrees: int) -> int:
        """Heat the house."""
        return degrees + 1

    async def light(self, room: str) -> str:
        return room.upper()

    @staticmethod
    def lock(door: str) -> str:
        return door


def test_methods_and_wrapped_functions():
    @functools.wraps(get_weather)
    def logged(*given: Any, **named: Any) -> Any:
        return {"logged": get_weather(*given, **named)}

    home = Home()
    heat, light, lock, wrapped = checked_tools([home.heat, home.light, Home.lock, logged])
    assert (heat.name, heat.description) == ("heat", "Heat the house.")
    assert heat.parameters["required"] == ["degrees"]
    assert heat.function(degrees=20) == 21
    assert lock.function(door="x") == "x"
    assert wrapped == declared(get_weather)
    assert wrapped.function(city="Rome")["logged"]["days"] == 1
    soon = light.function(room="hall")
    with pytest.raises(StopIteration) as ended:
        soon.send(None)
    assert ended.value.value == "HALL"


def test_functions_stand_beside_dicts_and_tools():
    now = {"name": "now", "description": "The time."}
    made = Tool("add", "Adds.", {"properties": {"a": {}}}, function=lambda a: a)
    tools = checked_tools([get_weather, now, made])
    assert [tool.name for tool in tools] == ["get_weather", "now", "add"]
    assert tools[1].function is None
    assert tools[2].function is made.function
    assert tools[2].parameters["type"] == "object"
    again = pickle.loads(pickle.dumps(tools))
    assert again == tools
    assert [tool.function for tool in again] == [None] * 3


def refuses(kind: Any) -> Any:
    """A function with one argument of a kind."""

    def go(it: Any) -> None: ...

    go.__annotations__["it"] = kind
    return go


def by_position(a: int, /) -> None: ...


def several(*a: int) -> None: ...


@pytest.mark.parametrize(
    ("tool", "what"),
    [
        (by_position, "the argument a: int of the function by_position cannot be given by"),
        (several, r"the argument \*a: int of the function several cannot be given by name"),
        (
            refuses(object()),
            "the function go has no JSON schema, because of its arguments it: <object",
        ),
        (
            refuses(OptionError),
            "the function go has no JSON schema, because of its arguments it: ",
        ),
        (refuses("Nowhere"), "the function go cannot be read: name 'Nowhere' is not defined"),
        (lambda a: a, "a lambda is not a tool"),
        (functools.partial(get_weather, days=1), r"tool 0 is functools\.partial"),
        (Place, "tool 0 is <class"),
        (Tool("a b", "", {}), "the name of tool 0 is 'a b'"),
    ],
)
def test_what_cannot_be_a_tool(tool, what):
    with pytest.raises(OptionError, match=what) as caught:
        localspec.AnswerOptions(tools=[tool])
    assert caught.value.hint


def test_without_pydantic_functions_are_refused_and_dicts_are_not(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(OptionError, match="the function get_weather needs Pydantic") as caught:
        checked_tools([get_weather])
    assert "localspec[grammar]" in caught.value.hint
    assert checked_tools([{"name": "now"}])[0].name == "now"


TEXT = """Say it.

Twice, if need be:
    once, and again.

Args:
    one (str, optional): The first: a text.
    **two: The second
        other: goes on.
      And on.

Note:
    Not about arguments: text.

Raises:
    ValueError: If so.
"""


def test_how_a_docstring_is_read():
    description, notes = read_docstring(TEXT, {"one", "two", "three"})
    assert description == (
        "Say it.\n\nTwice, if need be:\n    once, and again.\n\n"
        "Note:\n    Not about arguments: text."
    )
    assert notes == {
        "one": "The first: a text.", "two": "The second other: goes on. And on.",
    }  # fmt: skip
    assert read_docstring("", {"one"}) == ("", {})
    assert read_docstring("Args:\n    one: First.\nAnd so on.", {"one"}) == (
        "And so on.", {"one": "First."},
    )  # fmt: skip
    # Arguments with a star are often none of the tool's.
    text = "Args:\n    one: First.\n    **rest: Ignored.\n        And so on."
    assert read_docstring(text, {"one"}) == ("", {"one": "First."})


@pytest.mark.parametrize("place", PLACES)
def test_a_model_calls_a_function(place, tmp_path):
    """The function stays here, wherever the model is: only what it declares is sent."""
    taken = []

    def get_weather(city: Literal["Rome", "Oslo"], days: Literal[1, 2]) -> str:
        """What the weather will be."""
        taken.append((city, days))
        return "sunny"

    path = write_calling_model(tmp_path / "model.gguf", "Qwen", SAID)
    with place(target=path) as engine:
        chat = engine.chat()
        reply = chat.send("hi", tools=[get_weather], temperature=0).reply()
        (call,) = reply.tool_calls
        assert call.name == "get_weather"
        results = {call.id: get_weather(**call.arguments)}
        assert taken == [(call.arguments["city"], call.arguments["days"])]
        assert chat.send_tool_results(results, temperature=0).reply().text == "Done."
        asked = [{"role": "user", "content": "hi"}]
        reply = engine.generate(asked, tools=[get_weather], temperature=0).reply()
        assert reply.tool_calls[0].name == "get_weather"
