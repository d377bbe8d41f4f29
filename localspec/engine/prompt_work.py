"""Signs of life from the thread that makes prompts, for a process that bounds its time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from localspec.pictures.picture import Picture, Vision
from localspec.streaming.record import AnswerRecord


class PromptWork:
    """Reports when the making of a prompt begins, each of its stages, and when it has ended."""

    def __init__(self) -> None:
        self.on_work: Callable[[AnswerRecord | None, bool], object] | None = None
        """Called with the answer, None for a prompt alone, and whether the making has ended."""

        self._record: AnswerRecord | None = None

    @contextlib.contextmanager
    def making(self, record: AnswerRecord | None) -> Iterator[None]:
        """Context: a prompt is made in the block."""
        self._record = record
        self.progress()
        try:
            yield
        finally:
            self._say(is_done=True)
            self._record = None

    def progress(self) -> None:
        """Report that a stage is done: the time for the next one begins."""
        self._say(is_done=False)

    def _say(self, *, is_done: bool) -> None:
        if self.on_work is not None:
            self.on_work(self._record, is_done)


class WatchedVision:
    """A `Vision` that reports each picture as a stage of the making of a prompt.

    Args:
        vision: Reads the pictures.
        work: Reports the stages.
    """

    def __init__(self, vision: Vision, work: PromptWork) -> None:
        self._vision = vision
        self._work = work

    def cells(self, picture: Picture) -> list[int]:
        """See `Vision`."""
        cells = self._vision.cells(picture)
        self._work.progress()
        return cells
