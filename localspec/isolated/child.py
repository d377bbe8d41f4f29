"""The process of an `IsolatedEngine`: loads an engine and answers requests.

They come over a pipe, as (number, method of `Served`, arguments, keywords), and each is
answered in a thread: (number, kind, value), "done" or "error", before that perhaps "progress".
Number 0 is the load's, that of "last words" of libllama before it ends the process, and that of
requests whose answers nobody waits for. None is the last request.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.engine.embedder import load_embedder
from localspec.engine.engine import Engine
from localspec.engine.loading import load
from localspec.errors import EngineError
from localspec.isolated.watch import Watch
from localspec.pictures.picture import KEPT_PICTURE_BYTES, Picture
from localspec.speculative.metrics import Provenance
from localspec.streaming.answer import Answer, close_behind
from localspec.streaming.answer_text import Said
from localspec.streaming.cancellation import CancelCheck
from localspec.streaming.exchange import Exchange
from localspec.streaming.options import AnswerOptions
from localspec.streaming.prompt import Prompt
from localspec.streaming.reply import Piece, Reply

if TYPE_CHECKING:
    from localspec.engine.sources import LoadKeywords
    from localspec.presets.preset import Preset

logger = logging.getLogger(__name__)

TOGETHER_S = 0.02  # pieces that come within that time are sent together
_PULSE_S = 5.0  # between two words of a measurement, while decodes end
_NUM_ASIDE = 8  # requests at once that are no answers

OnReport = Callable[[Any], None]  # tells how far a prompt is, or a measurement


class _Owner:
    """Stands for a conversation of the other process."""


class _RemoteAnswer(Exchange):
    """A question of the other process, which made the prompt, and its answer.

    report: of the request that waits for pieces of it.
    """

    answer: Answer

    def __init__(self, prompt: Prompt, options: AnswerOptions, report: OnReport) -> None:
        super().__init__(options)
        self.report = report
        self._prompt = prompt
        self._sent_s = 0.0  # when text was sent last

    def prompt(self, is_cancelled: CancelCheck) -> Prompt:
        return self._prompt

    def on_cached(self, num_cached: int, num_tokens: int) -> None:
        self.report((num_cached, num_tokens, True))

    def on_prompt(self, num_decoded: int, num_tokens: int) -> None:
        self.report((num_decoded, num_tokens, False))

    def next_pieces(self, clock: Callable[[], float]) -> list[Piece]:
        """The next pieces, those of a step together; none at the end.

        Of several steps where they are short: a message costs as much as a small model's token,
        since it wakes a process that sleeps.
        """
        pieces: list[Piece] = []
        started_s = clock()
        for piece in self.answer:
            pieces.append(piece)
            # What a draft proposed comes before the token that ends the step.
            if piece.provenance is not Provenance.ACCEPTED:
                now_s = clock()
                step_s, started_s = now_s - started_s, now_s
                if now_s + step_s - self._sent_s >= TOGETHER_S:
                    break
        if any(piece.text for piece in pieces):  # the first text waits for nothing
            self._sent_s = clock()
        return pieces


class KeptPictures:
    """The pictures shown last, by digest, so that none is sent again with each question."""

    def __init__(self) -> None:
        self._kept: dict[bytes, Picture] = {}  # the oldest first
        self._changing = threading.Lock()  # each pipe has a thread

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
            found = [self._kept.get(digest) for digest in digests]
        pictures = tuple(each for each in found if each is not None)
        if len(pictures) < len(found):
            return None
        self.keep(pictures)
        return pictures


class Served:
    """The requests that an engine answers. Each gets the function that reports of it first."""

    def __init__(self, engine: Engine, servers: Sequence[str]) -> None:
        self._engine = engine
        self._servers = servers
        self._pictures = KeptPictures()
        self._answers: dict[int, _RemoteAnswer] = {}
        self._owners: dict[int, _Owner] = {}
        self._changing = threading.Lock()  # what can be cancelled
        self._under_way: dict[int, Callable[[], None]] = {}  # what cancels each number
        self._cancelled = range(0)  # numbers that were cancelled last
        self._clock = time.monotonic

    def vocabulary(
        self, _report: OnReport, method: str, *arguments: Any, **keywords: Any
    ) -> Any:
        """The result of a method of the vocabulary."""
        return getattr(self._engine.vocabulary, method)(*arguments, **keywords)

    def begin(
        self,
        report: OnReport,
        number: int,
        question: tuple[Prompt, AnswerOptions, int, int | None],
        gone_owners: Sequence[int],
        shown: tuple[Sequence[bytes], Sequence[Picture]],
    ) -> bool:
        """Make an answer; False if one of its pictures is not here.

        question: its prompt without pictures, options, turn, and the number of the
        conversation. gone_owners: conversations that are gone; what was kept for them is freed.
        shown: the digests of the pictures, and all of them, where one was not here.
        """
        prompt, options, turn, owner = question
        digests, sent = shown
        pictures = self._pictures.keep(sent) if sent else self._pictures.named(digests)
        if pictures is None:
            return False
        for each in gone_owners:
            self._owners.pop(each, None)
        if self._servers:
            from localspec.llama.rpc_backend import touch_servers  # loads libllama

            touch_servers(self._servers)  # one may have gone since it was used last
        answer = _RemoteAnswer(prompt._replace(pictures=pictures), options, report)
        answer.turn = turn
        answer.owner = None if owner is None else self._owner(owner)
        answer.answer = self._engine._answer(answer)
        with self._changing:
            self._answers[number] = answer
            self._under_way[number] = answer.answer.cancel
        return True

    def next_pieces(self, report: OnReport, number: int) -> list[Piece]:
        """The answer's next pieces; none at its end."""
        answer = self._answers[number]
        answer.report = report
        return answer.next_pieces(self._clock)

    def end(
        self, _report: OnReport, number: int, num_read: int
    ) -> tuple[Reply, Said | None] | None:
        """Close the answer; its result, as `Exchange.remember` gets it, None if there is none.

        num_read: tokens that were read. The result is that of an answer that ended there.
        """
        with self._changing:
            answer = self._answers.pop(number, None)
            self._under_way.pop(number, None)
        return None if answer is None else close_behind(answer.answer, num_read)

    def cancel(self, _report: OnReport, first: int, last: int) -> None:
        """Cancel the answers and the measurement of these numbers that are under way.

        Where nothing is, it ends idle work.
        """
        with self._changing:
            self._cancelled = range(first, last + 1)
            for number, cancel in self._under_way.items():
                if number in self._cancelled:
                    cancel()
            if not self._under_way:
                self._engine.cancel()

    def measure(
        self,
        report: OnReport,
        number: int,
        function: Callable[..., Any],
        *arguments: Any,
        **keywords: Any,
    ) -> Any:
        """Call a function with the engine; `cancel` with that number ends it.

        While decodes end, the progress is reported again every few seconds.
        """
        is_done, reporting = threading.Event(), threading.Lock()
        told: tuple[str, float | None] = ("", None)

        def progress(stage: str, seconds_left: float | None) -> None:
            nonlocal told
            with reporting:
                told = (stage, seconds_left)
                report(told)

        def show_life() -> None:
            before = self._engine.num_decodes
            while not is_done.wait(_PULSE_S):
                with reporting:
                    if self._engine.num_decodes != before:
                        report(told)
                before = self._engine.num_decodes

        shower = threading.Thread(target=show_life, name="localspec-life", daemon=True)
        shower.start()
        watch = Watch(progress)
        with self._changing:
            self._under_way[number] = watch.cancellation.request
            if number in self._cancelled:  # the wish was here before it
                watch.cancellation.request()
        try:
            return function(self._engine, *arguments, watch=watch, **keywords)
        finally:
            with self._changing:
                del self._under_way[number]
            is_done.set()
            shower.join()

    def cells(self, _report: OnReport, picture: Picture) -> list[int]:
        """The result of `Vision.cells`, of an engine that sees."""
        assert self._engine.vision is not None
        return self._engine.vision.cells(*self._pictures.keep([picture]))

    def engine(self, _report: OnReport, method: str, *arguments: Any) -> Any:
        """The result of a method of the engine."""
        return getattr(self._engine, method)(*arguments)

    def owned(self, report: OnReport, method: str, owner: int, path: Path) -> bool:
        """The result of a method of the engine that takes a conversation and a file."""
        return bool(self.engine(report, method, self._owner(owner), path))

    def prepare(self, _report: OnReport, tokens: list[int], owner: int) -> None:
        """Read a text in advance, as `Engine._prepare`."""
        self._engine._prepare(lambda _is_cancelled: tokens, owner=self._owner(owner))

    def keep_on_disk(self, _report: OnReport) -> None:
        """`Engine._keep_on_disk`."""
        with contextlib.suppress(EngineError):  # it is being closed, which does the same
            self._engine._keep_on_disk()

    def _owner(self, number: int) -> _Owner:
        """The conversation of that number."""
        return self._owners.setdefault(number, _Owner())


