"""The process of an `IsolatedEngine`: loads an engine and follows its messages."""

from __future__ import annotations

import localspec.llama.loaded  # noqa: F401  libllama before NumPy

# isort: split

import contextlib
import functools
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.engine.base import FACTS
from localspec.engine.embedder import load_embedder
from localspec.engine.engine import Engine
from localspec.engine.loading import load
from localspec.errors import EngineError
from localspec.isolated.orphan import ending_within
from localspec.isolated.process_messages import (
    Ask,
    Begun,
    EndAnswer,
    Ended,
    EndIdleWork,
    EndMeasure,
    Failed,
    KeepOnDisk,
    LastWords,
    LoadCaches,
    LoadProgress,
    Measure,
    MeasureReport,
    PicturesMissing,
    Pieces,
    Prepare,
    PromptProgress,
    PromptSign,
    ReadOn,
    Result,
    SaveCaches,
    StartAnswer,
    Stopped,
    ToChild,
)
from localspec.isolated.sent_pictures import KeptPictures, KnownPicture
from localspec.speculative.metrics import Meter, Provenance
from localspec.streaming.answer_text import Prompt
from localspec.streaming.cancellation import Cancellation, Watch
from localspec.streaming.outbox import Outbox
from localspec.streaming.record import (
    PIECES_PER_REPORT,
    AnswerRecord,
    MadePrompt,
    PromptFacts,
    PromptSource,
    ReaderItem,
    Reading,
    State,
)
from localspec.streaming.reply import Ending, Piece

if TYPE_CHECKING:
    from localspec.engine.sources import LoadKeywords
    from localspec.presets.presets import Preset

logger = logging.getLogger(__name__)

TOGETHER_S = 0.02  # pieces that come within that time are sent together
_PULSE_S = 5.0  # between two reports of a measurement, while decodes end
_NUM_ASIDE = 8  # requests beside answers that are handled at once

Say = Callable[[object], None]  # sends a message to the other process


class _Conversation:
    """Stands for a conversation of the other process."""


class ServedRecord(AnswerRecord):
    """An answer to a question of the other process.

    Args:
        message: the message that asks for it.
        say: sends the messages about it.
        on_over: called once it is over.
        servers: RPC servers that hold layers of the models.
    """

    def __init__(
        self,
        message: StartAnswer,
        say: Say,
        on_over: Callable[[], object],
        servers: Sequence[str] = (),
    ) -> None:
        super().__init__(message.options, message.source)
        self.turn = message.turn
        self.client = message.client
        self.finds_its_text = message.finds_its_text
        self.sends_prompt = message.sends_prompt
        self.number = message.number
        self.say = say
        self.on_over = on_over
        self._servers = servers
        self._heard_read = 0
        self._heard_taken = 0
        self.outbox = PipeOutbox(self)

    @property
    def num_read_tokens(self) -> int:
        return self._heard_read

    @property
    def num_read_pieces(self) -> int:
        return self._heard_taken

    def note_taken(self, num_taken: int, num_read: int = 0) -> None:
        """Note the numbers of pieces and of tokens that were read in the other process."""
        self._heard_taken = num_taken
        self._heard_read = num_read

    def source(self) -> PromptSource:
        if self._servers:
            from localspec.llama.rpc_backend import touch_servers  # loads libllama

            touch_servers(self._servers)  # a server may have gone since it was used last
        return super().source()

    def start_producing(self, facts: PromptFacts) -> None:
        super().start_producing(facts)
        made = facts.made
        prompt = made.prompt
        if self.sends_prompt:
            known: Any = tuple(KnownPicture(picture.digest) for picture in prompt.pictures)
            sent = made._replace(prompt=prompt._replace(pictures=known))
        else:
            sent = MadePrompt(Prompt([], num_said=prompt.num_said))
        self.say(Begun(self.number, replace(facts, made=sent)))

    def conclude(self, ending: Ending | None) -> Ending:
        """Keep the ending. The reply is made in the process that reads the pieces."""
        if ending is None:
            ending = Ending("cancelled", Meter(0, 0, 0.0).stats(0.0, None, None))
        self.ending = ending
        return ending


class PipeOutbox(Outbox[ReaderItem]):
    """An outbox that ends in the other process; the pieces of a step are sent together.

    If steps are short, the pieces of several steps are sent together: a message costs as much
    as a small model's token, since it wakes a sleeping process.
    """

    def __init__(self, record: ServedRecord) -> None:
        super().__init__()
        self._record = record
        self._pieces: list[Piece] = []
        self._step_s = 0.0  # when the last step ended
        self._sent_s = 0.0  # when text was last sent

    def put(self, item: ReaderItem) -> None:
        record = self._record
        if isinstance(item, Piece):
            self._add(item)
        elif isinstance(item, Reading):
            record.say(PromptProgress(record.number, item))
        elif isinstance(item, Ending):
            self._send()
            record.on_over()
            record.say(Ended(record.number, item))
        else:
            self._send()
            record.say(Stopped(record.number, item))

    def _add(self, piece: Piece) -> None:
        self._pieces.append(piece)
        if self._record.is_ahead:  # it pauses until the reader has these
            self._send()
            return
        # What a draft proposed comes before the token that ends the step.
        if piece.provenance is not Provenance.ACCEPTED:
            now_s = time.monotonic()
            step_s = now_s - self._step_s
            self._step_s = now_s
            is_due = now_s + step_s - self._sent_s >= TOGETHER_S
            if is_due or len(self._pieces) >= PIECES_PER_REPORT:
                self._send()

    def _send(self) -> None:
        pieces = self._pieces
        self._pieces = []
        if any(piece.text for piece in pieces):  # pieces without text delay no later ones
            self._sent_s = self._step_s
        if pieces:
            self._record.say(Pieces(self._record.number, pieces))


