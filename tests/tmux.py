"""A tmux server for tests: the real chat in a pane, its screen as tmux keeps it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from terminal import LOCALSPEC, TIMEOUT_S

_POLL_S = 0.02


class Tmux:
    """`localspec` in a pane that no client is attached to, with an empty home in `folder`.

    A shell stands around it: it leaves what `stty -a` says before and after in files, says
    the exit code, and then shows the bytes that it gets.
    """

    def __init__(
        self, folder: Path, *arguments: str, columns: int = 80, rows: int = 24
    ) -> None:
        self._folder = folder
        self._name = f"localspec-{uuid.uuid4().hex[:12]}"
        home = {name: str(folder) for name in ("HOME", "XDG_STATE_HOME", "XDG_DATA_HOME")}
        self._environment = {**os.environ, **home}
        self._environment.pop("TMUX", None)  # we may stand in somebody's pane ourselves
        command = shlex.join([str(LOCALSPEC), *arguments])
        shell = (
            f"stty -a >before; {command}; code=$?; stty -a >after; "
            'echo "exit $code"; exec cat -v'
        )
        size = ("-x", str(columns), "-y", str(rows))
        self.run(
            "start-server", ";", "set", "-g", "status", "off", ";",
            "new-session", "-d", *size, "-c", str(folder), shell,
        )  # fmt: skip
        self._socket = Path(self.run("display-message", "-p", "#{socket_path}").strip())
        self.run("pipe-pane", f"cat >{shlex.quote(str(folder / 'written'))}")

    def run(self, *command: str) -> str:
        """What a tmux command prints."""
        return subprocess.run(
            ["tmux", "-L", self._name, "-f", "/dev/null", *command],
            env=self._environment,
            check=True,
            capture_output=True,
            encoding="utf-8",
            timeout=TIMEOUT_S,
        ).stdout

    def screen(self) -> str:
        """What the window shows."""
        return self.run("capture-pane", "-p").rstrip()

    def text(self) -> str:
        """Every line, from the first that scrolled away on."""
        return self.run("capture-pane", "-p", "-S", "-").rstrip()

    def written(self) -> bytes:
        """What the program has written, but for its first words."""
        return (self._folder / "written").read_bytes()

    def type(self, text: str) -> None:
        """Press the keys of these characters."""
        self.run("send-keys", "-l", text)

    def press(self, *keys: str) -> None:
        """Press keys by tmux's names: Enter, C-c, M-Enter …"""
        self.run("send-keys", *keys)

    def paste(self, text: str) -> None:
        """Paste; in brackets if the program has asked for them."""
        self.run("set-buffer", text)
        self.run("paste-buffer", "-p", "-r")

    def wait_for(self, condition: Callable[[str], bool]) -> str:
        """The text as soon as the condition holds; AssertionError if it never does."""
        deadline = time.monotonic() + TIMEOUT_S
        while not condition(text := self.text()):
            assert time.monotonic() < deadline, text
            time.sleep(_POLL_S)
        return text

    def wait_for_prompt(self, number: int) -> str:
        """The text when the prompt is there for the number-th time, and empty."""
        return self.wait_for(lambda text: text.endswith("\n>") and num_prompts(text) == number)

    def say(self, text: str) -> str:
        """Type a line, and wait for the prompt after what comes of it."""
        number = num_prompts(self.text())
        self.type(text)
        self.press("Enter")
        return self.wait_for_prompt(number + 1)

    def resize(self, columns: int, rows: int = 24) -> None:
        """Another window's size, as soon as the program can know it: tmux waits a little."""
        self.run("resize-window", "-x", str(columns), "-y", str(rows))
        with open(self.run("display-message", "-p", "#{pane_tty}").strip()) as pty:
            self.wait_for(lambda _: os.get_terminal_size(pty.fileno()) == (columns, rows))

    def flags(self) -> str:
        """The pane's modes: cursor shown, alternate screen, insert, keypads, mouse, wrap."""
        names = "cursor alternate_on insert keypad keypad_cursor mouse_any origin wrap"
        names = [n if n.endswith("_on") else f"{n}_flag" for n in names.split()]
        return self.run(
            "display-message", "-p", " ".join(f"{n}=#{{{n}}}" for n in names)
        ).strip()

    def shell_modes(self) -> tuple[str, str]:
        """What `stty -a` said before, and when the command had ended."""
        before, after = ((self._folder / name).read_text() for name in ("before", "after"))
        return before, after

    def close(self) -> None:
        """End the server, and all that runs in it."""
        self.run("kill-server")
        self._socket.unlink(missing_ok=True)


def num_prompts(text: str) -> int:
    """How often the editor has asked for input, as far as it still stands there."""
    return len(re.findall(r"^>(?: |$)", text, re.MULTILINE))
