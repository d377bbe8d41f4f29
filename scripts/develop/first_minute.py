"""A new user's first minute: the README's command in a fresh environment, then chat.

    python scripts/develop/first_minute.py

Builds a virtual environment, installs this checkout where no compiler is on PATH, and talks to
`localspec chat` through a pseudo-terminal: two messages, a Ctrl-C in the middle of an answer,
Ctrl-D. Prints the transcript, the seconds that the install took, and those from the command to
the end of the first answer. Exits 1 if anything is not as a person would expect.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

import pexpect

ROOT = Path(__file__).parents[2]
PROMPT = "\x1b[?2004h"  # the line editor is there
ANSWERED = r"\d+ tokens/s"


def install(folder: Path) -> Path:
    """Run the README's command in a fresh environment; its folder of programs."""
    venv.create(folder, with_pip=True)
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    pip = [programs / "python", "-m", "pip", "install", "--quiet"]
    subprocess.run(
        [*pip, "--no-cache-dir", "-r", "requirements.txt"],
        check=True,
        cwd=ROOT,
        env={**os.environ, "PATH": str(programs)},
    )
    return programs


def talk(localspec: Path) -> float:
    """Hold the conversation. Returns the seconds until the first answer ended."""
    started = time.monotonic()
    child = pexpect.spawn(
        str(localspec),
        ["chat"],
        encoding="utf-8",
        timeout=60,
        env={**os.environ, "TERM": "xterm", "NO_COLOR": "1"},
        dimensions=(24, 90),
    )
    child.logfile_read = sys.stdout
    child.expect_exact("Ctrl-D leaves")
    child.expect_exact(PROMPT)
    child.sendline("hi there")
    child.expect(ANSWERED)
    first_s = time.monotonic() - started
    child.expect_exact(PROMPT)
    child.sendline("Tell me a story about a fox and a lantern.")
    child.expect(ANSWERED)
    child.expect_exact(PROMPT)
    child.sendline("Tell me another story, please.")
    child.expect(r"\w+ \w+ \w+ \w+ ")
    child.sendintr()
    child.expect_exact("(stopped)")
    child.expect_exact(PROMPT)
    child.sendline("What is 3 plus 4?")
    child.expect(ANSWERED)
    child.expect_exact(PROMPT)
    child.sendeof()
    child.expect(pexpect.EOF)
    child.close()
    if child.exitstatus:
        raise SystemExit(f"localspec chat ended with {child.exitstatus}")
    return first_s


def main() -> None:
    """Play a new user's first minute."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        programs = install(Path(folder))
        installed_s = time.monotonic() - started
        first_s = talk(programs / "localspec")
    print(f"\ninstalled in {installed_s:.0f} s; first answer in {first_s:.1f} s")


if __name__ == "__main__":
    main()