class Served:
    """Does what the messages of the other process ask for.

    Args:
        engine: the engine that answers.
        say: sends a message.
        servers: RPC servers that hold layers of the models.
        pool: threads for work that takes a while.
    """

    def __init__(
        self,
        engine: Engine,
        say: Say,
        servers: Sequence[str],
        pool: ThreadPoolExecutor,
    ) -> None:
        self._engine = engine
        self._say = say
        self._servers = servers
        self._pool = pool
        self._records: dict[int, ServedRecord] = {}
        self._conversations: dict[int, _Conversation] = {}
        self._pictures = KeptPictures()
        self._measuring: dict[int, Cancellation] = {}
        self._followers: dict[type, Callable[[Any], None]] = {
            StartAnswer: self._start,
            ReadOn: self._read_on,
            EndAnswer: self._end,
            Ask: self._ask,
            Prepare: self._prepare,
            Measure: self._measure,
            EndMeasure: self._end_measure,
            EndIdleWork: lambda _: engine._end_idle_work(),
            KeepOnDisk: self._keep_on_disk,
            SaveCaches: self._save_caches,
            LoadCaches: self._load_caches,
        }
        engine._prompt_work.on_work = self._note_prompt_work

    def follow(self, message: ToChild) -> None:
        """Handle a message, or start a thread that does. It does not wait."""
        self._followers[type(message)](message)

    def _answer(
        self,
        number: int,
        method: Callable[..., Any],
        *arguments: Any,
        **keywords: Any,
    ) -> None:
        """Call a method in a thread of the pool, and send its result or its error."""

        def work() -> None:
            try:
                value = method(*arguments, **keywords)
            except Exception as error:
                self._say(Failed(number, error))
            else:
                self._say(Result(number, value))

        self._pool.submit(work)

    def _start(self, message: StartAnswer) -> None:
        """Start the answer that a message asks for, or send why it cannot start."""
        for conversation in message.gone:  # this frees their caches
            self._conversations.pop(conversation, None)
        number = message.number
        source = self._pictures.received(message.source)
        if source is None:
            self._say(PicturesMissing(number))
            return
        message = replace(message, source=source)
        on_over = functools.partial(self._records.pop, number, None)
        record = ServedRecord(message, self._say, on_over, self._servers)
        if message.conversation is not None:
            record.owner = self._conversation(message.conversation)
        self._records[number] = record
        try:
            self._engine._accept(record)
            record.advance(State.ASKED)
            self._engine._start(record)
        except Exception as error:
            self._records.pop(number)
            self._say(Stopped(number, error))

    def _read_on(self, message: ReadOn) -> None:
        record = self._records.get(message.number)
        if record is not None:
            record.note_taken(message.num_taken)
            self._engine._look_again()

    def _end(self, message: EndAnswer) -> None:
        record = self._records.get(message.number)
        if record is None:  # it was refused, or is over
            self._say(Ended(message.number, None))
        elif not record.cancellation.is_requested:  # else it is being ended
            record.note_taken(message.num_taken, message.num_read)
            record.cancellation.request()
            self._engine._end(record)

    def _ask(self, message: Ask) -> None:
        self._answer(message.number, message.question.answer, self._engine)

    def _prepare(self, message: Prepare) -> None:
        source = self._pictures.received(message.source)
        if source is None:  # the answer will bring them
            self._say(Result(message.number, None))
            return
        owner = self._conversation(message.conversation)
        self._answer(
            message.number,
            self._engine._prepare,
            source,
            owner=owner,
        )

    def _measure(self, message: Measure) -> None:
        self._measuring[message.number] = Cancellation()
        self._answer(message.number, self._measured, message)

    def _end_measure(self, message: EndMeasure) -> None:
        measuring = self._measuring.get(message.number)
        if measuring is not None:
            measuring.request()

    def _save_caches(self, message: SaveCaches) -> None:
        owner = self._conversation(message.conversation)
        self._answer(message.number, self._engine._save_caches_of, owner, message.path)

    def _load_caches(self, message: LoadCaches) -> None:
        owner = self._conversation(message.conversation)
        self._answer(message.number, self._engine._load_caches_of, owner, message.path)

    def _keep_on_disk(self, _message: KeepOnDisk) -> None:
        def work() -> None:
            with contextlib.suppress(EngineError):  # it is being closed, which does the same
                self._engine._keep_on_disk()

        self._pool.submit(work)

    def _conversation(self, number: int) -> _Conversation:
        return self._conversations.setdefault(number, _Conversation())

    def _note_prompt_work(self, record: AnswerRecord | None, is_done: bool) -> None:  # noqa: FBT001
        number = record.number if isinstance(record, ServedRecord) else 0
        self._say(PromptSign(number, is_done))

    def _measured(self, message: Measure) -> Any:
        """A function's result. While decodes end, its progress is sent every few seconds."""
        number = message.number
        ended = self._measuring[number]
        is_done = threading.Event()
        reporting = threading.Lock()
        last = MeasureReport(number, "", None)

        def progress(stage: str, left_s: float | None) -> None:
            nonlocal last
            with reporting:
                last = MeasureReport(number, stage, left_s)
                self._say(last)

        def show_life() -> None:
            before = self._engine.num_decodes
            while not is_done.wait(_PULSE_S):
                with reporting:
                    if self._engine.num_decodes != before:
                        self._say(last)
                before = self._engine.num_decodes

        shower = threading.Thread(
            target=show_life,
            name="localspec-life",
            daemon=True,
        )
        shower.start()
        watch = Watch(progress, ended)
        try:
            return message.function(
                self._engine,
                *message.arguments,
                watch=watch,
                **message.keywords,
            )
        finally:
            del self._measuring[number]
            is_done.set()
            shower.join()


