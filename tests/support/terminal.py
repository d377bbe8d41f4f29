"""A terminal for tests: the real command behind a pty, its screen as a person sees it."""

from __future__ import annotations

import contextlib
import os
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pexpect
import pyte

from command_line import LOCALSPEC
from waiting import wait_until

TIMEOUT_S = 60
_SIZE = ("COLUMNS", "LINES")  # of the terminal that the tests were started on


class Terminal:
    """A program on a terminal of its own, with an empty home in `folder`."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        columns: int = 80,
        rows: int = 24,
        program: str = str(LOCALSPEC),
        **environment: str,
    ) -> None:
        home = {name: str(folder) for name in ("HOME", "XDG_STATE_HOME", "XDG_DATA_HOME")}
        ours = {name: value for name, value in os.environ.items() if name not in _SIZE}
        self.process = pexpect.spawn(
            program,
            list(arguments),
            env={**ours, "TERM": "xterm-256color", **home, **environment},
            dimensions=(rows, columns),
            cwd=folder,
        )
        self._pty = os.dup(self.process.child_fd)  # to look at when the process has gone
        self._modes = termios.tcgetattr(self._pty)
        self.screen = pyte.HistoryScreen(columns, rows, history=10_000, ratio=0.1)
        self._stream = pyte.ByteStream(self.screen)
        self.received = b""

    def read(self) -> None:
        """Take in what was written meanwhile."""
        try:
            data = self.process.read_nonblocking(65536, timeout=0.1)
        except pexpect.TIMEOUT:
            return
        self.received += data
        self._stream.feed(data)

    def text(self) -> str:
        """Every line, from the first that scrolled away to the cursor's."""
        columns = range(self.screen.columns)
        above = ["".join(line[x].data for x in columns) for line in self.screen.history.top]
        lines = [line.rstrip() for line in [*above, *self.screen.display]]
        return "\n".join(lines).rstrip()

    def wait_for(self, condition: Callable[[str], bool]) -> str:
        """The screen's text as soon as the condition holds; AssertionError if it never does."""
        deadline = time.monotonic() + TIMEOUT_S
        while not condition(self.text()):
            assert time.monotonic() < deadline, self.text()
            assert self.process.isalive(), self.text()
            self.read()
        return self.text()

    def wait_for_prompt(self, number: int) -> str:
        """The text when the prompt is there for the number-th time."""
        return self.wait_for(
            lambda text: self.num_prompts() >= number and text.split("\n")[-1] == ">"
        )

    def num_prompts(self) -> int:
        """How often the editor has asked for input."""
        return self.received.count(b"\x1b[?2004h")

    def say(self, text: str) -> str:
        """Type a line, and wait for the prompt after what comes of it."""
        number = self.num_prompts()
        self.process.send(text + "\r")
        return self.wait_for_prompt(number + 1)

    def interrupt(self) -> str:
        """Press Ctrl-C, and wait for the prompt after what comes of it.

        The terminal keeps no key that is pressed between two prompts.
        """
        number = self.num_prompts()
        self.process.send("\x03")
        return self.wait_for_prompt(number + 1)

    def leave(self) -> int:
        """Press Ctrl-D; the exit code."""
        self.process.send("\x04")
        return self.ended()

    def ended(self) -> int:
        """Wait for the end: the exit code, or -signal. AssertionError if it never comes."""
        deadline = time.monotonic() + TIMEOUT_S
        try:
            while True:
                assert time.monotonic() < deadline, self.text()
                self.read()
        except pexpect.EOF:
            self.process.close()
        if self.process.signalstatus is not None:
            return -self.process.signalstatus
        return self.process.exitstatus

    def has_its_modes(self) -> bool:
        """Whether the terminal is as it was before: line by line, with echo, and the rest."""
        return termios.tcgetattr(self._pty) == self._modes

    def close(self) -> None:
        """End the process, whatever it does."""
        with contextlib.suppress(pexpect.ExceptionPexpect):  # it waits a tenth of a second
            self.process.close(force=True)
        os.close(self._pty)
        wait_until(lambda: not self.process.isalive())
