"""Processes that begin quickly: forks of one that has imported what they need."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path

import shared_files
from shared_files import Work

_CONTEXT = multiprocessing.get_context("forkserver")
_END_S = 120.0
_IMPORTED = (  # nothing that loads libllama, or starts a thread
    "shared_files", "poor_process", "localspec.chat.session", "localspec.engine.loading",
    "localspec.policy.profile", "localspec.presets.user_presets",
)  # fmt: skip


def begin() -> None:
    """Have the process that is forked. It would import what lies in its working directory."""
    _CONTEXT.set_forkserver_preload(list(_IMPORTED))
    before = os.getcwd()
    os.chdir(Path(__file__).parent)
    try:
        forkserver.ensure_running()
    finally:
        os.chdir(before)


def started(
    act: Callable[[Work], None],
    work: Work,
    environment: dict[str, str] | None = None,
    *,
    warns: bool = False,
) -> BaseProcess:
    """A process that runs `shared_files.run` with these."""
    process = _CONTEXT.Process(
        target=shared_files.run, args=(act, work, environment or {}), kwargs={"warns": warns}
    )
    process.start()
    return process


def killed(process: BaseProcess) -> str:
    """Kill it by -9; what was wrong where it had ended by itself."""
    before = process.exitcode
    process.kill()
    process.join(_END_S)
    if before in (None, 0) and process.exitcode in (0, -signal.SIGKILL):
        return ""
    return f"a process had ended with {process.exitcode} before it was killed"


def ended(process: BaseProcess) -> str:
    """What was wrong with its end, once it has come."""
    process.join(_END_S)
    if process.is_alive():
        process.kill()
        return f"a process had not ended after {_END_S:.0f} s"
    return "" if process.exitcode == 0 else f"a process ended with {process.exitcode}"
