"""Trains Medusa heads for a small target, from texts that it writes itself. An experiment.

    python scripts/heads/train_medusa.py --target T.gguf --out heads.gguf --seconds 60

NumPy alone, so a target of some ten million parameters is as far as it goes. A third of the
seconds the target answers the prompts at temperature 0.8, then it reads what it said, a few
tokens at a time, since its rows are given so; the rest of them the heads learn to say what came
two, three … places behind each row (Medusa-1: the target stays as it is). They know only the
tokens that it wrote.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from medusa_file import Array, HeadWeights, write_medusa
from numpy.typing import NDArray
from own_texts import read_rows, write_texts
from target_file import OUTPUT, read_tensor

from localspec.checks.prompts import built_in_texts, read_prompts

_BATCH = 256  # rows that are learned from at once
_RATE = 2e-3  # of AdamW, falling
_DECAYS = 0.9, 0.98


class Texts(NamedTuple):
    """What a target wrote: rows (n, width), and what followed each: (n, places).

    tokens: ids that occur there, of which followers are the numbers.
    """

    rows: Array
    followers: NDArray[np.int64]
    tokens: NDArray[np.int64]


def with_followers(texts: list[list[int]], rows: list[Array], num_heads: int) -> Texts:
    """Each row with the tokens that its heads are to say."""
    kept, followers = [], []
    for text, of_text in zip(texts, rows, strict=True):
        num_rows = max(len(text) - num_heads - 1, 0)
        kept.append(of_text[:num_rows])
        followers += [text[at + 2 : at + 2 + num_heads] for at in range(num_rows)]
    tokens, numbers = np.unique(np.array(followers, dtype=np.int64), return_inverse=True)
    return Texts(np.concatenate(kept), numbers.reshape(-1, num_heads), tokens)


class Learner:
    """One head, trained by AdamW with a falling rate."""

    def __init__(self, output: Array) -> None:
        width = output.shape[1]
        self.weights = [np.zeros((width, width), np.float32), np.zeros(width, np.float32)]
        self.weights.append(output.copy())
        self._moments = [[np.zeros_like(w), np.zeros_like(w)] for w in self.weights]
        self._step = 0

    def learn(self, rows: Array, wanted: NDArray[np.int64], rate: float) -> float:
        """One step; the mean loss in nats."""
        weight, bias, output = self.weights
        inner = rows @ weight.T + bias
        gate = 1.0 / (1.0 + np.exp(-inner))
        hidden = rows + inner * gate
        logits = hidden @ output.T
        logits -= logits.max(1, keepdims=True)
        probs = np.exp(logits)
        probs /= probs.sum(1, keepdims=True)
        places = np.arange(len(rows)), wanted
        loss = -float(np.log(probs[places] + 1e-9).mean())
        probs[places] -= 1.0
        probs /= len(rows)
        of_inner = (probs @ output) * gate * (1.0 + inner * (1.0 - gate))
        self._update([of_inner.T @ rows, of_inner.sum(0), probs.T @ hidden], rate)
        return loss

    def _update(self, gradients: list[Array], rate: float) -> None:
        self._step += 1
        first, second = _DECAYS
        for weights, moments, gradient in zip(
            self.weights, self._moments, gradients, strict=True
        ):
            moments[0] += (1 - first) * (gradient - moments[0])
            moments[1] += (1 - second) * (gradient**2 - moments[1])
            mean = moments[0] / (1 - first**self._step)
            size = np.sqrt(moments[1] / (1 - second**self._step)) + 1e-8
            weights -= rate * mean / size


def train(
    texts: Texts, output: Array, seconds: float, rng: np.random.Generator
) -> list[Learner]:
    """A learner for each of the places behind a row."""
    learners = [Learner(output) for _ in range(texts.followers.shape[1])]
    losses: list[list[float]] = []
    begin = time.monotonic()
    while (spent := (time.monotonic() - begin) / seconds) < 1.0:
        batch = rng.integers(0, len(texts.rows), _BATCH)
        rate = _RATE * (1.0 - spent)
        losses.append(
            [
                learner.learn(texts.rows[batch], texts.followers[batch, place], rate)
                for place, learner in enumerate(learners)
            ]
        )
    last = np.mean(losses[-50:], axis=0)
    print(f"{len(losses)} steps; last losses {', '.join(f'{loss:.2f}' for loss in last)} nats")
    return learners


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--heads", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--prompts", type=Path, help="a file, one prompt a line")
    options = parser.parse_args()
    prompts = read_prompts(options.prompts) if options.prompts else built_in_texts()
    written = write_texts(options.target, prompts, options.seconds / 3)
    rows = read_rows(options.target, written)
    texts = with_followers(written, rows, options.heads)
    print(f"{len(written)} texts, {len(texts.rows)} rows of width {texts.rows.shape[1]}")
    output = read_tensor(options.target, *OUTPUT)[texts.tokens]
    learners = train(texts, output, options.seconds * 2 / 3, np.random.default_rng(0))
    heads = [
        HeadWeights([(weight, bias)], output)
        for weight, bias, output in (learner.weights for learner in learners)
    ]
    write_medusa(options.out, options.target, heads, tokens=texts.tokens)
    size_mb = options.out.stat().st_size / 1e6
    print(f"{options.out}: {size_mb:.1f} MB, {len(texts.tokens)} tokens")


if __name__ == "__main__":
    main()
