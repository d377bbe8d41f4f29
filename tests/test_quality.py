"""What README, CI and the package say of each other."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import localspec

ROOT = Path(__file__).parent.parent


SETTINGS = ("#", "set ", "cd ", "export ")  # of a shell, which run nothing


def test_ci_runs_what_the_readme_says():
    """Every command of .ci/run stands in the README, word for word."""
    readme = (ROOT / "README.md").read_text("utf-8")
    script = (ROOT / ".ci/run").read_text("utf-8")
    lines = [line.strip() for line in script.splitlines()]
    commands = [line for line in lines if line and not line.startswith(SETTINGS)]
    assert commands
    assert [command for command in commands if command not in readme] == []


def test_version_and_changelog_agree():
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert headings[0] == "Unreleased"
    declared = re.search(
        r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text("utf-8"), re.M
    )
    assert declared is not None
    assert declared[1] == localspec.__version__
    assert localspec.__version__ in headings or headings == ["Unreleased"]


PRIVATE = re.compile(r"_[a-zA-Z]\w*")
IN_A_PROGRAM = re.compile(r"\b(?!self\.|os\._exit)[a-zA-Z]\w*\._[a-zA-Z]\w*")


def private_names(source: str) -> list[str]:
    """Private names that a test reaches otherwise than as an attribute, which ruff refuses.

    By import, by a string for setattr or getattr, and in programs that a test writes.
    """
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("localspec"):
            found += [alias.name for alias in node.names if PRIVATE.fullmatch(alias.name)]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("attr"):
            names = [a.value for a in node.args if isinstance(a, ast.Constant)]
            found += [name for name in names if PRIVATE.fullmatch(str(name).split(".")[-1])]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found += IN_A_PROGRAM.findall(node.value)
    return found


def test_tests_reach_what_is_private_through_one_door():
    found = [
        f"{path.name}: {name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path.name != "inside.py"
        for name in private_names(path.read_text("utf-8"))
    ]
    assert found == [], "Ask the public interface, or add a function to tests/inside.py."


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="there is another reason to skip it")
def test_what_is_not_installed_is_said_in_one_line():
    """Of a module that is skipped, and without a PATH where tmux could be found."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n0", "-m", "process", "tests/test_tmux.py"],
        cwd=ROOT, env={"PATH": ""}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "\nskipped what needs tmux: not installed here\n" in done.stdout


@pytest.mark.process
def test_what_starts_a_process_has_the_mark(tmp_path):
    """Also where a fixture of it does, or multiprocessing."""
    path = tmp_path / "test_starts.py"
    path.write_text(
        "import multiprocessing, subprocess, sys\n"
        "import pytest\n"
        "COMMAND = [sys.executable, '-c', '']\n"
        "def start():\n"
        "    process = multiprocessing.get_context('spawn').Process(target=print)\n"
        "    process.start()\n"
        "    process.join()\n"
        "@pytest.fixture(scope='module')\n"
        "def made():\n"
        "    subprocess.run(COMMAND)\n"
        "def test_of_a_fixture(made): pass\n"
        "def test_itself(): subprocess.run(COMMAND)\n"
        "def test_by_multiprocessing(): start()\n"
        "@pytest.mark.process\n"
        "def test_marked(): start()\n"
        "def test_none(): pass\n"
    )
    options = ["-n0", "-c", ROOT / "pyproject.toml", "-m", "", "-p", "conftest"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, path],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    failed = re.findall(r"^ERROR .*::(\w+)", done.stdout, re.M)
    assert failed == ["test_of_a_fixture", "test_itself", "test_by_multiprocessing"]
    assert "5 passed, 3 errors" in done.stdout


STARTS = re.compile(r"\bsubprocess\.(Popen|run|call|check_\w+)\(|\bos\.(fork|forkpty)\(")
MARKS = re.compile(r"\bmark\.(process|slow)\b")


def test_what_starts_a_process_has_the_mark_also_where_its_program_is_missing():
    """A test or fixture that starts one on some machines only would fail on those alone."""
    unmarked = []
    for path in sorted((ROOT / "tests").glob("test_*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        functions = [each for each in tree.body if isinstance(each, ast.FunctionDef)]
        whole = [each for each in tree.body if "pytestmark" in ast.unparse(each)[:12]]
        if any(MARKS.search(ast.unparse(each)) for each in whole):
            continue
        starting = {each.name for each in functions if STARTS.search(ast.unparse(each))}
        for each in functions:
            marks = " ".join(map(ast.unparse, each.decorator_list))
            fixtures = {argument.arg for argument in each.args.args}
            fixtures |= set(re.findall(r"usefixtures\('(\w+)'", marks))
            is_test = each.name.startswith("test_") and not MARKS.search(marks)
            if is_test and starting & {each.name, *fixtures}:
                unmarked.append(f"{path.name}: {each.name}")
    assert unmarked == []
