"""The process of an `IsolatedEngine`: loads an engine and answers requests.

They come over several pipes, each of which has a thread here. Requests are (number, method of
`Served`, arguments), answers (the request's number, kind, value): "done" or "error", and under
number 0 "progress", of the load and of long prompts, and "last words", of libllama before it
ends the process.
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
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.engine.embedder import Embedder, load_embedder
from localspec.engine.engine import Engine
from localspec.engine.loading import load
from localspec.errors import EngineError
from localspec.isolated.facts import facts_of
from localspec.isolated.watch import Watch
from localspec.pictures.cells import has_cells
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
    from localspec.engine.models import EngineMemory
    from localspec.engine.sources import LoadKeywords
    from localspec.presets.preset import Preset

logger = logging.getLogger(__name__)

TOGETHER_S = 0.02  # pieces that come within that time are sent together
_PULSE_S = 5.0  # between two words of a measurement, while decodes end


class _Owner:
    """Stands for a conversation of the other process."""


class _RemoteExchange(Exchange):
    """A question of the other process, which made the prompt and hears how far it is read."""

    def __init__(
        self, prompt: Prompt, options: AnswerOptions, report: Callable[[Any], None]
    ) -> None:
        super().__init__(options)
        self._prompt, self._report = prompt, report

    def prompt(self, is_cancelled: CancelCheck) -> Prompt:
        return self._prompt

    def on_cached(self, num_cached: int, num_tokens: int) -> None:
        self._report((num_cached, num_tokens, True))

    def on_prompt(self, num_decoded: int, num_tokens: int) -> None:
        self._report((num_decoded, num_tokens, False))


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


class _Shared:
    """State that the requests of all pipes share. served: the requests of each pipe."""

    def __init__(self, engine: Engine, servers: Sequence[str]) -> None:
        self.engine = engine
        self.servers = servers
        self.pictures = KeptPictures()
        self.served: list[Served] = []
        self.changing = threading.Lock()  # what can be cancelled
        self.under_way: dict[int, Callable[[], None]] = {}  # what cancels each number
        self.cancelled = range(0)  # numbers that were cancelled last
        self._idle_work: threading.Thread | None = None
        self._owners: dict[int, _Owner] = {}

    def owner(self, number: int) -> _Owner:
        """The conversation of that number."""
        return self._owners.setdefault(number, _Owner())

    def forget(self, numbers: Sequence[int]) -> None:
        """Let what is kept for these conversations go."""
        for each in numbers:
            self._owners.pop(each, None)

    def begin_idle(self, work: Callable[[], None]) -> bool:
        """Do that in a thread of its own. False if something is being done in it."""
        with self.changing:
            if self.is_idle_working():
                return False
            self._idle_work = threading.Thread(target=work, name="localspec-idle", daemon=True)
            self._idle_work.start()
            return True

    def is_idle_working(self) -> bool:
        """Whether that thread is running."""
        return self._idle_work is not None and self._idle_work.is_alive()

    def cancel(self, numbers: range) -> None:
        """Cancel the answers and the measurement of these numbers that are under way.

        From any thread. Where nothing is, it ends idle work.
        """
        with self.changing:
            self.cancelled = numbers
            for number, cancel in self.under_way.items():
                if number in numbers:
                    cancel()
            if not self.under_way and self.is_idle_working():
                self.engine.cancel()


class Served:
    """The requests of one pipe, and at most one answer: the one that is being read.

    report: tells how far a prompt is, or a measurement.
    """

    def __init__(self, shared: _Shared, report: Callable[[Any], None]) -> None:
        shared.served.append(self)
        self._shared = shared
        self._engine = shared.engine
        self._report = report
        self._answer: Answer | None = None
        self._shown: tuple[Picture, ...] = ()  # to the next answer
        self._number = 0  # of the answer
        self._clock = time.monotonic
        self._sent_s = 0.0  # when text of the answer was sent last

    def vocabulary(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """The result of a method of the vocabulary."""
        return getattr(self._engine.vocabulary, method)(*arguments, **keywords)

    def show(self, digests: Sequence[bytes], pictures: Sequence[Picture] = ()) -> bool:
        """Have pictures at hand for the next answer; whether all of them are here.

        digests: theirs, in order. pictures: all of them, where one was not here.
        """
        kept = self._shared.pictures
        found = kept.keep(pictures) if pictures else kept.named(digests)
        self._shown = found or ()
        return found is not None

    def begin(
        self,
        number: int,
        prompt: Prompt,
        options: AnswerOptions,
        turn: int,
        owner: int | None,
        gone_owners: list[int],
    ) -> None:
        """Make an answer the one that is read. owner: a number for the conversation.

        The prompt comes without its pictures, which were shown before. gone_owners:
        conversations that are gone; what was kept for them is freed.
        """
        shown, self._shown = self._shown, ()
        if has_cells(prompt.tokens):
            prompt = prompt._replace(pictures=shown)
        self.end(0)  # of one that was left, perhaps
        self._shared.forget(gone_owners)
        if self._shared.servers:
            from localspec.llama.rpc_backend import touch_servers  # loads libllama

            touch_servers(self._shared.servers)  # one may have gone since it was used last
        owned = None if owner is None else self._shared.owner(owner)
        exchange = _RemoteExchange(prompt, options, self._report)
        exchange.turn, exchange.owner = turn, owned
        answer = self._engine._answer(exchange)
        with self._shared.changing:
            self._answer, self._number = answer, number
            self._shared.under_way[number] = answer.cancel
        self._sent_s = 0.0

    def next_pieces(self) -> list[Piece]:
        """The answer's next pieces, those of a step together; none at its end.

        Of several steps where they are short: a message costs as much as a small model's token,
        since it wakes a process that sleeps.
        """
        pieces: list[Piece] = []
        started_s = self._clock()
        for piece in self._answer or ():
            pieces.append(piece)
            # What a draft proposed comes before the token that ends the step.
            if piece.provenance is not Provenance.ACCEPTED:
                now_s = self._clock()
                step_s, started_s = now_s - started_s, now_s
                if now_s + step_s - self._sent_s >= TOGETHER_S:
                    break
        if any(piece.text for piece in pieces):  # the first text waits for nothing
            self._sent_s = self._clock()
        return pieces

    def end(self, num_read: int) -> tuple[Reply, Said | None] | None:
        """Close the answer; its result, as `Exchange.remember` gets it, None if there is none.

        num_read: tokens that were read. The result is that of an answer that ended there.
        """
        with self._shared.changing:
            answer, self._answer = self._answer, None
            self._shared.under_way.pop(self._number, None)
        return None if answer is None else close_behind(answer, num_read)

    def measure(
        self, number: int, function: Callable[..., Any], *arguments: Any, **keywords: Any
    ) -> Any:
        """Call a function with the engine; `cancel` with that number ends it.

        While decodes end, the progress is reported again every few seconds.
        """
        self._end_left()
        is_done, reporting = threading.Event(), threading.Lock()
        told: tuple[str, float | None] = ("", None)

        def progress(stage: str, seconds_left: float | None) -> None:
            nonlocal told
            with reporting:
                told = (stage, seconds_left)
                self._report(told)

        def show_life() -> None:
            before = self._engine.num_decodes
            while not is_done.wait(_PULSE_S):
                with reporting:
                    if self._engine.num_decodes != before:
                        self._report(told)
                before = self._engine.num_decodes

        shower = threading.Thread(target=show_life, name="localspec-life", daemon=True)
        shower.start()
        watch = Watch(progress)
        with self._shared.changing:
            self._shared.under_way[number] = watch.cancellation.request
            if number in self._shared.cancelled:  # the wish was here before it
                watch.cancellation.request()
        try:
            return function(self._engine, *arguments, watch=watch, **keywords)
        finally:
            with self._shared.changing:
                del self._shared.under_way[number]
            is_done.set()
            shower.join()

    def cells(self, picture: Picture) -> list[int]:
        """The result of `Vision.cells`, of an engine that sees."""
        assert self._engine.vision is not None
        return self._engine.vision.cells(*self._shared.pictures.keep([picture]))

    def memory(self) -> EngineMemory:
        return self._engine.memory()

    def alone(self, method: str, *arguments: Any) -> Any:
        """The result of a method of the engine while no answer runs."""
        self._end_left()
        return getattr(self._engine, method)(*arguments)

    def owned(self, method: str, owner: int, path: Path) -> bool:
        """The result of a method that takes a conversation and a file; see `alone`."""
        return bool(self.alone(method, self._shared.owner(owner), path))

    def _end_left(self) -> None:
        """End answers that were left, where none runs any more."""
        for served in self._shared.served:
            served.end(0)

    def prepare(self, tokens: list[int], owner: int) -> bool:
        """Start `Engine.prepare` in a thread, so that other requests are answered meanwhile.

        False if one is running.
        """

        def work() -> None:
            owned = self._shared.owner(owner)
            try:
                self._engine._prepare(lambda _is_cancelled: tokens, owner=owned)
            except Exception:
                logger.info("preparing the next answer failed", exc_info=True)

        return self._shared.begin_idle(work)

    def keep_on_disk(self) -> None:
        """Start `Engine._keep_on_disk` in a thread, unless idle work is running."""

        def work() -> None:
            with contextlib.suppress(EngineError):  # it is being closed, which does the same
                self._engine._keep_on_disk()

        self._shared.begin_idle(work)

    def is_preparing(self) -> bool:
        """Whether a thread started by `prepare` or `keep_on_disk` is running."""
        return self._shared.is_idle_working()

    def cancel(self, number: int) -> None:
        """Cancel the answer of that number."""
        self._shared.cancel(range(number, number + 1))


def serve_engine(
    pipes: Sequence[Connection],
    cancels: Connection,
    preset: str | os.PathLike[str] | Preset | None,
    arguments: LoadKeywords,
    servers: tuple[str, ...],
) -> None:
    """Load an engine, then answer requests until the other process closes its ends.

    pipes: the first for requests that wait for no answer, the others for an answer each; the
    second tells of the load, too. servers: addresses of RPC servers that its models are on.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the application to handle
    # A service is told to end in all of its processes; what is to be kept on disk is written.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    aside, main, *others = pipes
    with contextlib.suppress(EOFError, OSError):
        try:
            if servers:
                from localspec.llama.library import report_aborts  # loads libllama

                report_aborts(lambda words: main.send((0, "last words", words)))
            engine = load(
                preset, **arguments, progress=lambda share: main.send((0, "progress", share))
            )
        except Exception as error:
            main.send((0, "error", error))
            return
        with engine:
            shared = _Shared(engine, servers)
            threading.Thread(target=_obey, args=(cancels, shared), daemon=True).start()
            for pipe in (aside, *others):
                threading.Thread(target=_serve, args=(pipe, shared), daemon=True).start()
            main.send((0, "done", facts_of(engine)))
            _serve(main, shared)  # in this thread, as if there were no others


