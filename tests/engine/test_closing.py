"""How an engine ends: dropped, left by a `with`, at the interpreter's end, in a fork."""

from __future__ import annotations

import _thread
import contextlib
import copy
import dataclasses
import gc
import json
import operator
import pickle
import subprocess
import sys
import threading

import llama_cpp
import pytest

import localspec
from engines import PLACES
from localspec.errors import DecodeError, EngineError
from waiting import wait_until

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


@pytest.fixture
def freed(monkeypatch):
    """Contexts that libllama was told to free."""
    contexts = []
    real = llama_cpp.llama_free
    monkeypatch.setattr(
        llama_cpp, "llama_free", lambda context: (contexts.append(context), real(context))
    )
    return contexts


def test_a_ctrl_c_as_an_answer_is_dropped_leaves_it_free(any_engine, monkeypatch):
    """The signal is noticed where the finalizer begins, before anything there can catch it."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # pytest's keeps the answer
    chat = any_engine.chat()
    for _ in range(2):
        kept = [chat.send("Hello", sampling=ENDLESS)]
        next(kept[0])
        with contextlib.suppress(KeyboardInterrupt):
            # By C alone: Python code would see the signal between the two.
            list(map(operator.methodcaller("__call__"), (_thread.interrupt_main, kept.clear)))
        assert chat.send("Hi", sampling=GREEDY, max_tokens=2).reply().token_ids


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
    wait_until(lambda: len(freed) >= 2)  # its thread may be within a decode
    assert len(set(freed)) == len(freed) == 2


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("way", ["cancelled", "a prompt is cut", "a prompt fails", "refused"])
def test_an_engine_is_freed_after_answers_that_errors_ended(freed, monkeypatch, way):
    """An error keeps the frames that it came through, which have the engine."""

    def fail(*_arguments, **_keywords):
        raise DecodeError("it failed", "")

    def on_prompt(*_progress):
        if way == "refused":
            fail()
        elif way == "a prompt is cut":
            engines[0].cancel()

    engines = [localspec.load()]
    if way == "a prompt fails":
        monkeypatch.setattr("localspec.llama.model.LlamaModel.prefill_chunk", fail)
    prompt = STORY if way == "cancelled" else STORY * 40
    with contextlib.suppress(DecodeError):
        for number, _ in enumerate(engines[0].generate_raw(prompt, on_prompt=on_prompt)):
            if number == 3:
                engines[0].cancel()
    engines.clear()
    wait_until(lambda: len(freed) >= 2)  # its thread may be at the end of the answer
    assert len(set(freed)) == len(freed) == 2


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
    thread.join(60)
    assert refusals == ["the engine is closed"]
    assert replies[-1].finish_reason == "cancelled"


def test_an_answer_is_not_copied(any_engine, monkeypatch):
    """Nor pickled; and what was begun of a copy is dropped quietly."""
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    with any_engine.generate_raw(STORY, sampling=ENDLESS) as stream:
        next(stream)
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(EngineError, match="cannot be copied"):
                copied(stream)
        gc.collect()
        assert next(stream).token_ids
    assert unraisable == []


def test_a_reply_is_data(any_engine):
    """It can be kept, sent, and written as JSON."""
    stream = any_engine.generate_raw(STORY, sampling=GREEDY, logprobs=2, max_tokens=9)
    pieces = list(stream)
    for each in (stream.reply(), *pieces):
        assert pickle.loads(pickle.dumps(each)) == each
        assert copy.deepcopy(each) == each
        written = json.loads(json.dumps(dataclasses.asdict(each)))
        assert written["text"] == each.text
    assert json.loads(json.dumps(dataclasses.asdict(stream.reply().stats)))["num_steps"] > 0


@pytest.mark.parametrize("way", ["its own", "the engine's"])
@pytest.mark.parametrize("max_tokens", [5, 30])
def test_text_that_waits_for_a_stop_string_is_among_the_pieces_of_a_cancelled_answer(
    any_engine, way, max_tokens
):
    """Once: what goes on behind it does not show it again."""
    asked = {"sampling": ENDLESS, "max_tokens": 30}
    whole = any_engine.chat().send("Hello", **asked).reply().text
    chat = any_engine.chat()
    asked["stop"] = whole + "@"  # all of it may be the beginning of this
    with chat.send("Hello", **{**asked, "max_tokens": max_tokens}) as stream:
        pieces = [next(stream) for _ in range(5)]
        assert "".join(piece.text for piece in pieces) == ""
        cancel = stream.cancel if way == "its own" else any_engine.cancel
        cancel()
        pieces += stream
    shown = "".join(piece.text for piece in pieces)
    assert shown == stream.reply().text != ""
    assert len(stream.reply().token_ids) == 5
    asked["max_tokens"] -= 5
    with chat.continue_answer(**asked) as stream:
        shown += "".join(piece.text for piece in stream)
    assert shown == chat.messages[-1]["content"] == whole


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
