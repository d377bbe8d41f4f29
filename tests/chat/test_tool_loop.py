"""`run_tools` and its steps, until an answer comes, whatever functions and callers do."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import gc
import itertools
import threading
import warnings
from typing import Literal

import pytest

import localspec
from call_families import FAMILIES, FEW, SAID, write_calling_model
from engines import PLACES
from gguf_maker import with_template, write_scripted_model
from localspec.errors import ContextError, OptionError
from localspec.tools.foreign import ForeignResult
from vision_maker import random_picture

pytest.importorskip("pydantic", reason="pydantic is not installed")
pytest.importorskip("llguidance", reason="llguidance is not installed")

GREEDY = {"temperature": 0, "max_tokens": 200}
CALL = ["<tool_call>", '\n{"name": "now", "arguments": {}}\n', "</tool_call>"]
City = Literal["Rome", "Oslo"]


class Weather:
    """A tool that remembers its calls."""

    def __init__(self, fault: BaseException | None = None) -> None:
        self.taken: list[tuple[str, int]] = []
        self.fault = fault

    def get_weather(self, city: City, days: Literal[1, 2]) -> dict[str, object]:
        """What the weather will be."""
        self.taken.append((city, days))
        if self.fault is not None:
            raise self.fault
        return {"sky": "clear"}


class Clock:
    """A tool that remembers how often it was called."""

    def __init__(self, fault_at: int | None = None) -> None:
        self.count = 0
        self.fault_at = fault_at

    def now(self) -> int:
        """What time it is."""
        if self.count == self.fault_at:
            raise KeyboardInterrupt
        self.count += 1
        return self.count


def roles(chat):
    return [message["role"] for message in chat.messages]


def results_in(chat):
    return [message["content"] for message in chat.messages if message["role"] == "tool"]


@pytest.fixture(scope="module")
def caller_path(tmp_path_factory):
    """A model that calls get_weather once, and says Done. to the result."""
    return write_calling_model(tmp_path_factory.mktemp("caller") / "m.gguf", "Qwen", SAID)


@pytest.fixture(scope="module")
def caller(caller_path):
    with localspec.load(target=caller_path) as engine:
        yield engine


def write_endless_model(path, said):
    """A model that says this to everything."""
    follow = dict(itertools.pairwise(["<0x0A>", *said]))
    family = FAMILIES["Qwen"]
    return write_scripted_model(path, follow, control=family.marks, template=family.template)


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    """A model that answers everything with a call."""
    path = write_endless_model(tmp_path_factory.mktemp("endless") / "m.gguf", CALL)
    with localspec.load(target=path) as engine:
        yield engine


@pytest.fixture(scope="module")
def insistent(tmp_path_factory):
    """A model that answers with calls without end."""
    said = [*CALL, "<0x0A>"]
    path = write_endless_model(tmp_path_factory.mktemp("insistent") / "m.gguf", said)
    with localspec.load(target=path) as engine:
        yield engine


@pytest.mark.parametrize("place", PLACES)
def test_until_an_answer_comes(place, caller_path):
    weather = Weather()
    with place(target=caller_path) as engine:
        chat = engine.chat()
        reply = localspec.run_tools(chat, "hi", tools=[weather.get_weather], **GREEDY)
        assert (reply.text, reply.finish_reason) == ("Done.", "stop")
        assert len(weather.taken) == 1
        assert roles(chat) == ["user", "assistant", "tool", "assistant"]
        assert results_in(chat) == ['{"sky": "clear"}']
        # The chat knows its tools; they are functions still.
        assert localspec.run_tools(chat, "hi", **GREEDY).text == "Done."
        assert len(weather.taken) == 2
        assert chat.undo() == "hi"


def test_it_has_to_be_called_once_only(caller):
    """After that the model chooses."""
    for choice in (
        "required",
        "get_weather",
        {"type": "allowed_tools", "mode": "required", "tools": [{"name": "get_weather"}]},
    ):
        weather = Weather()
        tools = [weather.get_weather, Clock().now]
        reply = localspec.run_tools(
            caller.chat(), "hi", tools=tools, tool_choice=choice, **GREEDY
        )
        assert (reply.text, len(weather.taken)) == ("Done.", 1)
    weather = Weather()
    reply = localspec.run_tools(
        caller.chat(), "hi", tools=[weather.get_weather], tool_choice="none", **GREEDY
    )
    assert (reply.tool_calls, weather.taken) == ((), [])


def test_a_call_is_run_only_if_that_is_allowed(caller):
    weather, asked = Weather(), []

    def ask(call):
        asked.append((call.name, call.arguments.keys()))
        return False

    chat = caller.chat()
    reply = localspec.run_tools(chat, "hi", tools=[weather.get_weather], ask=ask, **GREEDY)
    assert reply.text == "Done."
    assert weather.taken == []
    assert asked == [("get_weather", {"city", "days"})]
    assert results_in(chat) == ["[The user has refused this call.]"]
    localspec.run_tools(chat, "hi", tools=[weather.get_weather], ask=lambda _: True, **GREEDY)
    assert len(weather.taken) == 1


def never(**_arguments):
    return object()


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (Weather(LookupError("no such city")).get_weather, "Error: LookupError: no such city"),
        (
            localspec.Tool("get_weather", "", FEW, function=lambda town: town),
            "unexpected keyword argument",
        ),
        (localspec.Tool("get_weather", "", FEW, function=never), "a result is <object"),
    ],
    ids=["an error", "other arguments", "a result that is no JSON"],
)
def test_an_error_is_told_to_the_model(caller, function, told):
    chat = caller.chat()
    steps = list(localspec.tool_steps(chat, "hi", tools=[function], **GREEDY))
    assert [type(step).__name__ for step in steps] == ["Answer", "RequestedCall", "Answer"]
    assert steps[-1].reply().text == "Done."
    assert told in results_in(chat)[0]
    assert steps[1].result == results_in(chat)[0]
    assert str(steps[1].error) in steps[1].result


def test_arguments_that_do_not_fit_are_told_to_the_model(caller):
    """A model without the grammar's help may give any."""
    strict = Weather()

    def get_weather(city: Literal["Paris"], days: int) -> dict[str, object]:
        """What the weather will be."""
        return strict.get_weather("Rome", days)

    (declared,) = localspec.AnswerOptions(tools=[get_weather]).tools
    looser = localspec.Tool("get_weather", "", FEW, function=declared.function)
    chat = caller.chat()
    assert localspec.run_tools(chat, "hi", tools=[looser], **GREEDY).text == "Done."
    assert results_in(chat) == ["Error: ValueError: city: Input should be 'Paris'"]
    assert strict.taken == []


