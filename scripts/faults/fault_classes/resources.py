"""Resources.

Processes that lack memory, file descriptors, room on the disk, rights, folders or a clock, each
in a home of its own; then many loads, and a long conversation.
"""

from __future__ import annotations

import os
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import forked
import poor_process
from poor_process import LACKS, LONG, Lacking
from shared_files import Work

from fault_classes.tried import Tried

_LONG_SHARE = 0.3  # of the time
_HOLDS = {
    "lack_clock": "The answer and the files are as ever",
    "load_again": "Memory, threads and open files stay as they were after the first twenty",
    "talk_on": "Memory, threads and open files stay as they were after the first twenty",
}
_USUAL = (
    "The right answer, or an error that says what lacks; nothing that was saved is torn; and "
    "with all that it needs the same process answers as ever"
)
_MOUNTS = {"lack_disk": "size={}k,mode=755", "lack_rights": "size={}k,ro"}


def tries(seconds: float, seed: int) -> Iterator[Tried]:
    """A row for each of what may lack."""
    forked.begin()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        first = _work(home, random.Random(seed), 0.0)
        forked.ended(forked.started(poor_process.expect, first, warns=True))
        (expected,) = first.lines("expected")
        for act in LACKS:
            share = seconds * (1 - _LONG_SHARE) / len(LACKS)
            yield _row(act, home, expected, seed, (time.monotonic() + share, 0.0))
        for act in LONG:
            share = seconds * _LONG_SHARE / len(LONG)
            yield _row(act, home, expected, seed, (0.0, share))


def _row(
    act: Callable[[Work, str], None],
    home: Path,
    expected: str,
    seed: int,
    times: tuple[float, float],
) -> Tried:
    """times: until when processes are begun, and for how long each goes on."""
    until_s, long_s = times
    number, count, losses = 0, 0, list[str]()
    while number == 0 or time.monotonic() < until_s:
        work = _work(home, random.Random(f"{seed}/{number}"), long_s)
        options = _MOUNTS.get(act.__name__, "")
        if options and not _mounted(
            work.folder, options.format(work.chance.randrange(8, 3000))
        ):
            break
        try:
            fault = forked.ended(forked.started(Lacking(act, expected), work, warns=True))
            lost = work.lines("lost") + ([fault] if fault else [])
        finally:
            if options:
                subprocess.run(["umount", "-l", work.folder], check=True)
        losses += [f"{act.__name__} {number} of seed {seed}: {each}" for each in lost]
        count += len(work.lines("did"))
        number += 1
        if not (count or losses):
            break  # it is not allowed here
    what = (act.__doc__ or "").strip()
    return Tried(what, _HOLDS.get(act.__name__, _USUAL), count, losses)


def _work(home: Path, chance: random.Random, seconds: float) -> Work:
    folder = Path(tempfile.mkdtemp(dir=home))
    work = Work(folder, 0, chance, seconds)
    work.ledger.touch()
    return work


def _mounted(folder: Path, options: str) -> bool:
    """Whether the folder is a file system of its own now, which not everybody may make."""
    if os.geteuid() != 0:
        return False
    command = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
