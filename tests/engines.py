"""Engines of the demo pair: the two places where one can live, and one that tests share."""

from __future__ import annotations

import contextlib
import gc

import pytest

import inside
import localspec

PLACES = [
    pytest.param(localspec.load, id="here"),
    pytest.param(localspec.IsolatedEngine, id="isolated", marks=pytest.mark.process),
]


class SharedEngine:
    """The demo pair, loaded once, and given to one test after another as if it were new.

    With a fixed number of draft tokens: then steps, and how they round, repeat.
    """

    def __init__(self) -> None:
        self._load()

    def as_loaded(self) -> localspec.Engine:
        """Without what tests left: conversations, caches, settings, an answer that goes on."""
        gc.collect()
        try:
            with self._engine.exclusively():
                self._engine.sampling, inside.loop(self._engine).draft_policy = self._usual
            self._engine.free_kept()
        except localspec.EngineError:  # it is closed, or an answer was left in the midst
            self.close()
            self._load()
        return self._engine

    def close(self) -> None:
        with contextlib.suppress(localspec.EngineError):
            self._engine.close()

    def _load(self) -> None:
        self._engine = localspec.load(draft_tokens=3, memory=False)
        self._usual = self._engine.sampling, inside.loop(self._engine).draft_policy
