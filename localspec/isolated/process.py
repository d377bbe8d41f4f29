"""The child processes of engines and embedders, and the requests to them."""

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
    FromChild,
    LastWords,
    LoadProgress,
    Lost,
    MeasureReport,
    PicturesMissing,
    PromptReport,
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
CHILD_PATIENCE_S = 10.0  # for a child to free its models, before it is killed
_WRITING_PATIENCE_S = 120.0  # in addition, if the child writes caches to disk
# The longest time without a message from a child that uses RPC servers: a child that computes
# looks like one that waits for a server for ever. A prompt takes longest: libllama sends a
# batch of 512 tokens, and perhaps another, before it waits for the first.
CHILD_SILENCE_S = 600.0
_CHECK_S = 1.0  # between two checks of how long a child has been silent


def _serve(name: str, pipe: Connection, *arguments: Any) -> None:
    """The main function of a child: runs a function of the module `child`.

    That module loads libllama, so only the child imports it.

    Args:
        name: The function's name.
        pipe: The pipe to the other process: the function's first argument.
        arguments: The function's further arguments.
    """
    end_with_parent()
    try:
        from localspec.isolated import child
    except LocalspecError as error:
        with contextlib.suppress(OSError):  # the other process may have closed its end
            pipe.send(Failed(0, error))
    else:
        getattr(child, name)(pipe, *arguments)


class Listener(Protocol):
    """Receives the messages about one request."""

    number: int
    """The request's number."""

    @property
    def is_awaited(self) -> bool:
        """Whether a reader waits for the next message."""

    def receive(self, message: FromChild) -> None:
        """Take a message. Called in any thread.

        The last one is `Result`, `Failed`, `Ended`, `PicturesMissing` or `Lost`.
        """


