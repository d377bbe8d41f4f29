"""What a release shows to strangers, and the workflows that make it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from set_home import PLACEHOLDER, with_home

ROOT = Path(__file__).parent.parent
HOME = "https://example.org/someone/localspec"
in_the_repository = pytest.mark.skipif(
    PLACEHOLDER not in (ROOT / "pyproject.toml").read_text("utf-8"),
    reason="a released source has its addresses already",
)


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=lambda path: path.name
)
def test_every_action_is_pinned_by_its_commit(path):
    """With the version that it is in a comment: a tag could be moved."""
    used = re.findall(r"uses: (.*)", path.read_text("utf-8"))
    assert used
    for action in used:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)


@in_the_repository
def test_a_released_package_links_to_its_repository():
    project, readme, *pages = with_home(ROOT, HOME, "v1").values()
    assert all(PLACEHOLDER not in text for text in (project, readme, *pages))
    assert any(f"{HOME}/tree/main/examples" in page for page in pages)
    assert project.count(HOME) == 4
    targets = re.findall(r"\]\(([^)]+)\)", readme)
    assert f"{HOME}/blob/v1/docs/performance.md" in targets
    assert all(target.startswith(("https://", "#")) for target in targets)
