"""The best tokens of a row with their log-probabilities, before and after the chain."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from localspec.errors import DecodeError
from localspec.sampling.distribution import Distribution, Logits, Probs, TokenIds
from localspec.sampling.filters import top_k


class TokenLogprob(NamedTuple):
    """A token id, the natural logarithm of its probability, and its text."""

    token_id: int
    logprob: float
    text: str


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How probable an emitted token was, and which other tokens were possible."""

    token_id: int
    text: str
    """The token's text; U+FFFD stands for bytes that are not a whole character."""

    before: float
    """The log-probability in the model's own distribution, the softmax of its row."""

    after: float
    """The log-probability in the distribution from which the token was drawn, after
    temperature, filters and penalties."""

    top_before: tuple[TokenLogprob, ...]
    """The most probable tokens in the model's own distribution, best first."""

    top_after: tuple[TokenLogprob, ...]
    """The most probable tokens in the distribution from which it was drawn, best first; filters
    may leave few."""

    raw: Mapping[int, bytes] = field(default_factory=dict, hash=False)
    """The bytes of tokens whose text is not whole characters, by their ids."""


def token_logprobs(
    token: int,
    logits: Logits,
    distribution: Distribution | None,
    num_top: int,
    bytes_of: Callable[[int], bytes],
) -> TokenLogprobs:
    """The log-probabilities of a token and of the best ones at its position.

    Args:
        token: The id of an emitted token, or of a token in a prompt.
        logits: The target's row at that position, (vocab,).
        distribution: The distribution from which it was drawn. None for a token of a prompt:
            `after` is then the same as `before`, and `top_after` empty.
        num_top: How many of the best tokens to list.
        bytes_of: Gives the bytes of a token.

    Raises:
        DecodeError: If the row holds NaN or no finite maximum.
    """
    before = float(_logprobs(logits, np.array([token]))[0])
    raw: dict[int, bytes] = {}

    def text_of(token_id: int) -> str:
        """A token's text. Bytes that are not whole characters are also added to `raw`."""
        data = bytes_of(token_id)
        text = data.decode("utf-8", "replace")
        if text.encode() != data:
            raw[token_id] = data
        return text

    def with_texts(top: list[tuple[int, float]]) -> tuple[TokenLogprob, ...]:
        entries = []
        for token_id, logprob in top:
            entries.append(TokenLogprob(token_id, logprob, text_of(token_id)))
        return tuple(entries)

    after = before
    top_before: tuple[TokenLogprob, ...] = ()
    top_after: tuple[TokenLogprob, ...] = ()
    if distribution is not None:
        after = math.log(distribution.prob(token))
    if num_top:
        top_before = with_texts(top_of_row(logits, num_top))
    if num_top and distribution is not None:
        top_after = with_texts(top_of_distribution(distribution, num_top))
    return TokenLogprobs(
        token_id=token,
        text=text_of(token),
        raw=raw,
        before=before,
        after=after,
        top_before=top_before,
        top_after=top_after,
    )


def top_of_row(logits: Logits, num_tokens: int) -> list[tuple[int, float]]:
    """The most probable tokens by the softmax of a row, and their log-probabilities.

    The best comes first; of equal ones the lowest id.

    Args:
        logits: The row, (vocab,).
        num_tokens: How many, 1 or more. If fewer have a probability above 0, fewer are
            returned.

    Raises:
        DecodeError: If the row holds NaN or no finite maximum.
    """
    ids = top_k(logits, num_tokens)
    return _best_first(ids, _logprobs(logits, ids), num_tokens)


def _logprobs(logits: Logits, ids: TokenIds) -> Probs:
    """The log-probabilities of tokens by the softmax of a row. Raises as `top_of_row`."""
    largest = logits.max()
    # A token can be drawn from such a row if the token without a finite logit is banned.
    if not math.isfinite(largest):
        raise DecodeError(
            f"the largest logit of a row is {largest}",
            "Leave out logprobs; the file may be damaged: compare its sha256.",
        )
    with np.errstate(over="ignore"):  # overflow to -inf
        total = np.exp(logits - largest).sum(dtype=np.float64)
    # In double precision from here on.
    depths = logits[ids].astype(np.float64) - float(largest)
    return depths - math.log(total)


def top_of_distribution(distribution: Distribution, num_tokens: int) -> list[tuple[int, float]]:
    """As `top_of_row`, by the distribution from which a token is drawn."""
    probs = distribution.probs
    is_possible = probs > 0.0
    logprobs = np.log(probs[is_possible])
    return _best_first(distribution.ids[is_possible], logprobs, num_tokens)


def _best_first(ids: TokenIds, logprobs: Probs, num_tokens: int) -> list[tuple[int, float]]:
    """The most probable tokens with their log-probabilities; none of probability 0."""
    order = np.argsort(-logprobs, kind="stable")[:num_tokens]
    pairs = []
    for index in order.tolist():
        logprob = float(logprobs[index])
        if logprob > -math.inf:
            pairs.append((int(ids[index]), logprob))
    return pairs
