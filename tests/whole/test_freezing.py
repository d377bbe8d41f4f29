"""The program of docs/freezing.md, frozen by PyInstaller as an application would be."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import localspec

PAGE = Path(__file__).parents[2] / "docs" / "freezing.md"


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["--onedir", "--onefile"])
def test_the_pages_program_runs_frozen(tmp_path, shape):
    """From another folder, with nothing of the Python that it was made with."""
    pytest.importorskip("PyInstaller", reason="pyinstaller is not installed")
    made, elsewhere = tmp_path / "made", tmp_path / "elsewhere"
    made.mkdir()
    program = re.search(r"```py\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert program is not None
    (made / "app.py").write_text(program[1], "utf-8")
    # What the tests' environment has and no application needs: gigabytes.
    without = ["--exclude-module=torch", "--exclude-module=matplotlib"]
    built = subprocess.run(
        [sys.executable, "-m", "PyInstaller", shape, *without, "app.py"],
        cwd=made, capture_output=True, text=True,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    (made / "dist").rename(elsewhere)
    made.rename(tmp_path / "gone")
    ending = ".exe" if os.name == "nt" else ""
    app = elsewhere / ("app" if shape == "--onedir" else "") / f"app{ending}"
    kept = {name: value for name, value in os.environ.items() if "PYTHON" not in name}
    home = {name: str(tmp_path) for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")}
    done = subprocess.run(
        [app], cwd=tmp_path, env={**kept, **home}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    with localspec.load() as engine:
        answer = engine.chat().send("Hello!", temperature=0).reply().text
    assert done.stdout == f"{answer}\n{answer}\n"