class Call:
    """A request with one result.

    Args:
        child: The process.
        number: The request's number.
        on_progress: Gets the `LoadProgress` or `MeasureReport` messages before the result.
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
        self._messages: SimpleQueue[FromChild] = SimpleQueue()

    def receive(self, message: FromChild) -> None:
        """See `Listener`."""
        self._messages.put(message)

    def result(self) -> Any:
        """Wait for the result, and return it.

        Raises the request's error, or CrashedError or ClosedError if the child is lost.
        """
        try:
            while True:
                message = take_from(self._messages)
                if isinstance(message, Result):
                    return message.value
                if isinstance(message, Failed):
                    raise message.error
                if isinstance(message, Lost):
                    raise self._child.lost_error()
                if (
                    isinstance(message, LoadProgress | MeasureReport)
                    and self.on_progress is not None
                ):
                    self.on_progress(message)
        except BaseException:
            self._child.give_up(self.number)
            raise


class _Child:
    """A child, and the requests to it through one pipe. Each request has a number.

    Any number of threads may send requests at once. Two threads of this object write and read
    the messages, so that an exception of a signal handler cannot cut a message in two.

    Args:
        process: The child.
        pipe: The pipe to the child.
        servers: Addresses of the RPC servers that have layers of the child's models.
        patience_s: Seconds in which the child has to end before it is killed.
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

        self._last_words = ""  # libllama's message before it ended the process, in parentheses
        # Held while the system is asked for the state of the process: if several threads asked
        # at once, all but one would get the answer that there is no such process. Reentrant,
        # since a finalizer may interrupt the thread that holds it.
        self._process_lock = threading.RLock()
        self._is_over = False  # the process has ended, and its resources here are freed
        self._exit_code: int | None = None  # once it is known
        self._has_ended = False  # a request has failed, since the process has ended
        self._end: tuple[str, str] | None = None  # why it has ended, and a hint; once asked for
        self._was_silent = False  # it was killed, because it sent no more messages
        self.prompts = PromptWatch(process)
        self._numbers = itertools.count(1)
        self._to_write: SimpleQueue[Any] = SimpleQueue()  # None: no more messages
        self._listeners: dict[int, Listener] = {}  # by the request's number
        self._num_given_up = 0  # abandoned requests whose last message has not come
        self._not_awaited_s = 0.0  # the last time at which no reader waited for a message
        self.is_lost = False  # the pipe has ended: no more messages come
        self._is_read = threading.Event()  # set once the pipe is read to its end
        self._loading = Call(self, 0, None)
        self._listeners[0] = self._loading
        self._writer = self._started_thread(self._write)
        self._reader = self._started_thread(self._receive_all)

    @staticmethod
    def _started_thread(work: Callable[[], None]) -> threading.Thread:
        """Start a daemon thread that does this work, and return it."""
        thread = threading.Thread(
            target=work,
            name="localspec-pipe",
            daemon=True,
        )
        thread.start()
        return thread

    def load_result(self, progress: Callable[[float], None] | None) -> Any:
        """Wait until the child has loaded its models. Returns an engine's facts, else None.

        Raises what loading raises, or CrashedError. progress: gets the loaded share, 0 to 1.
        """
        if progress is not None:
            self._loading.on_progress = lambda message: progress(_share(message))
        return self._loading.result()

    def send(self, message: ToChild) -> None:
        """Send a message that has no answer."""
        self._to_write.put(ForkingPickler.dumps(message))

    def next_number(self) -> int:
        """A number for a request that no other request has."""
        return next(self._numbers)

    def send_request(self, listener: Listener, message: ToChild) -> None:
        """Send a request. `listener` receives all messages with the request's number.

        If the child has ended, that is `Lost`, at once.
        """
        pickled = ForkingPickler.dumps(message)
        self._listeners[listener.number] = listener
        self._to_write.put(pickled)
        if self.is_lost:
            self._report_loss()

    def request(
        self,
        make: Callable[[int], ToChild],
        on_progress: Callable[[LoadProgress | MeasureReport], None] | None = None,
    ) -> Call:
        """Send a request with one result, without waiting for the result.

        Args:
            make: Makes the message from the request's number.
            on_progress: See `Call`.
        """
        call = Call(self, self.next_number(), on_progress)
        self.send_request(call, make(call.number))
        return call

    def call(self, question: EngineQuestion | EmbedderQuestion) -> Any:
        """Send a question, and wait for its answer. Raises what answering it raises."""
        return self.request(lambda number: Ask(number, question)).result()

    def give_up(self, number: int) -> None:
        """Stop waiting for the request of that number: its messages are dropped."""
        if self._listeners.pop(number, None) is not None:
            self._num_given_up += 1

    def is_of_this_thread(self) -> bool:
        """Whether this thread writes or reads the messages: then it cannot wait for one."""
        return threading.current_thread() in (self._writer, self._reader)

    def end(self) -> None:
        """Have the child end once it has handled all messages, without waiting. Idempotent."""
        self._to_write.put(None)

    def _write(self) -> None:
        """Write the messages, and then the end. Kills a child that does not end in time."""
        with contextlib.suppress(OSError):  # the thread that reads gets the error, too
            for message in iter(self._to_write.get, None):
                self._pipe.send_bytes(message)
            self._pipe.send(None)
        if not self._is_read.wait(self._patience_s):
            # Here, because after a mere `end` no thread is in `close`, which would kill it.
            self.kill()

    def _receive_all(self) -> None:
        """Read the messages until the pipe ends, then free what belongs to the child."""
        try:
            with contextlib.suppress(EOFError, OSError):
                while True:
                    self._wait_for_message()
                    pickled = self._pipe.recv_bytes()
                    self._dispatch(pickle.loads(pickled))
        finally:
            self.is_lost = True
            self._report_loss()
            self._is_read.set()
            self.end()
            self._writer.join()
            self._pipe.close()
            self._wait_for_exit(CHILD_PATIENCE_S)

    def _report_loss(self) -> None:
        """Give `Lost` to every request whose last message has not come; to each only once."""
        for number in tuple(self._listeners):
            listener = self._listeners.pop(number, None)
            if listener is not None:
                listener.receive(Lost())

    def _dispatch(self, message: FromChild | LastWords | PromptReport) -> None:
        """Give a message to the listener of its request, or note it here."""
        if isinstance(message, LastWords):
            one_line = " ".join(message.text.split())
            self._last_words = f" ({one_line})"
            return
        if isinstance(message, PromptReport):
            self.prompts.note(message)
            return
        assert not isinstance(message, Lost)
        listener = self._listeners.get(message.number)
        is_last = isinstance(message, Result | Failed | Ended | PicturesMissing)
        if is_last:
            self._listeners.pop(message.number, None)
        if listener is not None:
            listener.receive(message)
        elif message.number and is_last:  # of a request that was given up, and not the load
            self._num_given_up = max(self._num_given_up - 1, 0)

    def _wait_for_message(self) -> None:
        """Wait for a message, or for the end of the pipe.

        Kills a child that takes too much time or memory for a prompt, or that may wait for an
        RPC server and is silent for too long.
        """
        last_message_s = time.monotonic()
        while True:
            if self.prompts.exceeds_limit():
                self.kill()
                return
            timeout_s = None
            if self._servers or self.prompts.is_at_work:
                timeout_s = _CHECK_S
            if self._pipe.poll(timeout_s):
                return
            if self._servers and self._is_silent(last_message_s):
                self._was_silent = True
                self.kill()
                return

    def _is_silent(self, last_message_s: float) -> bool:
        """Whether a reader has waited too long for a message.

        Args:
            last_message_s: When the last message came, by `time.monotonic`.
        """
        limit_s = CHILD_SILENCE_S
        if self._num_given_up > 0:  # an abandoned request is not worth a long wait
            limit_s = CHILD_PATIENCE_S
        now_s = time.monotonic()
        listeners = tuple(self._listeners.values())
        if not any(listener.is_awaited for listener in listeners):
            self._not_awaited_s = now_s
        began_s = max(last_message_s, self._not_awaited_s)
        return now_s - began_s > limit_s

    def is_running(self) -> bool:
        """Whether the child still runs, as far as is known."""
        if self._has_ended or self.is_lost:
            return False
        with self._process_lock:
            return not self._is_over and self.process.is_alive()

    def lost_error(self) -> EngineError:
        """The error of a request that gets no answer, since the child has ended.

        From now on the child does not count as running.
        """
        if self.is_closed:  # another thread has closed it while this one waited
            return ClosedError("the engine is closed", "Load it again.")
        self._has_ended = True
        with self._process_lock:
            if self._end is None:
                self._end = self._explain_end()
            return CrashedError(*self._end)

    def _explain_end(self) -> tuple[str, str]:
        """Why the child has ended, and a hint. Asks RPC servers whether they still answer."""
        if self.prompts.excess:
            return (
                f"the process of the engine was ended, since {self.prompts.excess}",
                "Ask again: it will be restarted.",
            )
        cause = f"the process of the engine ended: {self._exit_in_words()}"
        if not self._servers:
            return cause, "Ask again: it will be restarted."
        if self._was_silent:
            cause = "the process of the engine waited too long for an RPC server"
        answers = ask_servers(self._servers)
        faults = [answer for answer in answers if isinstance(answer, RpcError)]
        if not faults:
            names = ", ".join(self._servers)
            return (
                f"{cause}{self._last_words}. It used the RPC servers {names}, which answer now",
                "Ask again: it will be restarted.",
            )
        fault_words = "; ".join(map(str, faults))
        return (
            f"{cause}. {fault_words}",
            f"{faults[0].hint} Then ask again: the engine will be restarted.",
        )

    def _exit_in_words(self) -> str:
        """The child's exit code, or the signal that ended it, in words."""
        self._wait_for_exit(CHILD_PATIENCE_S)
        code = self._exit_code
        if code is None:  # the application lets the system reap its children
            return "its exit code is unknown"
        if code >= 0:
            return f"exit code {code}"
        try:  # a code below 0 is the number of a signal
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"

    def close(self) -> None:
        """End the child once it has handled all messages, and wait. Kills it after a while."""
        self.end()
        if not self._wait_for_exit(self._patience_s):
            self.kill()
            self._wait_for_exit(None)

    def kill(self) -> None:
        """End the child at once, from any thread."""
        with contextlib.suppress(ValueError):  # it has ended
            self.process.kill()

    def _wait_for_exit(self, seconds: float | None) -> bool:
        """Wait for the child's end, and free its resources here. Idempotent.

        Returns False if the child still runs after these seconds; None waits for ever.
        """
        with self._process_lock:
            if self._is_over:
                return True
            if not wait([self.process.sentinel], seconds):
                return False
            self.process.join()
            self._exit_code = self.process.exitcode
            if self._exit_code is not None:  # without a code, `close` would raise an error
                self.process.close()
            self._is_over = True
            return True


