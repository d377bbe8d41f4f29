"""What README, CI and the package say of each other, and which actions CI runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


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
