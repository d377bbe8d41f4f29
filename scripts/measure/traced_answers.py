"""Recorded answers at the costs of several machines: see `simulate_policy.py --traces`."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

import traced
from policy_scenarios import (
    EPYC_7B,
    EPYC_SMALL,
    FIXED,
    LIKE_GPU,
    LIKE_METAL,
    ON_H100,
    SMALL_ON_H100,
    STAIRS,
    STEEP,
    TILED,
    XEON_7B,
)
from simulated import TRAINED, Machine
from trace_file import Trace

from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.speculative.policy_api import ProposerKind

# What decodes cost was measured of the first seven.
MACHINES = (
    STAIRS,
    STEEP,
    TILED,
    Machine("EPYC 7B Q4_0", EPYC_7B, 0.13, EPYC_7B),
    Machine("EPYC 1.5B Q4_0", EPYC_SMALL, 0.43, EPYC_SMALL),
    Machine("Xeon 7B Q4_0", XEON_7B, 0.10, XEON_7B),
    Machine("1.5B Q4_K_M", TRAINED, 0.43, TRAINED),
    LIKE_GPU,
    LIKE_METAL,
    ON_H100,
    SMALL_ON_H100,
)
FILES = ("qwen2.5-coder-1.5b", "smollm2-135m")
_EACH = 3  # of so many prompts of a kind one is held out
_SEED = 1


class Found(NamedTuple):
    """An answer on a machine, in target-only steps behind its prompt.

    plain_s: with no drafting; best_s: with the best fixed proposer and number, best its name.
    first_s: with the policy that knows nothing; policy_s: with what it learned from the
    answers that are not held out. first_without_s, without_s: the same with no draft model.
    """

    kind: str
    plain_s: float
    best_s: float
    best: str
    first_s: float
    policy_s: float
    first_without_s: float
    without_s: float


def split_file(name: str) -> tuple[list[Trace], list[Trace]]:
    """The traces to fit on, and those held out: every third prompt of each kind."""
    groups: dict[str, list[Trace]] = {}
    for trace in traced.shipped(name):
        groups.setdefault(trace.kind, []).append(trace)
    fitted, held_out = list[Trace](), list[Trace]()
    for group in groups.values():
        for number, trace in enumerate(group):
            (held_out if number % _EACH == _EACH - 1 else fitted).append(trace)
    return fitted, held_out


def new_policy(
    traces: Sequence[Trace], machine: Machine, without: Sequence[ProposerKind] = ()
) -> AdaptiveDraftPolicy:
    """A policy that knows nothing, as an engine makes it for the proposers of these traces."""
    kinds = {kind for trace in traces for kind in trace.proposers}
    return AdaptiveDraftPolicy(
        {
            kind: machine.draft_share if kind is ProposerKind.DRAFT else 0.0
            for kind in ProposerKind
            if kind in kinds and kind not in without
        },
        1,
    )


def best_fixed(trace: Trace, machine: Machine) -> tuple[float, str]:
    """Seconds with the best fixed proposer and number of tokens, and which these are."""
    return min(
        (traced.fixed(kind, count, trace, machine, _SEED), f"{kind.value} {count}")
        for kind in trace.proposers
        for count in FIXED
    )


def learned(
    traces: Sequence[Trace], machine: Machine, without: Sequence[ProposerKind] = ()
) -> dict[str, Any]:
    """What a policy keeps behind these answers."""
    policy = new_policy(traces, machine, without)
    for trace in traces:
        traced.replay(policy, trace, machine, _SEED, kinds_of(policy))
    return policy.as_dict()


def kinds_of(policy: AdaptiveDraftPolicy) -> list[ProposerKind]:
    """The proposers that it knows."""
    return [prospect.kind for prospect in policy.prospects]


def judged(
    fitted: Sequence[Trace], asked: Sequence[Trace], machine: Machine
) -> Iterator[Found]:
    """Each answer asked for, with what was learned from those that were fitted."""
    every = [*fitted, *asked]
    no_draft = [ProposerKind.DRAFT]
    kept, kept_without = learned(fitted, machine), learned(fitted, machine, no_draft)

    for trace in asked:

        def took_s(
            kept: dict[str, Any] | None, without: Sequence[ProposerKind], trace: Trace = trace
        ) -> float:
            policy = new_policy(every, machine, without)
            if kept is not None:
                policy.restore(kept)
            return traced.replay(policy, trace, machine, _SEED, kinds_of(policy))

        best_s, best = best_fixed(trace, machine)
        yield Found(
            trace.kind,
            traced.fixed(next(iter(trace.proposers)), 0, trace, machine, _SEED),
            best_s,
            best,
            took_s(None, ()),
            took_s(kept, ()),
            took_s(None, no_draft),
            took_s(kept_without, no_draft),
        )


def geometric(ratios: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(statistics.mean(map(math.log, ratios)))
