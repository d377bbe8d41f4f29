"""An engine among threads and processes: it serves one at a time, or says why not."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time

import pytest

import inside
import localspec
from localspec.errors import BusyError, EngineError
from spawned import ALIKE, answer_there, load_again_and_again

GREEDY = localspec.SamplingParams(temperature=0)
STORY = "<|im_start|>user\nTell me a story about a fox.<|im_end|>\n<|im_start|>assistant\n"


def test_many_threads_get_whole_answers_or_a_refusal():
    """They ask and are refused or cancelled, chats by turns; no answer is a mixture.

    Prompts are decoded from wherever a cancel left the caches, in batches that round
    otherwise: so both questions have answers without near ties.
    """
    prompt = STORY.replace("Tell me a story about a fox.", "What is speculative decoding?")
    with localspec.load() as engine:

        def ask(number: int) -> localspec.Reply:
            if number % 2:
                return engine.generate_raw(prompt, sampling=GREEDY, max_tokens=30).reply()
            question = "tips for sleeping better"
            return engine.chat().send(question, sampling=GREEDY, max_tokens=30).reply()

        expected = [ask(0).text, ask(1).text]
        outcomes: list[tuple[int, localspec.Reply | Exception]] = []

        def ask_again_and_again(number: int) -> None:
            for _ in range(12):
                try:
                    outcomes.append((number, ask(number)))
                except Exception as error:
                    outcomes.append((number, error))
                    time.sleep(0.001 * number)

        threads = [threading.Thread(target=ask_again_and_again, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.03)
            engine.cancel()
        again = ask(1)
    assert len(outcomes) == 6 * 12
    errors = [outcome for _, outcome in outcomes if isinstance(outcome, Exception)]
    assert {type(error) for error in errors} == {BusyError}
    assert {str(error) for error in errors} == {"the engine is producing another answer"}
    for number, reply in outcomes:
        if not isinstance(reply, Exception):
            right = expected[number % 2]
            whole = reply.finish_reason != "cancelled"
            assert reply.text == (right if whole else right[: len(reply.text)])
    assert again.text == expected[1]


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_is_refused_and_harms_nothing(busy):
    """Also where the engine was at work when it was forked, and when the fork closes it."""
    # Its answer has no near ties.
    prompt = STORY.replace("Tell me a story about a fox.", "What is speculative decoding?")
    with localspec.load() as engine:
        expected = engine.generate_raw(prompt, sampling=GREEDY, max_tokens=20).reply()
        stream = engine.generate_raw(prompt, sampling=GREEDY, max_tokens=20)
        first = next(stream).text if busy else ""
        child = os.fork()
        if child == 0:
            code = 1
            try:
                for use in (
                    lambda: engine.generate_raw([5, 6]).reply(),
                    lambda: engine.chat().send("x").reply(),
                    localspec.load,
                ):
                    try:
                        use()
                    except EngineError as error:
                        code = 0 if "cannot be used in its fork" in str(error) else 2
                if not busy:
                    engine.close()
            except BaseException:
                code = 3
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert first + "".join(piece.text for piece in stream) == expected.text
        again = engine.generate_raw(prompt, sampling=GREEDY, max_tokens=20).reply()
        assert again.token_ids == expected.token_ids


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_reads_what_is_left_of_an_answer_that_is_over():
    with localspec.load() as engine:
        answer = engine.generate_raw(STORY, sampling=GREEDY, max_tokens=5)
        pieces = list(answer)
        inside.leave_unread(answer, pieces)
        child = os.fork()
        if child == 0:
            code = 1
            with contextlib.suppress(BaseException):
                code = 0 if list(answer) == pieces else 2
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.process
def test_a_spawned_process_loads_its_own():
    """And replies can be sent back, while an engine cannot be sent there."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=answer_there, args=(theirs, STORY)
    )
    process.start()
    theirs.close()
    with localspec.load(**ALIKE) as engine:
        expected = engine.generate_raw(STORY, sampling=GREEDY, max_tokens=20).reply()
        with pytest.raises(EngineError, match="cannot be sent"):
            pickle.dumps(engine)
    assert ours.recv().text == expected.text
    process.join()
    assert process.exitcode == 0


@pytest.mark.process
def test_a_thread_that_outlives_the_main_thread_loads_and_asks():
    """Pools of threads take nothing more by then."""
    code = """
import threading, localspec

def work():
    threading.main_thread().join()
    with localspec.load() as engine:
        print(engine.generate("Tell me a story.", max_tokens=4))

threading.Thread(target=work).start()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip(), done.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_hundred_loads_and_answers_leave_nothing_behind():
    """Memory, threads and open files stay where they were after the first few."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=load_again_and_again, args=(theirs,))
    process.start()
    theirs.close()
    before, after = ours.recv(), ours.recv()
    process.join()
    # A tenth of what one load of the demo pair takes, and 40 KB a load.
    assert after.resident_kb - before.resident_kb < 4_000
    assert (after.num_threads, after.num_files) == (before.num_threads, before.num_files)
