"""A new user's first hour: what a person tries after the first chat, rightly and wrongly.

    python scripts/develop/first_hour.py [--installed PATH]

Installs the package as `first_minute` does, into a home of its own, and goes through a
pseudo-terminal: a default model, a log piped in beside a prompt, a session that is begun,
resumed, listed, exported and removed, files that cannot be attached, settings that do not
exist, and completion in bash and in the chat. Prints the transcript; exits 1 if anything is not
as a person would expect.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pexpect

from newcomer import PROMPT, end, on_terminal, play

ANSWERED = r"\d+ tokens/s"
PNG = b"\x89PNG\r\n\x1a\n"


class Newcomer:
    """A person with an empty home, in which `localspec` is found."""

    def __init__(self, localspec: Path, home: Path) -> None:
        self._home = home
        self._environment = {
            "HOME": str(home),
            "PATH": f"{localspec.parent}{os.pathsep}{os.environ['PATH']}",
            **{
                f"XDG_{name}_HOME": str(home / name)
                for name in ("DATA", "CONFIG", "STATE", "CACHE")
            },
        }

    def starts(self, line: str) -> pexpect.spawn:
        """A line of a shell, in the home."""
        command = f"cd {self._home} && {line}"
        return on_terminal("/bin/bash", "-c", command, **self._environment)

    def sees(self, line: str, *wanted: str, exit_code: int = 0) -> None:
        """Expect a line to print these words in order, and to end so."""
        print(f"\n$ {line}")
        child = self.starts(line)
        for text in wanted:
            child.expect(text)
        end(child, exit_code)

    def chats(self, line: str, *exchanges: tuple[str, str]) -> None:
        """Type into a chat, and expect what appears. Ctrl-D ends it."""
        print(f"\n$ {line}")
        child = self.starts(line)
        for typed, wanted in exchanges:
            child.expect_exact(PROMPT)
            child.send(f"{typed}\r")
            child.expect(wanted)
        child.expect_exact(PROMPT)
        child.sendeof()
        end(child)

    def completes(self, line: str, wanted: str) -> None:
        """Expect Tab to complete a line in a bash that has read the script."""
        child = on_terminal("/bin/bash", "--norc", "--noprofile", **self._environment)
        child.sendline(f"cd {self._home}; eval \"$(localspec completion bash)\"; echo re''ady")
        child.expect_exact("ready")
        child.send(f"{line}\t")
        child.expect_exact(wanted)
        child.sendintr()
        child.sendline("exit 0")
        end(child)


def choose_model(person: Newcomer) -> None:
    """A default, and names that nothing has."""
    person.sees("localspec --help", "Commands:", "chat", "sessions")
    person.sees("localspec models", "demo")
    person.sees("localspec models default", "demo")
    person.sees("localspec models default demo", "demo")
    person.sees("localspec models default dmeo", "Error: .*dmeo", "demo", exit_code=2)
    person.sees("localspec chat dmeo", "Error: .*dmeo", "demo", exit_code=2)
    person.sees("localspec generate -m demo 'Name a colour.'", r"\w")


def pipe(person: Newcomer, home: Path) -> None:
    """A log beside a prompt, a file, and one that is too large."""
    (home / "server.log").write_text("started\nlistening on port 80\nstopped: disk full\n")
    (home / "large.txt").write_text("One more line of a long text.\n" * 300_000)
    (home / "photo.png").write_bytes(PNG + bytes(1000))
    person.sees("cat server.log | localspec generate 'summarise'", r"\w")
    person.sees("localspec generate -f server.log --stats 'summarise'", r"\w", ANSWERED)
    person.sees(
        "localspec generate -f large.txt summarise", "Error: large.txt", "Hint: ", exit_code=2
    )
    person.sees("localspec generate -f photo.png what", "Error: .*image", exit_code=2)


def converse(person: Newcomer) -> None:
    """A session with mistakes in it, resumed, looked at and removed."""
    person.chats(
        "localspec chat --session first",
        ("Hi there!", ANSWERED),
        ("/set temprature 0.2", "Error: .*temprature(.|\n)*temperature"),
        ("/set top-p 7", "Error: (.|\n)*0 up to 1"),
        ("/set top-p 0.9", "top_p 0.9"),
        ("/set temp\t 0.5", "temperature 0.5"),
        ("/hepl", "Error: (.|\n)*/help"),
        ("/file large.txt", "Error: large.txt"),
        ("/file photo.png", "Error: (.|\n)*image"),
        ("Tell me a story.", ANSWERED),
        ("/sessions", "first"),
    )
    person.chats("localspec chat --session first", ("And another one!", ANSWERED))
    person.sees("localspec sessions", "first")
    person.sees("localspec sessions list", "first")
    person.sees("localspec sessions show first", "Hi there!", "Tell me a story")
    person.sees("localspec sessions export first > first.md && cat first.md", "Hi there!")
    person.completes("localspec sessions rem", "remove")
    person.sees("localspec sessions show frist", "Error: .*frist", "first", exit_code=2)
    person.sees("localspec sessions remove --yes first")
    person.sees("localspec sessions show first", "Error: .*first", exit_code=2)


def complete(person: Newcomer) -> None:
    """In a shell: commands, options, presets."""
    person.completes("localspec gen", "generate")
    person.completes("localspec chat --show-d", "--show-draft")
    person.completes("localspec chat --preset gpt", "gpt-oss-20b")


def hour(localspec: Path) -> None:
    """All of it."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        person = Newcomer(localspec, home)
        choose_model(person)
        pipe(person, home)
        converse(person)
        complete(person)


if __name__ == "__main__":
    play("Play a new user's first hour.", hour)
