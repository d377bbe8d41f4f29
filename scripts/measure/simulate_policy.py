"""The automatic draft length on simulated machines, whose clock counts target-only steps.

    python scripts/measure/simulate_policy.py

Runs the real loop and policy on the models of tests/support/simulated.py. Each cell is a
scenario on a machine: the time of the best that is possible ÷ that of the automatic policy, the
mean of `NUM_TEXTS` texts and the worst. The best is plain decoding where a draft is never
right, an oracle where the text changes, else the fixed number of draft tokens that is best for
that very text. Both sides have the same text and the same slow and fast moments, which belong
to positions in the text. The same command prints the same table: nothing is timed.

The scenarios are in `policy_scenarios.py`. It takes a few minutes.

    python scripts/measure/simulate_policy.py --traces

replays the answers of tests/traces/ instead (`traced_answers.py`): those that are held out, at
the costs of several machines. best ÷ policy: the seconds with the best fixed proposer and
number of tokens for that very answer, divided by the policy's. The policy knows what it has
learned on the other answers; in the column "at first" nothing.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

from policy_scenarios import SCENARIOS
from traced_answers import FILES, MACHINES, judged


def print_table(names: Sequence[str]) -> None:
    """The mean of each cell and its worst text, and the mean of each scenario."""
    table = {
        name: {each.name: SCENARIOS[name].on(each) for each in SCENARIOS[name].machines}
        for name in names
    }
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
        mean = statistics.mean(statistics.mean(texts) for texts in row.values())
        print(f"| {name} | {mean:.3f} | {' | '.join(cells)} |")


def print_traced_table() -> None:
    """How the policy does on recorded answers, by machine and by whether changes cost time."""
    rows: dict[str, list[tuple[float, float]]] = {}
    free = []
    dear = []
    for machine in MACHINES:
        found = [ratios for file in FILES for ratios in judged(file, machine)]
        rows[machine.name] = found
        (dear if machine.change else free).extend(found)
    rows |= {"where a change is free": free, "where it is dear": dear}
    print("| best ÷ policy | after the others | at first |\n|---|---|---|")
    for name, row in rows.items():
        means = [statistics.geometric_mean(column) for column in zip(*row, strict=True)]
        print(f"| {name} | {' | '.join(f'{mean:.3f}' for mean in means)} |")


def main() -> None:
    """Print the table that is asked for."""
    parser = argparse.ArgumentParser(description="The automatic draft length, simulated.")
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="default: all")
    parser.add_argument("--traces", action="store_true", help="replay recorded answers")
    options = parser.parse_args()
    if options.traces:
        print_traced_table()
        return
    unknown = [name for name in options.scenarios if name not in SCENARIOS]
    if unknown:
        parser.error(f"no scenario {unknown[0]!r}; there are: {', '.join(SCENARIOS)}")
    print_table(options.scenarios or list(SCENARIOS))


if __name__ == "__main__":
    main()
