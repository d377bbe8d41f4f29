"""Where a text's tokens are, behind and within pictures."""

from __future__ import annotations

import pytest

from localspec.llama.cache_state import PictureSpan, PictureSpans


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
