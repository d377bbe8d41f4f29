"""The ceiling of lines: the package grows only by what it loses elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import localspec

PACKAGE = Path(localspec.__file__).parent
CONTRIBUTING = Path(__file__).parent.parent / "CONTRIBUTING.md"


def test_the_package_has_no_more_lines_than_contributing_says():
    [most] = re.findall(
        r"at most (\d+) lines of Python in localspec/", CONTRIBUTING.read_text("utf-8")
    )
    files = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyi")]
    lines = sum(len(path.read_bytes().splitlines()) for path in files)
    assert lines <= int(most)
