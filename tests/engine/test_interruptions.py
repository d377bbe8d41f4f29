"""Ctrl-C and cancel at random moments: the next answer is a fresh engine's."""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
import sys
import time
from pathlib import Path

import pytest

import localspec
from examples import num_examples
from hybrid_maker import write_hybrid
from waiting import at_once

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

GREEDY = localspec.SamplingParams(temperature=0)
FOX = "Tell me a story about a fox."
OWL = "Tell me a story about an owl."  # answered without a near tie that rounding decides
AGAIN = "the fox and the owl and the fox and the owl and the"


@pytest.fixture(scope="module")
def loads(tmp_path_factory, demo_target, demo_draft, blurred_draft):
    """How each kind of engine is loaded, where it can be with models that decode quickly."""
    small = {"target": demo_draft, "draft": blurred_draft}
    folder = tmp_path_factory.mktemp("models")
    path = write_hybrid(folder / "hybrid.gguf", demo_target, "granitehybrid")
    hybrid = {"target": path, "draft": path, "context_length": 512}
    return {
        "pair": lambda: localspec.load(**small, draft_tokens=3),
        "hybrid": lambda: localspec.load(**hybrid, draft_tokens=3),
        "lanes": lambda: localspec.load(**small, draft_tokens=3, parallel=2),
        "isolated": lambda: localspec.IsolatedEngine(**small, draft_tokens=3),
    }


def use(engine):
    """Two conversations that take turns, and an answer that is left early."""
    one, two = engine.chat(), engine.chat()
    one.send(FOX, sampling=GREEDY, max_tokens=5).reply()
    two.send("Hi.", sampling=GREEDY, max_tokens=3).reply()
    for number, _ in enumerate(one.send("And an owl.", sampling=GREEDY, max_tokens=9)):
        if number == 4:
            break
    one.send("Thanks.", sampling=GREEDY, max_tokens=3).reply()
    engine.generate_raw(AGAIN, sampling=GREEDY, max_tokens=3, prediction=" fox").reply()


def answers(engine):
    """What has to be the same as of a fresh engine."""
    raw = engine.generate_raw(AGAIN, sampling=GREEDY, max_tokens=8).reply()
    return raw.token_ids, engine.chat().send(OWL, sampling=GREEDY, max_tokens=6).reply().text


@pytest.mark.process
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timer of that kind here")
@pytest.mark.parametrize("wish", ["ctrl-c", "cancel"])
@pytest.mark.parametrize("kind", ["pair", "hybrid", "lanes", "isolated"])
def test_an_interrupted_engine_answers_as_a_fresh_one(loads, kind, wish, monkeypatch):
    """Again and again, each time with a signal at a random moment of its use."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # pytest's keeps answers
    with loads[kind]() as fresh:
        expected = answers(fresh)
    struck, times = [], random.Random(17)

    def strike(*_signal):
        struck.append(wish)
        if wish == "ctrl-c":
            raise KeyboardInterrupt
        engine.cancel()

    before = signal.signal(signal.SIGALRM, strike)
    try:
        with loads[kind]() as engine:
            use(engine)
            takes_s = 0.0  # as busy as the machine is now
            for _ in range(num_examples(200)):
                started = time.perf_counter()
                try:
                    if takes_s:
                        signal.setitimer(signal.ITIMER_REAL, times.uniform(1e-4, takes_s))
                    use(engine)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    pass
                else:
                    takes_s = time.perf_counter() - started
                assert answers(engine) == expected
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert struck


def call_and_strike(function, event, strike, number):
    """Call a function, and `strike` at the number-th event that tracing shows of the package.

    Returns whether there are so many.
    """
    package = str(Path(localspec.__file__).parent)
    events = itertools.count()

    def trace(frame, what, _argument):
        if not frame.f_code.co_filename.startswith(package):
            return None
        if what == event and next(events) == number:
            strike()
        return trace

    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(None)
    return next(events) > number


def strike_everywhere(ask, event, strike):
    """Ask again and again, with a strike at another event each time; how many those were."""
    step = 5 // num_examples(5)
    numbers = itertools.count(random.randrange(step), step)
    return next(each for each in numbers if not call_and_strike(ask, event, strike, each))


KINDS = pytest.mark.parametrize(
    "kind", ["lanes", pytest.param("isolated", marks=pytest.mark.process)]
)


@KINDS
@pytest.mark.parametrize("cancelled", ["answer", "engine"])
def test_a_signal_handler_may_cancel_between_any_two_lines(loads, kind, cancelled):
    """In the thread that reads, which may hold any lock then."""
    asked = []

    def ask():
        asked[:] = [engine.chat().send(FOX, sampling=GREEDY, max_tokens=1)]
        asked[0].reply()

    def strike():
        for one in [engine] if cancelled == "engine" else asked:
            one.cancel()

    with loads[kind]() as engine:
        expected = answers(engine)
        with at_once(lambda: strike_everywhere(ask, "line", strike)) as found:
            pass
        assert found[0] > 100
        assert answers(engine) == expected


@KINDS
def test_ctrl_c_may_come_at_any_call(loads, kind, monkeypatch):
    """Between two calls Python serves no signal."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # pytest's keeps answers

    def strike():
        raise KeyboardInterrupt

    def ask():
        with contextlib.suppress(KeyboardInterrupt):
            engine.chat().send(FOX, sampling=GREEDY, max_tokens=1).reply()

    with loads[kind]() as engine:
        expected = answers(engine)
        with at_once(lambda: strike_everywhere(ask, "call", strike)) as found:
            pass
        assert found[0] > 50
        assert answers(engine) == expected
