"""Who may work on an engine, where several may at once."""

from __future__ import annotations

import threading
import time

import pytest

import localspec
from localspec.errors import EngineError, Interrupted
from localspec.streaming.access import Access, busy


def access_of(num_answers):
    """A line of which so many may work at once."""
    access = Access()
    access.num_answers = num_answers
    return access


def working(access, number):
    """Slots whose work is done, each of another thread, which lives until it is over."""
    slots = [access.slot(is_answer=True) for _ in range(number)]
    for slot in slots:
        has_come = threading.Event()

        def work(slot=slot, has_come=has_come):
            access.take(slot, busy)
            has_come.set()
            while not slot.is_over:
                time.sleep(
                    0.01
                )  # else a later thread could get its number, and be taken for it

        threading.Thread(target=work, daemon=True).start()
        assert has_come.wait(60)
    return slots


def waiting(access, slot, **options):
    """A thread that has its slot as soon as it has ended."""
    thread = threading.Thread(
        target=access.take, args=(slot, busy), kwargs={"waits": True, **options}, daemon=True
    )
    thread.start()
    return thread


def has_come(thread, *, soon):
    """Whether its time has come; soon: whether it ought to."""
    thread.join(60 if soon else 0.15)
    return not thread.is_alive()


def test_as_many_work_as_may_and_the_next_is_refused_or_waits():
    access = access_of(3)
    slots = working(access, 3)
    with access.slot(is_answer=True) as refused, pytest.raises(localspec.BusyError):
        access.take(refused, busy)
    late, later = access.slot(is_answer=True), access.slot(is_answer=True)
    threads = [waiting(access, late)]
    assert not has_come(threads[0], soon=False)
    threads.append(waiting(access, later))
    slots[1].end()  # whichever it is
    assert has_come(threads[0], soon=True)
    assert not has_come(threads[1], soon=False)
    late.end()
    assert has_come(threads[1], soon=True)
    for slot in (*slots, later):
        slot.end()
    assert not access.slots


def test_who_works_alone_waits_for_all_and_nobody_gets_in_between():
    access = access_of(3)
    first, second = working(access, 2)
    alone, behind = access.slot(), access.slot(is_answer=True)
    with access.slot() as refused, pytest.raises(localspec.BusyError):
        access.take(refused, busy)
    threads = [waiting(access, alone)]
    assert not has_come(threads[0], soon=False)
    threads.append(waiting(access, behind))
    first.end()
    assert not any(has_come(each, soon=False) for each in threads)
    second.end()
    assert has_come(threads[0], soon=True)
    assert not has_come(threads[1], soon=False)
    alone.end()
    assert has_come(threads[1], soon=True)


def test_idle_work_makes_way_for_the_first_that_comes():
    access = access_of(3)
    idle = access.slot(lambda: idle.end())
    access.take(idle, busy)
    (slot,) = working(access, 1)  # which does not wait
    assert idle.is_over
    with access.slot(lambda: None) as other, pytest.raises(localspec.BusyError):
        access.take(other, busy)
    slot.end()


def test_a_thread_waits_for_itself_only_where_all_are_its_own():
    access = access_of(2)
    own = access.slot(is_answer=True)
    access.take(own, busy)  # of the main thread
    (other,) = working(access, 1)
    third = access.slot(is_answer=True)
    cancelled = iter([False, True])
    with pytest.raises(Interrupted):  # until then it waits: the other's end would let it in
        access.take(third, busy, waits=True, is_cancelled=lambda: next(cancelled))
    third.end()
    other.end()
    second = access.slot(is_answer=True)
    access.take(second, busy)
    with (
        access.slot(is_answer=True) as last,
        pytest.raises(EngineError, match="waits for an answer"),
    ):
        access.take(last, busy, waits=True)
    with (
        access.slot() as alone,
        pytest.raises(EngineError, match="waits for an answer"),
    ):
        access.take(alone, busy, waits=True)
    for slot in (own, second):
        slot.end()
    assert not access.slots


def test_a_slot_that_nobody_keeps_is_over():
    """As where Ctrl-C struck its owner before anything could end it."""
    access = access_of(1)
    slot = access.slot(is_answer=True)
    access.take(slot, busy)
    del slot
    assert not access.slots