def test_a_model_that_calls_for_ever_has_to_answer(endless):
    clock, chat = Clock(), endless.chat()
    reply = localspec.run_tools(chat, "hi", tools=[clock.now], most_calls=3, **GREEDY)
    assert clock.count == 3
    assert reply.tool_calls == ()
    *results, last = results_in(chat)
    assert results == ["1", "2", "3"]
    assert "too many calls" in last
    assert roles(chat)[-1] == "assistant"
    assert chat.send("And now?", tools=[], max_tokens=3).reply().token_ids
    # Refused calls count, too.
    refused = endless.chat()
    localspec.run_tools(
        refused, "hi", tools=[clock.now], most_calls=2, ask=lambda _: False, **GREEDY
    )
    assert len(results_in(refused)) == 3
    assert clock.count == 3


def test_calls_of_one_answer_beyond_the_bound_are_not_run(insistent):
    """Also where the answer was cut: its whole calls count."""
    clock, chat = Clock(), insistent.chat()
    steps = localspec.tool_steps(
        chat, "hi", tools=[clock.now], most_calls=2, **{**GREEDY, "max_tokens": 300}
    )
    first, *calls, last = steps
    assert first.reply().finish_reason == "length"
    assert len(first.reply().tool_calls) > 3
    assert (len(calls), clock.count) == (2, 2)
    assert len(results_in(chat)) == len(first.reply().tool_calls)
    assert last.reply().tool_calls == ()


def test_a_bound_comes_with_the_form_of_the_answer(endless):
    schema = {"type": "object", "properties": {"mood": {"enum": ["sad", "glad"]}},
              "required": ["mood"], "additionalProperties": False}  # fmt: skip
    ask = {"tools": [Clock().now], "most_calls": 1, "json_schema": schema}
    reply = localspec.run_tools(endless.chat(), "hi", **ask, **GREEDY)
    assert reply.parsed["mood"] in ("sad", "glad")
    (first, *_) = localspec.tool_steps(endless.chat(), "hi", **ask, **GREEDY)
    assert (first.reply().finish_reason, first.reply().parsed) == ("tool_calls", None)


