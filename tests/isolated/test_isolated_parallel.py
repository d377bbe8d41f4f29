"""Several answers at once from an engine in a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import threading

import pytest

import inside
import localspec
from localspec.isolated.process import Call
from waiting import at_once, wait_until

pytestmark = pytest.mark.process

GREEDY = localspec.SamplingParams(temperature=0)
LONG = localspec.SamplingParams(temperature=0, ignore_eos=True)
ANIMALS = ("fox", "owl", "bear", "hare")
NUM = len(ANIMALS)


def story(animal):
    return f"<|im_start|>user\nA story of a {animal}.<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def isolated():
    with localspec.IsolatedEngine(draft_tokens=3, exact=True, parallel=NUM) as opened:
        yield opened


def begun(engine, **options):
    """Answers that are read in threads of their own, and the pieces that each has given."""
    answers = [engine.generate_raw(story(animal), **options) for animal in ANIMALS]
    pieces = [[] for _ in ANIMALS]

    def reading(answer, seen):
        def read():
            for piece in answer:
                seen.append(piece)
            return answer.reply()

        return read

    return answers, pieces, [reading(*each) for each in zip(answers, pieces, strict=True)]


def test_each_says_what_it_says_alone(isolated):
    """Greedy and seeded, with all numbers of their own."""
    assert isolated.parallel == NUM
    for options in ({"sampling": GREEDY, "max_tokens": 40}, {"seed": 5, "max_tokens": 40}):
        alone = [isolated.generate_raw(story(each), **options).reply() for each in ANIMALS]
        _, pieces, works = begun(isolated, **options)
        with at_once(*works) as found:
            pass
        for reply, expected, seen in zip(found, alone, pieces, strict=True):
            assert reply.token_ids == expected.token_ids
            assert reply.text == "".join(piece.text for piece in seen) == expected.text
            assert reply.stats.completion_tokens == len(reply.token_ids)
            assert reply.stats.num_accepted == expected.stats.num_accepted


def test_they_run_at_the_same_time(isolated):
    """Each has text before any has ended; one more is refused, or waits for one of them."""
    answers, pieces, works = begun(isolated, sampling=LONG)
    with at_once(*works) as found:
        wait_until(lambda: all(pieces))
        assert found == [None] * NUM
        with pytest.raises(localspec.BusyError):
            isolated.generate_raw("Hi").reply()
        with pytest.raises(localspec.BusyError):
            isolated.free_kept()
        last = isolated.generate_raw("Hi", sampling=GREEDY, max_tokens=2, queue=True)
        with at_once(last.reply) as (_,):
            wait_until(lambda: inside.num_in_line(isolated) == NUM + 1)
            answers[2].cancel()
        assert last.reply().finish_reason == "length"
        assert isolated.memory().models.needed_bytes > 0
        isolated.cancel()
    assert [reply.finish_reason for reply in found] == ["cancelled"] * NUM
    isolated.free_kept()


def test_questions_about_tokens_wait_for_no_answer(isolated):
    """Not even for one whose long prompt is being read: they are answered meanwhile."""
    found = []

    def on_prompt(_num_decoded, _num_tokens):
        asking = threading.Thread(target=lambda: found.append(isolated.tokenize("A fox")))
        asking.start()
        asking.join(60)
        assert not asking.is_alive()

    isolated.generate_raw([5] * 1500, on_prompt=on_prompt, max_tokens=1).reply()
    assert len(found) > 1
    assert all(found)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="signals of Unix")
def test_a_crash_ends_all_and_the_process_starts_again_once(isolated, monkeypatch):
    """Each keeps what was said, and so does its conversation."""
    chats = [isolated.chat(system="You are brief.") for _ in ANIMALS]
    answers = [chat.send("A story!", sampling=LONG) for chat in chats]
    first = isolated.process_id
    seen = [0] * NUM

    def reading(number):
        def read():
            for _ in answers[number]:
                seen[number] += 1

        return read

    with at_once(*[reading(number) for number in range(NUM)]) as found:
        wait_until(lambda: all(seen))
        os.kill(first, signal.SIGKILL)
    assert [type(error) for error in found] == [localspec.CrashedError] * NUM
    assert all("SIGKILL" in str(error) for error in found)
    for chat, answer in zip(chats, answers, strict=True):
        assert answer.reply().text
        assert answer.reply().text == chat.messages[-1]["content"]
    works = [lambda chat=chat: chat.send("Go on.", max_tokens=3).reply() for chat in chats]
    with at_once(*works) as found:
        pass
    assert [len(reply.token_ids) for reply in found] == [3] * NUM
    assert isolated.process_id != first
    number = isolated.process_id
    assert isolated.generate_raw("Hi", max_tokens=1).reply().token_ids
    assert isolated.process_id == number


def test_answers_that_are_left_take_nobodys_place(isolated):
    """Dropped, closed in the midst, and left by an exception of their reader's."""
    for number in range(3 * NUM):
        answer = isolated.generate_raw(story(ANIMALS[number % NUM]), sampling=LONG)
        next(answer)
        if number % 3 == 0:
            del answer
        elif number % 3 == 1:
            answer.close()
        else:
            with contextlib.suppress(RuntimeError), answer:
                raise RuntimeError("enough")
    isolated.free_kept()  # which nothing that runs allows
    _, _, works = begun(isolated, sampling=GREEDY, max_tokens=5)
    with at_once(*works) as found:
        pass
    assert [len(reply.token_ids) for reply in found] == [5] * NUM


def test_scales_are_set_while_an_answer_passes_its_place_on(monkeypatch):
    """The thread that brings the child's messages starts the next answer, waiting for none."""
    result = Call.result
    with localspec.IsolatedEngine(draft_tokens=0) as engine:
        first = engine.generate_raw(story("fox"), sampling=LONG)
        next(first)
        second = engine.generate_raw(story("owl"), max_tokens=3, queue=True)
        with at_once(second.reply) as found:

            def result_after_second(call):
                first.cancel()
                wait_until(lambda: found[0] is not None)
                return result(call)

            wait_until(lambda: inside.num_in_line(engine) == 2)
            monkeypatch.setattr(Call, "result", result_after_second)
            engine.adapter_scales = []
    assert len(found[0].token_ids) == 3
