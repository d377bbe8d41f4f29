"""The line: who is admitted, who waits, and for whom."""

from __future__ import annotations

import pytest

from localspec.streaming.line import Line, Place


class Model:
    """What a line of several models has to know of one."""

    def __init__(self, num_at_once):
        self.num_at_once = num_at_once


def num_at_once(place):
    return place.model.num_at_once if place.model else 1


class Visitors:
    """A line, and who was admitted, in order."""

    def __init__(self, num_lanes=1, most_waiting=None):
        self.admitted = []
        self.line = Line(
            lambda place: place.model.num_at_once if place.model else num_lanes, most_waiting
        )

    def join(self, name, **facts):
        place = Place(lambda: self.admitted.append(name), **facts)
        assert self.line.join(place)
        return place


def are_admitted(places):
    return [place.is_admitted for place in places]


def test_the_first_of_a_model_are_admitted_together():
    model = Model(3)
    visitors = Visitors(most_waiting=2)
    line = visitors.line
    places = [visitors.join(number, model=model) for number in range(5)]
    assert are_admitted(places) == [True, True, True, False, False]
    assert [line.position_of(place) for place in places] == [0, 0, 0, 1, 2]
    refused = Place(lambda: None, model=model)
    assert not line.join(refused)
    assert line.num_places == 5
    line.leave(places[1])
    assert are_admitted(places) == [True, True, True, True, False]
    assert line.position_of(places[4]) == 1
    line.leave(places[4])  # whose client went away
    line.leave(places[0])
    assert line.num_admitted == 2
    assert visitors.join("late", model=model).is_admitted
    assert visitors.admitted == [0, 1, 2, 3, "late"]


def test_more_places_of_a_request_keep_nobody_waiting():
    """There is one only while it is admitted at once, and nobody else waits."""
    model, other = Model(3), Model(2)
    visitors = Visitors()
    line = visitors.line
    visitors.join("own", model=model)
    more = Place(lambda: None, model=model)
    assert line.join_if_free(more)
    assert more.is_admitted
    assert not line.join_if_free(Place(lambda: None, model=other))
    assert visitors.join("second", model=model).is_admitted
    assert not line.join_if_free(Place(lambda: None, model=model))
    waiting = visitors.join("third", model=model)
    assert line.position_of(waiting) == 1
    line.leave(more)
    assert waiting.is_admitted


def test_another_model_waits_until_the_first_has_answered_all():
    """And whoever comes after it waits, too, though there would be room: first come."""
    model, other = Model(3), Model(2)
    visitors = Visitors()
    places = [
        visitors.join(number, model=each)
        for number, each in enumerate((model, model, other, model, other))
    ]
    assert are_admitted(places) == [True, True, False, False, False]
    for number in range(2):
        visitors.line.leave(places[number])
    assert are_admitted(places[2:]) == [True, False, False]
    visitors.line.leave(places[2])
    assert are_admitted(places[3:]) == [True, False]
    visitors.line.leave(places[3])
    assert places[4].is_admitted


def test_a_model_is_loaded_by_one_and_then_answers_several():
    model = Model(1)
    visitors = Visitors()
    places = [visitors.join(number, model=model) for number in range(4)]
    assert are_admitted(places) == [True, False, False, False]
    model.num_at_once = 3
    visitors.line.admit()
    assert are_admitted(places) == [True, True, True, False]


@pytest.mark.parametrize("is_full", [False, True])
def test_who_joins_after_a_model_is_loaded_lets_others_know_of_their_turn(is_full):
    """Before anybody has asked the line to look again."""
    model = Model(1)
    visitors = Visitors(most_waiting=1 if is_full else None)
    visitors.join("first", model=model)
    visitors.join("second", model=model)
    model.num_at_once = 2
    late = Place(lambda: visitors.admitted.append("late"), model=Model(1) if is_full else model)
    visitors.line.join(late)
    assert visitors.admitted == ["first", "second"]
    assert not late.is_admitted


def test_work_on_any_model_is_done_alone():
    model = Model(3)
    visitors = Visitors()
    closing = visitors.join("closing")
    places = [visitors.join(number, model=model) for number in range(2)]
    assert are_admitted([closing, *places]) == [True, False, False]
    visitors.line.leave(closing)
    assert are_admitted(places) == [True, True]


def test_clients_take_turns_however_many_places_each_has():
    visitors = Visitors(num_lanes=2)
    line = visitors.line
    places = [visitors.join(f"a{number}", client="a") for number in range(5)]
    others = [visitors.join(f"b{number}", client="b") for number in range(2)]
    others.append(visitors.join("c0", client="c"))
    assert visitors.admitted == ["a0", "a1"]
    assert line.position_of(others[0]) == 1
    waiting = [*places, *others]
    while waiting:
        at_work = next(place for place in waiting if place.is_admitted)
        waiting.remove(at_work)
        line.leave(at_work)
    # Who was admitted longest ago, or not yet, comes before who has just been.
    assert visitors.admitted == ["a0", "a1", "b0", "c0", "a2", "b1", "a3", "a4"]


def test_a_conversation_has_one_answer_at_a_time_and_others_pass():
    chat, other = object(), object()
    visitors = Visitors(num_lanes=3)
    first = visitors.join("first", conversation=chat)
    second = visitors.join("second", conversation=chat)
    third = visitors.join("third", conversation=chat)
    passing = visitors.join("passing", conversation=other)
    assert are_admitted([first, second, third, passing]) == [True, False, False, True]
    visitors.line.leave(second)
    visitors.line.leave(first)
    assert visitors.admitted == ["first", "passing", "third"]


def test_who_must_not_wait_has_no_place_and_keeps_nobody_from_it():
    visitors = Visitors()
    first = visitors.join("first")
    seen = []

    def may_not_wait(before):
        seen.extend(before)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        visitors.line.join(Place(lambda: None), may_not_wait)
    assert seen == [first]
    assert visitors.line.num_places == 1
    visitors.line.leave(first)
    assert visitors.line.join(Place(lambda: None), may_not_wait)


def test_a_place_is_called_once_and_then_keeps_nothing():
    visitors = Visitors()
    place = visitors.join("only")
    visitors.line.admit()
    assert visitors.admitted == ["only"]
    assert place.on_admitted is None
    visitors.line.leave(place)
    visitors.line.leave(place)
    assert visitors.line.num_places == 0
