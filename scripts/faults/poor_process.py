"""A process that lacks something: memory, files, room on disk, folders, a clock, or time.

It lives a short life: loads the demo pair, answers, and saves a session and caches.
Then it is given all that it lacked, and lives once more: what it was refused before must not
have torn anything.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import random
import resource
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import psutil
from shared_files import Work

# So long that its caches are kept.
QUESTION = "Tell me of a fox. " + " ".join(
    f"It met {n} owls on hill {n + 7}." for n in range(14)
)
_OPTIONS: dict[str, Any] = {
    "exact": False, "num_threads": 1, "draft_tokens": 3, "context_length": 512,
    "cache_disk": 20_000_000,
}  # fmt: skip
_TOKENS = 8
_SETTLED = 20  # loads, or turns, after which nothing is to grow
_LOAD_KB, _FREE_KB = 40, 6_000  # that each may cost, and all of them


def life(
    notes: list[str],
    expected: str | None = None,
    *,
    isolated: bool = False,
    lacking: bool = False,
) -> str:
    """Load, answer, save; what was answered. Raises what localspec raises.

    expected: what has to be answered. notes: get a line for each loss: the ledger may be out
    of reach now. isolated: libllama is in a process of its own. lacking: saving may be refused.
    """
    import localspec
    from localspec.chat.session import read_session, save_session

    greedy = localspec.SamplingParams(temperature=0)
    open_engine: Callable[..., Any] = localspec.IsolatedEngine if isolated else localspec.load
    with open_engine(**_OPTIONS) as engine:
        chat = engine.chat()
        said = str(chat.send(QUESTION, sampling=greedy, max_tokens=_TOKENS).reply().text)
        if expected is not None and said != expected:
            notes.append(f"lost {said!r} was answered, and not {expected!r}")
        engine.remember(said * 30)
        with contextlib.suppress(*[localspec.LocalspecError] * lacking):
            save_session("s", chat)
            found = read_session("s")
            if found is None or found.messages[-1]["content"] != said:
                notes.append("lost a session was saved, and is not what was said")
    return said


def expect(work: Work) -> None:
    """Note what is answered where nothing lacks."""
    work.note(f"expected {life([])}")


def _tried(expected: str, *, isolated: bool = False) -> list[str]:
    """The notes of a life that may be refused."""
    import localspec

    notes: list[str] = []
    try:
        life(notes, expected, isolated=isolated, lacking=True)
        notes.append("did answer")
    except localspec.LocalspecError as error:
        notes.append("did refuse" if str(error) else "lost an error without words")
    except MemoryError:
        notes.append("did refuse")
    except (OSError, RuntimeError) as error:  # of Python itself: no memory, no thread
        is_known = getattr(error, "errno", 0) == errno.ENOMEM or "new thread" in str(error)
        notes.append("did refuse" if is_known else f"lost {error!r:.200}")
    return notes


def _whole_life(work: Work, notes: list[str], expected: str) -> None:
    """What was noted before, and a life that nothing may refuse, on what was left."""
    from localspec.chat.session import read_session

    read_session("s")  # raises for a torn one
    life(notes, expected)
    for line in [*notes, "did answer"]:
        work.note(line)


@contextlib.contextmanager
def _limited(kind: int, limit: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


def lack_memory(work: Work, expected: str) -> None:
    """An isolated engine, and an address space that has room for a little more than there is"""
    import localspec  # and what it brings

    localspec.load(**_OPTIONS).close()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    room = int(2 ** work.chance.uniform(18, 31))
    with _limited(resource.RLIMIT_AS, pages * resource.getpagesize() + room):
        notes = _tried(expected, isolated=True)
    _whole_life(work, notes, expected)


def lack_group(work: Work, expected: str) -> None:
    """An isolated engine's process is in a control group of little memory, which ends it"""
    with control_group(int(2 ** work.chance.uniform(20, 29))) as members:
        if members is None:
            return
        resource_tracker.ensure_running()  # which stays, and would keep the group
        is_over, others = threading.Event(), psutil.Process().children()

        def move() -> None:
            while not is_over.wait(0.002):
                for process in psutil.Process().children():
                    with contextlib.suppress(OSError):  # it ended
                        if process not in others:
                            members.write_text(str(process.pid))

        mover = threading.Thread(target=move)
        mover.start()
        try:
            notes = _tried(expected, isolated=True)
        finally:
            is_over.set()
            mover.join()
    _whole_life(work, notes, expected)


@contextlib.contextmanager
def control_group(limit: int) -> Iterator[Path | None]:
    """Where members of a group of so much memory are written; None if none is allowed."""
    for top, name in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        group = Path("/sys/fs/cgroup") / top / f"localspec-{os.getpid()}"
        try:
            if not (group.parent / "cgroup.procs").exists():
                continue
            group.mkdir()
            (group / name).write_text(str(limit))
        except OSError:
            with contextlib.suppress(OSError):
                group.rmdir()
            continue
        try:
            yield group / "cgroup.procs"
        finally:
            _remove_group(group)
        return
    yield None


def _remove_group(group: Path) -> None:
    """Once its last process has gone."""
    for _ in range(500):
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.01)
    group.rmdir()


