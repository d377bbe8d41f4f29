"""Prints how many lines each room of localspec has, and how many it may have.

    python scripts/develop/room_lines.py          the table
    python scripts/develop/room_lines.py --new    a new budget: today's lines and 3 %

The budget is room_lines.toml beside this file, and tests/test_budget.py checks it. It is raised
for one room at a time, in a commit that says why. Modules outside of packages are the room
"top".
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
BUDGET = Path(__file__).with_suffix(".toml")
_SPARE = 1.03
_HEAD = """\
# The most lines of Python that each room of localspec may have (tests/test_budget.py).
# Raise a number in a commit that says why; python scripts/develop/room_lines.py compares.
"""


def room_lines(folder: Path) -> dict[str, int]:
    """Lines of Python in each room, the largest first. folder: of the package localspec."""
    lines: Counter[str] = Counter()
    for path in [*folder.rglob("*.py"), *folder.rglob("*.pyi")]:
        parts = path.relative_to(folder).parts
        lines[parts[0] if len(parts) > 1 else "top"] += len(path.read_bytes().splitlines())
    return dict(lines.most_common())


def budget() -> dict[str, int]:
    """The most lines that each room may have."""
    return tomllib.loads(BUDGET.read_text("utf-8"))


def main() -> None:
    """Print the table, or a new budget."""
    lines = room_lines(ROOT / "localspec")
    if sys.argv[1:] == ["--new"]:
        print(_HEAD)
        for room, count in lines.items():
            print(f"{room} = {round(count * _SPARE)}")
        return
    most = budget()
    print(f"{'room':<14}{'lines':>7}{'budget':>8}")
    for room, count in lines.items():
        print(f"{room:<14}{count:>7}{most.get(room, 0):>8}")
    print(f"{'all':<14}{sum(lines.values()):>7}{sum(most.values()):>8}")


if __name__ == "__main__":
    main()
