"""What a finished pair really does: measured on its files, by localspec."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import localspec
from localspec.llama.model import LlamaModel, LlamaOptions
from localspec.sampling.filters import filtered_distribution
from localspec.sampling.params import Logits, SamplingParams

_OPEN = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
_NUM_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Measured:
    """Means over _NUM_TOKENS positions; greedy_kept and sampled_kept come from the loop.

    entropy: of the target at temperature 1, nats. agreement: share of positions at which
    both models have the same likeliest token. overlap: sum of the smaller probabilities at
    temperature 1. …_kept: accepted ÷ proposed in answers with one draft token a step.
    """

    entropy: float
    agreement: float
    overlap: float
    greedy_kept: float
    sampled_kept: float


def measure(target: Path, draft: Path, words: NDArray[np.int64], seed: int) -> Measured:
    """Decode the same random words with both models, then answer with both."""
    random = np.random.default_rng(seed)
    tokens = random.choice(words, _NUM_TOKENS).tolist()
    rows, draft_rows = _logits(target, tokens), _logits(draft, tokens)
    shared = min(rows.shape[1], draft_rows.shape[1])
    entropies, agreements, overlaps = [], [], []
    for row, draft_row in zip(rows, draft_rows, strict=True):
        probs = filtered_distribution(row[:shared], _OPEN).probs
        draft_probs = filtered_distribution(draft_row[:shared], _OPEN).probs
        some = probs[probs > 0.0]
        entropies.append(-some @ np.log(some))
        agreements.append(probs.argmax() == draft_probs.argmax())
        overlaps.append(np.minimum(probs, draft_probs).sum())
    kept = []
    with localspec.load(
        target=target, draft=draft, draft_tokens=1, context_length=512
    ) as engine:
        for sampling in (SamplingParams(temperature=0.0), _OPEN):
            reply = engine.generate(
                tokens[-1:], sampling=sampling, seed=seed, max_tokens=_NUM_TOKENS
            )
            kept.append(reply.stats.acceptance_rate)
    return Measured(
        entropy=float(np.mean(entropies)),
        agreement=float(np.mean(agreements)),
        overlap=float(np.mean(overlaps)),
        greedy_kept=kept[0],
        sampled_kept=kept[1],
    )


def _logits(path: Path, tokens: list[int]) -> Logits:
    """The row after each token: (len(tokens), vocab)."""
    options = LlamaOptions(context_length=len(tokens), max_outputs=len(tokens))
    model = LlamaModel.open(path, options)
    try:
        return model.decode(tokens, len(tokens)).copy()
    finally:
        model.close()
