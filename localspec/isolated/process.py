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
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from localspec.engine.sources import servers_used
from localspec.errors import ClosedError, CrashedError, EngineError, LocalspecError, RpcError
from localspec.isolated.orphan import end_with_parent
from localspec.isolated.process_messages import (
    Ask,
    EmbedderQuestion,
    Ended,
    EngineQuestion,
    Failed,
    Heard,
    LastWords,
    LoadProgress,
    Lost,
    MeasureReport,
    PicturesMissing,
    PromptSign,
    Result,
    ToChild,
)
from localspec.isolated.prompt_watch import PromptWatch
from localspec.llama.rpc_servers import ask_servers
from localspec.streaming.outbox import take_from

if TYPE_CHECKING:
    from localspec.engine.sources import LoadKeywords
    from localspec.presets.presets import Preset

_SPAWN = multiprocessing.get_context("spawn")
CHILD_PATIENCE_S = 10.0  # for the process to free its models, before it is killed
_WRITING_S = 120.0  # in addition, if it writes caches to disk
# For a message from a process that uses RPC servers: if it stands still, it is as silent as if
# it computes. A prompt takes longest: libllama sends a batch of 512 tokens, and perhaps
# another, before it waits for the first.
CHILD_SILENCE_S = 600.0
_LOOK_S = 1.0  # between two looks at how long such a process has been silent


def _serve(name: str, pipe: Connection, *arguments: Any) -> None:
    """Run a function of `child`. That module loads libllama, so only the child imports it.

    Args:
        name: the function's name.
        pipe: to the other process.
        arguments: for the function.
    """
    end_with_parent()
    try:
        from localspec.isolated import child
    except LocalspecError as error:
        with contextlib.suppress(OSError):  # the other end closes once it knows
            pipe.send(Failed(0, error))
    else:
        getattr(child, name)(pipe, *arguments)


class Listener(Protocol):
    """Receives the messages about a request."""

    number: int
    """The request's number."""

    @property
    def is_awaited(self) -> bool:
        """Whether a reader waits for the next message."""

    def receive(self, message: Heard) -> None:
        """Take a message. The last one is `Result`, `Failed`, `Ended` or `Lost`."""


class Call:
    """A request with one result.

    Args:
        child: the process.
        number: the request's number.
        on_progress: gets the `LoadProgress` or `MeasureReport` messages before the result.
    """

    is_awaited = True

    def __init__(
        self,
        child: _Child,
        number: int,
        on_progress: Callable[[LoadProgress | MeasureReport], None] | None,
    ) -> None:
        self.number = number
        self._child = child
        self.on_progress = on_progress
        self._heard: SimpleQueue[Heard] = SimpleQueue()

    def receive(self, message: Heard) -> None:
        """See `Listener`."""
        self._heard.put(message)

    def result(self) -> Any:
        """The result. Raises the request's error, or CrashedError if the child is lost."""
        try:
            while True:
                message = take_from(self._heard)
                if isinstance(message, Result):
                    return message.value
                if isinstance(message, Failed):
                    raise message.error
                if isinstance(message, Lost):
                    raise self._child.lost()
                if (
                    isinstance(message, LoadProgress | MeasureReport)
                    and self.on_progress is not None
                ):
                    self.on_progress(message)
        except BaseException:
            self._child.give_up(self.number)
            raise


