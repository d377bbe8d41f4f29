"""The script for busy machines: real sides, real busy processes, and nothing left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from measure_busy import GROUPS, PASSIVE, automatic, fixed, passive, print_rates, thread_counts

from busy_sides.neighbours import busy_processes, quota_group
from busy_sides.side import Setting, Side, Sides
from localspec.errors import EngineError, LocalspecError, MemoryLimitError

pytestmark = pytest.mark.process

MEASURE = Path(__file__).parent.parent / "scripts/measure"
PLAIN = {"draft_tokens": 0, "context_length": 128}


def command(*options: object) -> list[str]:
    return [sys.executable, str(MEASURE / "measure_busy.py"), *map(str, options)]


def wait_until(is_so: Callable[[], bool]) -> None:
    """Or fail after half a minute."""
    ends_at = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < ends_at
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_ratios_are_of_rounds_and_the_best_side_comes_first(capsys):
    rates = {
        "slow": [1.0, 2.0, 3.0],
        "automatic": [10.0, 20.0, 30.0],
        "best": [5.0, 20.0, 60.0],
    }
    print_rates("demo | 1", rates, {"slow": "before"})
    assert capsys.readouterr().out.splitlines() == [
        "| demo | 1 | automatic | **20.0** (10.0 … 30.0) |  |",
        "| demo | 1 | best | **20.0** (5.0 … 60.0) | **1.000** (0.500 … 2.000) |",
        "| demo | 1 | slow (before) | **2.0** (1.0 … 3.0) | **10.000** (10.000 … 10.000) |",
    ]


def test_sides_stay_loaded_and_decode_in_an_order_that_changes(monkeypatch):
    """Each is a process of its own, in its own environment, and ends with the block."""
    order: list[str] = []
    decode = Side.decode
    monkeypatch.setattr(
        Side, "decode", lambda side, *of: order.append(side.setting.name) or decode(side, *of)
    )
    ways = [fixed(PLAIN, 1), passive(PLAIN, 1)]
    before = {child.pid for child in psutil.Process().children()}
    with Sides(num_warm_up_tokens=4) as sides:
        # More than the context holds, so that another answer begins.
        turns = sides.rounds(ways, 3, 150, 0.01)
        started = [child for child in psutil.Process().children() if child.pid not in before]
        policies = {child.environ().get("OMP_WAIT_POLICY") for child in started}
    one, other = (way.name for way in ways)
    assert order == [one, one, other, other, other, one, one, other]  # the warm-ups among them
    assert [len(turns[way.name]) for way in ways] == [3, 3]
    for turn in (*turns[one], *turns[other]):
        assert turn.num_tokens >= 150
        assert turn.num_threads == 1
        assert turn.rate == turn.num_tokens / turn.seconds > 0
    assert len(started) == 2
    assert policies == {None, PASSIVE["OMP_WAIT_POLICY"]}
    assert not any(is_alive(child.pid) for child in started)


def test_a_side_with_nothing_to_find_out_makes_room_for_another(monkeypatch):
    """As on a machine with memory for two."""
    load = Side.load
    loaded: list[Side] = []

    def load_two(side: Side, keywords: dict[str, object]) -> None:
        if sum(is_alive(other.pid) for other in loaded) == 2:
            raise MemoryLimitError("no room", "Close something.")
        loaded.append(side)
        load(side, keywords)

    monkeypatch.setattr(Side, "load", load_two)
    ways = [automatic(PLAIN), fixed(PLAIN, 1), passive(PLAIN, 1)]
    with Sides(num_warm_up_tokens=1) as sides:
        turns = sides.rounds(ways, 2, 1, 0)
        assert [len(turns[way.name]) for way in ways] == [2, 2, 2]
        assert [side.setting.is_automatic for side in loaded].count(True) == 1
        assert is_alive(loaded[0].pid)


def test_two_engines_of_one_process_decode_in_turn():
    with Side(fixed(PLAIN, 1)) as both:
        for count in (1, 2):
            both.load({**PLAIN, "num_threads": count})
        rates = both.take_turns(20, 0)
    assert len(rates) == 2
    assert all(rate > 0 for rate in rates)


def test_a_turn_ends_with_a_step_whatever_a_draft_proposed():
    """Else what a step took would count, and not what it gave."""
    with Side(Setting("K 3", {"draft_tokens": 3, "num_threads": 1}, {})) as side:
        side.load(side.setting.load)
        turns = [side.decode(1, 0).num_tokens for _ in range(40)]
    assert set(turns) <= {1, 2, 3, 4}
    assert max(turns) > 1


def test_what_goes_wrong_in_a_side_is_said_here():
    with Side(fixed({}, 1)) as side:
        with pytest.raises(LocalspecError, match=r"1 thread: .*nothing\.gguf") as caught:
            side.load({"target": "nothing.gguf"})
        assert caught.value.hint
        side.load(PLAIN)  # it goes on
        (child,) = (
            each for each in psutil.Process().children() if "child.py" in each.cmdline()[1]
        )
        child.kill()
        with pytest.raises(EngineError, match="“1 thread” ended with"):
            side.decode(1, 0)


def test_busy_processes_end_with_the_block_whatever_ends_it():
    pids: list[int] = []

    def interrupted() -> None:
        with busy_processes(2) as started:
            pids.extend(started)
            wait_until(lambda: all(psutil.Process(pid).cpu_times().user > 0.1 for pid in pids))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(set(pids)) == 2
    assert not any(is_alive(pid) for pid in pids)


@pytest.mark.skipif(sys.platform == "win32", reason="nothing dies of SIGKILL there")
def test_what_was_started_ends_even_where_the_script_is_killed(tmp_path):
    code = (
        "from busy_sides.neighbours import busy_processes\n"
        "from busy_sides.side import Setting, Side\n"
        "with busy_processes(1) as pids, Side(Setting('one', {}, {})) as side:\n"
        "    side.load({'draft_tokens': 0})\n"
        "    print(*pids, flush=True)\n"
        "    side.decode(10**9, 0)\n"
    )
    script = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(MEASURE), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with script:
        assert script.stdout is not None
        assert script.stdout.readline().strip()
        started = [child.pid for child in psutil.Process(script.pid).children()]
        script.kill()
    assert len(started) == 2
    wait_until(lambda: not any(is_alive(pid) for pid in started))


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C cannot be sent to one process")
def test_ctrl_c_ends_the_script_and_what_it_started():
    script = subprocess.Popen(
        command("--parts", "busy", "--models", "demo", "--busy", 2, "--rounds", 1000),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with script:
        wait_until(lambda: len(psutil.Process(script.pid).children()) > 2)
        started = [child.pid for child in psutil.Process(script.pid).children()]
        script.send_signal(signal.SIGINT)
        assert script.communicate()[1] == "Interrupted.\n"
    assert script.returncode == 130
    wait_until(lambda: not any(is_alive(pid) for pid in started))


def test_no_group_is_left_where_the_machine_does_not_make_it_one(tmp_path):
    """In a folder that only looks like that of control groups."""
    (tmp_path / "cpu").mkdir()
    with pytest.raises(FileNotFoundError), quota_group(tmp_path, 1):
        pass
    assert list((tmp_path / "cpu").iterdir()) == []


def test_sides_run_in_the_group_and_the_group_is_gone_afterwards():
    with contextlib.ExitStack() as undo:
        try:
            group = undo.enter_context(quota_group(GROUPS, 1))
        except OSError as error:
            pytest.skip(f"no control group can be made here: {error}")
        with Side(fixed(PLAIN, 1, group)):
            assert len((group / "cgroup.procs").read_text().split()) == 1
    assert not group.exists()


@pytest.mark.parametrize(
    ("options", "sides"),
    [
        (["busy", "--busy", 0, "--models", "demo"], 2 * len(thread_counts())),
        (["quiet", "--models", "demo"], 1),
        (["quota", "--models", "demo"], len(thread_counts())),
        (["comes-and-goes", "--busy", 1, "--phase-model", "demo", "--phases", 2], 1),
        (
            ["draft", "--busy", 0, "--target", "tiny", "--draft", "tiny", "--draft-lengths", 1],
            2,
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_part_prints_its_table(tmp_path, options, sides):
    """Whatever the shell has set for threads."""
    short = ("--rounds", 2, "--seconds", 0.1, "--phase-seconds", 0.1, "--warm-up", 4)
    done = subprocess.run(
        command("--parts", *options, *short, "--draft-part-tokens", 8, "--out", tmp_path),
        env={**os.environ, **PASSIVE},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if "Not measured: no control group" in done.stdout:
        pytest.skip("no control group can be made here")
    rows = [line for line in done.stdout.splitlines() if line.startswith("|")][2:]
    assert "| automatic" in rows[0]
    assert sum("one turn" not in row for row in rows) == 1 + sides
    for row in rows[1 : 1 + sides]:
        assert row.count("…") == 2, row
