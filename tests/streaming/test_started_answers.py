"""An answer that is started before it is read: it has begun then, or says why it cannot."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest

import inside
import localspec
from engines import PLACES
from localspec.errors import BusyError, ContextError, EngineError
from waiting import wait_until

STORY = "<|im_start|>user\nTell me a story about a fox.<|im_end|>\n<|im_start|>assistant\n"
OPTIONS = {"temperature": 0, "max_tokens": 60}
TOO_LONG = "word " * 3000


def start(answer: localspec.Answer) -> None:
    answer.start()


def started(answer: localspec.Answer) -> None:
    """`start` in a task."""

    async def wait() -> None:
        await answer.started()

    asyncio.run(wait())


@pytest.mark.parametrize("place", PLACES)
def test_a_started_answer_says_what_it_would_have_said(place):
    """No piece is lost, however often it is started, and the prompt is made only once."""
    with place(num_threads=1) as engine:
        expected = engine.generate_raw(STORY, **OPTIONS).reply()
        for begin in (start, started):
            answer = engine.generate_raw(STORY, **OPTIONS)
            begin(answer)
            assert inside.record_of(answer).has_begun
            assert inside.num_in_line(engine) == 1
            begin(answer)
            pieces = list(answer)
            begin(answer)  # it is over
            assert "".join(piece.text for piece in pieces) == expected.text
            assert answer.reply().token_ids == expected.token_ids


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("begin", [start, started])
def test_what_cannot_be_answered_is_refused_before_the_first_piece(place, begin):
    """Each time, and the engine is free for the next; a conversation stays as it was."""
    with place(num_threads=1) as engine:
        chat = engine.chat()
        for answer in (engine.generate_raw(TOO_LONG), chat.send(TOO_LONG)):
            for _ in range(2):
                with pytest.raises(ContextError, match="the context holds 2048"):
                    begin(answer)
            with pytest.raises(ContextError):
                answer.reply()
        assert (chat.messages, chat.num_asked) == ((), 0)
        assert engine.generate_raw(STORY, max_tokens=2).reply().token_ids


def test_an_answer_waits_for_its_turn_where_it_is_started(engine):
    """Without queue=True it is refused; in line it can be cancelled."""
    with engine.generate_raw(STORY) as first:
        first.start()
        with pytest.raises(BusyError):
            engine.generate_raw(STORY).start()
        answer = engine.generate_raw(STORY, queue=True, max_tokens=3)
        with pytest.raises(EngineError, match="would wait for an answer that only it can read"):
            answer.start()
        answer = engine.generate_raw(STORY, queue=True, max_tokens=3)
        waiting = threading.Thread(target=answer.start)
        waiting.start()
        wait_until(lambda: inside.num_in_line(engine) == 2)
        answer.cancel()
        waiting.join()
        assert answer.reply().finish_reason == "cancelled"


def test_a_task_that_starts_an_answer_can_be_cancelled(engine):
    """The place in line is free when the task is done."""

    async def leave() -> None:
        with engine.generate_raw(STORY) as first:
            await first.started()
            answer = engine.generate_raw(STORY, queue=True)
            task = asyncio.create_task(answer.started())
            while inside.num_in_line(engine) < 2:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert inside.num_in_line(engine) == 1

    asyncio.run(leave())
    assert inside.num_in_line(engine) == 0


def test_a_started_answer_that_is_dropped_frees_the_engine(engine):
    answer = engine.generate_raw(STORY)
    answer.start()
    del answer
    assert engine.generate_raw(STORY, max_tokens=2).reply().token_ids


@pytest.mark.process
def test_the_loss_of_a_process_is_told_after_the_start_and_before_it():
    """It is heard of while the answer is read; one that has not begun is tried again."""
    with localspec.IsolatedEngine(num_threads=1) as engine:
        answer = engine.generate_raw(STORY, ignore_eos=True)
        answer.start()
        os.kill(engine.process_id, signal.SIGABRT)
        with pytest.raises(localspec.CrashedError):
            answer.reply()
        answer = engine.generate_raw(STORY, **OPTIONS)
        answer.start()
        assert answer.reply().token_ids