class _Child:
    """A child, and the calls to it by one pipe. A call has a number.

    Any number of threads may call at once. Two threads of its own write and read the messages,
    so that an exception of a signal handler cannot cut a message in two.

    Args:
        process: the child.
        pipe: to it.
        servers: RPC servers that hold layers of its models.
        patience_s: the time in which it has to end.
    """

    def __init__(
        self,
        process: BaseProcess,
        pipe: Any,
        servers: tuple[str, ...],
        patience_s: float,
    ) -> None:
        self.process = process
        self._pipe = pipe
        self._servers = servers
        self._patience_s = patience_s
        self.is_closed = False
        """Whether the engine is closed."""

        self._last_words = ""  # libllama's message before it ended the process
        # Held while the system is asked for the state of the process: if several threads asked
        # at once, all but one would get the answer that there is no such process. Reentrant,
        # since a finalizer may interrupt the thread that holds it.
        self._asking = threading.RLock()
        self._is_over = False  # the process has ended, and its resources here are freed
        self._exit_code: int | None = None  # once it is known
        self._has_ended = False
        self._end: tuple[str, str] | None = None  # message and hint
        self._is_mute = False  # it was killed, because it sent no more messages
        self.prompts = PromptWatch(process)
        self._numbers = itertools.count(1)
        self._to_write: SimpleQueue[Any] = SimpleQueue()  # None: no more messages
        self._listeners: dict[int, Listener] = {}  # by the request's number
        self._num_given_up = 0  # abandoned calls whose last message has not come
        self._awaited_s = 0.0  # when no reader waited for a message last
        self.is_lost = False
        self._is_read = threading.Event()  # set once the pipe is read to its end
        self._loading = Call(self, 0, None)
        self._listeners[0] = self._loading
        self._writer = self._started_thread(self._write)
        self._reader = self._started_thread(self._receive_all)

    @staticmethod
    def _started_thread(work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(
            target=work,
            name="localspec-pipe",
            daemon=True,
        )
        thread.start()
        return thread

    def loaded(self, progress: Callable[[float], None] | None) -> Any:
        """The result of the load."""
        if progress is not None:
            self._loading.on_progress = lambda message: progress(_share(message))
        return self._loading.result()

    def tell(self, message: ToChild) -> None:
        """Send a message that has no answer."""
        self._to_write.put(ForkingPickler.dumps(message))

    def next_number(self) -> int:
        """A number that no request has had."""
        return next(self._numbers)

    def ask(self, listener: Listener, message: ToChild) -> None:
        """Send a request. `listener` receives all messages with the request's number."""
        pickled = ForkingPickler.dumps(message)
        self._listeners[listener.number] = listener
        self._to_write.put(pickled)
        if self.is_lost:
            self._lose()

    def request(
        self,
        make: Callable[[int], ToChild],
        on_progress: Callable[[LoadProgress | MeasureReport], None] | None = None,
    ) -> Call:
        """Send a request with one result.

        Args:
            make: makes the message from the request's number.
            on_progress: see `Call`.
        """
        call = Call(self, self.next_number(), on_progress)
        self.ask(call, make(call.number))
        return call

    def call(self, question: EngineQuestion | EmbedderQuestion) -> Any:
        """The answer to a question. Raises what answering it raises."""
        return self.request(lambda number: Ask(number, question)).result()

    def give_up(self, number: int) -> None:
        """Stop waiting for the request of that number."""
        if self._listeners.pop(number, None) is not None:
            self._num_given_up += 1

    def is_of_this_thread(self) -> bool:
        """Whether this thread writes or reads the messages, so that it cannot wait for one."""
        return threading.current_thread() in (self._writer, self._reader)

    def end(self) -> None:
        """Have the child end once it has followed all messages. Idempotent."""
        self._to_write.put(None)

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # the thread that reads finds the error, too
            for message in iter(self._to_write.get, None):
                self._pipe.send_bytes(message)
            self._pipe.send(None)
        if not self._is_read.wait(self._patience_s):
            self.kill()  # it gets no more messages, and perhaps no thread waits for its end

    def _receive_all(self) -> None:
        try:
            with contextlib.suppress(EOFError, OSError):
                while True:
                    self._wait()
                    self._hand_on(pickle.loads(self._pipe.recv_bytes()))
        finally:
            self.is_lost = True
            self._lose()
            self._is_read.set()
            self.end()
            self._writer.join()
            self._pipe.close()
            self._wait_for_exit(CHILD_PATIENCE_S)

    def _lose(self) -> None:
        """Send `Lost` once to every request that waits."""
        for number in tuple(self._listeners):
            listener = self._listeners.pop(number, None)
            if listener is not None:
                listener.receive(Lost())

    def _hand_on(self, message: Heard | LastWords | PromptSign) -> None:
        """Give a message to its request."""
        if isinstance(message, LastWords):
            self._last_words = f" ({' '.join(message.text.split())})"
            return
        if isinstance(message, PromptSign):
            self.prompts.note(message)
            return
        assert not isinstance(message, Lost)
        listener = self._listeners.get(message.number)
        is_last = isinstance(message, Result | Failed | Ended | PicturesMissing)
        if is_last:
            self._listeners.pop(message.number, None)
        if listener is not None:
            listener.receive(message)
        elif message.number and is_last:
            self._num_given_up = max(self._num_given_up - 1, 0)

    def _wait(self) -> None:
        """Wait for a message, and kill a child that will not send one.

        Such a child makes a prompt without end, or perhaps waits for a server.
        """
        since_s = time.monotonic()
        while True:
            if self.prompts.is_too_much():
                self.kill()
                return
            limit_s = None
            if self._servers or self.prompts.is_at_work:
                limit_s = _LOOK_S
            if self._pipe.poll(limit_s):
                return
            if self._servers and self._is_silent(since_s):
                self._is_mute = True
                self.kill()
                return

    def _is_silent(self, since_s: float) -> bool:
        """Whether a reader has waited too long for a message.

        Args:
            since_s: when the last message came, by `time.monotonic`.
        """
        limit_s = CHILD_SILENCE_S
        if self._num_given_up > 0:  # an abandoned call is not worth a long wait
            limit_s = CHILD_PATIENCE_S
        is_awaited = any(listener.is_awaited for listener in tuple(self._listeners.values()))
        if not is_awaited:
            self._awaited_s = time.monotonic()
        return time.monotonic() - max(since_s, self._awaited_s) > limit_s

    def is_running(self) -> bool:
        """Whether the child has not ended yet."""
        if self._has_ended or self.is_lost:
            return False
        with self._asking:
            return not self._is_over and self.process.is_alive()

    def lost(self) -> EngineError:
        """The error of a call whose answer does not come."""
        if self.is_closed:  # another thread has closed it while this one waited
            return ClosedError("the engine is closed", "Load it again.")
        self._has_ended = True
        with self._asking:
            if self._end is None:
                self._end = self._how_it_ended()
            return CrashedError(*self._end)

    def _how_it_ended(self) -> tuple[str, str]:
        """Why the child ended, and a hint. Asks RPC servers whether they still answer."""
        if self.prompts.excess:
            return (
                f"the process of the engine was ended, since {self.prompts.excess}",
                "Ask again: it will be restarted.",
            )
        cause = f"the process of the engine ended: {self._exit()}"
        if not self._servers:
            return cause, "Ask again: it will be restarted."
        if self._is_mute:
            cause = "the process of the engine waited too long for an RPC server"
        faults = [error for error in ask_servers(self._servers) if isinstance(error, RpcError)]
        if not faults:
            names = ", ".join(self._servers)
            return (
                f"{cause}{self._last_words}. It used the RPC servers {names}, which answer now",
                "Ask again: it will be restarted.",
            )
        return (
            f"{cause}. {'; '.join(map(str, faults))}",
            f"{faults[0].hint} Then ask again: the engine will be restarted.",
        )

    def _exit(self) -> str:
        self._wait_for_exit(CHILD_PATIENCE_S)
        code = self._exit_code
        if code is None:  # the application lets the system reap its children
            return "its exit code is unknown"
        if code >= 0:
            return f"exit code {code}"
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"

    def close(self) -> None:
        """End the child once it has followed all messages; kill it if that takes long."""
        self.end()
        if not self._wait_for_exit(self._patience_s):
            self.kill()
            self._wait_for_exit(None)

    def kill(self) -> None:
        """End the child at once, from any thread."""
        with contextlib.suppress(ValueError):  # it has ended
            self.process.kill()

    def _wait_for_exit(self, seconds: float | None) -> bool:
        """Wait for its end and free its resources here; False if it still runs."""
        with self._asking:
            if self._is_over:
                return True
            if not wait([self.process.sentinel], seconds):
                return False
            self.process.join()
            self._exit_code = self.process.exitcode
            if self._exit_code is not None:  # else the object takes it for running
                self.process.close()
            self._is_over = True
            return True


class _OwnedChild:
    """A running child. Dropping the last reference ends it.

    Args:
        function: the name of a function of `child`. It gets its end of a pipe, `given`, and
            `patience_s`.
        given: the function's arguments.
        progress: gets the share of the models that is loaded, 0 to 1.
        servers: RPC servers that hold layers of its models.
        patience_s: the time in which it has to end.

    Raises:
        Exception: what loading raises.
    """

    def __init__(
        self,
        function: str,
        given: tuple[Any, ...],
        progress: Callable[[float], None] | None = None,
        servers: tuple[str, ...] = (),
        patience_s: float = CHILD_PATIENCE_S,
    ) -> None:
        if multiprocessing.current_process().daemon:
            raise EngineError(
                "a daemonic process may have no child, and an isolated engine is one",
                "Start the process with daemon=False, or use localspec.load in it.",
            )
        here, there = _SPAWN.Pipe()
        process = _SPAWN.Process(
            target=_serve,
            args=(function, there, *given, patience_s),
            daemon=True,
            name="localspec",
        )
        try:
            process.start()
        except BaseException:
            here.close()
            raise
        finally:
            there.close()  # the last copy here: the pipe ends when the child ends
        child = _Child(process, here, servers, patience_s)
        self._child = child
        weakref.finalize(self, child.end)
        self.call = child.call
        self.close = child.close
        self.process_id = process.pid
        try:
            self.facts = child.loaded(progress)  # the function's facts about the models
        except BaseException:
            self.close()
            raise


class ChildProcess(_OwnedChild):
    """A running child with an engine; `facts` is what `child.facts_of` told of it."""

    def __init__(
        self,
        preset: str | os.PathLike[str] | Preset | None,
        arguments: LoadKeywords,
        progress: Callable[[float], None] | None,
    ) -> None:
        servers = servers_used(preset, arguments)
        patience_s = CHILD_PATIENCE_S
        if arguments.get("cache_disk"):
            patience_s += _WRITING_S  # it writes caches to disk before it ends
        given = (preset, arguments, servers)
        super().__init__("serve_engine", given, progress, servers, patience_s)
        child = self._child
        self.request = child.request
        self.tell = child.tell
        self.ask = child.ask
        self.next_number = child.next_number
        self.is_of_this_thread = child.is_of_this_thread
        self.is_running = child.is_running
        self.lost = child.lost
        self.prompts = child.prompts

        self.sent_pictures: set[bytes] = set()
        """The digests of pictures that were sent to it."""

    def close_engine(self) -> None:
        """End the child because the engine is closed: no other takes its place. Idempotent."""
        self._child.is_closed = True
        self.close()


class IsolatedEmbedder(_OwnedChild):
    """An `Embedder` in a child. It answers by `call`, and is closed while no call runs.

    Raises what `load_embedder` raises, and CrashedError.
    """

    def __init__(self, path: Path) -> None:
        super().__init__("serve_embedder", (path,))

    def kill(self) -> None:
        """End the child at once, from any thread. It has to be closed afterwards."""
        self._child.kill()


def _share(message: LoadProgress | MeasureReport) -> float:
    assert isinstance(message, LoadProgress)
    return message.share
