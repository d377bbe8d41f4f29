"""The figures of answers: in a file, and as Markdown tables."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from localspec.errors import OptionError
from localspec.system.atomic_write import write_whole
from real_text.servers import DRAFTING_SERVERS, LOOKUPS, SERVER, SERVERS
from real_text.sides import WITH_DRAFT, WITHOUT_DRAFT

PLACES = 4  # of a draft, whose acceptance is shown

# The order of rows.
_SIDES = (*WITHOUT_DRAFT, *WITH_DRAFT, *SERVERS)
# What is put beside what: a title, a side, and the sides of which the best counts.
_COMPARED: list[tuple[str, str, Sequence[str]]] = [
    ("automatic ÷ llama-server's best lookup", "automatic", LOOKUPS),
    ("pair ÷ automatic", "pair", ["automatic"]),
    ("pair-known ÷ automatic-known", "pair-known", ["automatic-known"]),
]
_COMPARED += [
    (f"{name.removeprefix(f'{SERVER}-')} ÷ {name}", name.removeprefix(f"{SERVER}-"), [name])
    for name in DRAFTING_SERVERS
]


@dataclass(frozen=True, slots=True)
class Figure:
    """A side's answer to a question. tokens_per_s: None for an answer of one token.

    ratio: tokens/s ÷ those of plain decoding, which answered in turn with it. drafted,
    accepted: tokens at each place. is_same: whether the text is plain decoding's, token by
    token; None where it was sampled.
    """

    kind: str
    question: str
    temperature: float
    side: str
    num_tokens: int
    tokens_per_s: float | None
    ratio: float | None
    drafted: Sequence[int]
    accepted: Sequence[int]
    is_same: bool | None


@dataclass(slots=True)
class Record:
    """Facts that the figures depend on, and the figures."""

    facts: dict[str, str]
    figures: list[Figure] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Write it as JSON, whole or not at all."""
        content = {"facts": self.facts, "figures": [asdict(each) for each in self.figures]}
        write_whole(path, json.dumps(content, indent=1).encode(), durable=False)


def read_record(path: Path) -> Record:
    """The record in a file. Raises OptionError if there is none."""
    try:
        content = json.loads(path.read_text("utf-8"))
        names = {each.name for each in fields(Figure)}
        figures = [
            Figure(**{name: entry[name] for name in names}) for entry in content["figures"]
        ]
        return Record(dict(content["facts"]), figures)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise OptionError(
            f"{path} holds no figures: {error!r}", "Give a file that --write has written."
        ) from error


def report(records: Sequence[Record]) -> str:
    """Everything as Markdown: the facts of each record, then the tables of all figures."""
    figures = [figure for record in records for figure in record.figures]
    parts = ["\n".join(f"- {n}: {fact}" for n, fact in each.facts.items()) for each in records]
    for temperature in sorted({figure.temperature for figure in figures}):
        these = [figure for figure in figures if figure.temperature == temperature]
        name = f"temperature {temperature:g}" if temperature else "greedy"
        parts.append(f"Tokens/s ÷ plain decoding's, {name}: medians (lowest … highest)")
        parts.append(_table(these, _speed) + _compared(these))
        parts.append(f"Accepted ÷ drafted tokens at places 1 to {PLACES}, {name}, in %")
        parts.append(_table([each for each in these if any(each.drafted)], _acceptance))
        if not temperature:
            parts.append("Greedy texts that are plain decoding's, token by token")
            parts.append(_table([f for f in these if f.side != "plain"], _identical))
    return "\n\n".join(parts)


def _table(figures: Sequence[Figure], cell: Callable[[Sequence[Figure]], str]) -> str:
    """A row for each side, a column for each kind, with the number of its questions."""
    kinds = list(dict.fromkeys(figure.kind for figure in figures))
    counts = [len({f.question for f in figures if f.kind == kind}) for kind in kinds]
    head = [f"{kind} ({count})" for kind, count in zip(kinds, counts, strict=True)]
    lines = [f"| side | {' | '.join(head)} |", "|---" * (len(kinds) + 1) + "|"]
    for side in sorted({figure.side for figure in figures}, key=_SIDES.index):
        of_side = [figure for figure in figures if figure.side == side]
        cells = [cell([f for f in of_side if f.kind == kind]) for kind in kinds]
        lines.append(f"| {side} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _speed(figures: Sequence[Figure]) -> str:
    if figures and figures[0].side == "plain":
        rates = [each.tokens_per_s for each in figures if each.tokens_per_s is not None]
        if rates:
            return f"{statistics.median(rates):.1f} tokens/s"
        return "-"
    return _shown(each.ratio for each in figures)


def _shown(ratios: Iterable[float | None]) -> str:
    found = [ratio for ratio in ratios if ratio is not None]
    if not found:
        return "-"
    spread = f" ({min(found):.2f} … {max(found):.2f})" if len(found) > 1 else ""
    return f"**{statistics.median(found):.2f}**{spread}"


def _compared(figures: Sequence[Figure]) -> str:
    """More rows of the table of speeds: sides ÷ other sides, question by question."""
    kinds = list(dict.fromkeys(figure.kind for figure in figures))
    rows = ""
    for title, side, others in _COMPARED:
        cells = [
            _quotient([f for f in figures if f.kind == kind], side, others) for kind in kinds
        ]
        if any(cell != "-" for cell in cells):
            rows += f"\n| {title} | {' | '.join(cells)} |"
    return rows


def _quotient(figures: Sequence[Figure], side: str, others: Sequence[str]) -> str:
    """Medians over the questions that both answered; which of several others is the best."""
    ours = _by_question(figures, side)
    theirs = {name: _by_question(figures, name) for name in others}
    theirs = {name: found for name, found in theirs.items() if found}
    if not ours or not theirs:
        return "-"
    best = max(theirs, key=lambda name: statistics.median(theirs[name].values()))
    both = [ours[each] / theirs[best][each] for each in ours if each in theirs[best]]
    return _shown(both) + (f" {best}" if len(others) > 1 else "")


def _by_question(figures: Sequence[Figure], side: str) -> Mapping[str, float]:
    return {f.question: f.ratio for f in figures if f.side == side and f.ratio is not None}


def _acceptance(figures: Sequence[Figure]) -> str:
    drafted, accepted = (
        [sum(row[place] for row in rows if place < len(row)) for place in range(PLACES)]
        for rows in ([f.drafted for f in figures], [f.accepted for f in figures])
    )
    shares = [f"{100 * a / d:.0f}" for d, a in zip(drafted, accepted, strict=True) if d]
    return " ".join(shares) or "-"


def _identical(figures: Sequence[Figure]) -> str:
    judged = [figure.is_same for figure in figures if figure.is_same is not None]
    if judged:
        return f"{sum(judged)} of {len(judged)}"
    return "-"
