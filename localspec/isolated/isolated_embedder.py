"""An embedder in a process of its own: a native crash there is an exception here."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from localspec.engine.embedder import load_embedder
from localspec.errors import CrashedError

_PATIENCE_S = 10.0  # for the process to end by itself


class IsolatedEmbedder:
    """The methods of an `Embedder`, by `call`, one at a time, once `wait` has returned."""

    def __init__(self, path: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._line, line = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(line, path), daemon=True, name="localspec-embedder"
        )
        self._process.start()
        line.close()  # so that the end of the child is the end of the line

    def wait(self) -> None:
        """Until it is loaded. Raises what `load_embedder` does, and CrashedError."""
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    @property
    def process_id(self) -> int | None:
        """The child's number, for whoever watches processes."""
        return self._process.pid

    def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """The method's result. Raises what it raises, and CrashedError for a lost process."""
        with contextlib.suppress(OSError):  # what is wrong is found out below
            self._line.send((method, arguments, keywords))
        return self._answer()

    def _answer(self) -> Any:
        try:
            found = self._line.recv()
        except (EOFError, OSError) as error:
            raise CrashedError(
                "the process of the embedding model ended", "Ask again: it is started again."
            ) from error
        if isinstance(found, Exception):
            raise found
        return found

    def kill(self) -> None:
        """End the process in the middle of what it does, from any thread; close it then."""
        self._process.kill()

    def close(self) -> None:
        """End the process, while nothing is asked of it. Idempotent."""
        self._line.close()
        self._process.join(_PATIENCE_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(line: Connection, path: Path) -> None:
    """The process: loads, answers calls, and ends where the other side does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the other side
    try:
        embedder = load_embedder(path)
    except Exception as error:
        line.send(error)
        return
    with embedder, contextlib.suppress(EOFError, OSError):
        line.send(None)
        while True:
            method, arguments, keywords = line.recv()
            try:
                found = getattr(embedder, method)(*arguments, **keywords)
            except Exception as error:
                found = error
            line.send(found)
