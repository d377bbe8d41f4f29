"""The child processes of engines and embedders, and the calls to them."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import pickle
import signal
import threading
import time
import weakref
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from localspec.engine.sources import servers_used
from localspec.errors import ClosedError, CrashedError, EngineError, LocalspecError, RpcError
from localspec.llama.rpc_servers import ask_servers
from localspec.streaming.waiting import taken

if TYPE_CHECKING:
    from localspec.engine.sources import LoadKeywords
    from localspec.presets.preset import Preset

_SPAWN = multiprocessing.get_context("spawn")
CHILD_PATIENCE_S = 10.0  # for the process to free its models, before it is killed
_WRITING_S = 120.0  # in addition, where it keeps caches on disk
# For a word from a process whose models are on RPC servers: one that stands still says as
# little as one that computes. That takes longest for a prompt: libllama sends a batch of 512
# tokens, and perhaps another, before it waits for the first.
CHILD_SILENCE_S = 600.0
_LOOK_S = 1.0  # between two looks at how long such a process has been silent


def _serve(name: str, pipe: Connection, *arguments: Any) -> None:
    """Run a function of `child`, whose module loads libllama: in the child, not here."""
    try:
        from localspec.isolated import child
    except LocalspecError as error:
        with contextlib.suppress(OSError):  # the other end closes once it knows
            pipe.send((0, "error", error))
    else:
        getattr(child, name)(pipe, *arguments)


class _Child:
    """The process itself, and how it ended. servers: RPC servers that its models are on.

    is_closed: whether the engine is. last_words: of libllama, before it ended the process.
    patience_s: for it to end.
    """

    def __init__(
        self, process: BaseProcess, servers: tuple[str, ...], patience_s: float
    ) -> None:
        self.process = process
        self._patience_s = patience_s
        self.is_closed = False
        self.last_words = ""
        self.servers = servers
        # Held while the system is asked how it does: of several threads that ask at once, all
        # but one would hear that there is no such process. A finalizer may come between.
        self._asking = threading.RLock()
        self._has_ended = False
        self._end: tuple[str, str] | None = None  # message and hint
        self._is_mute = False  # it was killed, because it said nothing any more

    def is_alive(self) -> bool:
        if self._has_ended:
            return False
        with self._asking:
            return self.process.is_alive()

    def kill_mute(self) -> None:
        """Kill it because it says nothing any more."""
        self._is_mute = True
        self.process.kill()

    def lost(self) -> EngineError:
        """The error of a call whose answer does not come."""
        if self.is_closed:  # by whoever closed it while this waited for its turn
            return ClosedError("the engine is closed", "Load it again.")
        self._has_ended = True
        with self._asking:
            if self._end is None:
                self._end = self._how_it_ended()
            return CrashedError(*self._end)

    def _how_it_ended(self) -> tuple[str, str]:
        """Message and hint."""
        ended = f"the process of the engine ended: {self._exit()}"
        if not self.servers:
            return ended, "Ask again: it is started again."
        if self._is_mute:
            ended = "the process of the engine waited too long for an RPC server"
        faults = [error for error in ask_servers(self.servers) if isinstance(error, RpcError)]
        if not faults:
            names = ", ".join(self.servers)
            return (
                f"{ended}{self.last_words}. It used the RPC servers {names}, which answer now",
                "Ask again: it is started again.",
            )
        return (
            f"{ended}. {'; '.join(map(str, faults))}",
            f"{faults[0].hint} Then ask again: the engine is started again.",
        )

    def _exit(self) -> str:
        self.process.join(CHILD_PATIENCE_S)
        code = self.process.exitcode
        if code is None:  # the application lets the system clear its children away
            return "its exit code is unknown"
        if code >= 0:
            return f"exit code {code}"
        known = {number.value: number.name for number in signal.Signals}
        return known.get(-code, f"signal {-code}")

    def end(self) -> None:
        """Wait until it has ended, and kill it if that takes long."""
        with self._asking:
            self.process.join(self._patience_s)
            if self.process.is_alive():
                self.process.kill()
                self.process.join()


_Told = tuple[str, Any]  # "progress", "done" or "error", and the value


class _Calls:
    """Calls to a child by one pipe, each with a number. From any thread, as many at once.

    Two threads write and read the messages, which no exception of a signal handler can tear.
    """

    def __init__(self, pipe: Any, child: _Child) -> None:
        self._pipe = pipe
        self.child = child
        self._numbers = itertools.count(1)
        self._to_write: SimpleQueue[Any] = SimpleQueue()  # None: there is nothing more
        # By number; that of the load is 0. None ends the waiting: the child is lost.
        self._waiting: dict[int, SimpleQueue[_Told | None]] = {0: SimpleQueue()}
        self._num_given_up = 0  # calls whose answers nobody waits for
        self._is_lost = False
        self._threads = [
            threading.Thread(target=work, name="localspec-pipe", daemon=True)
            for work in (self._write, self._read)
        ]
        for thread in self._threads:
            thread.start()

    def tell(self, method: str, *arguments: Any) -> None:
        """Have the child do something, and wait for nothing."""
        self._to_write.put(ForkingPickler.dumps((0, method, arguments, {})))

    def call(
        self,
        method: str,
        *arguments: Any,
        on_report: Callable[[Any], None] | None = None,
        **keywords: Any,
    ) -> Any:
        """The result of `Served.method`, or its error. Raises CrashedError for a lost child.

        on_report: gets what the child reports meanwhile.
        """
        number = next(self._numbers)
        request = ForkingPickler.dumps((number, method, arguments, keywords))
        self._waiting[number] = SimpleQueue()
        self._to_write.put(request)
        return self.answer(number, on_report)

    def answer(self, number: int, on_report: Callable[[Any], None] | None) -> Any:
        """The answer to the call of that number."""
        waiting = self._waiting[number]
        if self._is_lost:
            waiting.put(None)
        kind, value = "", None
        try:
            while kind not in ("done", "error"):
                told = taken(waiting)
                if told is None:
                    raise self.child.lost()
                kind, value = told
                if kind == "progress" and on_report is not None:
                    on_report(value)
        finally:
            del self._waiting[number]
            self._num_given_up += kind not in ("done", "error")
        if isinstance(value, Exception):
            raise value
        return value

    @property
    def is_of_this_thread(self) -> bool:
        """Whether this thread moves the messages, so that it cannot wait for one."""
        return threading.current_thread() in self._threads

    def end(self) -> None:
        """Have the child end once it has done what it was told. Idempotent."""
        self._to_write.put(None)

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # what is wrong is found out where it is read
            while (message := self._to_write.get()) is not None:
                self._pipe.send_bytes(message)
            self._pipe.send(None)

    def _read(self) -> None:
        try:
            with contextlib.suppress(EOFError, OSError):
                while True:
                    self._wait()
                    self._hand_on(*pickle.loads(self._pipe.recv_bytes()))
        finally:
            self._is_lost = True
            for waiting in tuple(self._waiting.values()):
                waiting.put(None)
            self._to_write.put(None)

    def _hand_on(self, number: int, kind: str, value: Any) -> None:
        """Give a message to whoever waits for it."""
        waiting = self._waiting.get(number)
        if kind == "last words":
            self.child.last_words = f" ({' '.join(value.split())})"
        elif waiting is not None:
            waiting.put((kind, value))
        elif number and kind != "progress":
            self._num_given_up -= 1

    def _wait(self) -> None:
        """Wait for a message. A child that is silent too long, and may be waiting for a server,
        is killed."""
        since_s = time.monotonic()
        while self.child.servers and not self._pipe.poll(_LOOK_S):
            # Nobody waits long for what nobody wants any more.
            limit_s = CHILD_PATIENCE_S if self._num_given_up > 0 else CHILD_SILENCE_S
            if not self._waiting:
                since_s = time.monotonic()
            elif time.monotonic() - since_s > limit_s:
                self.child.kill_mute()
                return


def _started(
    function: str,
    given: tuple[Any, ...],
    servers: tuple[str, ...] = (),
    patience_s: float = CHILD_PATIENCE_S,
) -> _Calls:
    """A child that runs a function of `child` with its end of a pipe; the calls to it."""
    if multiprocessing.current_process().daemon:
        raise EngineError(
            "a daemonic process may have no child, and an isolated engine is one",
            "Start the process with daemon=False, or use localspec.load in it.",
        )
    here, there = _SPAWN.Pipe()
    process = _SPAWN.Process(
        target=_serve, args=(function, there, *given), daemon=True, name="localspec"
    )
    process.start()
    there.close()  # the last copy here: the end of the child is the end of the pipe
    return _Calls(here, _Child(process, servers, patience_s))


class ChildProcess:
    """A running child with an engine. Dropping the last reference ends it."""

    def __init__(
        self,
        preset: str | os.PathLike[str] | Preset | None,
        arguments: LoadKeywords,
        progress: Callable[[float], None] | None,
    ) -> None:
        servers = servers_used(preset, arguments)
        patience_s = CHILD_PATIENCE_S + (_WRITING_S if arguments.get("cache_disk") else 0.0)
        given = preset, arguments, servers
        self._calls = calls = _started("serve_engine", given, servers, patience_s)
        weakref.finalize(self, calls.end)
        self.call, self.tell = calls.call, calls.tell
        self._child = calls.child
        self.number = self._child.process.pid
        try:
            self.facts: dict[str, Any] = calls.answer(0, progress)  # of `child.facts_of`
        except BaseException:
            self.stop()
            raise

    def ended(self, number: int, num_read: int) -> Any:
        """The result of an answer that is ended behind so many tokens; None if it is lost."""
        if not self.is_running():
            return None
        if self._calls.is_of_this_thread:
            self.tell("end", number, num_read)
            return None
        with contextlib.suppress(EngineError):
            return self.call("end", number, num_read)
        return None

    def is_running(self) -> bool:
        """Whether the child has not ended yet."""
        return self._child.is_alive()

    def cancel(self, first: int, last: int) -> None:
        """Have the answers with these numbers cancelled that still run. From any thread."""
        self.tell("cancel", first, last)

    def stop(self, *, is_closed: bool = True) -> None:
        """End the child. Idempotent.

        is_closed: whether the engine is; else another child takes the place of this one.
        """
        self._child.is_closed |= is_closed
        self._calls.end()
        self._child.end()


class IsolatedEmbedder:
    """The methods of an `Embedder` in a child, by `call`.

    Raises what `load_embedder` does, and CrashedError.
    """

    def __init__(self, path: Path) -> None:
        self._calls = calls = _started("serve_embedder", (path,))
        weakref.finalize(self, calls.end)
        self.call = calls.call
        self.process_id = calls.child.process.pid
        try:
            calls.answer(0, None)
        except BaseException:
            self.close()
            raise

    def kill(self) -> None:
        """End the child in the midst of what it does, from any thread; close it then."""
        self._calls.child.process.kill()

    def close(self) -> None:
        """End the child, while nothing is asked of it. Idempotent."""
        self._calls.end()
        self._calls.child.end()
