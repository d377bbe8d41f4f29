"""What type checkers make of the installed package, as an application sees it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "typing"
PYRIGHT = Path(sys.executable).parent / "pyright"
WRONG = {
    number
    for number, line in enumerate((FOLDER / "mistakes.py").read_text().splitlines(), 1)
    if line.endswith("# wrong")
}


def mypy(file: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    # From elsewhere: the checkout's own package must not be found instead.
    arguments = ["--strict", "--config-file=", f"--cache-dir={folder / 'cache'}"]
    return subprocess.run(
        [sys.executable, "-m", "mypy", *arguments, str(file)],
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip


def test_mypy_finds_nothing_wrong_with_a_right_use(tmp_path):
    shutil.copy(FOLDER / "consumer.py", tmp_path)
    done = mypy(tmp_path / "consumer.py", tmp_path)
    assert done.returncode == 0, done.stdout


def test_mypy_finds_every_wrong_use(tmp_path):
    shutil.copy(FOLDER / "mistakes.py", tmp_path)
    done = mypy(tmp_path / "mistakes.py", tmp_path)
    lines = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert {int(line.split(":")[1]) for line in lines} == WRONG, done.stdout


@pytest.mark.skipif(not PYRIGHT.exists(), reason="pyright is not installed")
def test_pyright_agrees(tmp_path):
    for name in ("consumer.py", "mistakes.py"):
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
        for name in ("consumer.py", "mistakes.py")
    }
    assert by_file == {"consumer.py": set(), "mistakes.py": WRONG}, errors
