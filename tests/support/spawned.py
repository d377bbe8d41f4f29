"""What tests run in a spawned process, which has to be able to import it by name."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import psutil

import localspec
from localspec.llama import library, native
from localspec.llama.model import LlamaModel
from localspec.llama.model_options import LlamaOptions
from localspec.streaming.answer_text import Prompt
from localspec.streaming.cancellation import Watch
from localspec.streaming.record import MadePrompt
from localspec.system.machine import peak_memory_bytes
from waiting import wait_until

# What is measured in the midst of an answer must not decide a near tie between two processes.
ALIKE: dict[str, int] = {"draft_tokens": 3, "num_threads": 1}


# A PNG file of one pixel.
SMALL_PICTURE = localspec.Picture(1, 1, bytes(3)).png()


@dataclass(frozen=True)
class Endless:
    """A source of which no prompt is ever made."""

    holds_interpreter: bool
    """Whether no other thread of its process can do anything meanwhile."""

    def make(self, _workshop: object, _is_cancelled: object) -> MadePrompt:
        if self.holds_interpreter:
            return MadePrompt(Prompt([9 ** (9**9) % 2]))
        while True:
            pass


@dataclass(frozen=True)
class Starved:
    """A source whose prompt takes some seconds, though hardly any of the processor's time."""

    seconds: float

    def make(self, _workshop: object, _is_cancelled: object) -> MadePrompt:
        time.sleep(self.seconds)
        return MadePrompt(Prompt([9]))


@dataclass(frozen=True)
class Hungry:
    """A source whose prompt takes so many bytes, one after another, and ten minutes."""

    num_bytes: int

    def make(self, _workshop: object, _is_cancelled: object) -> MadePrompt:
        parts = []
        for _ in range(self.num_bytes >> 25):
            parts.append(b"\1" * (1 << 25))
            time.sleep(0.1)
        time.sleep(600)  # on a busy machine its memory is looked at late
        return MadePrompt(Prompt([len(parts)]))


def answer_there(connection: Connection, prompt: str) -> None:
    """Load the demo pair and send a reply back."""
    with localspec.load(**ALIKE) as engine:
        greedy = localspec.SamplingParams(temperature=0)
        connection.send(engine.generate_raw(prompt, sampling=greedy, max_tokens=20).reply())


def measured_peak_bytes(
    target: Path, draft: Path, context_length: int, adapters: Sequence[Path]
) -> int:
    """The memory of the calling process for the pair, without that of the process itself."""
    localspec.load  # noqa: B018  loads what it needs
    before = psutil.Process().memory_info().rss
    with localspec.load(
        target=target,
        draft=draft,
        adapters=adapters,
        draft_tokens=3,  # both read the whole prompt
        context_length=context_length,
        num_threads=1,
        force=True,
    ) as engine:
        prompt = [token % 1000 + 300 for token in range(context_length - 16)]
        engine.generate_raw(prompt, max_tokens=16).reply()
    return peak_memory_bytes() - before


def count_until_wished(_engine: localspec.Engine, number: int, *, watch: Watch) -> int:
    """A measurement that has counted so far, says so, and waits for the wish to end it."""
    watch.progress(f"counted to {number}", 1.5)
    wait_until(lambda: watch.cancellation.is_requested)
    return number


def sleep_for_ever(_engine: localspec.Engine, *, holds_all: bool, watch: Watch) -> None:
    """What code of C may do. holds_all: with the interpreter's lock, so that no thread runs."""
    watch.progress("about to sleep", None)
    library = ctypes.PyDLL(None) if holds_all else ctypes.CDLL(None)
    while True:
        library.sleep(1000)


def abort_in_c(_engine: localspec.Engine, *, watch: Watch) -> None:
    """What libllama does at an assertion that does not hold."""
    watch.progress("about to abort", None)
    kinds = ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p
    abort = native.ggml_function(library.llama_cpp, "ggml_abort", None, *kinds)
    abort(b"here", 1, b"as a damaged model has it")


@contextlib.contextmanager
def session_open_elsewhere(name: str, folder: Path) -> Iterator[None]:
    """In the block another process has the session open."""
    code = (
        "import sys; from localspec.chat.session import lock_session; "
        f"lock = lock_session({name!r}); print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=-1, stdout=-1, text=True, cwd=folder
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        yield
        other.communicate()


class Usage(NamedTuple):
    """What this process takes now."""

    resident_kb: int
    num_threads: int
    num_files: int

    @staticmethod
    def now() -> Usage:
        with open("/proc/self/status") as status:
            fields = dict(line.split(":", 1) for line in status)
        return Usage(
            int(fields["VmRSS"].split()[0]),
            int(fields["Threads"]),
            len(os.listdir("/proc/self/fd")),
        )


def load_again_and_again(connection: Connection) -> None:
    """Send the usage after 10 loads with answers, and after a hundred more.

    Every other engine is dropped without a close.
    """
    greedy = localspec.SamplingParams(temperature=0)
    for number in range(110):
        if number == 10:
            connection.send(Usage.now())
        engine = localspec.load(num_threads=1)
        for text in ("Hello!", "Hi!"):
            engine.chat().send(text, sampling=greedy, max_tokens=3).reply()
        if number % 2:
            engine.close()
        del engine
        gc.collect()  # else what grows is the heap of Python between its own collections
    connection.send(Usage.now())


def peak_bytes_of_picture(data: bytes) -> int:
    """The memory of the calling process for reading a picture."""
    localspec.Picture.read(SMALL_PICTURE)  # loads what it needs
    before = psutil.Process().memory_info().rss
    localspec.Picture.read(data)
    return peak_memory_bytes() - before


MIB = 1 << 20


def private_memory(size: int) -> mmap.mmap:
    """As malloc takes it for large blocks."""
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def asked_for() -> set[tuple[int, int]]:
    """Start and end of every region for which huge pages were asked."""
    regions = set()
    with open("/proc/self/smaps") as smaps:
        for line in smaps:
            first, *others = line.split()
            if "-" in first and not first.endswith(":"):
                start, end = (int(address, 16) for address in first.split("-"))
            elif first == "VmFlags:" and "hg" in others:
                regions.add((start, end))
    return regions


def size_of(regions: set[tuple[int, int]]) -> int:
    return sum(end - start for start, end in regions)


def send_large_pages(connection: Connection, path: Path, use_mmap: bool) -> None:
    """Send the bytes of the weights, and those for which large pages were asked.

    Runs in a process of its own, whose C heap has no large blocks left over from others.
    """
    before = asked_for()
    with private_memory(32 * MIB):
        model = LlamaModel.open(path, LlamaOptions(context_length=64, use_mmap=use_mmap))
        connection.send((model.num_weight_bytes, size_of(asked_for() - before)))
        model.close()
