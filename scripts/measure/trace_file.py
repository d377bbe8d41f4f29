"""Traces of answers: what each proposer would have proposed at every place, in numbers alone.

A policy can be replayed on a trace, at the costs of any machine and without a model. For that a
trace has, for each token of an answer that was produced without drafting, what each proposer
would have proposed there and how much of it would have been accepted. Nothing of the text is
kept but lengths and these numbers.

The text of the answer is given, so what is kept are probabilities given that text. A proposal
of certain tokens, as a lookup's, is accepted as far as it agrees with the text that came. A
token drawn from a draft's distribution q is accepted with probability min(1, q(x) / p(x)),
where x is the token that came and p the target's distribution. The draft reads the text's own
tokens, which are what it has drafted wherever that was accepted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec.speculative.policy_api import ProposerKind

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Series:
    """One proposer along an answer; each tuple has a number per token of the answer.

    limit: how many tokens it could propose there, at most MAX_DRAFT_TOKENS; 0 for none.
    confidence: its own in its first token, 0 … 1. chance: the probability, 0 … 1, that this
    token would have been accepted, given the text. accepted: how many tokens of a long proposal
    would have been accepted; empty where that follows from the chances, one after the other.
    """

    limit: tuple[int, ...]
    confidence: tuple[float, ...]
    chance: tuple[float, ...]
    accepted: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """One answer. kind: of its prompt. is_greedy: whether it had temperature 0.

    num_prompt_tokens, num_tokens: the lengths of the prompt and of the answer.
    """

    kind: str
    is_greedy: bool
    num_prompt_tokens: int
    num_tokens: int
    proposers: Mapping[ProposerKind, Series]


def read_traces(path: Path) -> list[Trace]:
    """The traces in a file."""
    first, *lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    assert first["localspec_traces"] == _VERSION
    return [_trace(line) for line in lines]


def _trace(line: Mapping[str, Any]) -> Trace:
    return Trace(
        kind=line["kind"],
        is_greedy=line["is_greedy"],
        num_prompt_tokens=line["num_prompt_tokens"],
        num_tokens=line["num_tokens"],
        proposers={
            ProposerKind(kind): Series(
                tuple(series["limit"]),
                tuple(series["confidence"]),
                tuple(series["chance"]),
                tuple(series["accepted"]),
            )
            for kind, series in line["proposers"].items()
        },
    )
