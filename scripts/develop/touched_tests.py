"""Runs the tests of what has changed, for half a minute: `scripts/quick` starts it.

What has changed is what differs from where the branch left main (on main: from the last
commit), and what git does not know yet. These test files are run, those that start no process:

- a test file that has changed, itself;
- for a module in a room of localspec, the files of the room's folder in tests/, those that
  import the module first;
- for any other module, the files that import it;
- for any other file, those that name it;
- the house rules, the pages, and the search for names that are gone.

It stops at the first failure. After half a minute it begins no test any more, and says how many
it has left out. pytest loads this module as a plugin for that.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pytest

from draw_packages import imported_by

ROOT = Path(__file__).parents[2]
HOUSE_RULES = (
    "tests/whole/test_architecture.py",
    "tests/whole/test_docs.py",
    "tests/whole/test_stale_references.py",
)
LIMIT_S = 23.0  # the last tests and the end of the run need some seconds more
_END = "LOCALSPEC_QUICK_END"  # when the last test may begin, in seconds of time.time
_LEFT_OUT = "half a minute is over"


def changed_files(root: Path) -> list[str]:
    """The files that have changed, by their paths from the repository's folder on."""
    base = "HEAD"
    for main in ("origin/main", "main"):
        left = subprocess.run(
            ["git", "merge-base", "HEAD", main], cwd=root, capture_output=True, text=True
        )
        if left.returncode == 0:
            base = left.stdout.strip()
    changed = _git(root, "diff", "--name-only", base)
    new = _git(root, "ls-files", "--others", "--exclude-standard")
    return sorted({*changed, *new})


def _git(root: Path, *arguments: str) -> list[str]:
    """The lines that git prints."""
    done = subprocess.run(
        ["git", *arguments], cwd=root, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


class Choice(NamedTuple):
    """What is run for files that have changed.

    Attributes:
        tests: test files, the nearest first.
        unheld: changed files that none of them holds, apart from the house rules.
    """

    tests: list[str]
    unheld: list[str]


def chosen_tests(changed: Iterable[str], sources: Mapping[str, str]) -> Choice:
    """The test files to run for files that have changed.

    Args:
        changed: paths from the repository's folder on.
        sources: the path and the text of every test file.
    """
    imports = {test: imported_by(source) for test, source in sources.items()}
    nearest: list[str] = []
    of_rooms: list[str] = []
    unheld: list[str] = []
    for file in changed:
        path = PurePosixPath(file)
        room = [test for test in sources if _is_of_room(test, path)]
        if file in sources:
            holding = [file]
        elif path.suffix == ".py":
            module = _module(path)
            holding = [test for test in room or sources if module in imports[test]]
        else:
            holding = [test for test in room or sources if path.name in sources[test]]
        nearest += holding
        of_rooms += room
        if not holding and not room:
            unheld.append(file)
    return Choice(list(dict.fromkeys([*nearest, *HOUSE_RULES, *of_rooms])), unheld)


def _module(path: PurePosixPath) -> str:
    """The name by which tests import a file."""
    if path.parts[0] != "localspec":
        return path.stem
    parts = path.parent.parts if path.stem == "__init__" else path.with_suffix("").parts
    return ".".join(parts)


def _is_of_room(test: str, path: PurePosixPath) -> bool:
    """Whether the test file is in the folder of the room in which the file `path` is."""
    is_in_room = path.parts[0] == "localspec" and len(path.parts) > 2
    return is_in_room and PurePosixPath(test).parts[1] == path.parts[1]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Begin no test after the end."""
    if time.time() > float(os.environ[_END]):
        pytest.skip(_LEFT_OUT)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests were left out."""
    skipped = terminalreporter.stats.get("skipped", ())
    left_out = [report for report in skipped if _LEFT_OUT in report.longrepr[2]]
    if left_out:
        terminalreporter.write_line(
            f"{_LEFT_OUT}: {len(left_out)} tests were left out", yellow=True
        )


def main() -> int:
    """Install the package, run the tests, and return pytest's exit code."""
    end = time.time() + LIMIT_S
    changed = changed_files(ROOT)
    if not changed:
        print("Nothing has changed.")
        return 0
    files = sorted((ROOT / "tests").glob("*/test_*.py"))
    sources = {file.relative_to(ROOT).as_posix(): file.read_text("utf-8") for file in files}
    choice = chosen_tests(changed, sources)
    print("Changed:", *changed, sep="\n  ")
    print("Tests:", *choice.tests, sep="\n  ")
    if choice.unheld:
        print("No test is known to hold:", *choice.unheld, sep="\n  ")
    sys.stdout.flush()
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "."]
    subprocess.run(pip, cwd=ROOT, check=True)
    pytest_command = [sys.executable, "-m", "pytest", "-q", "-x", "--dist=load"]
    environment = os.environ | {_END: str(end), "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(
        [*pytest_command, "-p", "touched_tests", *choice.tests], cwd=ROOT, env=environment
    )
    # Tests that start a process are deselected: there may be no others.
    return 0 if done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED else done.returncode


if __name__ == "__main__":
    sys.exit(main())