def serve_embedder(pipes: Sequence[Connection], path: Path) -> None:
    """Load an embedder, then answer requests until the other process closes its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the application to handle
    (pipe,) = pipes
    with contextlib.suppress(EOFError, OSError):
        try:
            embedder = load_embedder(path)
        except Exception as error:
            pipe.send((0, "error", error))
            return
        with embedder:
            pipe.send((0, "done", None))
            while True:
                _answer_request(pipe, embedder)


def _serve(pipe: Connection, shared: _Shared) -> None:
    """Answer the requests of a pipe until it is closed."""
    served = Served(shared, lambda told: pipe.send((0, "progress", told)))
    with contextlib.suppress(EOFError, OSError):
        try:
            while True:
                _answer_request(pipe, served)
        finally:
            served.end(0)


def _answer_request(pipe: Connection, served: Served | Embedder) -> None:
    number, method, arguments, keywords = pipe.recv()
    try:
        answer = (number, "done", getattr(served, method)(*arguments, **keywords))
    except Exception as error:
        answer = (number, "error", error)
    pipe.send(answer)


def _obey(cancels: Connection, shared: _Shared) -> None:
    with contextlib.suppress(EOFError, OSError):
        while True:
            first, last = cancels.recv()
            shared.cancel(range(first, last + 1))
