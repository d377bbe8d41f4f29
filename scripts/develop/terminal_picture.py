"""Draws the README's picture of a terminal: an answer, coloured by where its tokens came from.

    python -m pip install '.[test]'
    python scripts/develop/terminal_picture.py MODEL.gguf

Runs the installed `localspec generate --show-draft` in a pseudo-terminal of 84 columns, and
writes what it printed to `docs/pictures/terminal.svg`. MODEL is a trained instruct model. It
runs on POSIX systems only.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path

import pexpect
from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).parents[2] / "docs" / "pictures" / "terminal.svg"
NUM_COLUMNS = 84
NUM_ROWS = 60
PATIENCE_S = 600  # a large model on a slow machine
# rich names a font on a server; the picture is to load nothing.
FONT_FACES = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
QUESTION = "Add type hints to this class, otherwise unchanged. Only the code."
PROGRAM = """\
class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("The amount has to be positive")
        self.balance += amount

    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError("Not enough money")
        self.balance -= amount
"""


def run_in_terminal(command: list[str], folder: Path) -> str:
    """Run a command in a pseudo-terminal.

    Args:
        command: The program, and its arguments.
        folder: Its working directory.

    Returns:
        What it wrote to its terminal, with control sequences.
    """
    program = pexpect.spawn(
        command[0],
        command[1:],
        cwd=str(folder),
        dimensions=(NUM_ROWS, NUM_COLUMNS),
        env={**os.environ, "TERM": "xterm-256color"},
        encoding="utf-8",
        timeout=PATIENCE_S,
    )
    program.expect(pexpect.EOF)
    program.close()
    if program.exitstatus != 0:
        sys.exit(f"{shlex.join(command)} failed:\n{program.before}")
    return program.before


def visible_lines(written: str) -> list[str]:
    """The lines that stay on a terminal: progress that was overwritten is left out."""
    lines = written.replace("\r\n", "\n").split("\n")
    return [line.rpartition("\r")[2] for line in lines]


def draw(command: str, lines: list[str]) -> str:
    """An SVG of a terminal window.

    Args:
        command: What was typed, as the first line shows it.
        lines: The lines below it, with ANSI colours.
    """
    console = Console(record=True, width=NUM_COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ {command}", style="bold"))
    console.print(Text.from_ansi("\n".join(lines).strip("\n")))
    picture = console.export_svg(title="localspec", unique_id="localspec")
    return FONT_FACES.sub("", picture)


def answer_picture(model: str) -> str:
    """Let a model answer in a terminal, and draw what is then on it.

    Args:
        model: A preset, or the path of a model file.
    """
    program = Path(sys.executable).with_name("localspec")
    typed = ["generate", "-f", "account.py", QUESTION, "--show-draft"]
    command = [str(program), *typed, "-m", model, "--temperature", "0", "--max-tokens", "300"]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "account.py").write_text(PROGRAM)
        written = run_in_terminal(command, Path(folder))
    shown = shlex.join(["localspec", *typed]).replace("'", '"')
    return draw(shown, visible_lines(written))


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} MODEL.gguf")
    model = str(Path(sys.argv[1]).resolve())
    PICTURE.write_text(answer_picture(model))


if __name__ == "__main__":
    main()