class _Pipe:
    """The pipe to the other process, on which messages of several threads are whole."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._sending = threading.Lock()

    def send(self, number: int, kind: str, value: Any) -> None:
        """Send a message. Raises OSError if the other process is gone."""
        with self._sending:
            self._pipe.send((number, kind, value))

    def answer(
        self, request: tuple[int, str, tuple[Any, ...], dict[str, Any]], of: Any
    ) -> None:
        """Send the result of a method, or its error."""
        number, method, arguments, keywords = request
        try:
            result, kind = getattr(of, method)(*arguments, **keywords), "done"
        except Exception as error:
            result, kind = error, "error"
        with contextlib.suppress(OSError):
            self.send(number, kind, result)


def serve_engine(
    pipe: Connection,
    preset: str | os.PathLike[str] | Preset | None,
    arguments: LoadKeywords,
    servers: tuple[str, ...],
) -> None:
    """Load an engine, then answer requests until the other process ends it, or itself.

    servers: addresses of RPC servers that its models are on.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the application to handle
    # A service is told to end in all of its processes; what is to be kept on disk is written.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    messages = _Pipe(pipe)
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
        served = Served(engine, servers)
        pool = ThreadPoolExecutor(engine.parallel + _NUM_ASIDE, "localspec-request")
        with pool, engine:  # which ends the answers that are read there
            messages.send(0, "done", facts_of(engine))
            while (request := pipe.recv()) is not None:
                if request[1] == "cancel":  # at once, and in order
                    served.cancel(_no_report, *request[2])
                else:
                    pool.submit(_answer, messages, request, served)


