"""Downloads.

The tests of tests/test_download_faults.py, one fault each: the first line of a docstring is the
fault, the second what has to hold.
"""

from __future__ import annotations

import ast
import tempfile
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from fault_classes.tried import Tried

_TESTS = Path(__file__).parents[3] / "tests/test_download_faults.py"


def _outcomes() -> dict[str, list[str]]:
    """Outcomes of every test by its name, one for each of its variants."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        everything = ["-m", "process or not process"]  # also what is left out while working
        options = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        pytest.main([str(_TESTS), *everything, *options])
        found: dict[str, list[str]] = defaultdict(list)
        for case in ET.parse(report).iter("testcase"):
            kinds = {child.tag for child in case}
            outcome = "failed" if kinds & {"failure", "error"} else "passed"
            name = case.get("name", "").partition("[")[0]
            found[name].append("skipped" if "skipped" in kinds else outcome)
    return found


def tries(seconds: float, seed: int) -> Iterator[Tried]:
    """Play every fault once."""
    outcomes = _outcomes()
    for node in ast.parse(_TESTS.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            fault, holds = (ast.get_docstring(node) or "\n").splitlines()[:2]
            seen = outcomes[node.name]
            count = len(seen) - seen.count("skipped")
            losses = [f"pytest {_TESTS.name} -k {node.name}"] * seen.count("failed")
            yield Tried(fault, holds, count, losses)
