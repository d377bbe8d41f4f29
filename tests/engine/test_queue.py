"""One engine, several who ask: queue=True waits in line, fairly, and can be cancelled."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

import inside
import localspec
from engines import PLACES
from localspec.errors import EngineError, OptionError
from waiting import at_once, wait_until

GREEDY = localspec.SamplingParams(temperature=0)
ENDLESS = localspec.SamplingParams(temperature=0, ignore_eos=True)
FOX = "Tell me a story about a fox."


@pytest.fixture(scope="module", params=PLACES)
def engine(request):
    with request.param(draft_tokens=2) as opened:
        yield opened


def wait_for(engine, num_there):
    """Until so many are in the engine's line, the one at work among them."""
    wait_until(lambda: inside.num_in_line(engine) == num_there)


def ask(engine, text="A fox", **options):
    return engine.generate_raw(
        text, sampling=GREEDY, max_tokens=4, queue=True, **options
    ).reply()


def test_without_it_a_second_one_is_refused_and_told_of_it(engine):
    with engine.generate_raw("A fox", sampling=ENDLESS) as stream:
        next(stream)
        with pytest.raises(localspec.BusyError) as caught:
            engine.generate_raw("Hi").reply()
    assert "queue=True" in caught.value.hint
    for bad in (1, "yes", None):
        with pytest.raises(OptionError, match="queue is"):
            engine.generate_raw("Hi", queue=bad).reply()


def test_who_comes_first_is_served_first(engine):
    expected = ask(engine)
    order = []

    def asking(number):
        def work():
            stream = engine.generate_raw("A fox", sampling=GREEDY, max_tokens=4, queue=True)
            next(stream)
            order.append(number)
            list(stream)
            return stream.reply()

        return work

    stream = engine.generate_raw("A fox", sampling=ENDLESS)
    next(stream)
    with contextlib.ExitStack() as stack:
        replies = []
        for number in range(4):
            replies.append(stack.enter_context(at_once(asking(number))))
            wait_for(engine, number + 2)
        assert order == []
        stream.close()
    assert order == [0, 1, 2, 3]
    assert all(reply.token_ids == expected.token_ids for (reply,) in replies)


def test_a_wait_is_cancelled_with_the_stream(engine):
    """It ends as one that was cancelled before it began, and leaves no trace."""
    chat = engine.chat()
    waiting = chat.send(FOX, queue=True)
    with engine.generate_raw("A fox", sampling=ENDLESS) as stream:
        next(stream)
        with at_once(lambda: list(waiting)) as found:
            wait_for(engine, 2)
            waiting.cancel()
        assert found == [[]]
        assert next(stream).token_ids  # which goes on
    assert (waiting.reply().text, waiting.reply().finish_reason) == ("", "cancelled")
    assert (chat.messages, chat.num_asked) == ((), 0)
    assert ask(engine).token_ids


@pytest.mark.parametrize("load", PLACES)
def test_closing_ends_those_who_wait(load):
    engine = load(draft_tokens=0)
    stream = engine.generate_raw("A fox", sampling=ENDLESS)
    next(stream)
    with at_once(
        lambda: ask(engine), lambda: engine.chat().send(FOX, queue=True).reply()
    ) as found:
        wait_for(engine, 3)
        engine.close()
    assert [type(error) for error in found] == [localspec.ClosedError] * 2
    assert stream.reply().finish_reason == "cancelled"


def test_tasks_wait_without_holding_up_the_loop(engine):
    async def main():
        expected = await engine.generate_raw("A fox", sampling=GREEDY, max_tokens=4)
        beats = 0

        async def beat():
            nonlocal beats
            while True:
                beats += 1
                await asyncio.sleep(0.001)

        beating = asyncio.create_task(beat())
        asking = [
            engine.generate_raw("A fox", sampling=GREEDY, max_tokens=4, queue=True)
            for _ in range(4)
        ]
        async with engine.generate_raw("A fox", sampling=ENDLESS) as first:
            await first.__anext__()
            tasks = [asyncio.ensure_future(each) for each in asking]
            late = asyncio.ensure_future(engine.chat().send(FOX, queue=True))
            while inside.num_in_line(engine) < 6:
                await asyncio.sleep(0.005)
            seen = beats
            late.cancel()
            with pytest.raises(asyncio.CancelledError):
                await late
            await asyncio.sleep(0.01)
            assert beats > seen
            assert inside.num_in_line(engine) == 5
        replies = await asyncio.gather(*tasks)
        assert [reply.token_ids for reply in replies] == [expected.token_ids] * 4
        beating.cancel()

    asyncio.run(main())


def test_a_thread_that_would_wait_for_itself_is_told_so(engine):
    stream = engine.generate_raw("A fox", sampling=ENDLESS)
    next(stream)
    with pytest.raises(
        EngineError, match="would wait for an answer that only it can read"
    ) as caught:
        ask(engine)
    assert caught.value.hint
    stream.close()
    assert ask(engine).token_ids


def test_an_answer_that_is_dropped_lets_the_next_one_work(engine):
    stream = engine.generate_raw("A fox", sampling=ENDLESS)
    next(stream)
    with at_once(lambda: ask(engine)) as found:
        wait_for(engine, 2)
        del stream
    assert found[0].token_ids
