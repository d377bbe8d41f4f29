"""The child processes of engines and embedders, and the pipes to them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.engine.sources import servers_used
from localspec.errors import ClosedError, CrashedError, EngineError, LocalspecError, RpcError
from localspec.isolated.facts import EngineFacts
from localspec.llama.rpc_servers import ask_servers
from localspec.preflight.plan import MOST_PARALLEL
from localspec.streaming.access import Access, EngineTurn, in_use
from localspec.streaming.cancellation import CancelCheck, never

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


def _serve(name: str, pipes: Sequence[Connection], *arguments: Any) -> None:
    """Run a function of `child`, whose module loads libllama: in the child, not here."""
    try:
        from localspec.isolated import child
    except LocalspecError as error:
        for pipe in pipes:
            with contextlib.suppress(OSError):  # the other end closes once it knows
                pipe.send((0, "error", error))
    else:
        getattr(child, name)(pipes, *arguments)


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


class Channel:
    """A pipe to the child: of an answer, or for calls that belong to none.

    pipe: a Connection, which Windows has another class for. turn: of the answer that has it.
    is_torn: whether a message may have been written or read in part.
    """

    def __init__(self, pipe: Any, host: _Child) -> None:
        self.turn: EngineTurn | None = None
        self.is_torn = False
        self._pipe = pipe
        self._host = host
        self._one_call = Access()
        self._num_calls = 0
        self._num_open = 0  # calls whose answers have not come

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
        with self._one_call.turn() as turn, turn:
            self._one_call.take(turn, in_use, waits=True)
            self._num_calls += 1
            request = ForkingPickler.dumps((self._num_calls, method, arguments, keywords))
            with contextlib.suppress(OSError):  # what is wrong is found out below
                self._whole(self._pipe.send_bytes, request)
            return self.answer(on_report)

    @property
    def is_in_call(self) -> bool:
        """Whether this thread is within a call, which a finalizer or a signal interrupted."""
        return self._one_call.is_held_here

    @property
    def is_behind(self) -> bool:
        """Whether an earlier call was given up and its answer may still come."""
        return self._num_open > 1

    def poll(self, seconds: float | None) -> bool:
        """Wait so long, or without end, for a message; whether there is one."""
        return bool(self._pipe.poll(seconds))

    def answer(self, on_report: Callable[[Any], None] | None) -> Any:
        """The answer to the last call; before any, to the load."""
        number, kind, value = -1, "", None
        self._num_open += 1
        # A call that an exception of a signal handler ended has left its answer behind.
        while number != self._num_calls or kind in ("progress", "last words"):
            try:
                self._host.wait(self)  # it may be interrupted: nothing is read yet
                number, kind, value = pickle.loads(self._whole(self._pipe.recv_bytes))
            except (EOFError, OSError) as error:
                raise self._host.lost() from error
            if kind == "progress" and on_report is not None:
                on_report(value)
            elif kind == "last words":
                self._host.last_words = f" ({' '.join(value.split())})"
        self._num_open = 0
        if isinstance(value, Exception):
            raise value
        return value

    def _whole(self, move: Callable[..., Any], *message: Any) -> Any:
        """The result of sending or receiving a message.

        If a signal handler raises in the middle of a message, nobody knows where the next one
        begins: the child can no longer be used.
        """
        try:
            return move(*message)
        except BaseException:
            self.is_torn = True
            raise

    def close(self, is_cancelled: CancelCheck = never) -> None:
        """Close it, once a call that another thread makes is answered. Idempotent."""
        self._one_call.end_here()
        with self._one_call.turn() as turn, turn:
            self._one_call.take(turn, in_use, waits=True, is_cancelled=is_cancelled)
            self._pipe.close()


def _started(
    function: str,
    num_pipes: int,
    given: tuple[Any, ...],
    servers: tuple[str, ...] = (),
    patience_s: float = CHILD_PATIENCE_S,
) -> tuple[_Child, list[Channel]]:
    """A child that runs a function of `child` with its ends of so many pipes; channels to it.

    What the channels know of it is an object of its own, so that dropping them is enough.
    """
    pipes = [_SPAWN.Pipe() for _ in range(num_pipes)]
    theirs = [there for _, there in pipes]
    process = _SPAWN.Process(
        target=_serve, args=(function, theirs, *given), daemon=True, name="localspec"
    )
    child = _Child(process, servers, patience_s)
    channels = [Channel(here, child) for here, _ in pipes]
    process.start()
    for each in theirs:  # the last copies here: the end of the child is the end of the pipes
        each.close()
    return child, channels


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
        cancels, self._cancels = _SPAWN.Pipe(duplex=False)
        patience_s = CHILD_PATIENCE_S + (_WRITING_S if arguments.get("cache_disk") else 0.0)
        given = cancels, preset, arguments, servers
        num_pipes = 1 + _num_answers(arguments)
        self._child, channels = _started("serve_engine", num_pipes, given, servers, patience_s)
        self._asides, *self._channels = channels
        cancels.close()
        self.number = self._child.process.pid
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


class IsolatedEmbedder:
    """The methods of an `Embedder` in a child, by `call`, one at a time.

    Raises what `load_embedder` does, and CrashedError.
    """

    def __init__(self, path: Path) -> None:
        self._child, (self._channel,) = _started("serve_embedder", 1, (path,))
        self.process_id = self._child.process.pid
        try:
            self._channel.answer(None)
        except BaseException:
            self.close()
            raise

    def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """The method's result. Raises what it raises, and CrashedError for a lost child."""
        return self._channel.call(method, *arguments, **keywords)

    def kill(self) -> None:
        """End the child in the midst of what it does, from any thread; close it then."""
        self._child.process.kill()

    def close(self) -> None:
        """End the child, while nothing is asked of it. Idempotent."""
        self._channel.close()
        self._child.end()
