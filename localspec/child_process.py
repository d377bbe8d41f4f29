"""The process of an `IsolatedEngine`, as the application's process sees it."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from localspec.errors import EngineError
from localspec.isolated_child import EngineFacts, serve

if TYPE_CHECKING:
    from localspec.loading import LoadKeywords

_PATIENCE_S = 10.0  # for the process to free its models, before it is killed


class ChildProcess:
    """A running child with its two lines: requests that are answered, and cancels."""

    def __init__(
        self,
        preset: str | None,
        arguments: LoadKeywords,
        progress: Callable[[float], None] | None,
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._calls, calls = context.Pipe()
        cancels, self._cancels = context.Pipe(duplex=False)
        self._one_call = threading.Lock()
        self._process = context.Process(
            target=serve,
            args=(calls, cancels, preset, arguments),
            daemon=True,
            name="localspec",
        )
        self._process.start()
        # Their last copies here, so that the end of the child is the end of the line.
        calls.close()
        cancels.close()
        self.number = self._process.pid
        try:
            self.facts: EngineFacts = self._answer(progress)
        except BaseException:
            self.stop()
            raise

    def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """What `Served.method` returns or raises. Raises EngineError if the child is gone."""
        with self._one_call:
            with contextlib.suppress(OSError):  # what is wrong is found out below
                self._calls.send((method, arguments, keywords))
            return self._answer(None)

    def _answer(self, progress: Callable[[float], None] | None) -> Any:
        kind, value = "progress", None
        while kind == "progress":
            try:
                kind, value = self._calls.recv()
            except (EOFError, OSError) as error:
                raise EngineError(
                    f"the process of the engine ended: {self._how_it_ended()}",
                    "Ask again: it is started anew.",
                ) from error
            if kind == "progress" and progress is not None:
                progress(value)
        if isinstance(value, Exception):
            raise value
        return value

    def _how_it_ended(self) -> str:
        self._process.join(_PATIENCE_S)
        code = self._process.exitcode
        if code is not None and code < 0:
            return signal.Signals(-code).name
        return f"exit code {code}"

    def is_running(self) -> bool:
        """Whether the child has not ended yet."""
        return self._process.is_alive()

    def cancel(self, stream_number: int) -> None:
        """Have that stream cancelled, if it is still the one. From any thread."""
        with contextlib.suppress(OSError):
            self._cancels.send(stream_number)

    def stop(self) -> None:
        """End the child, once a call that another thread makes is answered. Idempotent."""
        if self._one_call.acquire(timeout=_PATIENCE_S):
            self._one_call.release()
        self._calls.close()
        self._cancels.close()
        self._process.join(_PATIENCE_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