class _Pipe:
    """The pipe to the other process, on which messages of several threads are whole."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._sending = threading.Lock()

        self.is_silent = False
        """Whether this process and its answers are ending: nothing more is sent."""

    def send(self, message: object) -> None:
        """Send a message. Raises OSError if the other process is gone."""
        with self._sending:
            if not self.is_silent:
                self._pipe.send(message)

    def say(self, message: object) -> None:
        """Send a message, unless the other process is gone."""
        with contextlib.suppress(OSError):
            self.send(message)


def serve_engine(
    pipe: Connection,
    preset: str | os.PathLike[str] | Preset | None,
    arguments: LoadKeywords,
    servers: tuple[str, ...],
    patience_s: float,
) -> None:
    """Load an engine, then follow messages until the other process says to end, or ends.

    Args:
        pipe: to the other process.
        preset: as for `localspec.load`.
        arguments: further arguments of `localspec.load`.
        servers: addresses of RPC servers that hold layers of the models.
        patience_s: the time in which this process has to end.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the application to handle
    messages = _Pipe(pipe)

    def end(*_signal: object) -> None:
        messages.is_silent = True  # an answer that this ends is lost, not cancelled
        sys.exit(0)

    # A service manager sends this to all processes of a service. Caches are written to disk.
    signal.signal(signal.SIGTERM, end)
    with contextlib.suppress(EOFError, OSError):
        try:
            if servers:
                from localspec.llama.library import report_aborts  # loads libllama

                report_aborts(lambda words: messages.send(LastWords(words)))
            engine = load(
                preset,
                **arguments,
                progress=lambda share: messages.send(LoadProgress(share)),
            )
        except Exception as error:
            messages.send(Failed(0, error))
            return
        pool = ThreadPoolExecutor(_NUM_ASIDE, "localspec-request")
        served = Served(engine, messages.say, servers, pool)
        with pool, engine, ending_within(patience_s):
            messages.send(Result(0, facts_of(engine)))
            for message in iter(pipe.recv, None):
                served.follow(message)


def facts_of(engine: Engine) -> dict[str, Any]:
    """Facts of an engine and its vocabulary that the other process gets at the beginning."""
    facts: dict[str, Any] = {name: getattr(engine, name) for name in FACTS}
    facts["bos"] = engine.vocabulary.bos
    facts["eos"] = engine.vocabulary.eos
    facts["add_bos"] = engine.vocabulary.add_bos
    facts["sampling"] = engine.sampling
    facts["parallel"] = engine.parallel
    facts["adapters"] = engine.adapters
    facts["can_see"] = engine.vision is not None
    return facts


def serve_embedder(pipe: Connection, path: Path, patience_s: float) -> None:
    """Load an embedder, then answer questions until the other process says to end, or ends.

    Args:
        pipe: to the other process.
        path: the embedder's file.
        patience_s: the time in which this process has to end.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the application to handle
    messages = _Pipe(pipe)
    with contextlib.suppress(EOFError, OSError):
        try:
            embedder = load_embedder(path)
        except Exception as error:
            messages.send(Failed(0, error))
            return
        with embedder, ending_within(patience_s):
            messages.send(Result(0, None))
            for message in iter(pipe.recv, None):
                try:
                    value = message.question.answer(embedder)
                except Exception as error:
                    messages.say(Failed(message.number, error))
                else:
                    messages.say(Result(message.number, value))