def facts_of(engine: Engine) -> dict[str, Any]:
    """Facts that never change while an engine is open: attributes of it and its vocabulary."""
    own = (
        *("description", "context_length", "trained_context_length", "chat_template"),
        *("drafting", "shared_vocabulary", "exactness", "sampling", "parallel"),
    )
    facts: dict[str, Any] = {name: getattr(engine, name) for name in own}
    facts |= {name: getattr(engine.vocabulary, name) for name in ("bos", "eos", "add_bos")}
    return facts | {"can_see": engine.vision is not None}


def _no_report(_told: Any) -> None:
    """Nobody waits for it."""


def _answer(messages: _Pipe, request: tuple[int, str, Any, Any], served: Served) -> None:
    number, method, arguments, keywords = request

    def report(told: Any) -> None:
        with contextlib.suppress(OSError):
            messages.send(number, "progress", told)

    messages.answer((number, method, (report, *arguments), keywords), served)


def serve_embedder(pipe: Connection, path: Path) -> None:
    """Load an embedder, then answer requests until the other process ends it, or itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the application to handle
    messages = _Pipe(pipe)
    with contextlib.suppress(EOFError, OSError):
        try:
            embedder = load_embedder(path)
        except Exception as error:
            messages.send(0, "error", error)
            return
        with embedder:
            messages.send(0, "done", None)
            while (request := pipe.recv()) is not None:
                messages.answer(request, embedder)
