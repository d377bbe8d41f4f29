"""`localspec chat` in tmux, which wraps lines again on a resize, as most terminals do."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("there are no pseudo-terminals", allow_module_level=True)
if shutil.which("tmux") is None:
    pytest.skip("tmux is not installed", allow_module_level=True)

from terminal import LOCALSPEC, TIMEOUT_S

pytestmark = pytest.mark.process

_POLL_S = 0.02


class Tmux:
    """`localspec` in a pane that no client is attached to, with an empty home in `folder`."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._written = folder / "written"
        self._name = f"localspec-{uuid.uuid4().hex[:12]}"
        home = {name: str(folder) for name in ("HOME", "XDG_STATE_HOME", "XDG_DATA_HOME")}
        self._environment = {**os.environ, **home}
        self._environment.pop("TMUX", None)  # we may stand in somebody's pane ourselves
        command = shlex.join([str(LOCALSPEC), *arguments])
        self.run(
            "start-server", ";", "set", "-g", "status", "off", ";",
            "new-session", "-d", "-x", "80", "-y", "24", "-c", str(folder), command,
        )  # fmt: skip
        self._socket = Path(self.run("display-message", "-p", "#{socket_path}").strip())
        self.run("pipe-pane", f"cat >{shlex.quote(str(self._written))}")

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

    def type(self, text: str) -> None:
        """Press the keys of these characters."""
        self.run("send-keys", "-l", text)

    def wait_for(self, condition: Callable[[str], bool]) -> str:
        """Every line, as soon as the condition holds; AssertionError if it never does."""
        deadline = time.monotonic() + TIMEOUT_S
        while not condition(text := self.run("capture-pane", "-p", "-S", "-").rstrip()):
            assert time.monotonic() < deadline, text
            time.sleep(_POLL_S)
        return text

    def resize(self, columns: int, typed: str) -> None:
        """Another width, until what is typed is drawn again: tmux's own wrap may look so."""
        num_written, start = len(self._written.read_bytes()), typed[:20].encode()
        self.run("resize-window", "-x", str(columns), "-y", "24")
        self.wait_for(lambda _text: start in self._written.read_bytes()[num_written:])

    def close(self) -> None:
        """End the server, and all that runs in it."""
        self.run("kill-server")
        self._socket.unlink(missing_ok=True)


@pytest.fixture
def chat(tmp_path):
    options = ("--temperature", "0", "--max-tokens", "24", "--session", "s")
    terminal = Tmux(tmp_path, "chat", *options)
    yield terminal
    terminal.close()


def num_prompts(text: str) -> int:
    """How often the editor has asked for input, as far as it still stands there."""
    return len(re.findall(r"^>(?: |$)", text, re.MULTILINE))


def test_a_resize_and_back_while_the_prompt_waits(chat, tmp_path):
    """What is typed is drawn again at each width, and is sent as it was typed."""
    wide = "日本語んです 👍🏽 👩‍👩‍👧 مرحبا naïve"
    message = "Tell me another story about an owl that lives in a hollow oak and has a cape."
    at_forty = (
        "> Tell me another story about an owl tha\n"
        "  t lives in a hollow oak and has a cape\n"
        "  ."
    )
    chat.wait_for(lambda text: text.endswith("\n>"))
    chat.type("日本語です")
    chat.run("send-keys", "Left", "Left")
    chat.type("ん")
    chat.run("send-keys", "End")
    chat.type(wide.removeprefix("日本語んです"))
    chat.run("send-keys", "Enter")
    before = chat.wait_for(lambda text: text.endswith("\n>") and num_prompts(text) == 2)
    chat.type(message)
    chat.wait_for(lambda text: text == f"{before} {message}")
    for columns, typed in ((40, at_forty), (80, f"> {message}")) * 2:
        chat.resize(columns, message)
        chat.wait_for(lambda text, typed=typed: text.endswith(f"\n{typed}"))
    chat.run("send-keys", "Enter")
    chat.wait_for(lambda text: text.endswith("\n>"))
    saved = json.loads((tmp_path / "localspec" / "sessions" / "s.json").read_text("utf-8"))
    assert [message["content"] for message in saved["messages"][::2]] == [wide, message]
