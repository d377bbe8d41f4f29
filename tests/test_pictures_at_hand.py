"""Pictures while they are asked for: at hand as long as an answer needs them, wholly read; and
where a text's tokens are, behind and within them.
"""

from __future__ import annotations

import numpy as np
import pytest
from picture_prompts import GREEDY, asked, prompt_of
from vision_maker import random_picture, write_vision_pair

import inside
import localspec
from localspec.errors import DecodeError
from localspec.llama.cache_state import PictureSpan, PictureSpans
from localspec.pictures.cells import cell_rows
from localspec.streaming.exchange import PlainExchange
from localspec.streaming.options import AnswerOptions


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    target, mmproj = write_vision_pair(
        tmp_path_factory.mktemp("seeing"), "gemma3", num_layers=2
    )
    return {"target": target, "mmproj": mmproj, "draft_tokens": 0, "memory": False}


@pytest.fixture
def engine(files):
    with localspec.load(**files) as opened:
        yield opened


def first_part(engine, prompt):
    """The cells of its first picture."""
    row = next(cell_rows(prompt.tokens))
    return prompt.tokens[row.start : row.stop]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, ValueError])
def test_an_exception_within_a_look_is_raised_and_no_row_is_kept(files, engine, kind):
    prompt = prompt_of(engine, "see ", random_picture(1), "what is it")
    vision = inside.target(engine).vision
    part = vision.part(first_part(engine, prompt))
    looks = iter([kind("now")])

    def look():
        for error in looks:
            raise error
        return False

    with engine.exclusively():
        with pytest.raises(kind, match="now"):
            vision.rows(part, look)
        again = vision.rows(part, look)
    with localspec.load(**files) as other:
        other.vision.cells(random_picture(1))
        whole = inside.target(other).vision
        expected = whole.rows(whole.part(part.cells), lambda: False)
    np.testing.assert_array_equal(again, expected)


def test_an_answer_keeps_its_pictures_at_hand(engine, monkeypatch):
    """Whatever others show and ask for before it reads them; no longer than it needs them."""
    inside.keep_pictures(monkeypatch, 1)
    vision = inside.target(engine).vision
    prompt = prompt_of(engine, "see ", random_picture(1), "and ", random_picture(2), "what")
    expected = asked(engine, prompt)[0].token_ids
    with engine.exclusively():
        pass
    exchange = PlainExchange(AnswerOptions.of(sampling=GREEDY, max_tokens=8), lambda _: prompt)

    def begin():
        vision.show([random_picture(3)])
        engine.vision.cells(random_picture(1))  # known anew, and forgotten
        engine.vision.cells(random_picture(4))

    exchange.begin = begin
    assert inside.answer(engine, exchange).reply().token_ids == expected
    with pytest.raises(DecodeError, match="not at hand"):
        vision.part(first_part(engine, prompt))


@pytest.mark.parametrize("place", [10, 11, 60, 110, 115])
def test_a_picture_that_is_passed_over_takes_no_position(place):
    """Also where a text is cut within it, as `floor` allows; a draft's cache was cleared."""
    spans = PictureSpans([PictureSpan(10, 100, 0, -1)])
    assert spans.floor(place) == place
    position = 10 + max(place - 110, 0)
    assert (spans.position(place), spans.last_position(place)) == (position, position - 1)
    spans.cut(place)
    assert (spans.position(place), spans.last_position(place)) == (position, position - 1)


def test_a_picture_that_is_read_takes_its_own_positions():
    spans = PictureSpans([PictureSpan(10, 100, 8, 7), PictureSpan(120, 5, 0, -1)])
    assert [spans.position(place) for place in (10, 110, 120, 122, 125)] == [10, 18, 28, 28, 28]
    assert spans.floor(50) == 10
