"""How an engine ends: dropped, left by a `with`, at the interpreter's end, in a fork."""

from __future__ import annotations

import copy
import dataclasses
import gc
import itertools
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback

import llama_cpp
import pytest

import localspec
from engines import PLACES
from localspec.errors import EngineError, OptionError
from spawned import isolate_there

GREEDY = localspec.SamplingParams(temperature=0)
ENDLESS = localspec.SamplingParams(temperature=0, ignore_eos=True)
STORY = "<|im_start|>user\nTell me a story about a fox.<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture
def no_collector():
    """What is freed is freed by the last reference alone."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(params=PLACES)
def any_engine(request):
    with request.param() as opened:
        yield opened


@pytest.fixture(scope="module", params=PLACES)
def kept_engine(request):
    with request.param() as opened:
        yield opened


@pytest.fixture
def freed(monkeypatch):
    """Contexts that libllama was told to free."""
    contexts = []
    real = llama_cpp.llama_free
    monkeypatch.setattr(
        llama_cpp, "llama_free", lambda context: (contexts.append(context), real(context))
    )
    return contexts


@pytest.mark.usefixtures("no_collector")
def test_a_dropped_engine_frees_its_models(freed):
    """With its chats and streams, and with the last of them."""
    engine = localspec.load()
    chat = engine.chat()
    chat.send("Hello", max_tokens=3).reply()
    stream = engine.generate_raw(STORY)
    next(stream)
    del engine
    assert chat.system is None
    assert not freed
    del chat, stream
    assert len(set(freed)) == len(freed) == 2


@pytest.mark.usefixtures("no_collector")
def test_a_vocabulary_keeps_what_it_reads(freed):
    engine = localspec.load(draft_tokens=0)
    vocabulary = engine.vocabulary
    expected = vocabulary.tokenize("A fox", parse_special=False)
    del engine
    assert vocabulary.tokenize("A fox", parse_special=False) == expected
    assert not freed
    del vocabulary
    assert len(freed) == 1


@pytest.mark.usefixtures("no_collector")
def test_a_dropped_engine_gives_an_adopted_llama_back(demo_target):
    """Its owner goes on with it, and another engine can have it."""
    llama = llama_cpp.Llama(str(demo_target), n_ctx=256, n_batch=64, verbose=False)
    before = llama.create_completion("The fox", max_tokens=8, temperature=0)["choices"]
    for _ in range(2):
        engine = localspec.load(target=llama, draft_tokens=0)
        with pytest.raises(EngineError, match="in another engine"):
            localspec.load(target=llama)
        assert engine.generate_raw("The fox", max_tokens=4).reply().token_ids
        del engine
        after = llama.create_completion("The fox", max_tokens=8, temperature=0)["choices"]
        assert after[0]["text"] == before[0]["text"]
    llama.close()


def test_a_failed_load_frees_what_it_has_opened(freed, demo_target, monkeypatch):
    from localspec.llama.model import LlamaModel

    def fail(*_arguments):
        raise RuntimeError("as if a trial decode had failed")

    monkeypatch.setattr(LlamaModel, "decode", fail)
    with pytest.raises(RuntimeError, match="trial decode"):
        localspec.load(target=demo_target)
    assert len(freed) == 1


@pytest.mark.parametrize("raised", [ValueError, KeyboardInterrupt, SystemExit])
def test_leaving_the_block_masks_nothing(any_engine, raised):
    """Whatever is still open, and closes all the same."""
    stream = any_engine.generate_raw(STORY, sampling=ENDLESS)
    never_read = any_engine.generate_raw(STORY)
    next(stream)
    with pytest.raises(raised), any_engine:
        raise raised
    assert stream.reply().finish_reason == "cancelled"
    assert stream.reply().text or stream.reply().token_ids
    assert never_read.reply().text == ""
    with pytest.raises(localspec.ClosedError, match="closed"):
        any_engine.generate_raw(STORY).reply()


def test_a_break_leaves_the_block(any_engine):
    with any_engine:
        stream = any_engine.generate_raw(STORY, sampling=ENDLESS)
        for _ in stream:
            break
    assert list(stream) == []
    assert len(stream.reply().token_ids) == 1


def test_leaving_the_block_ends_what_other_threads_read(any_engine):
    """They get the end of their answer, and no other."""
    replies, refusals, begun = [], [], threading.Event()

    def read_again_and_again():
        try:
            while True:
                stream = any_engine.generate_raw(STORY, sampling=ENDLESS)
                for _ in stream:
                    begun.set()
                replies.append(stream.reply())
        except EngineError as error:
            refusals.append(str(error))

    thread = threading.Thread(target=read_again_and_again)
    with any_engine:
        thread.start()
        assert begun.wait(60)
    thread.join(20)
    assert refusals == ["the engine is closed"]
    assert replies[-1].finish_reason == "cancelled"


def test_a_stream_that_another_thread_closes_just_ends(kept_engine):
    """At whatever moment of its reading; never with an error of Python's."""
    for delay in range(0, 30_000, 1_000):
        stream = kept_engine.generate_raw(STORY, sampling=ENDLESS)
        ends = []

        def read(stream=stream, ends=ends):
            try:
                ends.append(sum(1 for _ in stream))
            except BaseException as error:
                ends.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        for _ in range(delay):
            pass
        stream.close()
        reader.join()
        assert isinstance(ends[0], int), ends
        assert stream.reply().finish_reason == "cancelled"


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_signal_handler_that_leaves_the_block_does_not_wait_for_itself(
    monkeypatch, has_begun
):
    """It cannot close what it has interrupted, and says so; the answer ends."""
    from localspec.llama.model import LlamaModel

    engine = localspec.load(draft_tokens=0)
    errors, real, numbers = [], LlamaModel.decode, itertools.count()

    def leave(*_signal):
        try:
            engine.__exit__(None, None, None)
        except EngineError as error:
            errors.append(str(error))

    def decode(*arguments):
        if next(numbers) == (5 if has_begun else 0):
            signal.raise_signal(signal.SIGTERM)
        return real(*arguments)

    monkeypatch.setattr(LlamaModel, "decode", decode)
    previous = signal.signal(signal.SIGTERM, leave)
    try:
        reply = engine.generate_raw(STORY, sampling=ENDLESS).reply()
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert (reply.finish_reason, bool(reply.token_ids)) == ("cancelled", has_begun)
    (error,) = errors
    assert "thread that is to close it" in error
    engine.close()


