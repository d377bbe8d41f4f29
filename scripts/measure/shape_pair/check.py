"""Measures with localspec whether finished files behave as intended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import localspec
from localspec.engine.engine import Engine
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.head import head_facts
from localspec.llama.dflash import DflashHead
from localspec.llama.head import LlamaHead
from localspec.llama.head_opening import open_head
from localspec.llama.model import LlamaModel, LlamaOptions
from localspec.sampling.distribution import Logits
from localspec.sampling.filters import filtered_distribution
from localspec.sampling.params import SamplingParams

_GREEDY = SamplingParams(temperature=0.0)
_OPEN = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
_NUM_TOKENS = 256
_CHAIN = 4  # tokens that a head is let draft in a row


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


@dataclass(frozen=True, slots=True)
class MeasuredHead(Measured):
    """agreement and overlap are those with the target's rows; chained: the agreement of what
    the head says with its own rows, at the second to fourth token that it drafts in a row."""

    chained: float


def measure_draft(target: Path, draft: Path, words: NDArray[np.int64], seed: int) -> Measured:
    """Decode the same random words with both models, then answer with both."""
    random = np.random.default_rng(seed)
    tokens = random.choice(words, _NUM_TOKENS).tolist()
    rows, draft_rows = _logits(target, tokens), _logits(draft, tokens)
    with localspec.load(
        target=target, draft=draft, draft_tokens=1, context_length=2 * _NUM_TOKENS
    ) as engine:
        kept = _kept(engine, tokens[-1], seed)
    return Measured(*_compared(zip(rows, draft_rows, strict=True)), *kept)


def measure_head(target: Path, head: Path | None, seed: int) -> Measured:
    """Sample a text, let the head draft along it, then answer. head: a file of its own.

    Of a head that drafts blocks, agreement and overlap are those of the first place.
    """
    with localspec.load(
        target=target,
        head=head,
        proposer="head",
        draft_tokens=1,
        context_length=2 * _NUM_TOKENS,
    ) as engine:
        start = engine.vocabulary.tokenize("Once", parse_special=False)
        kept = _kept(engine, start[-1], seed)
        reply = engine.generate_raw(
            start, sampling=_OPEN, seed=seed, max_tokens=_NUM_TOKENS
        ).reply()
    pairs = _drafted_along(target, head, [*start, *reply.token_ids])
    facts = head_facts(check_model_file(head or target))
    if facts is not None and facts.block is not None:
        return Measured(*_compared(pairs), *kept)
    entropy, agreement, overlap = _compared(pairs[::_CHAIN])
    chained = [pair for place in range(1, _CHAIN) for pair in pairs[place::_CHAIN]]
    return MeasuredHead(entropy, agreement, overlap, *kept, _compared(chained)[1])


def _kept(engine: Engine, start: int, seed: int) -> list[float]:
    """Accepted ÷ proposed, greedy and sampled."""
    replies = [
        engine.generate_raw(
            [start], sampling=sampling, seed=seed, max_tokens=_NUM_TOKENS
        ).reply()
        for sampling in (_GREEDY, _OPEN)
    ]
    return [reply.stats.acceptance_rate for reply in replies]


def _compared(pairs: Iterable[tuple[Logits, Logits]]) -> tuple[float, float, float]:
    """Mean entropy, agreement and overlap of pairs of rows: the target's and the other's."""
    found = []
    for row, other in pairs:
        shared = min(len(row), len(other))
        probs = filtered_distribution(row[:shared], _OPEN).probs
        other_probs = filtered_distribution(other[:shared], _OPEN).probs
        some = probs[probs > 0.0]
        same = probs.argmax() == other_probs.argmax()
        found.append((-some @ np.log(some), same, np.minimum(probs, other_probs).sum()))
    entropy, agreement, overlap = np.mean(found, axis=0).tolist()
    return entropy, agreement, overlap


def _logits(path: Path, tokens: list[int]) -> Logits:
    """The row after each token: (len(tokens), vocab)."""
    options = LlamaOptions(context_length=len(tokens), max_outputs=len(tokens))
    model = LlamaModel.open(path, options)
    try:
        return model.decode(tokens, len(tokens)).copy()
    finally:
        model.close()


def _drafted_along(
    path: Path, head_path: Path | None, tokens: list[int]
) -> list[tuple[Logits, Logits]]:
    """The target's and the head's row after each token but the first few.

    The head has the target's row at every _CHAIN-th of them, and its own in between.
    """
    options = LlamaOptions(
        context_length=len(tokens), max_outputs=_CHAIN, with_head=head_path is None
    )
    facts = head_facts(check_model_file(head_path or path))
    assert facts is not None
    target = LlamaModel.open(path, options)
    try:
        head = open_head(target, head_path, options, facts)
        try:
            if isinstance(head, DflashHead):
                return _first_places(target, head, tokens)
            return _chains(target, head, tokens)
        finally:
            head.close()
    finally:
        target.close()


def _chains(
    target: LlamaModel, head: LlamaHead, tokens: list[int]
) -> list[tuple[Logits, Logits]]:
    target.decode(tokens[:_CHAIN], 0)
    head.read_from(first := head.readable.start)
    pairs: list[tuple[Logits, Logits]] = []
    for begin in range(_CHAIN, len(tokens) - _CHAIN + 1, _CHAIN):
        # The accepted tokens, and the first token that the target has not seen.
        drafted = [head.decode(tokens[first + head.num_cached : begin + 1], 1)[0].copy()]
        for token in tokens[begin + 1 : begin + _CHAIN]:
            drafted.append(head.decode([token], 1)[0].copy())
        head.truncate(begin + 1 - first)
        rows = target.decode(tokens[begin : begin + _CHAIN], _CHAIN).copy()
        pairs += zip(rows, drafted, strict=True)
    return pairs


def _first_places(
    target: LlamaModel, head: DflashHead, tokens: list[int]
) -> list[tuple[Logits, Logits]]:
    target.decode(tokens[:_CHAIN], 0)
    head.read_from(first := head.readable.start)
    pairs: list[tuple[Logits, Logits]] = []
    for end in range(_CHAIN, len(tokens)):
        head.decode_block(tokens[first + head.num_cached : end + 1], 1)
        drafted = head.row([]).copy()
        pairs.append((target.decode(tokens[end : end + 1], 1)[0].copy(), drafted))
    return pairs
