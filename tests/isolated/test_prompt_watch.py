"""Prompts that take all time, or all memory, where nothing in their process stops them."""

from __future__ import annotations

import time

import psutil
import pytest

import inside
import localspec
from localspec.errors import OptionError
from localspec.streaming.answer_options import AnswerOptions
from localspec.streaming.record import AnswerRecord
from spawned import Endless, Hungry, Starved
from waiting import at_once, wait_until

pytestmark = pytest.mark.process

GREEDY = localspec.SamplingParams(temperature=0)
LONG = localspec.SamplingParams(temperature=0, ignore_eos=True)
STORY = "<|im_start|>user\nA story of a fox.<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture
def engine():
    with localspec.IsolatedEngine(draft_tokens=2, parallel=2) as opened:
        yield opened


def asked(engine, source):
    """The reply to a prompt that is made of anything."""
    options = AnswerOptions.of(sampling=GREEDY, max_tokens=4, queue=True)
    return inside.answer(engine, AnswerRecord(options, source)).reply()


@pytest.mark.parametrize(
    "source",
    [Endless(holds_interpreter=False), Endless(holds_interpreter=True)],
    ids=["in Python", "in C"],
)
def test_a_prompt_without_end_fails_and_who_waits_is_answered(engine, monkeypatch, source):
    """An answer that had begun is lost with the process, in words; one that waits is not."""
    monkeypatch.setattr("localspec.isolated.prompt_watch.MOST_PROMPT_S", 3.0)
    expected = engine.generate_raw(STORY, sampling=GREEDY, max_tokens=4).reply()
    first = engine.process_id
    begun = engine.generate_raw(STORY, sampling=LONG)
    said = next(begun).text
    waiting = engine.generate_raw(STORY, sampling=GREEDY, max_tokens=4, queue=True)
    with at_once(lambda: asked(engine, source), waiting.reply) as found:
        pass
    refusal, reply = found
    assert isinstance(refusal, OptionError)
    assert "took over 3 s" in str(refusal)
    assert refusal.hint
    assert reply.token_ids == expected.token_ids
    with pytest.raises(localspec.CrashedError, match="took over 3 s"):
        list(begun)
    assert begun.reply().text.startswith(said)
    assert engine.process_id != first
    assert not psutil.pid_exists(first)
    again = engine.generate_raw(STORY, sampling=GREEDY, max_tokens=4).reply()
    assert again.token_ids == expected.token_ids


def test_a_prompt_is_not_given_up_because_the_machine_is_busy(engine, monkeypatch):
    """What counts is the processor's time, which other programs may take."""
    monkeypatch.setattr("localspec.isolated.prompt_watch.MOST_PROMPT_S", 1.0)
    first = engine.process_id
    assert len(asked(engine, Starved(4.0)).token_ids) == 4
    assert engine.process_id == first


def test_a_prompt_that_takes_all_memory_fails(engine, monkeypatch):
    monkeypatch.setattr("localspec.isolated.prompt_watch.MOST_PROMPT_BYTES", 1 << 28)
    with pytest.raises(OptionError, match="of memory"):
        asked(engine, Hungry(1 << 30))
    assert engine.generate_raw("Hi", max_tokens=2).reply().token_ids


def test_questions_about_a_prompt_are_watched_too(engine, monkeypatch):
    monkeypatch.setattr("localspec.isolated.prompt_watch.MOST_PROMPT_S", 3.0)
    with pytest.raises(localspec.CrashedError, match="took over 3 s"):
        inside.made(engine, Endless(holds_interpreter=False))
    assert engine.generate_raw("Hi", max_tokens=2).reply().token_ids


def test_an_answer_whose_prompt_is_made_is_left_alone(engine, monkeypatch):
    """Time counts only while a prompt is being made."""
    monkeypatch.setattr("localspec.isolated.prompt_watch.MOST_PROMPT_S", 3.0)
    first = engine.process_id
    stream = engine.generate_raw(STORY, sampling=LONG)
    next(stream)
    record = inside.record_of(stream)
    wait_until(lambda: record.num_put_pieces >= 32)
    time.sleep(4.0)  # it pauses, for longer than a prompt may take
    assert next(stream).token_ids
    assert engine.process_id == first
