"""What type checkers make of the installed package, as an application sees it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

FOLDER = Path(__file__).parents[1] / "typing"
FILES = ("consumer.py", "mistakes.py")
PYRIGHT = Path(sys.executable).parent / "pyright"
WRONG = {
    number
    for number, line in enumerate((FOLDER / "mistakes.py").read_text().splitlines(), 1)
    if line.endswith("# wrong")
}


def test_mypy_finds_every_wrong_use_and_nothing_else(tmp_path):
    # From elsewhere: the checkout's own package must not be found instead.
    for name in FILES:
        shutil.copy(FOLDER / name, tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", *FILES],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    errors = [line.split(":") for line in done.stdout.splitlines() if ": error:" in line]
    found = {name: {int(e[1]) for e in errors if e[0] == name} for name in FILES}
    assert found == {"consumer.py": set(), "mistakes.py": WRONG}, done.stdout + done.stderr


@pytest.mark.skipif(not PYRIGHT.exists(), reason="pyright is not installed")
def test_pyright_agrees(tmp_path):
    for name in FILES:
        shutil.copy(FOLDER / name, tmp_path)
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    done = subprocess.run(
        [PYRIGHT, "--outputjson", "--pythonpath", sys.executable, "."],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    if not done.stdout:
        pytest.skip(f"pyright cannot run: {done.stderr.strip()[-200:]}")
    found = json.loads(done.stdout)["generalDiagnostics"]
    errors = [each for each in found if each["severity"] == "error"]
    by_file = {
        name: {e["range"]["start"]["line"] + 1 for e in errors if e["file"].endswith(name)}
        for name in FILES
    }
    assert by_file == {"consumer.py": set(), "mistakes.py": WRONG}, errors
