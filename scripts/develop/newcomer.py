"""The common part of `first_minute` and `first_hour`: a fresh install, and a terminal."""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from pathlib import Path

import pexpect

ROOT = Path(__file__).parents[2]
PROMPT = "\x1b[?2004h"  # the line editor is there
_PATIENCE_S = 60


def play(description: str, act: Callable[[Path], None]) -> None:
    """Let a newcomer act with the command that --installed names, or with a new install.

    act: given the path of the command; raises pexpect.ExceptionPexpect or SystemExit where
    something is not as a person would expect.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--installed", type=Path, help="a localspec to talk to, not a new one")
    chosen = parser.parse_args().installed
    if chosen is not None:
        act(chosen.absolute())
        return
    with tempfile.TemporaryDirectory() as folder:
        act(_install(Path(folder)) / "localspec")


def _install(folder: Path) -> Path:
    """A fresh environment in `folder`, made by the README's command where there is no compiler.

    Returns its folder of programs.
    """
    started = time.monotonic()
    venv.create(folder, with_pip=True)
    scripts = folder / ("Scripts" if os.name == "nt" else "bin")
    subprocess.run(
        [scripts / "python", "-m", "pip", "install", "--quiet", "-r", "requirements.txt"],
        check=True,
        cwd=ROOT,
        env={**os.environ, "PATH": str(scripts)},
    )
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    seconds = time.monotonic() - started
    print(f"installed in {seconds:.0f} s; largest process {peak:.0f} MiB")
    return scripts


def on_terminal(program: str | Path, *arguments: str, **environment: str) -> pexpect.spawn:
    """The program on a terminal of 24 rows and 90 columns; what it writes is printed."""
    child = pexpect.spawn(
        str(program),
        list(arguments),
        encoding="utf-8",
        timeout=_PATIENCE_S,
        env={**os.environ, "TERM": "xterm", "NO_COLOR": "1", **environment},
        dimensions=(24, 90),
    )
    child.logfile_read = sys.stdout
    return child


def end(child: pexpect.spawn, exit_code: int = 0) -> None:
    """Wait for the end. Raises SystemExit if it is with another code."""
    child.expect(pexpect.EOF)
    child.close()
    if child.exitstatus != exit_code:
        command = " ".join([child.name, *child.args[1:]])
        raise SystemExit(f"{command}\nended with {child.exitstatus}, not {exit_code}")
