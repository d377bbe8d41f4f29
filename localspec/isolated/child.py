"""The process of an `IsolatedEngine`: loads an engine and answers requests.

They come over a pipe, as (number, method of `Served`, arguments, keywords), and each is
answered in a thread: (number, kind, value), "done" or "error", before that perhaps "progress".
Number 0 is the load's, that of "last words" of libllama before it ends the process, and that of
requests whose answers nobody waits for. None is the last request.
"""

from __future__ import annotations

import localspec.llama.loaded  # noqa: F401  libllama before NumPy

# isort: split

import contextlib
import functools
import logging
import operator
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from localspec.engine.base import FACTS
from localspec.engine.embedder import load_embedder
from localspec.engine.engine import Engine
from localspec.engine.loading import load
from localspec.errors import EngineError, Interrupted
from localspec.isolated.orphan import ending_within
from localspec.pictures.picture import KEPT_PICTURE_BYTES, Picture
from localspec.speculative.metrics import Provenance
from localspec.streaming.answer_text import Prompt
from localspec.streaming.cancellation import CancelCheck, Cancellation, Watch
from localspec.streaming.exchange import READ_ON, Exchange, ForReader
from localspec.streaming.options import AnswerOptions
from localspec.streaming.reply import Piece
from localspec.streaming.waiting import Outbox

if TYPE_CHECKING:
    from localspec.engine.sources import LoadKeywords
    from localspec.presets.presets import Preset

logger = logging.getLogger(__name__)

TOGETHER_S = 0.02  # pieces that come within that time are sent together
_PULSE_S = 5.0  # between two words of a measurement, while decodes end
_NUM_ASIDE = 8  # requests at once
_AT_ONCE = ("ask", "read_on", "end", "cancel", "prepare", "measure")

Say = Callable[[str, Any], None]  # of a request: what kind of message, and its value


class _Owner:
    """Stands for a conversation of the other process."""


class _ServedAnswer(Exchange):
    """An answer to a question of the other process, which makes the prompt."""

    def __init__(self, options: AnswerOptions, say: Say, on_over: Callable[[], object]) -> None:
        super().__init__(options)
        self.say, self.on_over = say, on_over
        self.outbox = _Sent(self)

    def prompt(self, is_cancelled: CancelCheck) -> Prompt:
        self.say("admitted", None)
        raise Interrupted("the prompt comes by `Served.produce`")

    def begin(self) -> None:
        self.say("begun", None)

    def on_cached(self, num_cached: int, num_tokens: int) -> None:
        self.say("progress", (num_cached, num_tokens, True))

    def on_prompt(self, num_decoded: int, num_tokens: int) -> None:
        self.say("progress", (num_decoded, num_tokens, False))


class _Sent(Outbox[ForReader]):
    """An outbox that ends in the other process; the pieces of a step are sent together.

    Those of several steps where these are short: a message costs as much as a small model's
    token, since it wakes a process that sleeps.
    """

    def __init__(self, answer: _ServedAnswer) -> None:
        super().__init__()
        self._answer = answer
        self._pieces: list[Piece] = []
        self._step_s = self._sent_s = 0.0  # when a step ended, and when text was sent

    def put(self, item: ForReader) -> None:
        if callable(item):
            item()
        elif isinstance(item, Piece):
            self._add(item)
        else:
            self._send()
            if is_end := isinstance(item, list):
                self._answer.on_over()
            self._answer.say(
                "done" if is_end else "failed",
                (self._answer.result, item) if is_end else item,
            )

    def _add(self, piece: Piece) -> None:
        self._pieces.append(piece)
        if self._answer.is_ahead:  # it pauses until the reader has these
            self._send()
            return
        # What a draft proposed comes before the token that ends the step.
        if piece.provenance is not Provenance.ACCEPTED:
            now_s = time.monotonic()
            step_s, self._step_s = now_s - self._step_s, now_s
            is_due = now_s + step_s - self._sent_s >= TOGETHER_S
            if is_due or len(self._pieces) >= READ_ON:
                self._send()

    def _send(self) -> None:
        pieces, self._pieces = self._pieces, []
        if any(piece.text for piece in pieces):  # the first text waits for nothing
            self._sent_s = self._step_s
        if pieces:
            self._answer.say("pieces", pieces)


class KeptPictures:
    """The pictures shown last, by digest, so that none is sent again with each question."""

    def __init__(self) -> None:
        self._kept: dict[bytes, Picture] = {}  # the oldest first
        self._changing = threading.Lock()  # requests have threads of their own

    def keep(self, pictures: Sequence[Picture]) -> tuple[Picture, ...]:
        """Keep them, and let older ones go where all of them are too much.

        Returns them: where one was here, what was, so that no pixels are in memory twice.
        """
        with self._changing:
            found = tuple(self._kept.setdefault(each.digest, each) for each in pictures)
            for each in found:  # they are the youngest now
                self._kept[each.digest] = self._kept.pop(each.digest)
            num_bytes = sum(len(each.rgb) for each in self._kept.values())
            while num_bytes > KEPT_PICTURE_BYTES:
                num_bytes -= len(self._kept.pop(next(iter(self._kept))).rgb)
            return found

    def named(self, digests: Sequence[bytes]) -> tuple[Picture, ...] | None:
        """The pictures with these digests; None if one is not there any more."""
        with self._changing:
            found = [self._kept[each] for each in digests if each in self._kept]
        return self.keep(found) if len(found) == len(digests) else None