def lack_descriptors(work: Work, expected: str) -> None:
    """No more than a few more files may be open"""
    import localspec

    if work.chance.random() < 0.5:  # else libraries are still to be opened
        localspec.load(**_OPTIONS).close()
    most = max(map(int, os.listdir("/proc/self/fd"))) + 1
    with _limited(resource.RLIMIT_NOFILE, most + work.chance.randrange(14)):
        notes = _tried(expected)
    _whole_life(work, notes, expected)


def lack_room(work: Work, expected: str) -> None:
    """No file may become longer than some bytes, which is what a full disk is like"""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with _limited(resource.RLIMIT_FSIZE, work.chance.choice((0, 1, 100, 5000, 100_000))):
        notes = _tried(expected)
    _whole_life(work, notes, expected)


def lack_disk(work: Work, expected: str) -> None:
    """The home is a file system of a few kilobytes"""
    notes = _tried(expected)
    _remount(work.folder)
    _whole_life(work, notes, expected)


def lack_rights(work: Work, expected: str) -> None:
    """The home may be read only"""
    notes = _tried(expected)
    _remount(work.folder)
    _whole_life(work, notes, expected)


def _remount(folder: Path) -> None:
    """Give back room and rights to the file system that it is (`resources` mounts it)."""
    options = "remount,rw,size=200m"
    subprocess.run(["mount", "-o", options, str(folder)], check=True, capture_output=True)


def lack_folders(work: Work, expected: str) -> None:
    """The folders of caches, settings and sessions vanish again and again, and become files"""
    is_over = threading.Event()

    def take_away() -> None:
        chance = random.Random(work.chance.random())
        place = work.folder / "localspec"
        while not is_over.wait(0.02 * chance.random()):
            with contextlib.suppress(OSError):
                if place.is_file():
                    place.unlink()
                else:
                    shutil.rmtree(place, ignore_errors=True)
                    if chance.random() < 0.5:
                        place.write_bytes(b"")

    taker = threading.Thread(target=take_away)
    taker.start()
    try:
        notes = _tried(expected)
    finally:
        is_over.set()
        taker.join()
        with contextlib.suppress(OSError):
            (work.folder / "localspec").unlink()
    _whole_life(work, notes, expected)


def lack_clock(work: Work, expected: str) -> None:
    """A clock that jumps by years, back and forth, whenever it is read"""
    real, chance = time.time, random.Random(work.chance.random())
    time.time = lambda: max(0.0, real() + chance.uniform(-3e8, 3e8))
    try:
        _whole_life(work, [], expected)
        _whole_life(work, [], expected)
    finally:
        time.time = real


def load_again(work: Work, expected: str) -> None:
    """Engines are loaded and closed, or dropped, one after the other"""
    import localspec

    usages = []
    while work.goes_on() or len(usages) <= _SETTLED + 1:
        engine = localspec.load(num_threads=1, context_length=256)
        engine.generate_raw("Hi", max_tokens=1).reply()
        if len(usages) % 2:
            engine.close()
        del engine
        gc.collect()
        usages.append(_usage())
        work.note("did load")
    note_growth(work, usages, _LOAD_KB, "loads")


def talk_on(work: Work, expected: str) -> None:
    """A conversation whose context rolls over, saved after each turn"""
    import localspec
    from localspec.chat.session import read_session, save_session

    greedy, usages = localspec.SamplingParams(temperature=0), []
    with localspec.load(num_threads=1, context_length=200) as engine:
        chat = engine.chat()
        while work.goes_on() or len(usages) <= _SETTLED + 1:
            chat.send(f"What is {len(usages)} times 8?", sampling=greedy, max_tokens=12).reply()
            if len(usages) % 50 == 0:
                save_session("s", chat)
                found = read_session("s")
                if found is None or len(found.messages) != len(chat.transcript):
                    work.note("lost a session was saved, and is not what was said")
            usages.append(_usage())
            work.note("did turn")
    note_growth(work, usages, 3, "turns")  # their text is kept


def _usage() -> tuple[int, int, int]:
    """KB of memory, threads, and files of this process."""
    fields = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines()
    )
    files = len(os.listdir("/proc/self/fd"))
    return int(fields["VmRSS"].split()[0]), int(fields["Threads"]), files


def note_growth(
    work: Work, usages: list[tuple[int, int, int]], each_kb: int, what: str
) -> None:
    (kb, threads, files), (last_kb, *last) = usages[_SETTLED], usages[-1]
    if last_kb - kb > _FREE_KB + each_kb * (len(usages) - _SETTLED):
        work.note(f"lost {len(usages)} {what} took {last_kb - kb} KB that stay taken")
    if last != [threads, files]:
        work.note(f"lost threads and files were {threads}, {files}, and are {last}")


LACKS: tuple[Callable[[Work, str], None], ...] = (
    lack_memory, lack_group, lack_descriptors, lack_room, lack_disk, lack_rights, lack_folders,
    lack_clock,
)  # fmt: skip
LONG: tuple[Callable[[Work, str], None], ...] = (load_again, talk_on)


class Lacking:
    """What `shared_files.run` calls in the process. Not a closure, so that it can be sent."""

    def __init__(self, act: Callable[[Work, str], None], expected: str) -> None:
        self._act, self._expected = act, expected
        self.__name__ = act.__name__

    def __call__(self, work: Work) -> None:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
            self._act(work, self._expected)
