"""A brake: no room of the house grows by accident."""

from __future__ import annotations

from pathlib import Path

import localspec
from room_lines import budget, room_lines

PACKAGE = Path(localspec.__file__).parent


def test_no_room_has_more_lines_than_its_budget():
    """More is a decision: raise its number in a commit that says why.

    `python scripts/develop/room_lines.py` compares them.
    """
    lines, most = room_lines(PACKAGE), budget()
    over = [
        f"{room} has {count} lines, its budget is {most.get(room, 0)}"
        for room, count in lines.items()
        if count > most.get(room, 0)
    ]
    assert over == []


def test_the_budget_has_no_room_that_is_gone():
    assert set(budget()) <= set(room_lines(PACKAGE))
