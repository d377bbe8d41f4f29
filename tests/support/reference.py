"""The readable twin: what the loop must amount to, without caches, batches or speed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from localspec.sampling.distribution import Logits
from localspec.sampling.params import SamplingParams
from toy import TableModel

Row = NDArray[np.float64]


def target_probs(model: TableModel, history: Sequence[int], params: SamplingParams) -> Row:
    """The target's distribution after `history`, dense (vocab,), by sorting everything."""
    row = model.row(history).copy()
    for token, bias in params.logit_bias.items():
        row[token] += bias
    logits = _penalised(row, history, params).astype(np.float64)
    if params.temperature == 0:
        return np.eye(model.vocab_size)[int(np.argmax(logits))]
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if params.top_k:
        order = order[: params.top_k]
    weights = np.exp(logits[order] - logits[order[0]])
    weights /= weights.sum()
    kept = 1
    while params.top_p < 1 and weights[:kept].sum() < params.top_p and kept < len(order):
        kept += 1
    order = order[: kept if params.top_p < 1 else len(order)]
    floor = logits[order[0]] + np.log(params.min_p) if params.min_p else -np.inf
    order = [token for token in order if logits[token] >= floor]
    distribution = np.zeros(model.vocab_size)
    distribution[order] = np.exp((logits[order] - logits[order[0]]) / params.temperature)
    return distribution / distribution.sum()


def _penalised(logits: Logits, history: Sequence[int], params: SamplingParams) -> Logits:
    repetition = np.float32(params.repetition_penalty)
    for token, count in Counter(history[-params.penalty_last_n :]).items():
        if token < len(logits):
            if logits[token] <= 0:
                logits[token] *= repetition
            else:
                logits[token] /= repetition
            logits[token] -= count * params.frequency_penalty + params.presence_penalty
    return logits


def greedy_text(
    model: TableModel, prompt: Sequence[int], max_tokens: int, is_end: Callable[[int], bool]
) -> list[int]:
    """The target's argmax path, one token at a time; an end token is its last."""
    text: list[int] = []
    while len(text) < max_tokens and not (text and is_end(text[-1])):
        text.append(int(np.argmax(model.row([*prompt, *text]))))
    return text
