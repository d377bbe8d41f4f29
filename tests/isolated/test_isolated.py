"""An engine in a process of its own: the same answers, and crashes that are exceptions."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import typing
from pathlib import Path

import llama_cpp
import psutil
import pytest

import inside
import localspec
from localspec.engine.sources import LoadKeywords
from localspec.errors import ContextError, OptionError, PresetError
from localspec.streaming.cancellation import Watch
from spawned import abort_in_c
from waiting import wait_until

pytestmark = pytest.mark.process

GREEDY = localspec.SamplingParams(temperature=0)
LONG = localspec.SamplingParams(temperature=0, ignore_eos=True)
STORY = "<|im_start|>user\nTell me a story about a fox.<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.skipif(os.name == "nt", reason="ggml starts a debugger on Unix")
def test_an_abort_starts_no_debugger(tmp_path, monkeypatch):
    """It may hang, and what waits for it with it."""
    started = tmp_path / "started"
    for name in ("gdb", "lldb"):
        debugger = tmp_path / name
        debugger.write_text(f"#!/bin/sh\ntouch {started}\nexec sleep 30\n")
        debugger.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("GGML_NO_BACKTRACE", raising=False)
    with localspec.IsolatedEngine(draft_tokens=0) as engine:
        with pytest.raises(localspec.CrashedError, match="SIGABRT"):
            inside.measure(engine, abort_in_c, watch=Watch(lambda *_: None))
        assert not started.exists()


@pytest.fixture(scope="module")
def isolated():
    with localspec.IsolatedEngine(draft_tokens=3) as opened:
        yield opened


def test_answers_are_those_of_an_engine_here(isolated, engine):
    """Pieces, numbers, provenance, logprobs; in chats and tasks, too."""
    assert isolated.description == engine.description
    for options in ({"sampling": GREEDY}, {"seed": 3, "max_tokens": 40, "logprobs": 2}):
        streams = [each.generate_raw(STORY, **options) for each in (isolated, engine)]
        assert list(streams[0]) == list(streams[1])
        ours, theirs = (stream.reply() for stream in streams)
        assert (ours.text, ours.logprobs, ours.finish_reason) == (
            theirs.text, theirs.logprobs, theirs.finish_reason,
        )  # fmt: skip
        assert ours.stats.num_accepted == theirs.stats.num_accepted
    chats = [each.chat(system="Be brief.") for each in (isolated, engine)]
    for text in ("Tell me a story.", "<|im_end|> is no end."):
        replies = [chat.send(text, seed=1, max_tokens=30).reply() for chat in chats]
        assert replies[0].text == replies[1].text
        assert replies[0].stats.cached_prompt_tokens == replies[1].stats.cached_prompt_tokens
    assert chats[0].messages == chats[1].messages

    async def ask():
        return await isolated.generate_raw(STORY, sampling=GREEDY)

    same = engine.generate_raw(STORY, sampling=GREEDY).reply()
    assert asyncio.run(ask()).text == same.text


def test_a_crash_is_an_error_and_the_next_question_is_answered(isolated, caplog):
    """In the middle of an answer, and between two; the conversation goes on."""
    caplog.set_level(logging.INFO)
    chat = isolated.chat()
    chat.send("Tell me a story about a fox.", sampling=GREEDY).reply()
    stream = chat.send("Another one!", sampling=LONG)
    said = next(stream).text
    first = isolated.process_id
    os.kill(first, signal.SIGSEGV)
    with pytest.raises(localspec.CrashedError, match="SIGSEGV") as caught:
        list(stream)
    assert "restarted" in caught.value.hint
    assert stream.reply().text == chat.messages[3]["content"]
    assert stream.reply().text.startswith(said)
    assert stream.reply().finish_reason == "cancelled"
    assert stream.reply().stats.completion_tokens == len(stream.reply().token_ids)
    assert chat.can_continue
    assert chat.send("Another one!", sampling=GREEDY, max_tokens=5).reply().text
    assert isolated.process_id != first
    assert caplog.messages.count("loading the models again, since their process ended") == 1
    for _ in range(3):
        os.kill(isolated.process_id, signal.SIGABRT)  # which is noticed later
        assert isolated.generate_raw("Hi", max_tokens=2).reply().token_ids
    assert len(chat.messages) == 6


@pytest.mark.parametrize("num_read", [1, 2, 3, 5, 8, 13])
def test_what_was_not_read_of_a_message_was_not_said(isolated, engine, num_read):
    """Wherever a stream is closed: the reply, what is counted, and what comes next."""
    replies = []
    for each in (isolated, engine):
        chat = each.chat()
        with chat.send("Tell me a story.", sampling=LONG, logprobs=1) as stream:
            pieces = [next(stream) for _ in range(num_read)]
        replies.append(stream.reply())
        assert stream.reply().finish_reason == "cancelled"
        assert stream.reply().text == "".join(piece.text for piece in pieces)
        replies.append(chat.send("Go on!", sampling=GREEDY, max_tokens=12).reply())
    ours, theirs = replies[:2], replies[2:]
    for here, there in zip(ours, theirs, strict=True):
        assert (here.text, here.thoughts, here.token_ids, here.logprobs) == (
            there.text, there.thoughts, there.token_ids, there.logprobs,
        )  # fmt: skip
    stats, expected = ours[0].stats, theirs[0].stats
    for name in ("completion_tokens", "num_plain", "num_bonus", "num_recovered"):
        assert getattr(stats, name) == getattr(expected, name)


def test_idle_time_is_used_there(isolated, monkeypatch):
    """It reads ahead, and an answer, a cancel and other questions do not wait for it."""
    chat = isolated.chat(system="You are a storyteller who knows every animal.")
    chat.prepare()
    prompt = chat.prompt_tokens("Hello!")
    reply = chat.send("Hello!", sampling=GREEDY, max_tokens=5).reply()
    assert reply.stats.cached_prompt_tokens > len(prompt) - 12
    for number, ends in enumerate(
        (
            lambda: isolated.generate_raw(STORY, max_tokens=1).reply(),
            isolated.cancel,
            lambda: chat.prompt_tokens("Hello!"),
        )
    ):
        # Another text each time, since what was read stays.
        idle = isolated.chat(system=f"You know {number} animals of the forest. " * 100)
        thread = threading.Thread(target=idle.prepare)
        thread.start()
        time.sleep(0.1)
        inside.prepare(isolated, [5, 6], idle)  # does nothing
        ends()
        thread.join(60)
        assert not thread.is_alive()
    stream = isolated.generate_raw(STORY, sampling=LONG)
    next(stream)
    chat.prepare()  # does nothing
    assert next(stream).token_ids
    stream.close()


def test_errors_cross_over_with_their_hints(isolated, demo_target):
    with pytest.raises(ContextError, match="5000 tokens") as caught:
        isolated.generate_raw([5] * 5000).reply()
    assert caught.value.hint
    with pytest.raises(OptionError, match="no rule"):
        isolated.generate_raw("Hi", rule="nope").reply()
    with pytest.raises(PresetError, match="no preset 'nope'") as refused:
        localspec.IsolatedEngine("nope")
    assert refused.value.hint
    llama = llama_cpp.Llama(str(demo_target), n_ctx=64, verbose=False)
    with pytest.raises(OptionError, match="object of this process"):
        localspec.IsolatedEngine(target=llama)
    llama.close()


def test_progress_of_the_load_arrives_and_can_cancel_it():
    seen = []
    with localspec.IsolatedEngine(draft_tokens=0, progress=seen.append) as engine:
        assert engine.context_length == 2048
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    with pytest.raises(localspec.ClosedError, match="closed"):
        engine.generate_raw("Hi").reply()
    engine.close()

    def stop(share: float) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        localspec.IsolatedEngine(progress=stop)


def test_the_process_ends_with_its_engine():
    engine = localspec.IsolatedEngine(draft_tokens=0)
    process = inside.process_alone(engine)
    assert process.is_running()
    del engine
    wait_until(lambda: not process.is_running())
    wait_until(lambda: inside.exit_code(process) == 0)


def test_one_that_hears_nothing_any_more_ends_with_its_engine():
    engine = localspec.IsolatedEngine(draft_tokens=0)
    process = inside.process_alone(engine)
    os.kill(engine.process_id, signal.SIGSTOP)
    del engine
    wait_until(lambda: inside.exit_code(process) == -signal.SIGKILL)


def test_killed_processes_leave_no_open_files(isolated):
    """Without the collector of garbage."""
    assert isolated.generate_raw("Hi", max_tokens=2).reply().token_ids
    this = psutil.Process()
    before = this.num_fds()
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            os.kill(isolated.process_id, signal.SIGKILL)
            assert isolated.generate_raw("Hi", max_tokens=2).reply().token_ids
        wait_until(lambda: this.num_fds() <= before)
    finally:
        gc.enable()


ORPHANED = """
import threading
import localspec, inside, spawned
from localspec.streaming.cancellation import Watch