class _OwnedChild:
    """A running child, whose models are loaded. The child ends with the last reference to this.

    Args:
        function: The name of the function of the module `child` that the child runs. The
            function gets its end of a pipe, `arguments`, and `patience_s`.
        arguments: The function's further arguments.
        progress: Gets the loaded share of the models, 0 to 1.
        servers: Addresses of the RPC servers that have layers of the models.
        patience_s: Seconds in which the child has to end before it is killed.

    Raises:
        Exception: What loading raises.
    """

    def __init__(
        self,
        function: str,
        arguments: tuple[Any, ...],
        progress: Callable[[float], None] | None = None,
        servers: tuple[str, ...] = (),
        patience_s: float = CHILD_PATIENCE_S,
    ) -> None:
        if multiprocessing.current_process().daemon:
            raise EngineError(
                "a daemonic process may have no child, and an isolated engine needs one",
                "Start the process with daemon=False, or use localspec.load in it.",
            )
        pipe, child_pipe = _SPAWN.Pipe()
        process = _SPAWN.Process(
            target=_serve,
            args=(function, child_pipe, *arguments, patience_s),
            daemon=True,
            name="localspec",
        )
        try:
            process.start()
        except BaseException:
            pipe.close()
            raise
        finally:
            child_pipe.close()  # so that the pipe ends when the child ends
        child = _Child(process, pipe, servers, patience_s)
        self._child = child
        weakref.finalize(self, child.end)
        self.call = child.call
        self.close = child.close
        self.process_id = process.pid
        try:
            self.facts = child.load_result(progress)
        except BaseException:
            self.close()
            raise


