"""What README, CI and the package say of each other."""

from __future__ import annotations

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
