"""A block in which one text has all contexts to itself."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Generic, Protocol, TypeVar


class Held(Protocol):
    """A block's hold. holder: the frame whose block it is. is_done: it ended well."""

    holder: FrameType | None
    is_done: bool


Work = TypeVar("Work", bound=Held)


class Alone(Generic[Work]):
    """Takes the work's turn and leaves it, by two calls that may be made twice.

    An exception of a signal handler can come in front of the first instruction of `__exit__`,
    which is then never executed. So who waits for the turn asks `has_ended`, too.
    """

    def __init__(
        self, work: Work, enter: Callable[[Work], None], leave: Callable[[Work], None]
    ) -> None:
        self._work, self._enter, self._leave = work, enter, leave

    def __enter__(self) -> None:
        self._work.holder = sys._getframe(1)
        try:
            try:
                self._enter(self._work)
            except BaseException:
                self._leave(self._work)
                raise
        except BaseException:
            self._leave(self._work)  # since the first can be struck
            raise

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self._work.is_done = kind is None
            self._leave(self._work)
        finally:
            self._leave(self._work)


def has_ended(holder: FrameType | None, frame: FrameType | None) -> bool:
    """Whether a block has ended without a word, as seen from one that another frame begins.

    holder: the frame whose block it is; None for a turn that no block holds.
    """
    if holder is None or holder is frame:
        return holder is not None  # no block is entered within itself
    try:
        holder.clear()
    except RuntimeError:
        return False  # it is executed
    return True