@pytest.mark.parametrize("name", FAMILIES)
def test_ctrl_c_in_a_function_leaves_a_conversation_that_goes_on(name, tmp_path, demo_target):
    """With the template of each family."""
    path = with_template(demo_target, tmp_path / "m.gguf", FAMILIES[name].template)
    with localspec.load(target=path) as engine:
        chat = engine.chat()
        weather = Weather(KeyboardInterrupt())
        ask = {"tools": [weather.get_weather], "tool_choice": "required"}
        with pytest.raises(KeyboardInterrupt):
            localspec.run_tools(chat, "Hi.", **ask, **GREEDY)
        assert roles(chat) == ["user", "assistant", "tool", "assistant"]
        assert results_in(chat) == ["[The call was interrupted.]"]
        other = engine.chat()
        other.replace(chat.transcript)  # as a session does
        for each in (chat, other):
            assert each.send("And?", max_tokens=5, tool_choice="none").reply().token_ids


def test_what_was_run_before_ctrl_c_is_kept(insistent):
    clock, chat = Clock(fault_at=2), insistent.chat()
    with pytest.raises(KeyboardInterrupt):
        localspec.run_tools(chat, "hi", tools=[clock.now], **{**GREEDY, "max_tokens": 300})
    first, second, *others = results_in(chat)
    assert (first, second) == ("1", "2")
    assert others
    assert set(others) == {"[The call was interrupted.]"}
    assert chat.messages[-1] == {"role": "assistant", "content": ""}


def test_a_finished_result_is_kept_whatever_it_is(insistent):
    """Also an empty text, and pictures, where a later call of the answer is interrupted."""
    red = f"data:image/png;base64,{base64.b64encode(random_picture(1, 4, 4).png()).decode()}"
    results = iter(["", ForeignResult("a red square", (red,))])

    def now(**_arguments):
        try:
            return next(results)
        except StopIteration:
            raise KeyboardInterrupt from None

    chat = insistent.chat()
    tool = localspec.Tool("now", "", {"type": "object"}, function=now)
    with pytest.raises(KeyboardInterrupt):
        localspec.run_tools(chat, "hi", tools=[tool], **{**GREEDY, "max_tokens": 300})
    first, second, *_ = [each for each in chat.messages if each["role"] == "tool"]
    assert first["content"] == ""
    assert second["content"].startswith("a red square")
    assert len(second["pictures"]) == 1


def test_steps_that_are_left(caller):
    """Before a piece is read, before a call, behind it, and amid an answer."""
    for num_steps, expected in (
        (1, []),
        (2, ["user", "assistant", "tool", "assistant"]),
        (3, ["user", "assistant", "tool", "assistant"]),
    ):
        weather, chat = Weather(), caller.chat()
        steps = localspec.tool_steps(chat, "hi", tools=[weather.get_weather], **GREEDY)
        with contextlib.closing(steps):
            for _ in range(num_steps):
                next(steps)
        assert roles(chat) == expected
        if num_steps == 3:  # the call was run, and the answer to it was not read
            assert results_in(chat) == ['{"sky": "clear"}']
            assert chat.messages[-1]["content"] == ""
        assert localspec.run_tools(chat, "hi", **GREEDY, tools=[]).text
    chat = caller.chat()
    steps = localspec.tool_steps(chat, "hi", tools=[weather.get_weather], **GREEDY)
    with contextlib.closing(steps):
        assert next(next(steps)).text.startswith("Let me see.")
    assert roles(chat) == ["user", "assistant"]


def test_an_answer_that_is_cancelled_runs_none_of_its_calls(caller):
    weather, chat = Weather(), caller.chat()
    steps = localspec.tool_steps(chat, "hi", tools=[weather.get_weather], **GREEDY)
    with contextlib.closing(steps):
        (answer, *rest) = cancelled_after_its_call(steps)
    assert (answer.reply().finish_reason, rest) == ("cancelled", [])
    assert len(answer.reply().tool_calls) == 1
    assert weather.taken == []
    assert results_in(chat) == ["[The call was interrupted.]"]
    assert chat.send("And?", tools=[], max_tokens=3).reply().token_ids


def cancelled_after_its_call(steps):
    for step in steps:
        for piece in step:
            if piece.call is not None and piece.call.is_last:
                step.cancel()
        yield step


def test_results_that_do_not_fit_the_context_end_the_loop_and_not_the_conversation(caller):
    def get_weather(city: City, days: Literal[1, 2]) -> str:
        """What the weather will be."""
        return "rain " * 100_000

    chat = caller.chat()
    with pytest.raises(ContextError):
        localspec.run_tools(chat, "hi", tools=[get_weather], **GREEDY)
    assert roles(chat) == ["user", "assistant", "tool", "assistant"]
    assert chat.send("And?", tools=[], max_tokens=3).reply().token_ids


