"""What each part of the policy is worth: what is lost where it is switched off.

    python scripts/measure/policy_worth.py
    python scripts/measure/policy_worth.py padding trials --texts 12

Each part is switched off alone, by a patch: the product has no such switches. A row says by how
many percent answers become faster (+) or slower (-) without it: on the recorded answers of
tests/traces/ that are held out, with what was learned on the others and with nothing known, at
the costs of the machines of `traced_answers.py`, as a geometric mean; and on the scenarios of
`policy_scenarios.py` that moved by half a percent, with the standard error of the same texts.
The clock counts target-only steps: the same command prints the same rows.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import multiprocessing
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import policy_scenarios
import traced
from policy_scenarios import SCENARIOS
from traced_answers import FILES, MACHINES, kinds_of, learned, new_policy, split_file

from localspec.policy import acceptance, adaptive, budget, cost, prospect, step_ratios
from localspec.policy.acceptance import Acceptance
from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.policy.cost import LARGEST_STEP
from localspec.policy.prospect import Prospect, Stopping
from localspec.policy.step_ratios import StepRatios
from localspec.policy.step_times import StepTimes
from localspec.speculative.policy_api import ProposerKind

_SEED = 1
_NOTABLE = 0.5  # percent
Times = dict[str, list[float]]  # traces or a scenario → logarithms of 1 ÷ seconds
Switch = tuple[object, str, object]  # what has the part, its name, what is there instead


def _fill_in_unpadded(times: Any, num_cached: int) -> None:
    _fill_in(times, num_cached)
    times._ratios = np.array(times._cost.ratios(num_cached, optimistic=True))
    times._worst = np.array(times._cost.ratios(num_cached, optimistic=False))
    times._sizes = list(range(LARGEST_STEP + 1))


def _without_lines(known: Any, ratios: list[float], slope: float) -> float:
    hope = _optimistic_ratio(known, ratios, slope)
    below = {size: ratio for size, ratio in known.items() if size < len(ratios)}
    return hope if math.isinf(hope) else min(hope, _optimistic_ratio(below, ratios, slope))


def _prepare_unjudged(kinds: Sequence[ProposerKind]) -> Callable[..., bool]:
    def prepare(one: Any, state: Any, room: int) -> bool:
        judged = state._replace(num_unjudged=0) if one.kind in kinds else state
        return _prepare(one, judged, room)

    return prepare


def _prepare_replayed(one: Any, state: Any, room: int) -> bool:
    one.has_replayed = True
    return _prepare(one, state, room)


def _reads_all(policy: Any, one: Any, context: Any, gain_s: float, budget_s: float) -> bool:
    target_only_s = policy.target_cost.target_only_s or 0.0
    token_s = one.cost.read_token_s(target_only_s, policy.target_cost.prefill_token_s)
    return one.state.num_missing < 32 or token_s * one.state.num_missing < budget_s


def _observe_last(ratios: Any, size: int, log: float) -> None:
    """As if the last timed step of a size were all that is known of it."""
    ratios._logs[size] = log
    ratios._variances[size] = step_ratios._FIRST_NOISE


def _observe_average(ratios: Any, size: int, log: float) -> None:
    """As an average of the last few, in place of a filter."""
    count = min(int(ratios.counts[size]), 4)
    ratios._logs[size] += (log - ratios._logs[size]) / (count + 1)
    ratios._variances[size] = step_ratios._FIRST_NOISE


def _nothing(*_: object, **_named: object) -> None: ...


_fill_in, _optimistic_ratio = StepTimes._fill_in, cost._optimistic_ratio
_prepare = Prospect.prepare
_of = Acceptance.of.__func__  # type: ignore[attr-defined]

_NEVER = property(lambda _times: False, lambda _times, _value: None)

PARTS: dict[str, list[Switch]] = {
    "padding": [
        (StepTimes, "_fill_in", _fill_in_unpadded),
        (AdaptiveDraftPolicy, "padded", lambda policy, num_tokens, limit: num_tokens),
    ],
    "a draft's confidence": [(Acceptance, "_shift", _nothing)],
    "a lookup's confidence": [
        (Acceptance, "of", classmethod(lambda cls, kind: cls(_of(cls, kind)._prior)))
    ],
    "stopping early": [(Stopping, "num_worth", lambda one, num, _: one.limit - num)],
    "lines between sizes": [(cost, "_optimistic_ratio", _without_lines)],
    "replays": [(Prospect, "prepare", _prepare_unjudged(list(ProposerKind)))],
    "replays of a lookup": [(Prospect, "prepare", _prepare_unjudged([ProposerKind.LOOKUP]))],
    "first replay": [(Prospect, "prepare", _prepare_replayed)],
    "the worst where nothing was timed": [(StepTimes, "is_guess", _NEVER)],
    "trials at old costs": [(AdaptiveDraftPolicy, "_trial", _nothing)],
    "better and worse times": [(StepRatios, "spread", lambda one: np.zeros(len(one.counts)))],
    "a filter: the last step": [(StepRatios, "_observe", _observe_last)],
    "a filter: an average": [(StepRatios, "_observe", _observe_average)],
    "elasticity": [(step_ratios, "_ELASTICITY", 1.0)],
    "classes of length": [(cost, "fill", lambda num_cached: 0)],
    "slow steps after a draft": [(adaptive, "_WAKE_UP_FACTOR", math.inf)],
    "learned prior": [(acceptance, "_PRIOR_RATE", 0.0), (acceptance, "_PRIOR_TOKENS", 1e9)],
    "two-to-one odds": [(prospect, "_SAFE_ODDS", math.inf)],
    "a grant for time": [(budget, "_GRANTED_SHARE", 0.0)],
    "a replay's share": [(budget, "_REPLAY_SHARE", 0.0)],
    "margin": [(prospect, "MARGIN", 1.0), (adaptive, "MARGIN", 1.0)],
    "reading a part": [(AdaptiveDraftPolicy, "_may_read", _reads_all)],
    "resting": [(adaptive, "_DECIDING_SHARE", math.inf)],
    "target-only steps when due": [(adaptive, "_ANCHOR_STEPS", math.inf)],
    "only fresh ratios": [(cost, "FRESH_STEPS", math.inf)],
}


@contextlib.contextmanager
def switched_off(name: str | None) -> Iterator[None]:
    """A context in which a part of the policy, or none, is off."""
    with contextlib.ExitStack() as stack:
        for switch in PARTS[name] if name else ():
            stack.enter_context(patch.object(*switch, create=True))
        yield


def answered(texts: int, machines: int, name: str | None) -> Times:
    """1 ÷ the seconds of each answer, as logarithms. name: of a part that is off."""
    # Only what the policy takes counts here.
    with switched_off(name), patch.object(policy_scenarios, "fixed", lambda *_: 1.0):
        found = _traces()
        for scenario, content in SCENARIOS.items():
            found[scenario] = [
                math.log(content.ratio(machine, number))
                for machine in content.machines[:machines]
                for number in range(min(content.num_texts, texts))
            ]
    return found


def _traces() -> Times:
    found: Times = {"traces": [], "traces, at first": []}
    for file in FILES:
        fitted, asked = split_file(file)
        for machine in MACHINES:
            kept = learned(fitted, machine)
            for trace in asked:
                for group in found:
                    policy = new_policy([*fitted, *asked], machine)
                    if group == "traces":
                        policy.restore(kept)
                    seconds = traced.replay(policy, trace, machine, _SEED, kinds_of(policy))
                    found[group].append(-math.log(seconds))
    return found


def change(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """By how many percent, and its standard error."""
    moved = [100.0 * (b - a) for a, b in zip(before, after, strict=True)]
    error = statistics.stdev(moved) / len(moved) ** 0.5 if len(moved) > 1 else math.inf
    return statistics.mean(moved) if moved else 0.0, error


def print_row(name: str, before: Times, after: Times) -> None:
    """Of a part that was off."""
    changes = {group: change(before[group], after[group]) for group in before}
    traces = [changes.pop("traces"), changes.pop("traces, at first")]
    notable = sorted(
        (pair, group) for group, pair in changes.items() if abs(pair[0]) >= _NOTABLE
    )
    cells = [
        *(f"{mean:+.2f} ± {error:.2f}" for mean, error in traces),
        ", ".join(f"{group} {mean:+.1f} ± {error:.1f}" for (mean, error), group in notable),
    ]
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="What each part of the policy is worth.")
    parser.add_argument("parts", nargs="*", metavar="PART", help="default: all")
    parser.add_argument("--texts", type=int, default=6, help="of each scenario and machine")
    parser.add_argument("--machines", type=int, default=4, help="of each scenario")
    options = parser.parse_args()
    unknown = [name for name in options.parts if name not in PARTS]
    if unknown:
        parser.error(f"no part {unknown[0]!r}; there are: {', '.join(PARTS)}")
    names = options.parts or list(PARTS)
    print("| off | traces | traces, at first | scenarios |\n|---|---|---|---|")
    with multiprocessing.Pool() as pool:
        jobs = [
            pool.apply_async(answered, (options.texts, options.machines, name))
            for name in (None, *names)
        ]
        before = jobs[0].get()
        for name, job in zip(names, jobs[1:], strict=True):
            print_row(name, before, job.get())


if __name__ == "__main__":
    main()
