"""An answer that has failed says so to everybody who asks for it, however late."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref

import pytest

import localspec
from engines import PLACES
from localspec.errors import BusyError, ContextError

LONG, TOO_LONG = "word " * 1500, "word " * 3000


async def of(answer: localspec.Answer) -> localspec.Reply:
    return await answer


def refuse(num_read: int, total: int) -> None:
    raise ValueError(f"{num_read} of {total} are enough")


@pytest.mark.parametrize("place", PLACES)
def test_a_refused_answer_raises_its_error_to_every_reader(place):
    with place(num_threads=1) as engine:
        answer = engine.generate_raw(TOO_LONG)
        messages = []
        for read in (
            str,
            str,
            lambda it: it.reply(),
            "{}".format,
            lambda it: asyncio.run(of(it)),
        ):
            with pytest.raises(ContextError, match="3002 tokens") as caught:
                read(answer)
            messages.append((str(caught.value), caught.value.hint, caught.value.num_tokens))
        assert len(set(messages)) == 1
        assert repr(answer) == f"<Answer, failed: {messages[0][0]}>"


def test_so_does_one_that_the_engine_had_no_time_for(engine):
    with engine.generate("Tell me a story.") as first:
        next(first)
        answer = engine.generate("Hi")
        for _ in range(2):
            with pytest.raises(BusyError, match="another answer"):
                str(answer)


def test_the_text_of_an_answer_that_failed_midway_is_not_taken_for_whole(engine):
    """Its reply has what was said; the error is raised where the whole text is asked for."""

    answer = engine.generate_raw(LONG, max_tokens=5, on_prompt=refuse)
    for _ in range(2):
        with pytest.raises(ValueError, match="are enough"):
            str(answer)
    assert answer.reply().finish_reason == "cancelled"


def test_an_answer_that_failed_is_freed_with_its_last_reference(engine):
    """What it keeps of its error is no way back to it."""
    for prompt in (LONG, TOO_LONG):
        answer = engine.generate_raw(prompt, on_prompt=refuse)
        alive = weakref.ref(answer)
        gc.disable()
        try:
            for _ in range(2):
                with contextlib.suppress(ValueError, ContextError):
                    str(answer)
            del answer
            assert alive() is None
        finally:
            gc.enable()
