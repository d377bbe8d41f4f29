"""What docstrings, comments and pages name is there, and what is not there is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from stale_references import FOREIGN, stale

ROOT = Path(__file__).parents[2]


def test_what_the_code_and_its_pages_name_is_there():
    found = stale(ROOT)
    assert [str(reference) for reference in found if reference.name not in FOREIGN] == []
    assert FOREIGN - {reference.name for reference in found} == set()


FILES = {
    "localspec/__init__.pyi": "from .engine.engine import Engine as Engine\n",
    "localspec/engine/engine.py": """
NUM_LANES = 2


class Base:
    def close(self):
        self.is_closed = True


class Engine(Base):
    parallel: int
""",
    "tests/engine/test_engine.py": "def test_it_ends():\n    pass\n",
}


@pytest.mark.parametrize(
    ("file", "text", "gone"),
    [
        ("README.md", "see tests/engine/test_engine.py", None),
        ("README.md", "see tests/test_engine.py", "tests/test_engine.py"),
        ("README.md", "see tests/test_engine.py of commit 1234567", None),
        ("README.md", "see `engine.py`", None),
        ("README.md", "see `motor.py`", "motor.py"),
        ("SECURITY.md", "test_engine::test_it_ends", None),
        ("SECURITY.md", "test_engine::test_it_begins", "test_engine::test_it_begins"),
        ("docs/api.md", "`localspec.Engine.close()`, `Engine.is_closed`", None),
        ("docs/api.md", "`localspec.Motor`", "localspec.Motor"),
        ("docs/api.md", "`Engine.open(path)`", "Engine.open"),
        ("docs/api.md", "`engine.text` and `anything`", None),
        ("CONTRIBUTING.md", "`NUM_LANES` of `engine.engine`", None),
        ("CONTRIBUTING.md", "`NUM_SLOTS`", "NUM_SLOTS"),
        ("CONTRIBUTING.md", "`engine.motor`", "engine.motor"),
        ("localspec/engine/lane.py", "# Of an `engine.parallel`, by `engine.Base`.", None),
        ("localspec/engine/lane.py", "# Of an `engine.slots`.", "engine.slots"),
        ("localspec/engine/lane.py", '"""As `engine.Motor`."""', "engine.Motor"),
        ("localspec/engine/lane.py", 'NAME = "`engine.Motor`"', None),
    ],
)
def test_what_is_gone_is_found(tmp_path, file, text, gone):
    for name, content in {**FILES, file: text + "\n"}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, "utf-8")
    found = [str(reference) for reference in stale(tmp_path)]
    assert found == ([] if gone is None else [f"{file}:1 {gone}"])
