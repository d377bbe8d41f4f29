"""The command as a process among others: pipes, signals, closed files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from command_line import LOCALSPEC

pytestmark = pytest.mark.process

posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals and devices")


def run(*arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [LOCALSPEC, *arguments], capture_output=True, text=True, timeout=120, **more
    )
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    return done


@posix
def test_a_closed_input_is_an_empty_one():
    chat = run("chat", preexec_fn=lambda: os.close(0))
    assert (chat.returncode, chat.stdout) == (0, "")
    assert run("generate", preexec_fn=lambda: os.close(0)).returncode == 2


@posix
def test_ctrl_c_on_a_pipe_ends_with_130_and_keeps_what_was_said():
    chat = subprocess.Popen(
        [LOCALSPEC, "chat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert chat.stdin is not None
    assert chat.stdout is not None
    chat.stdin.write("Tell me a story about a fox.\n" * 50)
    chat.stdin.flush()
    first = chat.stdout.readline()
    chat.send_signal(signal.SIGINT)
    rest, errors = chat.communicate(timeout=60)
    assert chat.returncode == 130, errors
    assert first.strip()
    assert rest.count("\n") < 50
    assert errors.strip() == ""
