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
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from localspec.atomic_write import write_whole
from localspec.chat.text_file import read_text_file
from localspec.errors import DAMAGES, OptionError
from localspec.speculative.policy_api import ProposerKind

_VERSION = 1
_DIGITS = 3  # of a probability


@dataclass(frozen=True, slots=True)
class Series:
    """One proposer along an answer; each tuple has a number per token of the answer.

    limit: how many tokens it could propose there, at most MAX_DRAFT_TOKENS; 0 for none.
    confidence: its own in its first token, 0 … 1. chance: the probability, 0 … 1, that this
    token would have been accepted, given the text. accepted: how many tokens of a long proposal
    would have been accepted; empty where that follows from the chances, one after the other.
    match: how many tokens before it agree with the place that a lookup found; else empty.
    """

    limit: tuple[int, ...]
    confidence: tuple[float, ...]
    chance: tuple[float, ...]
    accepted: tuple[int, ...] = ()
    match: tuple[int, ...] = ()


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


@dataclass(frozen=True, slots=True)
class DecodeCosts:
    """What decodes cost on a machine.

    target_s: seconds of the target's decode of 1, 2, 3 … tokens. proposer_s: seconds of a token
    of each proposer that was timed.
    """

    target_s: tuple[float, ...]
    proposer_s: Mapping[ProposerKind, float] = field(default_factory=dict)

    @property
    def ratios(self) -> tuple[float, ...]:
        """v(n) for n = 1, 2, 3 …"""
        return tuple(seconds / self.target_s[0] for seconds in self.target_s)

    @property
    def shares(self) -> dict[ProposerKind, float]:
        """A token of each proposer that was timed, and of the lookup, in target-only steps."""
        timed = {kind: seconds / self.target_s[0] for kind, seconds in self.proposer_s.items()}
        return {ProposerKind.LOOKUP: 0.0, **timed}


@dataclass(frozen=True, slots=True)
class Recording:
    """The content of a file of traces.

    shares: the weights that a token of a draft or a head reads ÷ those that the target reads.
    costs: None if they were not measured.
    """

    pair: str
    shares: Mapping[ProposerKind, float]
    traces: Sequence[Trace]
    costs: DecodeCosts | None = None


def write_recording(path: Path, recording: Recording) -> None:
    """Write a file of traces: a line of JSON for the pair, and one for each answer.

    Raises OSError.
    """
    head = {
        "localspec_traces": _VERSION,
        "pair": recording.pair,
        "shares": {kind.value: round(share, 4) for kind, share in recording.shares.items()},
        "costs": None if recording.costs is None else _costs_json(recording.costs),
    }
    lines = [head, *map(_trace_json, recording.traces)]
    text = "\n".join(json.dumps(line, separators=(",", ":")) for line in lines) + "\n"
    write_whole(path, text.encode(), durable=False)


def read_recording(path: Path) -> Recording:
    """Read a file of traces. Raises OptionError for one that cannot be read or is none."""
    try:
        first, *lines = map(json.loads, read_text_file(path).splitlines())
        if first["localspec_traces"] != _VERSION:
            raise ValueError(f"version {first['localspec_traces']!r}")
        costs = first["costs"]
        return Recording(
            str(first["pair"]),
            _check_not_negative(
                {ProposerKind(kind): float(share) for kind, share in first["shares"].items()}
            ),
            [_trace(line) for line in lines],
            None if costs is None else costs_of(costs),
        )
    except DAMAGES as error:
        raise OptionError(
            f"{path} is no file of traces: {error}",
            "Record one: localspec trace record FILE.",
        ) from error


def costs_of(content: Mapping[str, Any]) -> DecodeCosts:
    """Costs from JSON's types. Raises one of `DAMAGES` for what is none."""
    target_s = tuple(float(seconds) for seconds in content["target_s"])
    proposer_s = {
        ProposerKind(kind): float(seconds) for kind, seconds in content["proposer_s"].items()
    }
    if not target_s or not all(0 < seconds < math.inf for seconds in target_s):
        raise ValueError(f"the target's seconds are {target_s!r:.80}")
    _check_not_negative(proposer_s)
    return DecodeCosts(target_s, proposer_s)


def _check_not_negative(numbers: Mapping[ProposerKind, float]) -> Mapping[ProposerKind, float]:
    """The numbers. Raises ValueError for one that is no cost."""
    if not all(0 <= number < math.inf for number in numbers.values()):
        raise ValueError(f"costs of proposers are {list(numbers.values())!r:.80}")
    return numbers


def _costs_json(costs: DecodeCosts) -> dict[str, Any]:
    return {
        "target_s": [round(seconds, 6) for seconds in costs.target_s],
        "proposer_s": {kind.value: round(s, 6) for kind, s in costs.proposer_s.items()},
    }


def _trace_json(trace: Trace) -> dict[str, Any]:
    found = asdict(trace)
    found["proposers"] = {
        kind.value: {
            name: [round(number, _DIGITS) for number in numbers]
            for name, numbers in asdict(series).items()
        }
        for kind, series in trace.proposers.items()
    }
    return found


def _trace(line: Mapping[str, Any]) -> Trace:
    trace = Trace(
        kind=str(line["kind"]),
        is_greedy=bool(line["is_greedy"]),
        num_prompt_tokens=int(line["num_prompt_tokens"]),
        num_tokens=int(line["num_tokens"]),
        proposers={
            ProposerKind(kind): Series(**{name: tuple(of) for name, of in series.items()})
            for kind, series in line["proposers"].items()
        },
    )
    for series in trace.proposers.values():
        _check_series(series, trace.num_tokens)
    return trace


def _check_series(series: Series, num_tokens: int) -> None:
    """Raise ValueError, or TypeError, for numbers that cannot be those of an answer."""
    for numbers in (series.limit, series.confidence, series.chance):
        if len(numbers) != num_tokens:
            raise ValueError(f"{len(numbers)} places of {num_tokens} tokens")
    for counts in (series.limit, series.accepted, series.match):
        if len(counts) not in (0, num_tokens) or any(
            type(count) is not int or count < 0 for count in counts
        ):
            raise ValueError(f"counts of {num_tokens} tokens are {counts!r:.80}")
    for shares in (series.confidence, series.chance):
        if not all(0 <= share <= 1 for share in shares):
            raise ValueError(f"shares of 1 are {shares!r:.80}")
