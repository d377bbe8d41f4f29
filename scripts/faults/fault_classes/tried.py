"""What a class of faults tried."""

from __future__ import annotations

from typing import NamedTuple


class Tried(NamedTuple):
    """One kind of fault: what was tried, what has to hold, how often, and what was lost.

    A loss says in a line what happened and what repeats it.
    """

    what: str
    holds: str
    count: int
    losses: list[str]