def test_a_stream_that_is_closed_before_it_begins_says_nothing(kept_engine):
    """No trace but an empty reply, which says how it would have been made."""
    chat = kept_engine.chat()
    chat.send("Hello", sampling=GREEDY, max_tokens=3).reply()
    for seed, rule in ((None, "block"), (7, "coupled")):
        stream = chat.send("Tell me a story.", seed=seed, logprobs=2)
        stream.close()
        reply = stream.reply()
        assert (reply.text, reply.token_ids, reply.logprobs) == ("", (), ())
        assert (reply.finish_reason, reply.seed, reply.rule) == ("cancelled", seed, rule)
        assert reply.stats.completion_tokens == 0
        assert reply.stats.prompt_tokens == 0  # no prompt was made, even
        assert list(stream) == []
    assert (len(chat.messages), chat.num_asked) == (2, 1)


def test_a_reply_is_data(kept_engine):
    """It can be kept, sent, and written as JSON."""
    stream = kept_engine.generate_raw(STORY, sampling=GREEDY, logprobs=2, max_tokens=9)
    pieces = list(stream)
    for each in (stream.reply(), *pieces):
        assert pickle.loads(pickle.dumps(each)) == each
        assert copy.deepcopy(each) == each
        written = json.loads(json.dumps(dataclasses.asdict(each)))
        assert written["text"] == each.text
    assert json.loads(json.dumps(dataclasses.asdict(stream.reply().stats)))["num_steps"] > 0


SCRIPT = """
import contextlib, threading
import localspec
engine = localspec.{kind}()
chat = engine.chat()
sampling = localspec.SamplingParams(temperature=0, ignore_eos=True)
stream = chat.send("Tell me a story.", sampling=sampling)
if {threaded}:
    begun = threading.Event()
    def read():
        with contextlib.suppress(localspec.EngineError):
          while True:
            for piece in engine.generate_raw("A fox", sampling=sampling):
                begun.set()
    threading.Thread(target=read, daemon=True).start()
    begun.wait()
else:
    print(next(stream).token_ids)
prepared = threading.Thread(target=chat.prepare, daemon=True)
prepared.start()
if {threaded} and {adopts}:
    # Whose engine is gone.
    vocabulary = localspec.load(draft_tokens=0).vocabulary
    def spell():
        with contextlib.suppress(localspec.EngineError):
          while True:
            vocabulary.spellings()
    threading.Thread(target=spell, daemon=True).start()
if {adopts}:
    import llama_cpp
    from localspec.presets.located import locate
    from localspec.presets.presets import find_preset
    target = locate(find_preset("demo"))["target"]
    llama = llama_cpp.Llama(str(target), n_ctx=128, verbose=False)
    other = localspec.load(target=llama, draft_tokens=0)
    kept = other.generate_raw("A fox", sampling=sampling)
    next(kept)
print("the end")
"""


