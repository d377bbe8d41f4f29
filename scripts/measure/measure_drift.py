"""How decodes of several tokens follow when what a target-only step takes changes.

    python scripts/measure/measure_drift.py --target T.gguf --draft D.gguf --seconds 200

Times three target-only steps, one of 4 tokens, one of 16 and a token of the draft in turn,
after a text of 32 tokens. Prints their milliseconds, means of five turns, so that it shows how
the machine changes, and of each its elasticity: the power of T(1) with which it goes. 1: as
much as target-only steps; 0: not at all.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np

import localspec
from localspec.speculative.model import Model
from localspec.speculative.proposers import DraftModel

NUM_CACHED = 32
NUM_PLAIN = 3
TURNS_PER_ROW = 5


def timed_ms(model: Model, num_tokens: int) -> float:
    """Milliseconds of a decode whose tokens are dropped again."""
    started = time.perf_counter()
    model.decode([1] * num_tokens, num_tokens)
    spent_s = time.perf_counter() - started
    model.truncate(NUM_CACHED)
    return 1e3 * spent_s


def main() -> None:
    """Measure the pair that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=200.0)
    asked = parser.parse_args()
    turns: list[list[float]] = []
    with (
        localspec.load(target=asked.target, draft=asked.draft, context_length=512) as engine,
        engine.exclusively() as loop,
    ):
        target = loop.target
        draft = next(p.model for p in loop.proposers if isinstance(p, DraftModel))
        for model in (target, draft):
            model.decode([1] * NUM_CACHED, 0)
        ends = time.monotonic() + asked.seconds
        while time.monotonic() < ends or len(turns) < 3 * TURNS_PER_ROW:
            plain_ms = statistics.mean(timed_ms(target, 1) for _ in range(NUM_PLAIN))
            turns.append(
                [plain_ms, timed_ms(target, 4), timed_ms(target, 16), timed_ms(draft, 1)]
            )
        for model in (target, draft):
            model.truncate(0)
    # The first turn touches weights and buffers for the first time.
    rows = np.array(turns[1:])[: (len(turns) - 1) // TURNS_PER_ROW * TURNS_PER_ROW]
    means = rows.reshape(-1, TURNS_PER_ROW, rows.shape[1]).mean(axis=1)
    print("| plain | 4 tokens | 16 tokens | a draft token |\n|---|---|---|---|")
    for row in means:
        print("| " + " | ".join(f"{value:.1f}" for value in row) + " |")
    logs = np.log(means)
    slopes = [np.polyfit(logs[:, 0], logs[:, column], 1)[0] for column in range(1, 4)]
    print("| elasticity | " + " | ".join(f"**{slope:.2f}**" for slope in slopes) + " |")


if __name__ == "__main__":
    main()
