"""A new user's first minute: install the wheel into a fresh environment, then chat.

    python scripts/develop/first_minute.py [--installed PATH]

Builds a virtual environment, installs the package from this checkout, and talks to `localspec
chat` through a pseudo-terminal: two messages, a Ctrl-C in the middle of an answer, Ctrl-D.
Prints the transcript, and the time and memory that the install took. Exits 1 if anything is
not as a person would expect.
"""

from __future__ import annotations

from pathlib import Path

from newcomer import PROMPT, end, on_terminal, play


def talk(localspec: Path) -> None:
    """The conversation."""
    child = on_terminal(localspec, "chat")
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
    end(child)


if __name__ == "__main__":
    play("Play a new user's first minute.", talk)