class ChildProcess(_OwnedChild):
    """A running child with an engine.

    `facts` is the result of `child.facts_of` for the engine. Raises what `load` raises.

    Args:
        preset: As for `localspec.load`.
        arguments: Further arguments of `localspec.load`.
        progress: Gets the loaded share of the models, 0 to 1.
    """

    def __init__(
        self,
        preset: str | os.PathLike[str] | Preset | None,
        arguments: LoadKeywords,
        progress: Callable[[float], None] | None,
    ) -> None:
        servers = servers_used(preset, arguments)
        patience_s = CHILD_PATIENCE_S
        if arguments.get("cache_disk"):
            patience_s += _WRITING_PATIENCE_S  # it writes caches to disk before it ends
        child_arguments = (preset, arguments, servers)
        super().__init__("serve_engine", child_arguments, progress, servers, patience_s)
        child = self._child
        self.request = child.request
        self.send = child.send
        self.send_request = child.send_request
        self.next_number = child.next_number
        self.is_of_this_thread = child.is_of_this_thread
        self.is_running = child.is_running
        self.lost_error = child.lost_error
        self.prompts = child.prompts

        self.sent_pictures: set[bytes] = set()
        """The digests of pictures that were sent to the child."""

    def close_engine(self) -> None:
        """End the child because its engine is closed for good. Idempotent."""
        self._child.is_closed = True
        self.close()


class IsolatedEmbedder(_OwnedChild):
    """An `Embedder` in a child. `call` asks it; `close` may be called while no call runs.

    Raises what `load_embedder` raises, and CrashedError.

    Args:
        path: The model's file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__("serve_embedder", (path,))

    def kill(self) -> None:
        """End the child at once, from any thread. `close` has to follow."""
        self._child.kill()


def _share(message: LoadProgress | MeasureReport) -> float:
    """The loaded share of the models, from a message about the load."""
    assert isinstance(message, LoadProgress)
    return message.share
