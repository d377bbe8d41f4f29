"""Threads of a small draft: the fewest that are fastest, by a clock of the test's own."""

from __future__ import annotations

import pytest

from localspec.engine import proposer_choice


class TimedModel:
    """Takes milliseconds[number of threads] for a decode."""

    num_weight_bytes = 1_000_000
    context_length = 512

    def __init__(self, milliseconds: dict[int, float], monkeypatch) -> None:
        self.num_threads = max(milliseconds)
        self.num_cached = 0
        self.num_decodes = 0
        self._milliseconds, self._now = milliseconds, 0.0
        monkeypatch.setattr(proposer_choice.time, "perf_counter", lambda: self._now)

    def decode(self, tokens, num_logits):
        assert self.num_cached == 0
        self.num_cached = len(tokens)
        self.num_decodes += 1
        # Now and then something else runs.
        disturbed = 5.0 if self.num_decodes % 3 == 0 else 1.0
        self._now += disturbed * self._milliseconds[self.num_threads] / 1000

    def truncate(self, num_cached):
        self.num_cached = num_cached


@pytest.mark.parametrize(
    ("milliseconds", "chosen"),
    [
        ({1: 0.05, 2: 0.10}, 1),
        ({1: 0.70, 2: 0.40}, 2),
        ({1: 1.0, 2: 0.95}, 1),
        ({1: 4.0, 2: 2.1, 4: 1.2, 6: 1.18}, 4),
        ({1: 0.5}, 1),
    ],
)
def test_the_fewest_that_are_fastest(milliseconds, chosen, monkeypatch):
    model = TimedModel(milliseconds, monkeypatch)
    proposer_choice.choose_threads(model)
    assert (model.num_threads, model.num_cached) == (chosen, 0)
