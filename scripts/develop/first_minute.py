"""A new user's first minute: the README's command in a fresh environment, then chat.

    python scripts/develop/first_minute.py [--installed PATH]

Builds a virtual environment, installs this checkout where no compiler is on PATH, and talks to
`localspec chat` through a pseudo-terminal: two messages, a Ctrl-C in the middle of an answer,
Ctrl-D. Prints the transcript, the time and memory that the install took, and the time from the
command to the end of the first answer. Exits 1 if anything is
not as a person would expect.
"""

from __future__ import annotations

import time
from pathlib import Path

from newcomer import PROMPT, end, on_terminal, play


def talk(localspec: Path) -> None:
    """The conversation."""
    started = time.monotonic()
    child = on_terminal(localspec, "chat")
    child.expect_exact("Ctrl-D leaves")
    child.expect_exact(PROMPT)
    child.sendline("hi there")
    child.expect(r"\d+ tokens/s")
    first_s = time.monotonic() - started
    child.expect_exact(PROMPT)
    child.sendline("Tell me a story about a fox and a lantern.")
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
    end(child)
    print(f"\nfirst answer in {first_s:.1f} s")


if __name__ == "__main__":
    play("Play a new user's first minute.", talk)
