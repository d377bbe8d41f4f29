"""The automatic draft length on simulated machines, whose clock counts target-only steps.

    python scripts/measure/simulate_policy.py

Runs the real loop and policy on the models of tests/simulated.py, with nothing known before;
prints total times: plain ÷ automatic where the draft is never right, the best fixed
number of draft tokens ÷ automatic at each agreement (the mean of eight texts, and the worst),
and an oracle ÷ automatic where the text changes every 64 tokens. Takes two minutes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from simulated import FLAT, Q4_0, Q4_K, Q4_K_TILED, VOCAB, at_random, run

from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.speculative.policy_api import (
    Decision,
    FixedDraftPolicy,
    PolicyContext,
    ProposerKind,
)

# Name, v(n), and a draft token's share of a target-only step.
MACHINES = (
    ("7B Q4_0", Q4_0, 0.12),
    ("7B Q4_K", Q4_K, 0.12),
    ("7B Q4_K, tiles of 16", Q4_K_TILED, 0.12),
    ("1.5B Q4_0", Q4_0, 0.36),
    ("a flat v", FLAT, 0.08),
)
AGREEMENTS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
SWITCHES = ((0.9, 0.05), (0.95, 0.0), (0.8, 0.1))
FIXED = (0, 1, 2, 3, 4, 5, 7, 10, 15, 16)
SEGMENT = 64
NUM_TEXTS = 8


def automatic() -> AdaptiveDraftPolicy:
    """A policy that knows nothing yet."""
    return AdaptiveDraftPolicy({ProposerKind.DRAFT: 0.1})


def never_right(ratios: dict[int, float], share: float, num_tokens: int) -> float:
    """Plain ÷ automatic, the worse of a short and a long prompt."""
    return min(
        run(policy, at_random(0), ratios, **size)
        / run(automatic(), at_random(0), ratios, **size)
        for policy in [FixedDraftPolicy(0)]
        for size in (
            {"draft_share": share, "num_tokens": num_tokens, "num_prompt_tokens": prompt}
            for prompt in (32, 2048)
        )
    )


def fixed_times(
    agrees: Callable[[int], bool], ratios: dict[int, float], share: float, num_tokens: int
) -> dict[int, float]:
    """How long an answer takes with each fixed number of draft tokens."""
    setting = {"draft_share": share, "num_tokens": num_tokens}
    return {k: run(FixedDraftPolicy(k), agrees, ratios, **setting) for k in FIXED}


def at_agreement(
    agreement: float, ratios: dict[int, float], share: float, num_tokens: int
) -> list[float]:
    """Best fixed ÷ automatic, of each text: the best is that of this very text."""
    found = []
    for seed in range(NUM_TEXTS):
        agrees = at_random(agreement, seed)
        best_s = min(fixed_times(agrees, ratios, share, num_tokens).values())
        setting = {"draft_share": share, "num_tokens": num_tokens}
        found.append(best_s / run(automatic(), agrees, ratios, **setting))
    return found


def switching(high: float, low: float, ratios: dict[int, float], share: float) -> float:
    """Oracle ÷ automatic."""
    good, bad = at_random(high), at_random(low, 1)
    times = fixed_times(good, ratios, share, 1024)
    best = min(times, key=times.__getitem__)

    def is_good(token: int) -> bool:
        return (token // SEGMENT) % 2 == 0

    class Oracle(FixedDraftPolicy):
        def choose(self, context: PolicyContext) -> Decision:
            token = (context.num_cached - 31) % VOCAB
            return FixedDraftPolicy(best if is_good(token) else 0).choose(context)

    def agrees(token: int) -> bool:
        return (good if is_good(token) else bad)(token)

    oracle_s = run(Oracle(best), agrees, ratios, draft_share=share)
    return oracle_s / run(automatic(), agrees, ratios, draft_share=share)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="The automatic draft length, simulated.")
    help_ = "of the answers at each agreement (default: 1024)"
    parser.add_argument("--answer-tokens", type=int, default=1024, help=help_)
    num_tokens = parser.parse_args().answer_tokens
    agreements = " | ".join(map(str, AGREEMENTS))
    print(f"| machine | never right, 256 / 1 024 tokens | {agreements} | switching |")
    print("|---" * (3 + len(AGREEMENTS)) + "|")
    for name, ratios, share in MACHINES:
        worst = " / ".join(f"{never_right(ratios, share, n):.3f}" for n in (256, 1024))
        cells = [at_agreement(a, ratios, share, num_tokens) for a in AGREEMENTS]
        grid = " | ".join(f"{statistics.mean(cell):.2f} ({min(cell):.2f})" for cell in cells)
        turns = [switching(high, low, ratios, share) for high, low in SWITCHES]
        print(
            f"| {name} | {worst} | {grid} | {min(turns):.2f} … {max(turns):.2f} |", flush=True
        )


if __name__ == "__main__":
    main()