@pytest.mark.process
@pytest.mark.parametrize("threaded", [False, True], ids=["suspended", "threaded"])
@pytest.mark.parametrize("kind", ["load", "IsolatedEngine"])
def test_the_interpreter_ends_quietly(tmp_path, kind, threaded):
    """With streams open, with daemon threads at work, with a `Llama` handed in."""
    path = tmp_path / "script.py"
    script = SCRIPT.format(kind=kind, threaded=threaded, adopts=kind == "load")
    body = "\n    ".join(script.strip().splitlines())
    path.write_text(f"if __name__ == '__main__':\n    {body}\n")
    done = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.endswith("the end\n")
    assert (done.stderr, done.returncode) == ("", 0)


LATE_WORK = """
import asyncio, threading
import localspec
engine = localspec.load()
greedy = localspec.SamplingParams(temperature=0)
def work():
    threading.main_thread().join()
    print(engine.vocabulary.tokenize("word " * 500, parse_special=False)[:1] != [])
    async def ask():
        reply = await engine.generate_raw("A fox", sampling=greedy, max_tokens=4)
        return len(reply.token_ids)
    print(asyncio.run(ask()))
    print(len(engine.generate_raw("A fox", sampling=greedy, max_tokens=4).reply().token_ids))
threading.Thread(target=work).start()
"""


@pytest.mark.process
def test_a_thread_that_outlives_the_main_one_has_all_of_its_engine(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(LATE_WORK)
    done = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout.split(), done.stderr) == (["True", "4", "4"], "")


@pytest.mark.process
def test_an_asynchronous_stream_that_is_left_open_does_not_hold_up_the_exit(tmp_path):
    """The prompt alone takes seconds; whoever stops the loop does not wait for it."""
    path = tmp_path / "script.py"
    path.write_text(
        """
import asyncio
import localspec
engine = localspec.load()
seen = []
stream = engine.generate_raw([5] * 2000, on_prompt=lambda *places: seen.append(places))
async def begun():
    while not seen:
        await asyncio.sleep(0.001)
loop = asyncio.new_event_loop()
task = loop.create_task(stream.__anext__())
loop.run_until_complete(begun())
print(task.done(), seen[0][0] < seen[0][1], flush=True)
"""
    )
    done = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0
    assert done.stdout == "False True\n"
    assert "Traceback" not in done.stderr


def run_in_fork(work):
    """Its exit code: 0 if `work` returned, 9 if it raised; SIGALRM ends one that hangs."""
    child = os.fork()
    if child == 0:
        code = 9
        try:
            signal.alarm(20)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_of_a_process_that_has_loaded_is_told_so(demo_target):
    """It used to wait for threads that did not come along."""
    localspec.load(draft_tokens=0).close()
    llama = llama_cpp.Llama(str(demo_target), n_ctx=64, verbose=False)

    def load_here():
        for arguments in ({}, {"target": llama}):
            with pytest.raises(
                localspec.ForkedError, match="cannot be used in its fork"
            ) as caught:
                localspec.load(**arguments)
            assert "spawn" in caught.value.hint

    assert run_in_fork(load_here) == 0
    llama.close()


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_leaves_the_block_of_its_parent():
    """Also where a thread that it does not have was reading."""
    with localspec.load() as engine:
        stream, begun = engine.generate_raw(STORY, sampling=ENDLESS), threading.Event()

        def read():
            for _ in stream:
                begun.set()

        thread = threading.Thread(target=read)
        thread.start()
        assert begun.wait(60)

        def leave():
            with engine:
                pass

        assert run_in_fork(leave) == 0
        stream.cancel()
        thread.join()
        assert engine.generate_raw(STORY, max_tokens=3).reply().token_ids


@pytest.mark.process
def test_an_isolated_engine_of_a_daemonic_process_is_refused():
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=isolate_there, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    error = ours.recv()
    process.join()
    assert isinstance(error, EngineError)
    assert "daemonic" in str(error)
    assert error.hint


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop": 5}, "stop string is 5"),
        ({"stop": ["a", None]}, "stop string is None"),
        ({"stop": b"x"}, "stop string is"),
        ({"sampling": {"temperature": 0}}, "sampling is"),
        ({"max_tokens": True}, "max_tokens is True"),
        ({"max_tokens": 2.5}, "max_tokens is 2.5"),
        ({"logprobs": "5"}, "logprobs is '5'"),
        ({"seed": "abc"}, "seed is 'abc'"),
        ({"seed": -1}, "seed is -1"),
        ({"rule": "exact"}, "rule of verification 'exact'"),
    ],
)
def test_options_of_a_wrong_type_are_ours_to_refuse(kept_engine, options, message):
    with pytest.raises(OptionError, match=message) as caught:
        kept_engine.generate_raw(STORY, **options).reply()
    assert caught.value.hint


def test_no_stop_string_is_none(kept_engine):
    reply = kept_engine.generate_raw(STORY, stop=None, sampling=GREEDY, max_tokens=5).reply()
    assert reply == dataclasses.replace(
        kept_engine.generate_raw(STORY, sampling=GREEDY, max_tokens=5).reply(),
        stats=reply.stats,
    )
