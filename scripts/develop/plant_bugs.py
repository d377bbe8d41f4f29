"""Plants known bugs that broke losslessness elsewhere, one by one, and runs a test for each.

    python scripts/develop/plant_bugs.py [--verify] [NAME ...]

Each bug of bugs.toml is one change to a copy of the installed package, and names the test that
has to fail. If the test passes, the bug is printed as MISSED, and the exit code is 1. All tests
run in this process, which imports only the package and the tests again. It needs `.[test]`.

With --verify, `localspec verify` has to notice each bug instead, on the demo pair and by its
exit code, except those that it cannot notice there. It prints the seconds that each took.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

import localspec
from localspec.cli import exit_codes
from localspec.presets.presets import parse_toml

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(localspec.__file__).parent
OPTIONS = ("-q", "-x", "-n0", "-p", "no:cacheprovider", "--tb=no")

_forgotten: list[list[ModuleType]] = []


class Bug(NamedTuple):
    """A change of one place in one file, and the test that notices it.

    not_by_verify: why `localspec verify` cannot notice it, by its name in bugs.toml.
    """

    name: str
    file: str
    old: str
    new: str
    test: str
    not_by_verify: str | None = None


def known_bugs() -> list[Bug]:
    """The bugs of bugs.toml, in its order."""
    listed = parse_toml(Path(__file__).with_name("bugs.toml").read_text("utf-8"))
    return [Bug(**each) for each in listed["bugs"]]


# What constrained answers are checked with; the others take no option.
SCHEMA = (
    '{"type": "string", "pattern": "^(fox|owl|whale|mouse|rain)( (a|the|fox|owl|sun)){30}$"}'
)


def is_noticed_by_verify(bug: Bug, folder: str) -> bool:
    """Whether `localspec verify` of the package in `folder` fails, or says not lossless."""
    command = [sys.executable, "-c", "from localspec.cli import main; main()", "verify"]
    if "constraint" in bug.test:
        (Path(folder) / "schema.json").write_text(SCHEMA, "utf-8")
        command += ["--json-schema", "schema.json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if not done.stdout.startswith("NOT lossless"):
        print((done.stdout or done.stderr).splitlines()[0])
    return done.returncode not in (0, exit_codes.NOT_ENOUGH_EVIDENCE)


def run_tests(folder: str, *tests: str) -> int:
    """pytest's exit code for the package in `folder`, with nothing imported from elsewhere."""
    found = [name for name, module in sys.modules.items() if is_replaced(name, module)]
    # Kept: libllama still calls functions of the package that was imported first.
    _forgotten.append([sys.modules.pop(name) for name in found])
    importlib.invalidate_caches()
    sys.path.insert(0, folder)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return pytest.main([*OPTIONS, *tests])
    finally:
        sys.path.remove(folder)


def is_replaced(name: str, module: ModuleType) -> bool:
    """Whether it belongs to the package or to the tests."""
    file = getattr(module, "__file__", None)
    return name.split(".")[0] == "localspec" or (
        file is not None and Path(file).is_relative_to(ROOT / "tests")
    )


def is_noticed_by_test(bug: Bug, folder: str) -> bool:
    """Whether its test fails for the package in `folder`."""
    code = run_tests(folder, bug.test)
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        sys.exit(f"{bug.name}: pytest ended with {code} for {bug.test}")
    return code == pytest.ExitCode.TESTS_FAILED


def is_noticed(bug: Bug, folder: str, *, by_verify: bool) -> bool:
    """Whether it is noticed in the copy of the package that lies in `folder`."""
    path = Path(folder) / "localspec" / bug.file
    text = path.read_text("utf-8")
    status = path.stat()
    if text.count(bug.old) != 1:
        sys.exit(f"{bug.name}: {bug.file} has its text {text.count(bug.old)} times")
    path.write_text(text.replace(bug.old, bug.new), "utf-8")
    noticed = (is_noticed_by_verify if by_verify else is_noticed_by_test)(bug, folder)
    path.write_text(text, "utf-8")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # its bytecode is right again
    return noticed


def main() -> None:
    """Plant every bug, or those named."""
    by_verify = "--verify" in sys.argv
    names = set(sys.argv[1:]) - {"--verify"}
    chosen = [bug for bug in known_bugs() if bug.name in names or not names]
    if by_verify:
        chosen = [bug for bug in chosen if bug.not_by_verify is None]
    sys.dont_write_bytecode = True
    os.chdir(ROOT)
    if not by_verify and run_tests(
        str(PACKAGE.parent), *dict.fromkeys(bug.test for bug in chosen)
    ):
        sys.exit("the tests fail without a bug: run them, and install the package again")
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(PACKAGE, Path(folder) / "localspec")  # with its bytecode
        for bug in chosen:
            started = time.monotonic()
            noticed = is_noticed(bug, folder, by_verify=by_verify)
            missed += not noticed
            took = f" ({time.monotonic() - started:.0f} s)" if by_verify else ""
            print(f"{'noticed' if noticed else 'MISSED '}  {bug.name}{took}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} bugs noticed")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
