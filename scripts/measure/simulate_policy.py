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
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from policy_scenarios import SCENARIOS

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


def main() -> None:
    """Print the table, or what has changed."""
    parser = argparse.ArgumentParser(description="The automatic draft length, simulated.")
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="default: all")
    parser.add_argument("--write", type=Path, help="keep the figures of all texts there")
    parser.add_argument("--against", type=Path, help="compare with figures that were kept")
    options = parser.parse_args()
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
