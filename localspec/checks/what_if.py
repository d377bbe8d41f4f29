"""What drafting would be worth on recorded answers, at any costs: no model runs.

A fixed number of tokens is drafted in each step. The seconds of an answer are expected ones,
over what would have been accepted: computed backward from its last token, exactly.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from localspec.chat.text_file import read_text_file
from localspec.checks.trace import DecodeCosts, Recording, Series, Trace, costs_of
from localspec.errors import DAMAGES, OptionError
from localspec.speculative.policy_api import MAX_DRAFT_TOKENS, ProposerKind


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Plain decoding's seconds ÷ those with one proposer and a fixed number of tokens.

    speedups: by number of tokens, over all answers. of_kinds: by kind of prompt, the best
    number for it and its speed-up.
    """

    proposer: ProposerKind
    speedups: Mapping[int, float]
    of_kinds: Mapping[str, tuple[int, float]]


def read_costs(path: Path) -> DecodeCosts:
    """The costs in a file of traces, or in the JSON of `localspec bench --json`.

    Raises OptionError for a file that cannot be read or has none.
    """
    try:
        text = read_text_file(path)
        lines = text.splitlines()
        # A file of traces has a line of JSON for the pair.
        is_recording = bool(lines) and lines[0].startswith('{"localspec_traces"')
        content = json.loads(lines[0] if is_recording else text)["costs"]
        if content is None:
            raise ValueError("they were not measured")
        return costs_of(content)
    except DAMAGES as error:
        raise OptionError(
            f"{path} has no costs of decodes: {error}",
            "Give a file of localspec trace record, or of localspec bench --json.",
        ) from error


def flat_costs(num_tokens: int, shares: Mapping[ProposerKind, float]) -> DecodeCosts:
    """Of a machine on which up to num_tokens cost as much as one, and others in proportion."""
    sizes = range(1, MAX_DRAFT_TOKENS + 2)
    return DecodeCosts(tuple(max(1.0, size / num_tokens) for size in sizes), shares)


def what_if(recording: Recording, costs: DecodeCosts, numbers: Iterable[int]) -> list[WhatIf]:
    """Each proposer that was recorded, with these numbers of tokens.

    A draft or a head that was not timed costs what its share of the weights says, others
    nothing. The draft's reading of the prompt is not counted.
    """
    kinds = dict.fromkeys(kind for trace in recording.traces for kind in trace.proposers)
    largest = len(costs.target_s) - 1
    tried = [number for number in numbers if 0 < number <= largest]
    found = []
    for proposer in kinds:
        token_s = costs.proposer_s.get(proposer)
        if token_s is None:
            token_s = recording.shares.get(proposer, 0.0) * costs.target_s[0]
        seconds = {
            number: [
                _expected_s(trace, proposer, number, costs.target_s, token_s)
                for trace in recording.traces
            ]
            for number in tried
        }
        found.append(_judged(proposer, recording.traces, seconds, costs.target_s[0]))
    return found


def _judged(
    proposer: ProposerKind,
    traces: Sequence[Trace],
    seconds: Mapping[int, Sequence[float]],
    plain_step_s: float,
) -> WhatIf:
    def speedup(number: int, kind: str | None) -> float:
        places = [i for i, trace in enumerate(traces) if kind in (None, trace.kind)]
        plain_s = sum(plain_step_s * (traces[i].num_tokens - 1) for i in places)
        drafted_s = sum(seconds[number][i] for i in places)
        return plain_s / drafted_s if drafted_s > 0.0 else 1.0

    of_kinds = {}
    for kind in dict.fromkeys(trace.kind for trace in traces):
        best = max(seconds, key=lambda number: speedup(number, kind))
        of_kinds[kind] = best, speedup(best, kind)
    return WhatIf(proposer, {number: speedup(number, None) for number in seconds}, of_kinds)


def _expected_s(
    trace: Trace,
    proposer: ProposerKind,
    num_draft_tokens: int,
    target_s: Sequence[float],
    token_s: float,
) -> float:
    """Expected seconds behind the prompt."""
    series = trace.proposers.get(proposer)
    length = trace.num_tokens
    left_s = [0.0] * (length + 1)  # from each place on
    for place in range(length - 1, 0, -1):
        limit = 0 if series is None else series.limit[place]
        num_drafted = min(num_draft_tokens, limit, length - place - 1)
        left_s[place] = num_drafted * token_s + target_s[num_drafted]
        for num_accepted, chance in enumerate(_chances(series, place, num_drafted)):
            left_s[place] += chance * left_s[place + num_accepted + 1]
    return left_s[1] if length > 1 else 0.0


def _chances(series: Series | None, place: int, num_drafted: int) -> list[float]:
    """(num_drafted + 1,) the probabilities that 0, 1, 2 … of these tokens are accepted."""
    if series is None or num_drafted == 0:
        return [1.0]
    if series.accepted:
        num_accepted = min(series.accepted[place], num_drafted)
        return [float(number == num_accepted) for number in range(num_drafted + 1)]
    alive = [math.prod(series.chance[place : place + n]) for n in range(num_drafted + 1)]
    return [here - next_one for here, next_one in zip(alive, [*alive[1:], 0.0], strict=True)]
