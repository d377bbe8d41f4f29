"""The automatic draft length on simulated machines, whose clock counts target-only steps.

    python scripts/measure/simulate_policy.py
    python scripts/measure/simulate_policy.py --write before.json
    python scripts/measure/simulate_policy.py --against before.json

Runs the real loop and policy on the models of tests/simulated.py. Each cell is a scenario on a
machine: the time of the best that is possible ÷ that of the automatic policy, the mean of
`NUM_TEXTS` texts and the worst. The best is plain decoding where a draft is never right, an
oracle where the text changes, else the fixed number of draft tokens that is best for that very
text. Both sides have the same text and the same slow and fast moments, which belong to
positions in the text. The same command prints the same table: nothing is timed.

With --against it prints how the means of the scenarios have changed on the same texts, with the
standard errors. The scenarios are in `policy_scenarios.py`. It takes a few minutes.

    python scripts/measure/simulate_policy.py --traces

replays the answers of tests/traces/ instead (`traced_answers.py`): those that are held out, at
the costs of several machines. best ÷ policy: the seconds with the best fixed proposer and
number of tokens for that very answer, divided by the policy's. The policy knows what it has
learned on the other answers; in the column "at first" nothing. With --fitted it judges these
others.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from policy_scenarios import SCENARIOS
from traced_answers import FILES, MACHINES, Found, geometric, judged, split_file

Table = dict[str, dict[str, list[float]]]  # scenario → machine → of each text


def simulate(names: Sequence[str]) -> Table:
    """Run these scenarios on all their machines."""
    return {
        name: {
            machine.name: SCENARIOS[name].on(machine) for machine in SCENARIOS[name].machines
        }
        for name in names
    }


def print_table(table: Table) -> None:
    """The mean of each cell and its worst text, and the mean of each scenario."""
    columns = list(dict.fromkeys(name for row in table.values() for name in row))
    print(f"| scenario | mean | {' | '.join(columns)} |")
    print("|---" * (2 + len(columns)) + "|")
    for name, row in table.items():
        cells = [
            f"{statistics.mean(row[column]):.3f} ({min(row[column]):.2f})"
            if column in row
            else ""
            for column in columns
        ]
        print(f"| {name} | {mean(row):.3f} | {' | '.join(cells)} |")


def print_changes(before: Table, after: Table) -> None:
    """By how much the mean of each scenario has moved, and of the machine that moved most."""
    print("| scenario | moved by | standard error | most of all |")
    print("|---|---|---|---|")
    for name in (name for name in after if name in before):
        changes = {
            machine: [b - a for a, b in zip(before[name][machine], texts, strict=True)]
            for machine, texts in after[name].items()
        }
        every = [change for texts in changes.values() for change in texts]
        error = statistics.stdev(every) / len(every) ** 0.5
        most = max(changes, key=lambda machine: abs(statistics.mean(changes[machine])))
        print(
            f"| {name} | {mean(changes):+.4f} | {error:.4f} "
            f"| {most} {statistics.mean(changes[most]):+.4f} |"
        )


def mean(row: dict[str, list[float]]) -> float:
    """Of a scenario's machines."""
    return statistics.mean(statistics.mean(texts) for texts in row.values())


def traced_table(*, fitted: bool) -> None:
    """Print how the policy does on recorded answers, by machine and by kind of text."""
    cells: dict[str, dict[str, list[Found]]] = {}
    for file in FILES:
        others, asked = split_file(file)
        for machine in MACHINES:
            row = cells.setdefault(machine.name, {})
            for found in judged(others, others if fitted else asked, machine):
                row.setdefault(found.kind, []).append(found)
    kinds = sorted({kind for row in cells.values() for kind in row})
    columns = ["all", "at first", "without a draft ÷ with", "the same at first", *kinds]
    print(f"| best ÷ policy | {' | '.join(columns)} |")
    print("|---" * (1 + len(columns)) + "|")
    for name, row in cells.items():
        _print_traced(name, row, kinds)
    every = {
        kind: [one for row in cells.values() for one in row.get(kind, [])] for kind in kinds
    }
    _print_traced("all", every, kinds)


def _print_traced(name: str, row: dict[str, list[Found]], kinds: Sequence[str]) -> None:
    every = [found for group in row.values() for found in group]
    means = [
        geometric([one.best_s / one.policy_s for one in every]),
        geometric([one.best_s / one.first_s for one in every]),
        geometric([one.without_s / one.policy_s for one in every]),
        geometric([one.first_without_s / one.first_s for one in every]),
        *(geometric([one.best_s / one.policy_s for one in row[kind]]) for kind in kinds),
    ]
    print(f"| {name} | {' | '.join(f'{mean:.3f}' for mean in means)} |")


def main() -> None:
    """Print the table, or what has changed."""
    parser = argparse.ArgumentParser(description="The automatic draft length, simulated.")
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="default: all")
    parser.add_argument("--write", type=Path, help="keep the figures of all texts there")
    parser.add_argument("--against", type=Path, help="compare with figures that were kept")
    parser.add_argument("--traces", action="store_true", help="replay recorded answers")
    parser.add_argument("--fitted", action="store_true", help="those that are not held out")
    options = parser.parse_args()
    if options.traces:
        traced_table(fitted=options.fitted)
        return
    unknown = [name for name in options.scenarios if name not in SCENARIOS]
    if unknown:
        parser.error(f"no scenario {unknown[0]!r}; there are: {', '.join(SCENARIOS)}")
    table = simulate(options.scenarios or list(SCENARIOS))
    print_table(table)
    if options.write:
        options.write.write_text(json.dumps(table), encoding="utf-8")
    if options.against:
        print()
        print_changes(json.loads(options.against.read_text(encoding="utf-8")), table)


if __name__ == "__main__":
    main()