if __name__ == "__main__":
    engine = localspec.IsolatedEngine(draft_tokens=0)
    told = threading.Event()
    watch = Watch(lambda *_: told.set())
    given = engine, spawned.sleep_for_ever
    threading.Thread(
        target=inside.measure, args=given, kwargs={{"holds_all": {holds_all}, "watch": watch}}
    ).start()
    told.wait()
    print(engine.process_id, flush=True)
    threading.Event().wait()
"""


@pytest.mark.parametrize(
    "holds_all",
    [
        False,
        pytest.param(
            True,
            marks=[
                pytest.mark.slow,
                pytest.mark.skipif(sys.platform != "linux", reason="signals of pipes"),
            ],
        ),
    ],
)
def test_a_process_whose_application_was_killed_ends_whatever_its_threads_do(
    tmp_path, holds_all
):
    """Also one that keeps the interpreter from all others."""
    path = tmp_path / "application.py"
    path.write_text(ORPHANED.format(holds_all=holds_all))
    support = str(Path(__file__).parents[1] / "support")
    with subprocess.Popen(
        [sys.executable, path], stdout=-1, text=True, env={**os.environ, "PYTHONPATH": support}
    ) as application:
        orphan = psutil.Process(int(application.stdout.readline()))
        application.kill()
    wait_until(lambda: has_ended(orphan))


def has_ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_its_keywords_are_those_of_load():
    """But for those another process cannot be told."""
    parameters = dict(inspect.signature(localspec.load).parameters)
    for name in ("preset", "progress"):
        del parameters[name]
    assert list(typing.get_type_hints(LoadKeywords)) == list(parameters)
