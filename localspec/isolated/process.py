"""The process of an `IsolatedEngine`, as the application's process sees it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

from localspec.engine.access import Access, in_use
from localspec.engine.sources import servers_used
from localspec.errors import ClosedError, CrashedError, EngineError, RpcError
from localspec.isolated.child import EngineFacts, serve_engine
from localspec.llama.rpc_servers import ask_servers

if TYPE_CHECKING:
    from localspec.engine.sources import LoadKeywords
    from localspec.presets.preset import Preset

CHILD_PATIENCE_S = 10.0  # for the process to free its models, before it is killed
# For a word from a process whose models are on RPC servers: one that stands still says as
# little as one that computes. That takes longest for a prompt: libllama sends a batch of 512
# tokens, and perhaps another, before it waits for the first.
CHILD_SILENCE_S = 600.0


class ChildProcess:
    """A running child with its two lines: requests that are answered, and cancels.

    Where its models are on RPC servers, every wait for it has a limit.
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
        self._servers = servers_used(preset, arguments)
        context = multiprocessing.get_context("spawn")
        self._calls, calls = context.Pipe()
        cancels, self._cancels = context.Pipe(duplex=False)
        self._one_call = Access()
        self._num_calls = 0
        self._has_ended = False
        self._last_words = ""
        self._is_mute = False  # it was killed, because it said nothing any more
        self._is_left = False  # by a call that did not wait for its answer
        self._is_torn = False  # a message may have been written or read in part
        self._is_stopped = False
        self._process = context.Process(
            target=serve_engine,
            args=(calls, cancels, preset, arguments, self._servers),
            daemon=True,
            name="localspec",
        )
        self._process.start()
        # Their last copies here, so that the end of the child is the end of the line.
        calls.close()
        cancels.close()
        self.number = self._process.pid
        try:
            self.facts: EngineFacts = self._answer(progress)  # to no call: number 0
        except BaseException:
            self.stop()
            raise

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
                self._whole(self._calls.send_bytes, request)
            return self._answer(on_report)

    @property
    def is_in_call(self) -> bool:
        """Whether this very thread makes a call, which a finalizer or a signal interrupted."""
        return self._one_call.is_held_here

    def _answer(self, on_report: Callable[[Any], None] | None) -> Any:
        number, kind, value = -1, "", None
        # Nobody waits long for what nobody wants any more.
        limit_s = CHILD_PATIENCE_S if self._is_left else CHILD_SILENCE_S
        self._is_left = True
        # A call that an exception of a signal handler ended has left its answer behind.
        while number != self._num_calls or kind in ("progress", "last words"):
            try:
                number, kind, value = self._received(limit_s)
            except (EOFError, OSError) as error:
                self._has_ended = True
                if self._is_stopped:  # by whoever closed it while this waited for its turn
                    raise ClosedError("the engine is closed", "Load it again.") from error
                raise CrashedError(*self._how_it_ended()) from error
            if kind == "progress" and on_report is not None:
                on_report(value)
            elif kind == "last words":
                self._last_words = f" ({' '.join(value.split())})"
        self._is_left = False
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
            self._is_torn = True
            raise

    def _received(self, limit_s: float) -> Any:
        """The child's next message. A child that is silent too long, and may be waiting for a
        server, is killed."""
        # Here it may be interrupted: nothing is read yet.
        if not self._calls.poll(limit_s if self._servers else None):
            self._is_mute = True
            self._process.kill()
        return pickle.loads(self._whole(self._calls.recv_bytes))

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
                f"{ended}{self._last_words}. It used the RPC servers {names}, which answer now",
                "Ask again: it is started again.",
            )
        return (
            f"{ended}. {'; '.join(map(str, faults))}",
            f"{faults[0].hint} Then ask again: the engine is started again.",
        )

    def _exit(self) -> str:
        self._process.join(CHILD_PATIENCE_S)
        code = self._process.exitcode
        if code is None:  # the application lets the system clear its children away
            return "its exit code is unknown"
        if code >= 0:
            return f"exit code {code}"
        known = {number.value: number.name for number in signal.Signals}
        return known.get(-code, f"signal {-code}")

    def is_running(self) -> bool:
        """Whether the child has not ended yet, and can be asked."""
        return not (self._has_ended or self._is_torn) and self._process.is_alive()

    def cancel(self, answer_number: int) -> None:
        """Have that answer cancelled, if it is still the one. From any thread."""
        with contextlib.suppress(OSError, TypeError):  # it may be closed at this moment
            self._cancels.send(answer_number)

    def stop(self) -> None:
        """End the child, once a call that another thread makes is answered. Idempotent."""
        self._is_stopped = True
        self._one_call.end_here()
        patient_until_s = time.monotonic() + CHILD_PATIENCE_S

        def end_call() -> bool:
            if time.monotonic() > patient_until_s:
                self._process.kill()
            return False

        with self._one_call.turn() as turn, turn:
            self._one_call.take(turn, in_use, waits=True, is_cancelled=end_call)
            self._calls.close()
            self._cancels.close()
        self._process.join(CHILD_PATIENCE_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
