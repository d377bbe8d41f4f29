"""Measures the cost of a step in Python, with models that cost nothing.

    python scripts/measure/measure_overhead.py

The loop, the policy, the rules and the chain are the real ones; decodes return at once.
Prints microseconds per step, median of many, for fixed numbers of draft tokens and for the
automatic policy, greedy and sampled; the second vocabulary is that of Qwen2.5 7B. The rows of
libllama's own decodes are not copied either, so nothing of an answer is left out but the decode
itself, the text and the terminal.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

import numpy as np

from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.sampling.chain import SamplerChain
from localspec.sampling.distribution import Logits
from localspec.sampling.params import SamplingParams
from localspec.speculative.loop import Request, SpeculativeDecoder
from localspec.speculative.policy_api import DraftPolicy, FixedDraftPolicy, ProposerKind
from localspec.speculative.proposers import DraftModel
from localspec.speculative.randomness import Randomness
from localspec.speculative.rules import make_rule
from localspec.speculative.shared_vocabulary import SharedVocabulary
from localspec.speculative.thread_policy import FixedThreads

VOCABULARIES = (4096, 152_064)
SETTINGS = {
    "greedy": SamplingParams(temperature=0),
    "default chain": SamplingParams(),
}


class InstantModel:
    """The same few rows again and again; its own time is taken off the clock."""

    def __init__(self, vocab_size: int, seed: int) -> None:
        self.vocab_size = vocab_size
        self.context_length = 1 << 30
        self.max_outputs = 17
        self.max_rollback = 10**6
        self.num_cached = 0
        random = np.random.default_rng(seed)
        self._rows = (3.0 * random.standard_normal((17, vocab_size))).astype(np.float32)

    def decode(self, tokens: Sequence[int], num_logits: int) -> Logits:
        self.num_cached += len(tokens)
        return self._rows[:num_logits]

    def truncate(self, num_cached: int) -> None:
        self.num_cached = num_cached

    def checkpoint(self) -> None:
        """Nothing to do: it comes back to anywhere."""


def step_s(policy: DraftPolicy, params: SamplingParams, vocab_size: int, steps: int) -> float:
    """Median seconds of a step. Target and draft agree, so every token is accepted."""
    target, draft = InstantModel(vocab_size, 1), InstantModel(vocab_size, 1)
    shared = SharedVocabulary(vocab_size, vocab_size, vocab_size, ())
    proposer = DraftModel(draft, shared, lambda token: False)
    loop = SpeculativeDecoder(
        target, [proposer], policy, FixedThreads(1), None, time.perf_counter
    )
    loop.start([1, 2, 3])
    rule = make_rule(None, is_greedy=params.is_greedy, seed=None, randomness=Randomness(0))
    chain = SamplerChain(params, num_prompt_tokens=3)
    times = []
    started = time.perf_counter()
    for _ in loop.steps(Request(chain, rule, 20 * steps, lambda token: False)):
        now = time.perf_counter()
        times.append(now - started)
        started = now
        if len(times) == steps:
            break
    return statistics.median(times[steps // 10 :])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=2000)
    asked = parser.parse_args()
    policies = {
        "plain (K = 0)": lambda: FixedDraftPolicy(0),
        "K = 1": lambda: FixedDraftPolicy(1),
        "K = 4": lambda: FixedDraftPolicy(4),
        "automatic": lambda: AdaptiveDraftPolicy({ProposerKind.DRAFT: 0.1}, 1),
    }
    print("| vocabulary | sampling | " + " | ".join(policies) + " |")
    print("|---" * (2 + len(policies)) + "|")
    for vocab_size in VOCABULARIES:
        for name, params in SETTINGS.items():
            cells = [
                f"{1e6 * step_s(make(), params, vocab_size, asked.steps):.0f} µs"
                for make in policies.values()
            ]
            print(f"| {vocab_size} | {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
