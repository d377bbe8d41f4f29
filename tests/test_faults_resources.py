"""The campaign's class of lacking resources: it notices what is planted."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("reads /proc", allow_module_level=True)

import poor_process
import shared_files
from fault_classes import resources
from shared_files import Work


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Work:
    folder = tmp_path / "work"
    folder.mkdir()
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(folder))
    return Work(folder, 0, random.Random(1), 0.0)


def lost(act, work: Work) -> list[str]:
    shared_files.run(poor_process.expect, work, {}, warns=True)
    expected = work.lines("expected")[0]
    shared_files.run(poor_process.Lacking(act, expected), work, {}, warns=True)
    return work.lines("lost")


@pytest.mark.process
def test_a_session_that_is_torn_by_a_full_disk_is_noticed(work, monkeypatch):
    assert not lost(poor_process.lack_room, work)

    def write(path: Path, *parts: bytes, durable: bool) -> None:
        path.write_bytes(b"".join(parts))

    monkeypatch.setattr("localspec.chat.session.write_whole", write)
    work.chance.seed(4)
    assert any("SessionError" in each for each in lost(poor_process.lack_room, work))


@pytest.mark.process
def test_a_host_outlives_a_model_whose_control_group_has_too_little_memory(work):
    with poor_process.control_group(1 << 20) as members:
        pass
    if members is None:
        pytest.skip("no control group may be made here")
    for seed in range(4):
        work.chance.seed(seed)
        assert not lost(poor_process.lack_group, work)
    assert {"did refuse", "did answer"} <= set(work.ledger.read_text().splitlines())


@pytest.mark.process
def test_an_answer_that_a_clock_changes_is_noticed(work, monkeypatch):
    assert not lost(poor_process.lack_clock, work)
    real = poor_process.life

    def planted(notes: list[str], expected: str | None = None, **_: object) -> str:
        if time.time.__name__ == "<lambda>":
            raise OverflowError("a timestamp below 0")
        return real(notes, expected)

    monkeypatch.setattr(poor_process, "life", planted)
    assert any("OverflowError" in each for each in lost(poor_process.lack_clock, work))


def test_what_each_load_leaves_behind_is_noticed(work):
    usages = [(1000 + 500 * number, 3, 9 + number) for number in range(60)]
    work.note("did")
    poor_process.note_growth(work, usages, 40, "loads")
    assert len(work.lines("lost")) == 2


@pytest.mark.slow
def test_nothing_is_lost():
    rows = list(resources.tries(20.0, 0))
    assert not [loss for tried in rows for loss in tried.losses]
    assert len(rows) == len(poor_process.LACKS) + len(poor_process.LONG)
