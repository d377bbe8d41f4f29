"""The thread that computes: how far it is ahead, whose errors it raises, and how it ends."""

from __future__ import annotations

import gc
import signal
import threading
import time
import traceback

import pytest

import inside
import localspec
from inside import worker_of
from localspec.engine.inbox_thread import InboxThread
from localspec.sampling.chain import SamplerChain
from localspec.speculative.metrics import Provenance
from localspec.streaming.reply import Piece
from waiting import wait_until

ENDLESS = localspec.SamplingParams(temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def engine():
    with localspec.load(draft_tokens=0, context_length=512, parallel=2) as opened:
        yield opened


@pytest.mark.parametrize("draft_tokens", [None, 3])
def test_what_loads_leaves_no_thread_behind_that_has_computed(monkeypatch, draft_tokens):
    """Its OpenMP threads would outnumber the cores beside the worker's, and all sleep then."""
    threads = []

    def noted(decode):
        def note(*arguments, **keywords):
            threads.append(threading.current_thread())
            return decode(*arguments, **keywords)

        return note

    inside.replace_decode_batch(noted, monkeypatch)
    with localspec.load(draft_tokens=draft_tokens):
        assert threads
        assert not any(thread.is_alive() for thread in threads)


def wait_for_pieces(stream, number):
    """Until so many pieces were produced, read or not."""
    wait_until(lambda: inside.record_of(stream).num_put_pieces >= number)


def test_an_answer_waits_for_a_reader_who_is_32_pieces_behind(engine):
    before = engine.num_decodes
    with engine.generate_raw("A fox", sampling=ENDLESS, max_tokens=60) as stream:
        pieces = [next(stream)]
        wait_for_pieces(stream, 33)
        assert 20 < engine.num_decodes - before < 40
        beside = engine.generate_raw("An owl", sampling=ENDLESS, max_tokens=50).reply()
        assert len(beside.token_ids) == 50
        pieces += stream
    assert len(pieces) == 60
    assert stream.reply().text == "".join(piece.text for piece in pieces)


def test_an_answer_that_pauses_has_sent_all_that_its_reader_waits_for():
    """Its process sends several pieces together, and is told of several that were read."""
    sent = []
    record = inside.served_record(lambda message: sent.extend(message.pieces))
    record.note_read(16)  # 31 were read, and the next to be heard of is the 32nd
    record.num_put_pieces = 31
    for _ in range(17):
        record.put(Piece("a", (1,), Provenance.ACCEPTED))
    assert record.is_ahead
    assert len(sent) == 17


@pytest.mark.parametrize("way", ["close", "cancel", "cancel all"])
def test_what_was_not_read_was_not_said(engine, way):
    whole = engine.generate_raw("A fox", sampling=ENDLESS, max_tokens=20).reply()
    stream = engine.generate_raw("A fox", sampling=ENDLESS, max_tokens=20)
    pieces = [next(stream) for _ in range(7)]
    wait_for_pieces(stream, 20)
    {"close": stream.close, "cancel": stream.cancel, "cancel all": engine.cancel}[way]()
    assert sum(len(piece.token_ids) for piece in (*pieces, *stream)) == 7
    reply = stream.reply()
    assert reply.token_ids == whole.token_ids[:7]
    assert whole.text.startswith(reply.text)
    assert reply.finish_reason == "cancelled"
    assert reply.stats.completion_tokens == reply.stats.num_plain == 7


@pytest.mark.parametrize("way", ["collected", "interrupted"])
def test_what_was_read_is_remembered_however_the_reading_ends(engine, monkeypatch, way):
    chat, worker = engine.chat(), worker_of(engine)

    def interrupted():
        monkeypatch.undo()
        raise KeyboardInterrupt  # a second one, while the first waits for the end

    answer = chat.send("Hi", sampling=ENDLESS, max_tokens=40)
    text = next(answer).text + next(answer).text
    if way == "interrupted":
        monkeypatch.setattr(inside.record_of(answer).outbox, "take", interrupted)
        with pytest.raises(KeyboardInterrupt):
            answer.close()
        worker.call(lambda: None)
    else:
        kept = [answer]
        kept.append(kept)
        del answer, kept
        worker.call(gc.collect)  # in the worker, which cannot wait for itself
        worker.call(lambda: None)
    assert chat.messages[-1]["content"] == text


def test_an_error_ends_its_own_answer_and_says_where_it_was(engine, monkeypatch):
    distributions = SamplerChain.distributions

    def broken(self, *given):
        if self.params.top_k == 7:
            raise ZeroDivisionError("as of a fault in a sampler")
        return distributions(self, *given)

    monkeypatch.setattr(SamplerChain, "distributions", broken)
    with engine.generate_raw("A fox", sampling=ENDLESS, max_tokens=60) as stream:
        next(stream)
        with pytest.raises(ZeroDivisionError) as caught:
            engine.generate_raw("An owl", top_k=7, max_tokens=9).reply()
        places = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert {"reply", "broken"} <= {*places}
        assert len(list(stream)) == 59
    assert engine.generate_raw("An owl", max_tokens=3).reply().token_ids


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals of Unix")
def test_checks_compute_in_its_thread_and_ctrl_c_ends_them(engine):
    def decode(loop):
        loop.target.decode([5], 1)
        return threading.get_ident()

    assert engine.exclusively(decode) == worker_of(engine).call(threading.get_ident)
    begun = threading.Event()

    def go_on(loop):
        begun.set()
        while True:
            loop.target.decode([5], 1)
            loop.target.truncate(0)

    def strike():
        begun.wait(60)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    threading.Thread(target=strike).start()
    with pytest.raises(KeyboardInterrupt):
        engine.exclusively(go_on)
    assert engine.generate_raw("An owl", max_tokens=3).reply().token_ids


def test_its_thread_ends_with_the_engine():
    threads_before = set(threading.enumerate())
    opened = localspec.load(draft_tokens=0)
    opened.generate_raw("Hi", max_tokens=1).reply()
    dropped = localspec.load(draft_tokens=0)
    dropped.generate_raw("Hi", max_tokens=1).reply()
    started = set(threading.enumerate()) - threads_before
    assert len(started) >= 2
    opened.close()
    del dropped
    gc.collect()
    # Nobody waits for the threads of an engine that was not closed.
    wait_until(lambda: not any(thread.is_alive() for thread in started))


def test_what_is_asked_while_a_worker_is_told_to_end_is_done():
    """By a thread that follows the one that ends, and never beside it."""
    worker, running, together = InboxThread("worker"), [], []

    def work():
        running.append(None)
        together.append(len(running))
        time.sleep(0)
        running.pop()

    def ask():
        for _ in range(300):
            worker.call(work)

    askers = [threading.Thread(target=ask, daemon=True) for _ in range(3)]
    for asker in askers:
        asker.start()
    ender = threading.Thread(
        target=lambda: [worker.stop() for _ in iter(lambda: askers[-1].is_alive(), False)],
        daemon=True,
    )
    ender.start()
    for asker in (*askers, ender):
        asker.join()
    assert len(together) == 900
    assert max(together) == 1
