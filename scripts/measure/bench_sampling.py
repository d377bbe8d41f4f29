"""How long the sampler takes for a row of logits: medians, one core, no model.

    python scripts/measure/bench_sampling.py [--size 152064] [--repeats 200]

Rows: "realistic" is a broad bell with a few peaks, as a language model's rows are; "flat" has
no peaks, so that nearly every token survives a cut by mass; "equal" is one value throughout.
Lines of "the loop" are all Python of a plain token, over a target that has its rows ready.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from localspec.sampling.chain import SamplerChain
from localspec.sampling.params import SamplingParams
from localspec.speculative import verify
from localspec.speculative.loop import Request, SpeculativeDecoder
from localspec.speculative.policy_api import FixedDraftPolicy, ThreadPolicy
from localspec.speculative.randomness import Randomness
from localspec.speculative.rules import make_rule

DEFAULT = SamplingParams()
PARAMS = {
    "default chain": DEFAULT,
    "without top-k": replace(DEFAULT, top_k=0),
    "without top-k, min-p": replace(DEFAULT, top_k=0, min_p=0.0),
    "temperature only": replace(DEFAULT, top_k=0, min_p=0.0, top_p=1.0),
    "greedy": replace(DEFAULT, temperature=0.0),
    "top-k 1000": replace(DEFAULT, top_k=1000),
    "top-n-sigma": replace(DEFAULT, top_n_sigma=1.0),
    "typical-p": replace(DEFAULT, typical_p=0.9),
    "typical-p, without top-k": replace(DEFAULT, top_k=0, typical_p=0.9),
    "penalties": replace(DEFAULT, repetition_penalty=1.1, frequency_penalty=0.1),
    "penalties over 8192": replace(DEFAULT, repetition_penalty=1.1, penalty_last_n=8192),
    "DRY": replace(DEFAULT, dry_multiplier=0.8),
    "DRY over 8192": replace(DEFAULT, dry_multiplier=0.8, dry_penalty_last_n=8192),
    "everything": replace(
        DEFAULT,
        logit_bias={5: -1.0},
        repetition_penalty=1.1,
        dry_multiplier=0.8,
        top_n_sigma=2.0,
        typical_p=0.95,
    ),
}
NUM_DRAFT_TOKENS = 4


def rows_of(size: int) -> dict[str, np.ndarray]:
    """Sixteen rows of each kind: (16, size) float32."""
    generator = np.random.default_rng(0)
    bell = generator.normal(0.0, 2.5, (16, size)).astype(np.float32)
    realistic = bell.copy()
    for row in realistic:
        row[generator.integers(0, size, 30)] += generator.uniform(5.0, 14.0, 30)
    return {
        "realistic": realistic,
        "flat": 0.1 * bell,
        "equal": np.zeros((16, size), dtype=np.float32),
    }


def median_ms(work: Callable[[int], object], repeats: int) -> float:
    """Median time of work(i) in milliseconds."""
    times = []
    for index in range(repeats):
        started = time.perf_counter()
        work(index)
        times.append(time.perf_counter() - started)
    return 1000 * statistics.median(times[repeats // 10 :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=152_064, help="vocabulary size")
    parser.add_argument("--repeats", type=int, default=200)
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    text = np.random.default_rng(1).integers(0, 500, 10_000).tolist()
    kinds = rows_of(options.size)
    print(f"{options.size} logits, median ms a row" + "".join(f"{k:>11}" for k in kinds))
    for name, params in PARAMS.items():
        chain = SamplerChain(params, num_prompt_tokens=len(text))
        times = [
            median_ms(
                lambda i, rows=rows, chain=chain: chain.distribution(rows[i % 16], text),
                options.repeats,
            )
            for rows in kinds.values()
        ]
        print(f"{name:<33}" + "".join(f"{t:11.3f}" for t in times))
    chain = SamplerChain(DEFAULT, num_prompt_tokens=len(text))
    drafted = text[:NUM_DRAFT_TOKENS]

    def step(rows: np.ndarray) -> None:
        """The distributions of a step: one for each draft token, one for each target row."""
        for index in range(NUM_DRAFT_TOKENS):
            chain.distribution(rows[-1 - index], text, drafted[:index])
        chain.distributions(rows[: NUM_DRAFT_TOKENS + 1], text, drafted)

    times = [
        median_ms(lambda _, rows=rows: step(rows), options.repeats) for rows in kinds.values()
    ]
    print(f"{'default, a step of 4 + 5 rows':<33}" + "".join(f"{t:11.3f}" for t in times))
    times = [median_ms(refusal(rows), options.repeats) for rows in kinds.values()]
    print(f"{'temperature only, 4 refused':<33}" + "".join(f"{t:11.3f}" for t in times))
    for name in ("greedy", "default chain", "temperature only"):
        times = [loop_ms(PARAMS[name], rows, options.repeats) for rows in kinds.values()]
        print(f"{'the loop, ' + name:<33}" + "".join(f"{t:11.3f}" for t in times))


class Ready:
    """A target whose rows were there before: what is left of a step is our own time."""

    max_outputs = max_rollback = 1

    def __init__(self, rows: np.ndarray) -> None:
        self._rows = rows
        self.vocab_size = rows.shape[1]
        self.context_length = 2**20
        self.num_cached = 0

    def decode(self, tokens: Sequence[int], num_logits: int) -> np.ndarray:
        self.num_cached += len(tokens)
        return self._rows[self.num_cached % len(self._rows)][None]

    def truncate(self, num_cached: int) -> None:
        self.num_cached = num_cached

    def checkpoint(self) -> None:
        pass


def loop_ms(params: SamplingParams, rows: np.ndarray, repeats: int) -> float:
    """Median time of a plain step of the loop in milliseconds."""
    loop = SpeculativeDecoder(
        Ready(rows), [], FixedDraftPolicy(0), ThreadPolicy(1), None, time.perf_counter
    )
    loop.start([1, 2, 3])
    rule = make_rule("greedy" if params.is_greedy else "block", Randomness(1))
    chain = SamplerChain(params, num_prompt_tokens=3)
    steps = loop.steps(Request(chain, rule, repeats + 1, lambda _: False))
    return median_ms(lambda _: next(steps), repeats)


def refusal(rows: np.ndarray) -> Callable[[int], object]:
    """A function that judges a step's draft tokens, of which the block rule keeps none."""
    chain = SamplerChain(PARAMS["temperature only"], num_prompt_tokens=0)
    targets = [chain.distribution(row, ()) for row in rows[: NUM_DRAFT_TOKENS + 1]]
    drafts = [chain.distribution(row, ()) for row in rows[-NUM_DRAFT_TOKENS:]]
    # What the draft likes more than the target does, and the least lucky numbers.
    pairs = zip(targets, drafts, strict=False)
    drawn = [int((draft.probs - target.probs).argmax()) for target, draft in pairs]
    unlucky = np.full(NUM_DRAFT_TOKENS, np.nextafter(1.0, 0.0))
    return lambda _: verify.block(targets, drafts, drawn, unlucky, 0.5)


if __name__ == "__main__":
    main()
