"""Reads inputs in a process that may end, and says which of them were lost, and how.

An input is lost if its reader raises anything but a LocalspecError, ends the process, takes
longer than `PATIENCE_S`, or more memory than `MOST_BYTES`.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import math
import multiprocessing
import os
import re
import signal
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from fault_classes.kinds import Kind, Read, numbered, samples

PATIENCE_S = 30.0
MOST_BYTES = 1 << 30  # more than the process had before its first input
_ADDRESSES = 6 << 30  # bytes of addresses, of which libraries take many that they never use
_BATCH_S, _READY = 0.5, -1
_PEAK = re.compile(rb"VmHWM:\s*(\d+) kB")
MODULES = tuple(f"fault_classes.{name}_kinds" for name in ("text", "picture", "asked", "gguf"))


class Work(NamedTuple):
    """What a process reads: inputs of the kind of that name, whose samples lie there."""

    modules: Sequence[str]
    name: str
    seed: int
    folder: Path


class Outcome(NamedTuple):
    """What became of some inputs. losses: number and what happened."""

    num_read: int
    num_refused: int
    losses: list[tuple[int, str]]


def kinds_of(modules: Sequence[str] = MODULES) -> dict[str, Kind]:
    """Every kind of input of these modules, by name."""
    found: dict[str, Kind] = {}
    for name in modules:
        found |= importlib.import_module(name).KINDS
    return found


def outcome_of(read: Read, data: bytes) -> str | None:
    """What was lost, in a line; "" for an input that is refused, None for one that is read."""
    from localspec.errors import LocalspecError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)  # of NumPy: a number went wrong
            read(data)
    except LocalspecError:
        return ""
    # Also what is no Exception, as a panic in Rust.
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return lost_by(error)
    return None


def lost_by(error: BaseException) -> str:
    """An exception in a line: what, and where."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "localspec" in f.filename]
    at = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {str(error)[:120]!r}{at}"


def _work(line: Connection, counts: Any, work: Work) -> None:
    """Read inputs from the number on that comes, until half a second is over; again and again.

    counts: shared with who asks: the number that is being read, and how many were read and
    refused. Losses are sent as they happen.
    """
    kind = kinds_of(work.modules)[work.name]
    _silence()
    if kind.is_native:
        from localspec.llama.library import report_aborts

        report_aborts(lambda words: line.send(words.strip()[-120:]))
    known = samples(work.folder)
    read = kind.opened(work.folder)
    for data in known[:1]:  # what it needs, it has then
        outcome_of(read, data)
    base = _bound_memory()
    line.send(_READY)
    while True:
        number, until = line.recv(), time.monotonic() + _BATCH_S
        while time.monotonic() < until:
            counts[0] = number
            lost = outcome_of(read, numbered(kind, work.name, work.seed, number, known))
            if lost:
                line.send((number, lost))
            else:
                counts[1 if lost is None else 2] += 1
            number += 1
            if (used := _most_memory() - base) > MOST_BYTES:
                line.send(f"{used >> 20} MiB of memory are taken")
                os.kill(os.getpid(), signal.SIGKILL)
        line.send(number)


def _silence() -> None:
    """What libraries say to the terminal is of no use here, and is slow."""
    import logging

    logging.disable()
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 2)


def _bound_memory() -> int:
    """The most memory that the process had by now; from now on it is bounded."""
    with contextlib.suppress(ImportError, ValueError, OSError):  # of other systems
        import resource

        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + _ADDRESSES, -1))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return _most_memory()


def _most_memory() -> int:
    """Bytes that the process has had at once; 0 where the system does not say."""
    try:
        # The other way has what the parent had, too.
        found = _PEAK.search(Path("/proc/self/status").read_bytes())
        return 1024 * int(found[1]) if found else 0
    except OSError:
        return 0


class _Worker:
    """The process that reads inputs of a kind."""

    def __init__(self, work: Work) -> None:
        context = multiprocessing.get_context("spawn")
        self._counts = context.Array(ctypes.c_longlong, [-1, 0, 0], lock=False)
        self._line, other = context.Pipe()
        self._process = context.Process(
            target=_work, args=(other, self._counts, work), daemon=True
        )
        self._process.start()
        other.close()

    @property
    def number(self) -> int:
        """Of the input that is being read; -1 before the first."""
        return int(self._counts[0])

    def counted(self) -> tuple[int, int]:
        """How many inputs were read and refused since this was asked last."""
        found = int(self._counts[1]), int(self._counts[2])
        self._counts[1] = self._counts[2] = 0
        return found

    def batch(self, number: int | None) -> tuple[int | None, list[tuple[int, str]]]:
        """The next number, None if the process has ended or hangs; and what was lost.

        number: of the first input; None waits until it is ready.
        """
        losses: list[tuple[int, str]] = []
        said = ""
        try:
            if number is not None:
                self._line.send(number)
            while (found := self._received()) is not None:
                if isinstance(found, tuple):
                    losses.append(found)
                elif isinstance(found, int):
                    return found, losses
                else:
                    said = found
            said = f"no end after {PATIENCE_S:.0f} s"
        except (EOFError, OSError):
            self._process.join(5)
            said = f"the process ended ({self._process.exitcode}): {said}"
        return None, [*losses, (self.number, said)]

    def _received(self) -> Any:
        """What it says next; None if one input takes too long."""
        seen, since = self.number, time.monotonic()
        while not self._line.poll(0.2):
            if self.number != seen:
                seen, since = self.number, time.monotonic()
            # A start loads libraries, on a machine that may be busy.
            if time.monotonic() - since > PATIENCE_S * (1 if seen >= 0 else 4):
                return None
        return self._line.recv()

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self._line.close()


def outcomes(work: Work, seconds: float) -> Iterator[Outcome]:
    """What becomes of inputs of a kind, for so long from the first one on.

    The process is started again after each input that ends it.
    """
    number, worker = 0, None
    until = math.inf
    try:
        while time.monotonic() < until:
            is_new = worker is None
            worker = worker or _Worker(work)
            following, losses = worker.batch(None if is_new else number)
            yield Outcome(*worker.counted(), losses)
            if following is None:
                number = worker.number + 1
                worker.end()
                worker = None
                if is_new:
                    return
            elif math.isinf(until):
                until = time.monotonic() + seconds
            elif not is_new:
                number = following
    finally:
        if worker is not None:
            worker.end()


def samples_made(kind: Kind, folder: Path) -> Sequence[Path]:
    """The kind's files, in a folder that is made."""
    folder.mkdir(parents=True, exist_ok=True)
    kind.make(folder)
    return sorted(folder.glob("sample*"))