class Served:
    """The requests that an engine answers. Each gets first what says something of it."""

    def __init__(
        self, engine: Engine, servers: Sequence[str], pool: ThreadPoolExecutor
    ) -> None:
        self._engine, self._servers, self._pool = engine, servers, pool
        self._pictures = KeptPictures()
        self._answers: dict[int, _ServedAnswer] = {}
        self._owners: dict[int, _Owner] = {}
        self._measuring: dict[int, Cancellation] = {}

    # At once, in the order in which they come: these wait for nothing.

    def ask(
        self,
        asker: _Asker,
        options: AnswerOptions,
        owner: int | None,
        gone_owners: Sequence[int],
        *,
        is_of_main: bool,
    ) -> None:
        """Let an answer wait in line; it says when it is admitted.

        owner: the number of its conversation. gone_owners: conversations that are gone; what
        was kept for them is freed.
        """
        for each in gone_owners:
            self._owners.pop(each, None)
        on_over = functools.partial(self._answers.pop, asker.number, None)
        exchange = _ServedAnswer(options, asker.say, on_over)
        exchange.owner = None if owner is None else self._owner(owner)
        exchange.is_asked, exchange.is_of_main = True, is_of_main
        self._engine._accept(exchange)
        self._answers[asker.number] = exchange
        self._engine._start(exchange)

    def read_on(self, _asker: _Asker, number: int, num_taken: int) -> None:
        """Let an answer go on of which so many pieces were read."""
        if (exchange := self._answers.get(number)) is not None:
            exchange.num_taken = num_taken
            self._engine._worker.wake()

    def end(self, asker: _Asker, num_read: int, num_taken: int) -> None:
        """End an answer behind the tokens, and pieces, that were read.

        Its result is the last that it says.
        """
        exchange = self._answers.get(asker.number)
        if exchange is None:  # it was refused, or not asked for
            asker.say("done", (None, []))
        elif not exchange.cancellation.is_requested:  # else it is being ended
            exchange.num_read = num_read
            exchange.num_taken = num_taken
            exchange.cancellation.request()
            self._engine._end(exchange)

    def cancel(self, _asker: _Asker, number: int | None) -> None:
        """End the measurement with that number, or idle work."""
        if number is None:
            self._engine._end_idle_work()
            return
        if (measuring := self._measuring.get(number)) is not None:
            measuring.request()

    def prepare(self, asker: _Asker, tokens: list[int], owner: int) -> None:
        """Have a text read in advance, unless more is asked for."""
        given = tokens, self._owner(owner), self._engine._worker.num_asked
        self._pool.submit(asker.answer, self._engine._read_ahead, *given)

    def measure(
        self, asker: _Asker, function: Callable[..., Any], *arguments: Any, **keywords: Any
    ) -> None:
        """Have a function called with the engine; `cancel` with that number ends it."""
        self._measuring[asker.number] = ended = Cancellation()
        given = asker, ended, function, *arguments
        self._pool.submit(asker.answer, self._measured, *given, **keywords)

    # In a thread of a pool.

    def produce(
        self,
        _asker: _Asker,
        number: int,
        question: tuple[Prompt, int, int | None],
        digests: Sequence[bytes],
        sent: Sequence[Picture],
    ) -> bool:
        """Have an answer produced that is admitted; False if one of its pictures is not here.

        question: its prompt without pictures, turn, and the number of the conversation.
        digests: of the pictures. sent: all of them, where one was not here.
        """
        prompt, turn, owner = question
        pictures = self._pictures.keep(sent) if sent else self._pictures.named(digests)
        if pictures is None:
            return False
        if self._servers:
            from localspec.llama.rpc_backend import touch_servers  # loads libllama

            touch_servers(self._servers)  # one may have gone since it was used last
        exchange = self._answers.get(number)
        if exchange is not None:
            exchange.turn = turn
            exchange.owner = None if owner is None else self._owner(owner)
            self._engine._produce(exchange, prompt._replace(pictures=pictures))
        return True

    def _measured(
        self,
        asker: _Asker,
        ended: Cancellation,
        function: Callable[..., Any],
        *arguments: Any,
        **keywords: Any,
    ) -> Any:
        """A function's result. While decodes end, its progress is told every few seconds."""
        is_done, reporting = threading.Event(), threading.Lock()
        told: tuple[str, float | None] = ("", None)

        def progress(stage: str, seconds_left: float | None) -> None:
            nonlocal told
            with reporting:
                told = (stage, seconds_left)
                asker.say("progress", told)

        def show_life() -> None:
            before = self._engine.num_decodes
            while not is_done.wait(_PULSE_S):
                with reporting:
                    if self._engine.num_decodes != before:
                        asker.say("progress", told)
                before = self._engine.num_decodes

        shower = threading.Thread(target=show_life, name="localspec-life", daemon=True)
        shower.start()
        try:
            return function(self._engine, *arguments, watch=Watch(progress, ended), **keywords)
        finally:
            del self._measuring[asker.number]
            is_done.set()
            shower.join()

    def cells(self, _asker: _Asker, picture: Picture) -> list[int]:
        """The result of `Vision.cells`, of an engine that sees."""
        assert self._engine.vision is not None
        return self._engine.vision.cells(*self._pictures.keep([picture]))

    def engine(self, _asker: _Asker, method: str, *arguments: Any, **keywords: Any) -> Any:
        """The result of a method of the engine, or of its vocabulary ("vocabulary.text")."""
        return operator.attrgetter(method)(self._engine)(*arguments, **keywords)

    def owned(self, asker: _Asker, method: str, owner: int, path: Path) -> bool:
        """The result of a method of the engine that takes a conversation and a file."""
        return bool(self.engine(asker, method, self._owner(owner), path))

    def keep_on_disk(self, _asker: _Asker) -> None:
        """`Engine._keep_on_disk`."""
        with contextlib.suppress(EngineError):  # it is being closed, which does the same
            self._engine._keep_on_disk()

    def _owner(self, number: int) -> _Owner:
        return self._owners.setdefault(number, _Owner())


