"""The process of an `IsolatedEngine`: loads an engine and does what it is told.

Requests are (method of `Served`, arguments), answers (kind, value): "progress" while the
models load, then "done" or "error".
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from localspec.engine import Engine
from localspec.loading import load
from localspec.stream import AnswerOptions, Piece, Reply, Stream

if TYPE_CHECKING:
    from localspec.loading import LoadKeywords


@dataclasses.dataclass(frozen=True, slots=True)
class EngineFacts:
    """What never changes while an engine is open."""

    description: str
    context_length: int
    chat_template: str | None
    bos: int
    eos: int
    add_bos: bool


class _Owner:
    """Stands for a conversation of the other process."""


class Served:
    """An engine, and at most one stream: the one that is being read."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stream: Stream | None = None
        self._owners: dict[int, _Owner] = {}
        self.stream_number = 0

    def vocabulary(self, method: str, arguments: Sequence[Any], **keywords: Any) -> Any:
        """What a method of the vocabulary returns."""
        return getattr(self._engine.vocabulary, method)(*arguments, **keywords)

    def begin(
        self,
        number: int,
        prompt_tokens: list[int],
        options: AnswerOptions,
        turn: int,
        owner: int | None,
    ) -> None:
        """Make an answer the stream. owner: a number for the conversation."""
        self._stream = self._engine.answer(
            prompt_tokens,
            options,
            turn=turn,
            owner=None if owner is None else self._owners.setdefault(owner, _Owner()),
            on_begin=lambda: None,
            on_end=lambda _reply: None,
        )
        self.stream_number = number

    def next_piece(self) -> Piece | None:
        """The stream's next piece; None at its end."""
        return next(self._stream, None) if self._stream is not None else None

    def end(self) -> Reply | None:
        """Close the stream. Its reply, if it had begun."""
        stream, self._stream = self._stream, None
        self.stream_number = 0
        if stream is None:
            return None
        stream.close()
        return stream.reply

    def forget(self, owners: list[int]) -> None:
        """Free what was kept for conversations that are gone."""
        for owner in owners:
            self._owners.pop(owner, None)

    def cancel(self, number: int) -> None:
        """Cancel the stream of that number, if it is still the one. From any thread."""
        stream = self._stream
        if stream is not None and number == self.stream_number:
            stream.cancel()


def serve(
    calls: Connection, cancels: Connection, preset: str | None, arguments: LoadKeywords
) -> None:
    """Load an engine, then answer requests until the other process closes its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the application to handle
    with contextlib.suppress(EOFError, OSError):
        try:
            engine = load(
                preset, **arguments, progress=lambda share: calls.send(("progress", share))
            )
        except Exception as error:
            calls.send(("error", error))
            return
        with engine:
            served = Served(engine)
            threading.Thread(target=_obey, args=(cancels, served), daemon=True).start()
            calls.send(("done", _facts(engine)))
            try:
                while True:
                    _answer_request(calls, served)
            finally:
                served.end()


def _answer_request(calls: Connection, served: Served) -> None:
    method, arguments, keywords = calls.recv()
    try:
        answer = ("done", getattr(served, method)(*arguments, **keywords))
    except Exception as error:
        answer = ("error", error)
    calls.send(answer)


def _obey(cancels: Connection, served: Served) -> None:
    with contextlib.suppress(EOFError, OSError):
        while True:
            served.cancel(cancels.recv())


def _facts(engine: Engine) -> EngineFacts:
    vocabulary = engine.vocabulary
    return EngineFacts(
        description=engine.description,
        context_length=engine.context_length,
        chat_template=engine.chat_template,
        bos=vocabulary.bos,
        eos=vocabulary.eos,
        add_bos=vocabulary.add_bos,
    )
