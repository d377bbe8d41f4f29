"""The asynchronous twins: an event loop that goes on, tasks that are cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading

import pytest

import inside
import localspec
from localspec.errors import ContextError, EngineError
from waiting import wait_until

GREEDY = localspec.SamplingParams(temperature=0)
STORY = "<|im_start|>user\nTell me a story about a fox.<|im_end|>\n<|im_start|>assistant\n"
LONG = localspec.SamplingParams(temperature=0, ignore_eos=True)


def test_the_twins_say_the_same(engine):
    async def ask() -> list[object]:
        stream = engine.generate_raw(STORY, sampling=GREEDY)
        pieces = [piece async for piece in stream]
        again = await engine.generate_raw(STORY, sampling=GREEDY)
        chat = engine.chat()
        async with chat.send("Tell me a story about a fox.", sampling=GREEDY) as told:
            async for _ in told:
                pass
        more = await chat.send("Another one!", sampling=GREEDY)
        replies = (stream.reply(), again, told.reply(), more)
        return ["".join(p.text for p in pieces), *(reply.text for reply in replies)]

    texts = asyncio.run(ask())
    plain = engine.generate_raw(STORY, sampling=GREEDY).reply().text
    assert texts[:4] == [plain] * 4
    chat = engine.chat()
    chat.send("Tell me a story about a fox.", sampling=GREEDY).reply()
    assert chat.send("Another one!", sampling=GREEDY).reply().text == texts[4]


@contextlib.contextmanager
def watched_decodes(engine, watch):
    """While the block runs, `watch` is called before each decode, in its thread."""
    decode = inside.target(engine).decode

    def watched(tokens, num_logits):
        watch()
        return decode(tokens, num_logits)

    inside.target(engine).decode = watched
    try:
        yield
    finally:
        del inside.target(engine).decode


def test_decodes_run_in_another_thread_while_the_loop_goes_on(engine):
    """The loop's own callbacks run between the pieces and during the prompt's decode."""
    seen: set[int] = set()

    def watch():
        seen.add(threading.get_ident())
        ticked.clear()
        # A decode that begins only when the loop has come round.
        assert ticked.wait(timeout=60)

    ticked = threading.Event()

    async def ask() -> localspec.Reply:
        asking = asyncio.ensure_future(
            engine.generate_raw(STORY, sampling=GREEDY, max_tokens=12)
        )
        while not asking.done():
            ticked.set()
            await asyncio.sleep(0)
        return await asking

    with watched_decodes(engine, watch):
        reply = asyncio.run(ask())
    assert reply.text == engine.generate_raw(STORY, sampling=GREEDY, max_tokens=12).reply().text
    assert len(seen) == 1
    assert threading.get_ident() not in seen


def test_cancelling_the_task_ends_the_answer(engine):
    """At whatever moment; the engine is free when the task is done, and what was said stays."""

    async def ask(pieces_before: int) -> localspec.Reply:
        stream = engine.generate_raw(STORY * 8, sampling=LONG)
        read = 0

        async def reader() -> None:
            nonlocal read
            async for _ in stream:
                read += 1
                if read == pieces_before:
                    begun.set()

        begun = asyncio.Event()
        task = asyncio.create_task(reader())
        if pieces_before:
            await begun.wait()
        else:
            while not inside.record_of(stream).has_begun:
                await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert engine.generate_raw("Hi", max_tokens=1).reply().token_ids
        return stream.reply()

    for pieces_before in (0, 1, 7, 40):
        reply = asyncio.run(ask(pieces_before))
        assert reply.finish_reason == "cancelled"
        assert reply.stats.completion_tokens < 200


def test_closing_from_another_task_ends_the_answer(engine):
    """Also while the first is in the middle of a decode, and when nothing has begun."""

    async def ask() -> None:
        stream = engine.generate_raw(STORY * 8, sampling=LONG)

        async def read() -> int:
            return len([piece async for piece in stream])

        reading = asyncio.create_task(read())
        await asyncio.sleep(0.05)
        with pytest.raises(EngineError, match="another task"):
            await stream.__anext__()
        for _ in range(2):
            async with stream:
                pass
        await reading
        assert stream.reply().finish_reason == "cancelled"
        unused = engine.generate_raw(STORY)
        async with unused:
            pass
        assert [piece async for piece in unused] == []
        assert engine.generate_raw("Hi", max_tokens=1).reply().token_ids

    asyncio.run(ask())


@pytest.mark.parametrize("is_closed_by_with", [True, False])
def test_an_event_loop_that_is_closed_amid_a_read_ends_the_answer_quietly(
    engine, monkeypatch, is_closed_by_with
):
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    stream = engine.generate_raw(STORY, sampling=LONG)
    loop, begun = asyncio.new_event_loop(), asyncio.Event()
    loop.set_exception_handler(lambda *_: None)  # it says that a task was destroyed

    async def read() -> None:
        async with stream if is_closed_by_with else contextlib.nullcontext():
            async for _ in stream:
                begun.set()

    reading = loop.create_task(read())
    loop.run_until_complete(begun.wait())
    loop.close()
    del reading
    exchange = inside.record_of(stream)

    def is_ended() -> bool:
        gc.collect()  # what the task waits for keeps it until it comes
        return exchange.cancellation.is_requested

    wait_until(is_ended)
    assert stream.reply().finish_reason == "cancelled"
    assert engine.generate_raw("Hi", max_tokens=1).reply().token_ids
    assert unraisable == []


def test_dropping_an_asynchronous_stream_frees_the_engine(engine):
    async def ask() -> None:
        for _ in range(20):
            async for _ in engine.generate_raw(STORY, sampling=LONG):
                break
            assert (await engine.generate_raw("Hi", max_tokens=1)).token_ids

    asyncio.run(ask())


def test_no_thread_is_left_behind(engine):
    async def ask() -> None:
        for _ in range(5):
            await engine.generate_raw("Hi", max_tokens=1)
            async for _ in engine.generate_raw(STORY):
                break
            refused = [engine.generate_raw([5] * 5000) for _ in range(2)]  # they stay
            with pytest.raises(ContextError):
                await refused[0]
            with pytest.raises(ContextError):
                await refused[1].__anext__()
            kept.extend(refused)

    kept: list[localspec.Answer] = []
    engine.generate_raw("Hi", max_tokens=1).reply()
    threads_before = set(threading.enumerate())
    asyncio.run(ask())
    wait_until(lambda: set(threading.enumerate()) <= threads_before)
