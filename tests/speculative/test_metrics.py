"""Counters and rates, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from localspec.cli.json_output import to_json
from localspec.cli.screen import stats_lines, status_line
from localspec.speculative.metrics import Meter, Provenance, Step
from localspec.speculative.policy_api import DraftOff, PolicyEstimate, ProposerKind

A, R, B, P = Provenance.ACCEPTED, Provenance.RECOVERED, Provenance.BONUS, Provenance.PLAIN


def step(*provenance: Provenance, drafted: int = 0, off: DraftOff | None = None) -> Step:
    return Step(
        tokens=[0] * len(provenance),
        provenance=list(provenance),
        logits=np.empty((0, 0), np.float32),
        distributions=[],
        kind=ProposerKind.DRAFT if drafted else None,
        draft_off=off,
        proposer=0 if drafted else None,
        confidences=[0.5] * drafted,
        num_accepted=provenance.count(A),
        num_emitted=len(provenance),
        num_read=1,
        num_target_tokens=drafted + 1,
        num_cached=10,
        draft_time_s=0.25,
        target_time_s=0.5,
        sampler_time_s=0.125,
    )


def add(meter: Meter, counted: Step, now_s: float) -> None:
    meter.add(counted, now_s)
    meter.tokens.update(counted.provenance)


def test_an_answer_adds_up():
    """A prompt step, three accepted and a bonus, one accepted and a recovered token."""
    meter = Meter(prompt_tokens=10, cached_prompt_tokens=4, started_s=100.0)
    add(meter, step(P), 102.0)
    add(meter, step(A, A, A, B, drafted=3), 103.0)
    add(meter, step(A, R, drafted=3), 104.0)
    stats = meter.stats(
        104.0, PolicyEstimate(ProposerKind.DRAFT, 0.7, 0.5, 0.5, 0.05, {1: 1.0}), None
    )
    assert (stats.prompt_tokens, stats.cached_prompt_tokens) == (10, 4)
    assert (stats.completion_tokens, stats.num_steps) == (7, 3)
    assert (stats.num_draft_tokens, stats.num_accepted) == (6, 4)
    assert (stats.num_recovered, stats.num_bonus, stats.num_plain) == (1, 1, 1)
    assert stats.drafted_per_position[:4] == (2, 2, 2, 0)
    assert stats.accepted_per_position[:4] == (2, 1, 1, 0)
    assert stats.acceptance_rate == pytest.approx(4 / 6)
    assert stats.mean_acceptance_length == pytest.approx(1 + 4 / 3)
    assert stats.time_to_first_token_s == 2.0
    assert stats.total_time_s == 4.0
    # The first token, and what it took, are the prompt's.
    assert stats.decoded_tokens == 6
    assert stats.tokens_per_s == pytest.approx(6 / (0.5 + 1.0 + 0.25))
    assert stats.prompt_tokens_per_s == pytest.approx((10 - 4) / 2.0)
    assert stats.steps_per_length[:5] == (1, 0, 0, 2, 0)
    assert stats.steps_per_proposer == {ProposerKind.DRAFT: 2}
    # The first step is the prompt's: its times are in the time to the first token.
    assert (stats.draft_time_s, stats.target_time_s, stats.sampler_time_s) == (0.5, 1.0, 0.25)


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 100])
def test_the_rate_does_not_depend_on_how_long_the_answer_is(num_tokens):
    """Target-only steps of 0.875 s each; one token alone has no rate after the prompt."""
    meter = Meter(prompt_tokens=10, cached_prompt_tokens=0, started_s=0.0)
    for number in range(num_tokens):
        add(meter, step(P), 2.0 + number)
    stats = meter.stats(2.0 + num_tokens, None, None)
    expected = None if num_tokens == 1 else pytest.approx(1 / 0.875)
    assert stats.tokens_per_s == expected
    assert stats.prompt_tokens_per_s == pytest.approx(5.0)
    assert ("tokens/s" in status_line(stats, 100, 80)) is (num_tokens > 1)
    written = stats_lines(stats, 100)[1]
    assert ("tokens/s" in written) is (num_tokens > 1)
    assert to_json(stats)["tokens_per_s"] == expected
