"""What README, CI and the package say of each other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

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
