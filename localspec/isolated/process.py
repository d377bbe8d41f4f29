"""The process of an `IsolatedEngine`, as the application's process sees it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from localspec.engine.sources import servers_used
from localspec.errors import ClosedError, CrashedError, EngineError, RpcError
from localspec.isolated.channel import Channel
from localspec.isolated.facts import EngineFacts
from localspec.llama.rpc_servers import ask_servers
from localspec.preflight.plan import MOST_PARALLEL
from localspec.streaming.access import EngineTurn

if TYPE_CHECKING:
    from localspec.engine.sources import LoadKeywords
    from localspec.presets.preset import Preset

CHILD_PATIENCE_S = 10.0  # for the process to free its models, before it is killed
_WRITING_S = 120.0  # in addition, where it keeps caches on disk
# For a word from a process whose models are on RPC servers: one that stands still says as
# little as one that computes. That takes longest for a prompt: libllama sends a batch of 512
# tokens, and perhaps another, before it waits for the first.
CHILD_SILENCE_S = 600.0


def _serve(*arguments: Any) -> None:
    """`serve_engine`, whose module loads libllama: in the child, not here."""
    from localspec.isolated.child import serve_engine

    serve_engine(*arguments)


class _Child:
    """The process itself, and how it ended. servers: RPC servers that its models are on.

    is_closed: whether the engine is. last_words: see `Host`. patience_s: for it to end.
    """

    def __init__(
        self, process: BaseProcess, servers: tuple[str, ...], patience_s: float
    ) -> None:
        self.process = process
        self._patience_s = patience_s
        self.is_closed = False
        self.last_words = ""
        self._servers = servers
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

    def wait(self, channel: Channel) -> None:
        """Wait for a message. A child that is silent too long, and may be waiting for a server,
        is killed."""
        # Nobody waits long for what nobody wants any more.
        limit_s = CHILD_PATIENCE_S if channel.is_behind else CHILD_SILENCE_S
        if not channel.poll(limit_s if self._servers else None):
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
        if not self._servers:
            return ended, "Ask again: it is started again."
        if self._is_mute:
            ended = "the process of the engine waited too long for an RPC server"
        faults = [error for error in ask_servers(self._servers) if isinstance(error, RpcError)]
        if not faults:
            names = ", ".join(self._servers)
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


class ChildProcess:
    """A running child with its pipes: a channel for each answer, one for calls that belong to
    none, and one for cancels, which have no answer.

    An answer and whoever reads it have a channel to themselves, so that nobody waits for
    another's message, and no thread hands messages on. Where the models are on RPC servers,
    every wait for the child has a limit.
    """

    def __init__(
        self,
        preset: str | os.PathLike[str] | Preset | None,
        arguments: LoadKeywords,
        progress: Callable[[float], None] | None,
    ) -> None:
        if multiprocessing.current_process().daemon:
            raise EngineError(
                "a daemonic process may have no child, and an isolated engine is one",
                "Start the process with daemon=False, or use localspec.load in it.",
            )
        servers = servers_used(preset, arguments)
        self._choosing = threading.Lock()  # held while an answer gets its channel
        context = multiprocessing.get_context("spawn")
        pipes = [context.Pipe() for _ in range(1 + _num_answers(arguments))]
        cancels, self._cancels = context.Pipe(duplex=False)
        theirs = [there for _, there in pipes]
        process = context.Process(
            target=_serve,
            args=(theirs, cancels, preset, arguments, servers),
            daemon=True,
            name="localspec",
        )
        # What the channels know of it is an object of its own, so that dropping this is enough.
        patience_s = CHILD_PATIENCE_S + (_WRITING_S if arguments.get("cache_disk") else 0.0)
        self._child = _Child(process, servers, patience_s)
        self._asides, *self._channels = (Channel(here, self._child) for here, _ in pipes)
        process.start()
        # Their last copies here, so that the end of the child is the end of the pipes.
        for each in (*theirs, cancels):
            each.close()
        self.number = process.pid
        try:
            self.facts: EngineFacts = self._channels[0].answer(progress)
        except BaseException:
            self.stop()
            raise

    def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """`Channel.call` for what is done while no answer runs."""
        return self._channels[0].call(method, *arguments, **keywords)

    def ask(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """`Channel.call` for what waits for no answer: vocabulary, memory, idle work."""
        return self._asides.call(method, *arguments, **keywords)

    def channel_of(self, turn: EngineTurn) -> Channel:
        """The channel of an answer, until its turn is over."""
        with self._choosing:
            free = [each for each in self._channels if each.turn is None or each.turn.is_over]
            free[0].turn = turn
            return free[0]

    def can_end(self, channel: Channel) -> bool:
        """Whether the child can be asked now to end the channel's answer.

        Not by a finalizer in the midst of a call on that channel.
        """
        return self._child.is_alive() and not (channel.is_torn or channel.is_in_call)

    def is_running(self) -> bool:
        """Whether the child has not ended yet, and can be asked."""
        channels = (self._asides, *self._channels)
        return self._child.is_alive() and not any(each.is_torn for each in channels)

    def cancel(self, first: int, last: int) -> None:
        """Have the answers with these numbers cancelled that still run. From any thread."""
        with contextlib.suppress(OSError, TypeError):  # it may be closed at this moment
            self._cancels.send((first, last))

    def stop(self, *, is_closed: bool = True) -> None:
        """End the child, once calls that other threads make are answered. Idempotent.

        is_closed: whether the engine is; else another child takes the place of this one.
        """
        self._child.is_closed |= is_closed
        patient_until_s = time.monotonic() + CHILD_PATIENCE_S

        def end_call() -> bool:
            if time.monotonic() > patient_until_s:
                self._child.process.kill()
            return False

        for channel in (self._asides, *self._channels):
            channel.close(end_call)
        self._cancels.close()
        self._child.end()


def _num_answers(arguments: LoadKeywords) -> int:
    """How many answers may run at once; of a number that `load` refuses, one."""
    asked = arguments.get("parallel", 1)
    return asked if isinstance(asked, int) and 1 <= asked <= MOST_PARALLEL else 1
