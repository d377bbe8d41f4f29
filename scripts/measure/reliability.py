"""Plays the faults of tests/test_download_faults.py; writes the results to docs/reliability.md.

    python scripts/measure/reliability.py

The table is made of the tests' docstrings (fault, then what has to hold) and of their results
in this very run; a fault that was not survived stands there as such.
"""

from __future__ import annotations

import ast
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path

import huggingface_hub
import pytest

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests/test_download_faults.py"
PAGE = ROOT / "docs/reliability.md"

HEAD = """# Downloads: faults tried and survived

Made by `python scripts/measure/reliability.py` from `tests/test_download_faults.py`; not edited
by hand. A hub on loopback (`tests/standin_hub.py`) serves real GGUF files under the names of
the preset `qwen2-7b`, by the protocol of huggingface.co, and plays the faults. One more thing
is checked after every fault: no file has its final name unless it is whole and right.

"""


def results() -> dict[str, list[str]]:
    """Outcomes of every test by its name, one for each of its variants."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        everything = ["-m", "process or not process"]  # also what is left out while working
        options = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        pytest.main([str(TESTS), *everything, *options])
        cases = ET.parse(report).iter("testcase")
        found: dict[str, list[str]] = defaultdict(list)
        for case in cases:
            kinds = {child.tag for child in case}
            outcome = "failed" if kinds & {"failure", "error"} else "passed"
            name = case.get("name", "").partition("[")[0]
            found[name].append("skipped" if "skipped" in kinds else outcome)
    return found


def page(outcomes: dict[str, list[str]]) -> str:
    """The Markdown page."""
    rows = []
    for node in ast.parse(TESTS.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            fault, holds = (ast.get_docstring(node) or "\n").splitlines()[:2]
            seen = outcomes[node.name]
            result = f"{seen.count('passed')} of {len(seen)}"
            rows.append(f"| {fault} | {holds} | {result} |")
    flat = [outcome for seen in outcomes.values() for outcome in seen]
    summary = (
        f"Faults tried: {len(flat) - flat.count('skipped')}, survived: {flat.count('passed')}, "
        f"not tried here: {flat.count('skipped')}. Python "
        f"{sys.version.split()[0]} on {sys.platform}, huggingface_hub "
        f"{huggingface_hub.__version__}.\n\n"
    )
    table = ["| fault | what has to hold | held |", "|---|---|---|", *rows]
    return HEAD + summary + "\n".join(table) + "\n"


if __name__ == "__main__":
    found = results()
    PAGE.write_text(page(found), encoding="utf-8")
    sys.exit(any("failed" in seen for seen in found.values()))