class _Pipe:
    """The pipe to the other process, on which messages of several threads are whole.

    is_silent: whether this process is ending, and its answers with it.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self.is_silent = False
        self._sending = threading.Lock()

    def send(self, number: int, kind: str, value: Any) -> None:
        """Send a message. Raises OSError if the other process is gone."""
        with self._sending:
            if not self.is_silent:
                self._pipe.send((number, kind, value))


class _Asker(NamedTuple):
    """A request of the other process, to which something is said."""

    number: int
    pipe: _Pipe

    def say(self, kind: str, value: Any) -> None:
        with contextlib.suppress(OSError):
            self.pipe.send(self.number, kind, value)

    def answer(self, method: Callable[..., Any], *arguments: Any, **keywords: Any) -> None:
        """Say the result of a method, or its error."""
        try:
            self.say("done", method(*arguments, **keywords))
        except Exception as error:
            self.say("error", error)


def serve_engine(
    pipe: Connection,
    preset: str | os.PathLike[str] | Preset | None,
    arguments: LoadKeywords,
    servers: tuple[str, ...],
    patience_s: float,
) -> None:
    """Load an engine, then answer requests until the other process ends it, or itself.

    servers: addresses of RPC servers that its models are on. patience_s: for the end.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the application to handle
    messages = _Pipe(pipe)

    def end(*_signal: object) -> None:
        messages.is_silent = True  # an answer that this ends is lost, not cancelled
        sys.exit(0)

    # A service is told to end in all of its processes; what is to be kept on disk is written.
    signal.signal(signal.SIGTERM, end)
    with contextlib.suppress(EOFError, OSError):
        try:
            if servers:
                from localspec.llama.library import report_aborts  # loads libllama

                report_aborts(lambda words: messages.send(0, "last words", words))
            engine = load(
                preset,
                **arguments,
                progress=lambda share: messages.send(0, "progress", share),
            )
        except Exception as error:
            messages.send(0, "error", error)
            return
        pool = ThreadPoolExecutor(_NUM_ASIDE, "localspec-request")
        served = Served(engine, servers, pool)
        with pool, engine, ending_within(patience_s):
            messages.send(0, "done", facts_of(engine))
            while (request := pipe.recv()) is not None:
                number, name, arguments, keywords = request
                asker, method = _Asker(number, messages), getattr(served, name)
                if name in _AT_ONCE:
                    try:
                        method(asker, *arguments, **keywords)
                    except Exception as error:
                        asker.say("failed", error)
                else:
                    pool.submit(asker.answer, method, asker, *arguments, **keywords)


def facts_of(engine: Engine) -> dict[str, Any]:
    """Facts of an engine and its vocabulary that the other process has from the beginning."""
    facts: dict[str, Any] = {name: getattr(engine, name) for name in FACTS}
    facts |= {name: getattr(engine.vocabulary, name) for name in ("bos", "eos", "add_bos")}
    return facts | {
        "sampling": engine.sampling,
        "parallel": engine.parallel,
        "can_see": engine.vision is not None,
    }


def serve_embedder(pipe: Connection, path: Path, patience_s: float) -> None:
    """Load an embedder, then answer requests until the other process ends it, or itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the application to handle
    messages = _Pipe(pipe)
    with contextlib.suppress(EOFError, OSError):
        try:
            embedder = load_embedder(path)
        except Exception as error:
            messages.send(0, "error", error)
            return
        with embedder, ending_within(patience_s):
            messages.send(0, "done", None)
            while (request := pipe.recv()) is not None:
                number, name, arguments, keywords = request
                _Asker(number, messages).answer(getattr(embedder, name), *arguments, **keywords)
