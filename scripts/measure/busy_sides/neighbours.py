"""Other load on the machine: busy processes, and groups that share a core.

Both are gone after their `with` block, whatever ends it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# It ends with its stdin, so it does not outlive whoever started it, who deals with Ctrl-C.
_BUSY = """
import os, signal, sys, threading
signal.signal(signal.SIGINT, signal.SIG_IGN)
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
print(flush=True)
while True: pass
"""
_PERIOD_US = 100_000  # the kernel's own


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[list[int]]:
    """So many of them run inside the block. Gives their process ids."""
    with contextlib.ExitStack() as undo:
        started = []
        for _ in range(count):
            process = subprocess.Popen(
                [sys.executable, "-c", _BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            undo.enter_context(process)  # waits, after the kill
            undo.callback(process.kill)
            started.append(process)
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()
        yield [process.pid for process in started]


@contextlib.contextmanager
def quota_group(top: Path, num_cores: float) -> Iterator[Path]:
    """The folder of a new control group whose processes get so many cores' worth of time.

    top: where the groups are mounted, /sys/fs/cgroup. Raises OSError if no group can be made.
    """
    quota_us = round(num_cores * _PERIOD_US)
    files = {"cpu.cfs_period_us": f"{_PERIOD_US}", "cpu.cfs_quota_us": f"{quota_us}"}
    parent = top / "cpu"
    if not parent.is_dir():
        parent, files = top, {"cpu.max": f"{quota_us} {_PERIOD_US}"}
    folder = parent / f"localspec-measure-{os.getpid()}"
    folder.mkdir()
    try:
        for name, content in files.items():
            if not (folder / name).exists():  # the controller is not enabled here
                raise FileNotFoundError(f"{folder / name} is not there")
            (folder / name).write_text(content)
        yield folder
    finally:
        folder.rmdir()
