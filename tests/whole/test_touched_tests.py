"""Which tests `scripts/quick` runs for what has changed."""

from __future__ import annotations

import subprocess

import pytest

from touched_tests import HOUSE_RULES, changed_files, chosen_tests

SOURCES = {
    "tests/engine/test_lanes.py": "from localspec.engine import lane",
    "tests/engine/test_worker.py": "import localspec.engine.worker\nfrom toy import Table",
    "tests/policy/test_cost.py": "from localspec.engine.worker import Worker",
    "tests/whole/test_errors.py": "import localspec.errors, api_page\nPAGE = 'docs/faq.md'",
    **dict.fromkeys(HOUSE_RULES, ""),
}
WORKER = "tests/engine/test_worker.py"
LANES = "tests/engine/test_lanes.py"


@pytest.mark.parametrize(
    ("changed", "nearest", "others"),
    [
        ("localspec/engine/worker.py", [WORKER], [LANES]),
        ("localspec/engine/lane.py", [LANES], [WORKER]),
        ("localspec/engine/__init__.py", [LANES], [WORKER]),
        ("localspec/errors.py", ["tests/whole/test_errors.py"], []),
        ("localspec/demo/target.gguf", [], []),
        ("tests/support/toy.py", [WORKER], []),
        ("scripts/develop/api_page.py", ["tests/whole/test_errors.py"], []),
        ("docs/faq.md", ["tests/whole/test_errors.py"], []),
        (LANES, [LANES], []),
        ("tests/engine/test_gone.py", [], []),
    ],
)
def test_the_nearest_come_first(changed, nearest, others):
    choice = chosen_tests([changed], SOURCES)
    assert choice.tests == [*nearest, *HOUSE_RULES, *others]
    assert choice.unheld == ([] if nearest or others else [changed])


@pytest.mark.process
def test_what_differs_from_main_has_changed(tmp_path):
    def git(*arguments):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init", "--initial-branch=main")
    git("config", "user.email", "any@localhost")
    git("config", "user.name", "any")
    (tmp_path / "kept").touch()
    (tmp_path / "edited").touch()
    (tmp_path / ".gitignore").write_text("built\n")
    git("add", ".")
    git("commit", "-m", "first")
    assert changed_files(tmp_path) == []
    git("switch", "--create", "branch")
    (tmp_path / "committed").touch()
    git("add", ".")
    git("commit", "-m", "second")
    (tmp_path / "edited").write_text("more")
    (tmp_path / "new").touch()
    (tmp_path / "built").touch()
    assert changed_files(tmp_path) == ["committed", "edited", "new"]
