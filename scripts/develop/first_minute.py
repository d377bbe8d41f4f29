"""A new user's first minute: install the wheel into a fresh environment, then chat.

    python scripts/develop/first_minute.py [--installed PATH]

Builds a virtual environment, installs the package from this checkout, and talks to `localspec
chat` through a pseudo-terminal: two messages, a Ctrl-C in the middle of an answer, Ctrl-D.
Prints the transcript, and the time and memory that the install took. Exits 1 if anything is
not as a person would expect.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

import pexpect

ROOT = Path(__file__).parents[2]
PROMPT = "\x1b[?2004h"  # the line editor is there


def install(folder: Path) -> Path:
    """A fresh environment in `folder` with localspec from the checkout; its bin directory."""
    started = time.monotonic()
    venv.create(folder, with_pip=True)
    scripts = folder / ("Scripts" if os.name == "nt" else "bin")
    subprocess.run(
        [scripts / "python", "-m", "pip", "install", "--quiet", str(ROOT)],
        check=True,
        cwd=folder,
    )
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    seconds = time.monotonic() - started
    print(f"installed in {seconds:.0f} s; largest process {peak:.0f} MiB")
    return scripts


def talk(localspec: Path) -> None:
    """The conversation; raises pexpect.ExceptionPexpect where it does not go as expected."""
    environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "1"}
    child = pexpect.spawn(
        str(localspec),
        ["chat"],
        encoding="utf-8",
        timeout=60,
        env=environment,
        dimensions=(24, 90),
    )
    child.logfile_read = sys.stdout
    child.expect_exact("Ctrl-D leaves")
    for message in ("hi there", "Tell me a story about a fox and a lantern."):
        child.expect_exact(PROMPT)
        child.sendline(message)
        child.expect(r"\d+ tokens/s")
    child.expect_exact(PROMPT)
    child.sendline("Tell me another story, please.")
    child.expect(r"\w+ \w+ \w+ \w+ ")
    child.sendintr()
    child.expect_exact("(stopped)")
    child.expect_exact(PROMPT)
    child.sendline("What is 3 plus 4?")
    child.expect(r"\d+ tokens/s")
    child.expect_exact(PROMPT)
    child.sendeof()
    child.expect(pexpect.EOF)
    child.close()
    if child.exitstatus != 0:
        raise SystemExit(f"localspec chat ended with {child.exitstatus}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Play a new user's first minute.")
    parser.add_argument("--installed", type=Path, help="a localspec to talk to, not a new one")
    chosen = parser.parse_args().installed
    if chosen is not None:
        talk(chosen)
        return
    with tempfile.TemporaryDirectory() as folder:
        talk(install(Path(folder)) / "localspec")


if __name__ == "__main__":
    main()