async def soon() -> str:
    """Soon."""
    return "soon"


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"tools": [{"name": "now"}]}, "the tool now has no function"),
        ({"tools": [soon]}, "the function of the tool soon is async"),
        ({"tools": [], "most_calls": 0}, "most_calls is 0"),
        ({"tools": [], "most_calls": None}, "most_calls is None"),
    ],
)
def test_what_is_refused(caller, options, what):
    chat = caller.chat()
    with pytest.raises(OptionError, match=what):
        localspec.run_tools(chat, "hi", **options)
    with pytest.raises(OptionError, match="the chat is <"):
        localspec.run_tools(caller, "hi", **options)
    assert chat.messages == ()


class Soon:
    """Async and other functions that a model may call."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.is_waiting = asyncio.Event()

    async def get_weather(self, city: City, days: Literal[1, 2]) -> str:
        """What the weather will be."""
        await asyncio.sleep(0)
        self.threads.append(threading.current_thread())
        return "sunny"

    async def wait(self, city: City, days: Literal[1, 2]) -> str:
        """What the weather will be."""
        self.is_waiting.set()
        await asyncio.sleep(3600)
        return "sunny"

    def block(self, city: City, days: Literal[1, 2]) -> str:
        """What the weather will be."""
        self.threads.append(threading.current_thread())
        return "cloudy"


def as_weather(function):
    """A tool of that function, by the name that the model calls."""
    (tool,) = localspec.AnswerOptions(tools=[function]).tools
    return localspec.Tool("get_weather", "", tool.parameters, function=tool.function)


def test_on_an_event_loop(caller):
    """Async functions run on it, and others in a thread; it may be asked for, too."""

    async def main():
        own, main_thread, allowed = Soon(), threading.current_thread(), []

        async def ask(call):
            await asyncio.sleep(0)
            allowed.append(call.name)
            return len(allowed) < 3

        told = []
        for function in (own.get_weather, own.block, own.block):
            chat = caller.chat()
            reply = await localspec.run_tools_async(
                chat, "hi", tools=[as_weather(function)], ask=ask, **GREEDY
            )
            assert reply.text == "Done."
            told += results_in(chat)
        assert told == ["sunny", "cloudy", "[The user has refused this call.]"]
        assert len(allowed) == 3
        first, second = own.threads
        assert first is main_thread
        assert second is not main_thread
        step = functools.partial(localspec.tool_steps, caller.chat(), "hi", **GREEDY)
        with pytest.raises(OptionError, match="is async"):
            list(step(tools=[as_weather(own.get_weather)]))

    asyncio.run(main())


class Later:
    """An object that is called like an async function."""

    async def __call__(self, **_arguments) -> str:
        await asyncio.sleep(0)
        return "sunny"


def plainly_wrapped(function):
    """The function in a decorator that does not know of async functions."""

    @functools.wraps(function)
    def wrapper(*args, **keywords):
        return function(*args, **keywords)

    return wrapper


@pytest.mark.parametrize("is_object", [True, False])
def test_async_functions_that_do_not_look_so(caller, is_object):
    """They are awaited on an event loop, and refused elsewhere."""
    tool = localspec.Tool("get_weather", "", FEW, function=Later())
    if not is_object:
        tool = as_weather(plainly_wrapped(Soon().get_weather))
    chat = caller.chat()
    work = localspec.run_tools_async(chat, "hi", tools=[tool], **GREEDY)
    assert asyncio.run(work).text == "Done."
    assert results_in(chat) == ["sunny"]
    chat = caller.chat()
    gc.collect()  # else what other tests left is warned of, too
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with pytest.raises(OptionError, match="get_weather is async"):
            localspec.run_tools(chat, "hi", tools=[tool], **GREEDY)
        gc.collect()
    assert not warned  # of a coroutine that was never awaited
    assert results_in(chat) == ["[The call was interrupted.]"]


def test_a_task_that_is_cancelled_leaves_a_conversation_that_goes_on(caller):
    async def main():
        own, chat = Soon(), caller.chat()
        work = localspec.run_tools_async(chat, "hi", tools=[as_weather(own.wait)], **GREEDY)
        task = asyncio.create_task(work)
        await own.is_waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert results_in(chat) == ["[The call was interrupted.]"]
        assert (await chat.send("And?", tools=[], max_tokens=3)).token_ids

    asyncio.run(main())
