"""What README, CI and the package say of each other, and what CI and users run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import lowest_versions

ROOT = Path(__file__).parents[2]


def test_ci_runs_what_the_readme_says():
    """Every command of the README's last block stands in .ci/run, word for word."""
    block = (ROOT / "README.md").read_text("utf-8").split("```sh\n")[-1].split("```")[0]
    script = (ROOT / ".ci/run").read_text("utf-8")
    assert "pytest" in block
    assert [command for command in block.splitlines() if command not in script] == []


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=lambda path: path.name
)
def test_every_action_is_pinned_by_its_commit(path):
    """With the version that it is in a comment: a tag could be moved."""
    used = re.findall(r"uses: (.*)", path.read_text("utf-8"))
    assert used
    for action in used:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)


def test_every_requirement_has_a_lowest_version_that_ci_runs():
    """Beside it, a highest one may stand, and for which machines it is."""
    lines = list(lowest_versions.lowest_of_project(ROOT / "pyproject.toml"))
    assert len(lines) > 15
    assert all(re.fullmatch(r"[\w-]+==[\d.]+(; .+)?", line) for line in lines)
    requirements = ["x>=1.5,<2; python_version < '3.11'", "y>=3"]
    assert list(lowest_versions.lowest_of(requirements)) == [
        'x==1.5; python_version < "3.11"',
        "y==3",
    ]
    with pytest.raises(ValueError, match="'z<3' has no lowest version"):
        list(lowest_versions.lowest_of(["z<3"]))
    workflow = (ROOT / ".github/workflows/nightly.yml").read_text("utf-8")
    assert "python scripts/develop/lowest_versions.py > lowest.txt" in workflow
    assert "pip install --constraint lowest.txt" in workflow
