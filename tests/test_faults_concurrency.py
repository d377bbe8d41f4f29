"""The campaign's class of processes and threads at once: it notices what is planted."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

if sys.platform == "win32":
    pytest.skip("kills and forks of Unix", allow_module_level=True)

import engine_at_once
import forked
import shared_files
from fault_classes import concurrency
from shared_files import KINDS, Work

from localspec.atomic_write import write_whole
from localspec.errors import DownloadError, LocalspecError, PresetError
from localspec.hub.patience import HubBusyError

KEPT = ("sessions", "names", "costs")


@pytest.fixture
def work(own_folders: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Work:
    folder = tmp_path / "work"
    folder.mkdir()
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(folder))
    return Work(folder, 0, random.Random(1), 0.3)


def lost(work: Work, kind: str) -> list[str]:
    change, check = KINDS[kind]
    shared_files.run(change, work, {})
    shared_files.run(check, work, {})
    assert work.lines("kept")
    return work.lines("lost")


@pytest.mark.parametrize("kind", KEPT)
def test_what_is_kept_by_one_is_not_lost(work, kind):
    assert not lost(work, kind)


@pytest.mark.parametrize(
    ("kind", "module"),
    [
        ("sessions", "localspec.chat.session"),
        ("names", "localspec.presets.names"),
        ("costs", "localspec.policy.profile"),
    ],
)
@pytest.mark.parametrize("plant", ["torn", "not at all"])
def test_a_planted_write_is_noticed(work, kind, module, plant, monkeypatch):
    """The first file is cut, or none is written."""

    def write(path: Path, data: bytes, *, durable: bool) -> None:
        if plant == "torn":
            write_whole(path, data[:-9], durable=durable)

    monkeypatch.setattr(f"{module}.write_whole", write)
    assert lost(work, kind)


@pytest.mark.process
@pytest.mark.parametrize("kind", KINDS)
def test_processes_that_are_killed_lose_nothing(tmp_path, kind, monkeypatch):
    from standin_hub import standin_hub

    monkeypatch.setattr(concurrency, "ROUND_S", 0.7)
    forked.begin()
    with standin_hub() as hub:
        count, losses = concurrency.one_round(kind, tmp_path, hub, random.Random(0))
    assert not losses
    assert count > 1


@pytest.mark.parametrize(
    ("before", "behind", "is_lost"),
    [(None, -9, False), (0, 0, False), (None, 0, False), (-11, -11, True), (1, 1, True)],
)
def test_a_process_that_had_ended_by_itself_is_noticed(before, behind, is_lost):
    victim = SimpleNamespace(exitcode=before, join=lambda _seconds: None)
    victim.kill = lambda: setattr(victim, "exitcode", behind)
    assert bool(forked.killed(victim)) == is_lost


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (PresetError("preset 'qwen2-7b' needs qwen2.gguf, not on this machine"), False),
        (HubBusyError("the connection broke", None), False),
        (PresetError("the file of presets cannot be read"), True),
        (DownloadError("a.gguf arrived with wrong content"), True),
        (LocalspecError("something else"), True),
    ],
)
def test_only_errors_that_others_explain_are_expected(work, monkeypatch, error, is_lost):
    """What was refused was not done, and is not counted."""

    def refuse(*_: object, **_options: object) -> None:
        raise error

    for name in (
        "localspec.download",
        "localspec.load",
        "localspec.engine.disk_usage.free_disk",
    ):
        monkeypatch.setattr(name, refuse)
    shared_files.run(shared_files.change_files, work, {})
    assert bool(work.lines("lost")) == is_lost
    assert not work.lines("did")


def test_a_session_that_another_has_open_is_not_counted(work):
    from localspec.chat.session import lock_session

    lock = lock_session("s")
    shared_files.run(shared_files.change_session, work, {})
    lock.release()
    assert set(work.ledger.read_text().splitlines()) == {"busy"}


@pytest.mark.process
def test_an_engine_that_hangs_is_lost():
    """The next row follows."""
    found = engine_at_once.found_by([sys.executable, "-c", "import time; time.sleep(60)"], 0.5)
    assert "had not ended" in found["losses"][0]
    assert (
        "exit 3"
        in engine_at_once.found_by([sys.executable, "-c", "exit(3)"], 60.0)["losses"][0]
    )


class _Wrong:
    """A stream that says something else the second time that it is asked."""

    def __init__(self, number: int) -> None:
        self.text, self.finish_reason = (
            f"answer {number > len(engine_at_once.PROMPTS)}",
            "stop",
        )

    def reply(self) -> _Wrong:
        return self


def test_an_answer_of_threads_that_is_another_is_noticed():
    numbers = iter(range(100))

    class Engine:
        def generate_raw(self, prompt: str, **_: object) -> _Wrong:
            return _Wrong(next(numbers))

    asking = engine_at_once.Asking(Engine(), None)
    for _ in range(2):
        asking.judge(0, asking.ask("x").reply().text, is_whole=True)
    assert len(asking.losses) == 1


@pytest.mark.process
def test_threads_and_tasks_lose_nothing():
    for tried in engine_at_once.tries(1.0, 0):
        assert not tried.losses
        assert tried.count > 3
