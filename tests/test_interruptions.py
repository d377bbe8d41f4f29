"""Whatever a signal handler raises, at whatever line: the next answer is a fresh engine's."""

from __future__ import annotations

import random
import signal
import threading
import time

import pytest
from head_maker import BlockHead, write_block_head, write_head_model
from hybrid_maker import write_hybrid
from interruptions import Struck, name_of, places, struck

import inside
import localspec
from examples import num_examples

GREEDY = localspec.SamplingParams(temperature=0)
FOX = "Tell me a story about a fox."
OWL = "Tell me a story about an owl."  # answered without a near tie that rounding decides
AGAIN = "the fox and the owl and the fox and the owl and the"
# What holds state that two places share.
LEASE = (
    "streaming/access.py",
    "engine/engine.py",
    "engine/base.py",
    "streaming/answer.py",
    "streaming/answer_run.py",
)
STEP = ("speculative/loop.py", "speculative/lookup.py", "speculative/proposers.py")
CACHES = ("engine/cache_pool.py", "llama/cache.py", "llama/context.py", "llama/model.py")
HEADS = ("speculative/heads.py", "llama/head.py", "llama/hidden_rows.py")
PROCESS = (
    "isolated/isolated_engine.py",
    "isolated/process.py",
    "streaming/answer.py",
    "streaming/answer_run.py",
)
BLOCK = ("llama/alone.py",)
LANES = (
    *BLOCK,
    "engine/lane.py",
    "llama/joint.py",
    "llama/joint_decode.py",
    "llama/joint_costs.py",
    "llama/lane_time.py",
)
KINDS = {
    "pair": (*LEASE, *STEP, *CACHES),
    "head": (*HEADS, "llama/model.py", "llama/context.py"),
    "block": ("speculative/heads.py", "llama/dflash.py", "llama/hidden_rows.py"),
    "hybrid": ("engine/cache_pool.py", "llama/cache.py"),
    "lanes": (*LANES, *CACHES, "engine/engine.py"),
    "adaptive": ("policy/adaptive.py", "policy/threads.py", "policy/thread_costs.py"),
}
# The usual run strikes every 21st line; the slow one every line, and every 23rd instruction.
EVENTS = [
    ("line", 21),
    pytest.param("line", 1, marks=pytest.mark.slow),
    pytest.param("opcode", 23, marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def loads(tmp_path_factory, demo_target, demo_draft, blurred_draft):
    """How each kind of engine is loaded, where it can be with models that decode quickly."""
    small = {"target": demo_draft, "draft": blurred_draft}
    folder = tmp_path_factory.mktemp("models")
    path = write_hybrid(folder / "hybrid.gguf", demo_target, "granitehybrid")
    hybrid = {"target": path, "draft": path, "context_length": 512}
    return {
        "pair": lambda: localspec.load(**small, draft_tokens=3),
        "head": lambda: localspec.load("demo@head", draft_tokens=3),
        "block": drafting_in_blocks(folder, demo_target),
        "hybrid": lambda: localspec.load(**hybrid, draft_tokens=3),
        "lanes": lambda: localspec.load(**small, draft_tokens=3, parallel=2),
        "adaptive": lambda: localspec.load(**small),
        "isolated": lambda: localspec.IsolatedEngine(**small, draft_tokens=3),
        "isolated, two": lambda: localspec.IsolatedEngine(**small, draft_tokens=3, parallel=2),
    }


def drafting_in_blocks(folder, demo_target):
    usual = {"context_length": 512, "draft_tokens": 3, "proposer": "head"}
    target = write_head_model(folder / "target.gguf", demo_target, "qwen3")
    block = write_block_head(folder / "block.gguf", target, BlockHead())
    return lambda: localspec.load(target=target, head=block, **usual)


def use(engine):
    """Two conversations that take turns, and an answer that is left early."""
    one, two = engine.chat(), engine.chat()
    one.send(FOX, sampling=GREEDY, max_tokens=5).reply()
    two.send("Hi.", sampling=GREEDY, max_tokens=3).reply()
    for number, _ in enumerate(one.send("And an owl.", sampling=GREEDY, max_tokens=9)):
        if number == 4:
            break
    one.send("Thanks.", sampling=GREEDY, max_tokens=3).reply()
    engine.generate_raw(
        AGAIN, sampling=GREEDY, max_tokens=3, prediction=" fox", draft_tokens=2
    ).reply()


def answers(engine):
    """What has to be the same as of a fresh engine."""
    raw = engine.generate_raw(AGAIN, sampling=GREEDY, max_tokens=8).reply()
    return raw.token_ids, engine.chat().send(OWL, sampling=GREEDY, max_tokens=6).reply().text


def check_places(load, files, event, every=1):
    """Strike at the places of a use, one by one, on one engine that has to go on."""
    with load() as fresh:
        expected = answers(fresh)
    wrong, num_struck = [], 0
    with load() as engine:
        use(engine)
        found = places(lambda: use(engine), files, event)[::every]
        for place in found:
            error = struck(lambda: use(engine), files, event, place)
            num_struck += error is not None
            # The error is there, and its traceback keeps whatever was at work.
            if answers(engine) != expected:
                wrong.append(name_of(place))
            del error
        engine.close()
        with pytest.raises(localspec.ClosedError):
            engine.generate_raw(AGAIN).reply()
    assert wrong == []
    assert num_struck > len(found) / 2  # where an answer comes by hangs on times, too


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("event", "every"), EVENTS)
def test_an_exception_at_any_place_leaves_an_engine_as_a_fresh_one(loads, kind, event, every):
    check_places(loads[kind], KINDS[kind], event, every)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_stays_of_an_answer_is_in_one_piece_wherever_it_is_struck(engine):
    """Tokens, their text, and their log-probabilities."""
    files, asked = ["streaming/answer_run.py"], []

    def ask():
        answer = engine.generate_raw(AGAIN, sampling=GREEDY, max_tokens=4, logprobs=0)
        asked.append(inside.answer_state(answer))
        answer.reply()

    num_kept = 0
    for place in places(ask, files, "line"):
        error = struck(ask, files, "line", place)
        if asked[-1].result is not None:
            reply = asked[-1].result[0]
            num_kept += 0 < len(reply.token_ids) < 4
            assert reply.text == engine.detokenize(reply.token_ids), name_of(place)
            assert len(reply.logprobs) == len(reply.token_ids), name_of(place)
        del error
    assert num_kept > 5


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_an_exception_at_any_line_leaves_the_answers_beside_it(loads, every):
    """Which go on in another thread, with decodes that both have a part in."""
    with loads["lanes"]() as engine:

        def ask(num_tokens):
            options = {"sampling": GREEDY, "max_tokens": num_tokens, "queue": True}
            assert engine.generate_raw(AGAIN, **options).reply().token_ids

        ends, errors = threading.Event(), []

        def go_on():
            try:
                while not ends.is_set():
                    ask(15)
            except Exception as error:
                errors.append(error)

        beside = threading.Thread(target=go_on, daemon=True)
        beside.start()
        # Who waits for whom differs from time to time.
        found = {each: None for _ in range(3) for each in places(lambda: ask(6), LANES, "line")}
        num_struck = 0
        for place in list(found)[::every]:
            error = struck(lambda: ask(6), LANES, "line", place)
            num_struck += error is not None
            del error
            ask(2)
        ends.set()
        beside.join(60)
        assert not beside.is_alive()
        assert errors == []
        assert num_struck > 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_exception_at_any_instruction_of_a_block_leaves_the_machine_free(loads):
    """Also in front of the first one of its end, while the traceback keeps what it had."""
    check_places(loads["lanes"], BLOCK, "opcode")


@pytest.mark.process
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", ["isolated", "isolated, two"])
@pytest.mark.parametrize(("event", "every"), EVENTS)
def test_an_exception_in_front_of_another_process_leaves_it_in_order(loads, kind, event, every):
    """At most a new process is begun."""
    check_places(loads[kind], PROCESS, event, every)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("event", "every"),
    [
        ("line", 5),
        pytest.param("line", 1, marks=pytest.mark.slow),
        pytest.param("opcode", 17, marks=pytest.mark.slow),
    ],
)
def test_an_engine_closes_after_an_exception_at_any_place_of_closing(
    demo_draft, blurred_draft, event, every
):
    """With streams that are open, and one that waits in nobody's line any more."""

    def opened():
        engine = localspec.load(target=demo_draft, draft=blurred_draft, draft_tokens=0)
        streams = [engine.generate_raw(AGAIN, sampling=GREEDY), engine.generate_raw(AGAIN)]
        next(streams[0])
        return engine, streams

    engine, _streams = opened()
    found = places(lambda: engine.close(), LEASE, event)
    for place in found[::every]:
        engine, streams = opened()
        error = struck(lambda one=engine: one.close(), LEASE, event, place)
        engine.close()
        with pytest.raises(localspec.ClosedError):
            engine.generate_raw(AGAIN).reply()
        assert list(streams[0]) == []
        del error


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timer of that kind here")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", [*KINDS, "isolated"])
def test_signals_at_any_time_leave_an_engine_as_a_fresh_one(loads, kind):
    """Real ones, whose handler raises; the seed is that of the times."""
    times, num_times = random.Random(17), num_examples(300)

    def strike(*_signal):
        raise Struck

    with loads[kind]() as fresh:
        expected = answers(fresh)
    before = signal.signal(signal.SIGALRM, strike)
    num_struck = 0
    try:
        with loads[kind]() as engine:
            use(engine)
            started = time.perf_counter()
            use(engine)
            takes_s = time.perf_counter() - started
            for _ in range(num_times):
                started = time.perf_counter()
                try:
                    signal.setitimer(signal.ITIMER_REAL, times.uniform(1e-4, takes_s))
                    use(engine)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except Struck:
                    num_struck += 1
                else:  # as busy as the machine is now
                    takes_s = time.perf_counter() - started
                assert answers(engine) == expected
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert num_struck > num_times / 3
