"""A conversation that cannot be written: said once, tried again, and never exit code 0."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from command_line import LOCALSPEC

if sys.platform == "win32":
    pytest.skip("needs limits and folders that can be renamed in use", allow_module_level=True)

import resource

from terminal import Terminal

pytestmark = pytest.mark.process

CHAT = ["chat", "--session", "s", "--max-tokens", "4", "--draft-tokens", "0"]
UNWRITABLE = "the session cannot be written to"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A home, and in it the folder of its sessions, which is not there yet."""
    return tmp_path / "localspec" / "sessions"


def environment(folder: Path) -> dict[str, str]:
    home = str(folder.parent.parent)
    return {**os.environ, **dict.fromkeys(("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"), home)}


def questions(folder: Path) -> list[str]:
    """Those that the session's file holds."""
    messages = json.loads((folder / "s.json").read_text("utf-8"))["messages"]
    return [one["content"] for one in messages if one["role"] == "user"]


@pytest.fixture
def blocked(folder: Path) -> Callable[[], None]:
    """Call it, and no session can be written until it is called again.

    The folder is a link, because that can be changed at once, in the midst of writing, too.
    """
    kept, in_the_way = folder.with_name("kept"), folder.with_name("file")
    kept.mkdir(parents=True)
    in_the_way.write_bytes(b"")
    folder.symlink_to(kept)

    def toggle() -> None:
        link = folder.with_name("link")
        link.symlink_to(in_the_way if folder.is_dir() else kept)
        link.replace(folder)

    return toggle


def without_room() -> None:
    """No file can become longer than it is: what a full disk is like."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def test_a_pipe_is_answered_and_ends_with_an_error(folder):
    done = subprocess.run(
        [LOCALSPEC, *CHAT], input="Hello!\nBye!\n", env=environment(folder),
        capture_output=True, text=True, timeout=120, preexec_fn=without_room,
    )  # fmt: skip
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) == 2
    assert done.stderr.count(UNWRITABLE) == 2, "at first, and when it is left"
    assert "Traceback" not in done.stderr
    assert not list(folder.glob("*.json"))
    assert not list(folder.glob(".*.new"))


@pytest.mark.parametrize("has_room", [True, False])
def test_on_a_terminal_it_is_asked_before_a_conversation_is_lost(folder, blocked, has_room):
    terminal = Terminal(folder.parent.parent, *CHAT, columns=160)
    terminal.wait_for_prompt(1)
    terminal.say("One.")
    blocked()
    text = terminal.say("Two.")
    assert text.count(UNWRITABLE) == 1
    assert terminal.say("Three.").count(UNWRITABLE) == 1
    terminal.process.send("/quit\r")
    terminal.wait_for(lambda text: text.endswith("Try again? [Y/n]:"))
    if has_room:
        blocked()
        terminal.process.send("\r")
        assert terminal.ended() == 0
        assert questions(folder) == ["One.", "Two.", "Three."]
    else:
        terminal.process.send("\r")
        terminal.wait_for(lambda text: text.count("Try again? [Y/n]:") == 2)
        terminal.process.send("n\r")
        assert terminal.ended() == 1
    terminal.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="has no device that is full")
@pytest.mark.parametrize("line", ["generate Hi", "chat", "models --json"])
def test_output_that_finds_no_room_is_told_once(folder, line):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [LOCALSPEC, *line.split()], input=b"Hello!\nBye!\n", env=environment(folder),
            stdout=full, stderr=subprocess.PIPE, timeout=120,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.count(b"Error: No space left on device: output") == 1
    assert b"Traceback" not in done.stderr
