"""`verify` and `bench` on a terminal: what is said on the way, and what Ctrl-C leaves."""

from __future__ import annotations

import itertools
import re
import sys
import threading

import pytest

from localspec.cli.progress_line import ProgressLine, waiting
from localspec.cli.screen import clock_time, duration

if sys.platform == "win32":
    pytest.skip("needs a pseudo-terminal", allow_module_level=True)

from terminal import Terminal

VERIFY = ("verify", "--seconds", "3600")
BENCH = ("bench", "--seconds", "3600")


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "stage", "words"),
    [
        (VERIFY, "Comparing greedy text", "Not enough evidence for a verdict, stopped"),
        (BENCH, r"writing \w+; ", r"times plain( \(|, but anywhere from )"),
    ],
)
def test_ctrl_c_prints_what_is_known(tmp_path, arguments, stage, words):
    terminal = Terminal(tmp_path, *arguments, columns=100)
    terminal.wait_for(lambda text: re.search(stage, text) is not None)
    terminal.process.sendintr()
    assert terminal.ended() == 130
    shown = terminal.text()
    assert re.search(words, shown)
    assert "Traceback" not in shown
    assert re.search(stage, shown) is None  # the line is gone


@pytest.mark.process
@pytest.mark.parametrize("command", ["verify", "bench"])
def test_results_are_wrapped_between_words(tmp_path, command):
    terminal = Terminal(tmp_path, command, "--seconds", "1", columns=50)
    terminal.ended()
    shown = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", terminal.received.decode())
    lines = [line.rpartition("\r")[2] for line in shown.split("\r\n")]
    assert len(lines) > 5
    assert max(map(len, lines)) <= 50, shown


def test_the_estimate_counts_down():
    now = 100.0
    line = ProgressLine(60.0, lambda: now)
    assert line.text() == "0:00, at most 1:00 left · starting"
    line.report("comparing", None)
    now = 110.0
    assert line.text() == "0:10, at most 0:50 left · comparing"
    line.report("checking", 20.0)
    assert line.text() == "0:10, about 0:20 left · checking"
    now = 115.0
    line.report("checking", 20.0)  # a sign of life
    assert line.text() == "0:15, about 0:15 left · checking"
    line.report("checking", 200.0)
    assert line.text() == "0:15, at most 0:45 left · checking"
    now = 190.0
    assert line.text() == "1:30, at most 0:00 left · checking"


def test_on_a_pipe_a_line_comes_from_time_to_time(capsys):
    numbers, seen = itertools.count(1), threading.Event()

    def describe() -> str:
        number = next(numbers)
        if number == 4:
            seen.set()
        return f"line {number}"

    with waiting(describe, pipe_s=0.001):
        assert seen.wait(60)
    assert capsys.readouterr().err.splitlines()[:3] == ["line 1", "line 2", "line 3"]
    with waiting(describe):
        pass
    assert capsys.readouterr().err == ""


def test_times_are_written_for_people():
    assert [clock_time(seconds) for seconds in (0, 59.9, 61, 3605)] == [
        "0:00", "0:59", "1:01", "1:00:05",
    ]  # fmt: skip
    assert [duration(seconds) for seconds in (9.6, 119, 130, 7300)] == [
        "10 s", "119 s", "2 minutes", "2.0 hours",
    ]  # fmt: skip
