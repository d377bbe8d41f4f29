"""The law.

The first three tokens of answers, drawn again and again by every rule, proposer, sampling
option and constraint, against their exact law.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from fault_classes.chi_square import NONE, Deviation, deviation, noticed_bias
from fault_classes.law_cells import Cell, Text, judged_text, law_of, loop_cells, overconfident
from fault_classes.law_cells import rule_cells as cells_of_rules
from fault_classes.law_engines import engine_cells
from fault_classes.tried import Tried
from localspec.speculative import verify
from localspec.speculative.verify import Verdict

ALPHA = 1e-5  # how seldom a whole run may cry wolf
BIAS = 0.003
_PLANTED_SAMPLES = 60_000
_SLICE = 64  # texts between two looks at the clock
_SHARES = (0.4, 0.4, 0.2)  # of the time: rules, loops, engines


class _Row(NamedTuple):
    """Of the table: its cells, what was counted of each, and what was lost."""

    counted: list[tuple[Cell, int, Deviation]]
    losses: list[str]


def tries(seconds: float, seed: int) -> Iterator[Tried]:
    """Draw for so long, and a planted bias besides."""
    yield planted(_PLANTED_SAMPLES, seed)
    engines = engine_cells(seconds * _SHARES[-1], seed)
    groups = (cells_of_rules(seed), loop_cells(seed), engines)
    for share, group in zip(_SHARES, groups, strict=True):
        yield from drawn(group, seconds * share, seed)


def drawn(
    cells: Iterable[Cell], seconds: float, seed: int, *, least: int = 1
) -> Iterator[Tried]:
    """The rows of some cells, which share the time. least: texts of each."""
    cells = list(cells)
    rows: dict[str, _Row] = defaultdict(lambda: _Row([], []))
    for cell in cells:
        row = rows[cell.row]
        try:
            counts = _counts(cell, seconds / len(cells), least)
        except Exception as error:  # whatever it is, it is no text
            row.losses.append(f"{cell.row}, {cell.name}, seed {seed}: {error!r}")
            continue
        row.counted.append((cell, sum(counts.values()), deviation(counts, cell.law)))
    for name, row in rows.items():
        yield _judged(name, row, seed, num_tests=len(cells) + len(rows))


def _counts(cell: Cell, seconds: float, least: int) -> Counter[Text]:
    """Of the texts that come in that time: how many does not depend on which."""
    counts: Counter[Text] = Counter()
    end, number = time.monotonic() + seconds, 0
    while number < least or time.monotonic() < end:
        counts.update(cell.draw(number + more) for more in range(_SLICE))
        number += _SLICE
    return counts


def _judged(name: str, row: _Row, seed: int, num_tests: int) -> Tried:
    """Each of its cells, and all together, which notice a smaller bias that they share."""
    alpha = ALPHA / num_tests
    losses, total = list(row.losses), NONE
    for cell, count, found in row.counted:
        if found.chance < alpha:
            losses.append(
                f"{name}, {cell.name}, seed {seed}: {count} texts have chi-square "
                f"{found.chi_square:.1f} at {found.freedom} degrees, chance {found.chance:.1e}"
            )
        total += found
    count = sum(each[1] for each in row.counted)
    if not losses and total.chance < alpha:
        losses.append(
            f"{name}, seed {seed}: its {count} texts together have chance {total.chance:.1e}"
        )
    bias = noticed_bias(max(count, 1), max(total.freedom, 1), alpha)
    holds = (
        f"the exact law, in {len(row.counted)} cells; a bias of {_in_percent(bias)} is noticed"
    )
    return Tried(name, holds, count, losses)


def _in_percent(share: float) -> str:
    return f"{100 * share:.2g} %"


def planted(num_samples: int, seed: int, bias: float = BIAS) -> Tried:
    """A rule that keeps so large a share of first draft tokens unjudged has to be noticed."""
    uniform = _every(bias)

    def careless(targets: Sequence, drafts: Sequence, tokens: list[int], *uniforms) -> Verdict:  # type: ignore[no-untyped-def, type-arg]
        found = judge(targets, drafts, tokens, *uniforms)
        if next(uniform) and found.num_accepted == 0:
            return Verdict(1, targets[1].draw(uniforms[1]))
        return found

    judge, verify.token = verify.token, careless
    try:
        targets, drafts = overconfident()
        law = law_of(lambda text: targets(text).probs)
        counts = Counter(
            judged_text("token", targets, drafts, seed, number) for number in range(num_samples)
        )
    finally:
        verify.token = judge
    found = deviation(counts, law)
    what = f"planted: of 1000 steps {1000 * bias:g} keep their first draft token unjudged"
    losses = [f"{what}: not noticed, seed {seed}, chance {found.chance:.1e}"]
    return Tried(what, "it is noticed", num_samples, losses if found.chance >= ALPHA else [])


def _every(share: float) -> Iterator[bool]:
    """True so often, at even distances."""
    summed = 0.0
    while True:
        summed += share
        yield summed >= 1.0
        summed %= 1.0
