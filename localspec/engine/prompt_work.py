"""Reports from the thread that makes prompts, for a process that limits the time for each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from localspec.pictures.picture import Picture, Vision
from localspec.streaming.record import AnswerRecord


class PromptWork:
    """Reports when the making of a prompt begins, each of its stages, and when it has ended."""

    def __init__(self) -> None:
        self.on_work: Callable[[AnswerRecord | None, bool], object] | None = None
        """Gets the reports: the answer (None if a prompt is made without one), and whether the
        making of its prompt has ended."""

        self._record: AnswerRecord | None = None

    @contextlib.contextmanager
    def making(self, record: AnswerRecord | None) -> Iterator[None]:
        """A context whose block makes a prompt: reports its beginning and its end.

        Args:
            record: The answer; None for a prompt without an answer.
        """
        self._record = record
        self.progress()
        try:
            yield
        finally:
            self._report(is_done=True)
            self._record = None

    def progress(self) -> None:
        """Report that a stage is done: the time for the next one begins."""
        self._report(is_done=False)

    def _report(self, *, is_done: bool) -> None:
        if self.on_work is not None:
            self.on_work(self._record, is_done)


class WatchedVision:
    """A `Vision` that reports progress after each picture of a prompt.

    Args:
        vision: Reads the pictures.
        prompt_work: Reports the progress.
    """

    def __init__(self, vision: Vision, prompt_work: PromptWork) -> None:
        self._vision = vision
        self._prompt_work = prompt_work

    def cells(self, picture: Picture) -> list[int]:
        """See `Vision`."""
        cells = self._vision.cells(picture)
        self._prompt_work.progress()
        return cells
