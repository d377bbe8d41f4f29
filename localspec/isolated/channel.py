"""A pipe to the process of an `IsolatedEngine`: calls that are answered, one at a time."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol

from localspec.errors import LocalspecError
from localspec.streaming.access import Access, EngineTurn, in_use
from localspec.streaming.cancellation import CancelCheck, never


class Host(Protocol):
    """The child, as its channels know it. last_words: of libllama, before it ended that."""

    last_words: str

    def wait(self, channel: Channel) -> None:
        """Wait for a message."""

    def lost(self) -> LocalspecError:
        """The error of a call whose answer does not come."""


class Channel:
    """A pipe to the child: of an answer, or for calls that belong to none.

    pipe: a Connection, which Windows has another class for. turn: of the answer that has it.
    is_torn: whether a message may have been written or read in part.
    """

    def __init__(self, pipe: Any, host: Host) -> None:
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
        """Whether this very thread makes a call, which a finalizer or a signal interrupted."""
        return self._one_call.is_held_here

    @property
    def is_behind(self) -> bool:
        """Whether a call before this one was left, and its answer may still come."""
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
