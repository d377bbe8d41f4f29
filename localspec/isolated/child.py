"""The process of an `IsolatedEngine`: loads an engine, and does what messages ask for."""

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
    PromptReport,
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

SENT_TOGETHER_S = 0.02  # pieces that are produced within that time are sent together
_REPORT_S = 5.0  # between two reports of a measurement that still makes decodes
_NUM_POOL_THREADS = 8  # requests that are handled at once, besides answers

Send = Callable[[object], None]  # sends a message to the other process


class _Conversation:
    """Stands for a conversation of the other process: the owner of its text here."""


class ServedRecord(AnswerRecord):
    """An answer to a question of the other process.

    Args:
        message: The message that asks for the answer.
        send: Sends the messages about the answer.
        on_over: Called once the answer is over.
        servers: Addresses of the RPC servers that have layers of the models.
    """

    def __init__(
        self,
        message: StartAnswer,
        send: Send,
        on_over: Callable[[], object],
        servers: Sequence[str] = (),
    ) -> None:
        super().__init__(message.options, message.source)
        self.turn_number = message.turn_number
        self.client = message.client
        self.finds_its_text = message.finds_its_text
        self.sends_prompt = message.sends_prompt
        self.number = message.number
        self.send = send
        self.on_over = on_over
        self._servers = servers
        # What was read in the other process, as its last message says:
        self._num_read_tokens = 0
        self._num_read_pieces = 0
        self.outbox = PipeOutbox(self)

    @property
    def num_read_tokens(self) -> int:
        return self._num_read_tokens

    @property
    def num_read_pieces(self) -> int:
        return self._num_read_pieces

    def note_read(self, num_pieces: int, num_tokens: int = 0) -> None:
        """Note what was read in the other process.

        Args:
            num_pieces: The pieces that were read.
            num_tokens: The tokens that were read; only needed at the end of the answer.
        """
        self._num_read_pieces = num_pieces
        self._num_read_tokens = num_tokens

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
            made_to_send = made._replace(prompt=prompt._replace(pictures=known))
        else:
            made_to_send = MadePrompt(Prompt([], num_said=prompt.num_said))
        self.send(Begun(self.number, replace(facts, made=made_to_send)))

    def conclude(self, ending: Ending | None) -> Ending:
        """Keep and return the ending; without one, the ending of a cancelled answer.

        The reply is made in the other process, which reads the pieces.
        """
        if ending is None:
            ending = Ending("cancelled", Meter(0, 0, 0.0).stats(0.0, None, None))
        self.ending = ending
        return ending


class PipeOutbox(Outbox[ReaderItem]):
    """An outbox whose items are sent to the other process.

    The pieces of a step are sent in one message. If steps are short, so are the pieces of
    several steps: a message costs as much as a token of a small model, since it wakes a
    sleeping process.

    Args:
        record: The answer's record.
    """

    def __init__(self, record: ServedRecord) -> None:
        super().__init__()
        self._record = record
        self._pieces: list[Piece] = []
        self._step_ended_s = 0.0  # when the last step ended
        self._sent_s = 0.0  # when text was last sent

    def put(self, item: ReaderItem) -> None:
        record = self._record
        if isinstance(item, Piece):
            self._add(item)
        elif isinstance(item, Reading):
            record.send(PromptProgress(record.number, item))
        elif isinstance(item, Ending):
            self._send()
            record.on_over()
            record.send(Ended(record.number, item))
        else:
            self._send()
            record.send(Stopped(record.number, item))

    def _add(self, piece: Piece) -> None:
        """Add a piece, and send the pieces so far if they should not wait for the next step."""
        self._pieces.append(piece)
        if self._record.is_ahead:  # the answer pauses until they are read
            self._send()
            return
        # Accepted tokens of a draft come before the token that ends the step.
        if piece.provenance is not Provenance.ACCEPTED:
            now_s = time.monotonic()
            step_s = now_s - self._step_ended_s  # how long the step took
            self._step_ended_s = now_s
            next_end_s = now_s + step_s  # when the next step will probably end
            is_due = next_end_s - self._sent_s >= SENT_TOGETHER_S
            if is_due or len(self._pieces) >= PIECES_PER_REPORT:
                self._send()

    def _send(self) -> None:
        """Send the pieces so far, if there are any."""
        pieces = self._pieces
        self._pieces = []
        if any(piece.text for piece in pieces):  # if none has text, the next text need not wait
            self._sent_s = self._step_ended_s
        if pieces:
            self._record.send(Pieces(self._record.number, pieces))


class EngineServer:
    """Does what the messages of the other process ask for.

    Args:
        engine: The engine that answers.
        send: Sends a message to the other process.
        servers: Addresses of the RPC servers that have layers of the models.
        pool: Threads for work that takes a while.
    """

    def __init__(
        self,
        engine: Engine,
        send: Send,
        servers: Sequence[str],
        pool: ThreadPoolExecutor,
    ) -> None:
        self._engine = engine
        self._send = send
        self._servers = servers
        self._pool = pool
        self._records: dict[int, ServedRecord] = {}  # by the numbers of the requests
        self._conversations: dict[int, _Conversation] = {}  # by the other process's numbers
        self._pictures = KeptPictures()
        self._measurements: dict[int, Cancellation] = {}  # by the numbers of the requests
        self._handlers: dict[type, Callable[[Any], None]] = {
            StartAnswer: self._start_answer,
            ReadOn: self._read_on,
            EndAnswer: self._end_answer,
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

    def handle(self, message: ToChild) -> None:
        """Do what a message asks for, or have a thread do it. Does not wait."""
        self._handlers[type(message)](message)

    def _call_in_pool(
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
                self._send(Failed(number, error))
            else:
                self._send(Result(number, value))

        self._pool.submit(work)

    def _start_answer(self, message: StartAnswer) -> None:
        """Start the answer that a message asks for, or send why it cannot start."""
        for conversation in message.gone_conversations:  # this frees their caches
            self._conversations.pop(conversation, None)
        number = message.number
        source = self._pictures.restored(message.source)
        if source is None:
            self._send(PicturesMissing(number))
            return
        message = replace(message, source=source)
        on_over = functools.partial(self._records.pop, number, None)
        record = ServedRecord(message, self._send, on_over, self._servers)
        if message.conversation is not None:
            record.owner = self._conversation(message.conversation)
        self._records[number] = record
        try:
            self._engine._accept(record)
            record.advance(State.ASKED)
            self._engine._start(record)
        except Exception as error:
            self._records.pop(number)
            self._send(Stopped(number, error))

    def _read_on(self, message: ReadOn) -> None:
        """Note that pieces of an answer were read; the answer may have paused until now."""
        record = self._records.get(message.number)
        if record is not None:
            record.note_read(message.num_pieces)
            self._engine._resume_paused()

    def _end_answer(self, message: EndAnswer) -> None:
        """End an answer after the pieces that were read."""
        record = self._records.get(message.number)
        if record is None:  # it was refused, or is over
            self._send(Ended(message.number, None))
        elif not record.cancellation.is_requested:  # otherwise it is ending already
            record.note_read(message.num_pieces, message.num_tokens)
            record.cancellation.request()
            self._engine._end(record)

    def _ask(self, message: Ask) -> None:
        self._call_in_pool(message.number, message.question.answer, self._engine)

    def _prepare(self, message: Prepare) -> None:
        source = self._pictures.restored(message.source)
        if source is None:  # a picture is missing: it will come with the answer's message
            self._send(Result(message.number, None))
            return
        owner = self._conversation(message.conversation)
        self._call_in_pool(
            message.number,
            self._engine._prepare_next_prompt,
            source,
            owner=owner,
        )

    def _measure(self, message: Measure) -> None:
        self._measurements[message.number] = Cancellation()
        self._call_in_pool(message.number, self._call_measure, message)

    def _end_measure(self, message: EndMeasure) -> None:
        cancellation = self._measurements.get(message.number)
        if cancellation is not None:
            cancellation.request()

    def _save_caches(self, message: SaveCaches) -> None:
        owner = self._conversation(message.conversation)
        self._call_in_pool(message.number, self._engine._save_caches_of, owner, message.path)

    def _load_caches(self, message: LoadCaches) -> None:
        owner = self._conversation(message.conversation)
        self._call_in_pool(message.number, self._engine._load_caches_of, owner, message.path)

    def _keep_on_disk(self, _message: KeepOnDisk) -> None:
        def work() -> None:
            # An engine that is closing writes the caches, too.
            with contextlib.suppress(EngineError):
                self._engine._keep_on_disk()

        self._pool.submit(work)

    def _conversation(self, number: int) -> _Conversation:
        """The conversation of that number in the other process; made at its first use."""
        return self._conversations.setdefault(number, _Conversation())

    def _note_prompt_work(self, record: AnswerRecord | None, is_done: bool) -> None:  # noqa: FBT001
        """Report the making of a prompt to the other process: see `PromptWork.on_work`."""
        number = 0
        if isinstance(record, ServedRecord):
            number = record.number
        self._send(PromptReport(number, is_done))

    def _call_measure(self, message: Measure) -> Any:
        """Call a function that measures with the engine, and return its result.

        Its progress is sent. As long as it makes decodes, its last report is sent again every
        few seconds, so that the other process does not take this one for silent.
        """
        number = message.number
        is_done = threading.Event()
        report_lock = threading.Lock()
        last_report = MeasureReport(number, "", None)

        def progress(stage: str, left_s: float | None) -> None:
            nonlocal last_report
            with report_lock:
                last_report = MeasureReport(number, stage, left_s)
                self._send(last_report)

        def repeat_last_report() -> None:
            num_decodes_before = self._engine.num_decodes
            while not is_done.wait(_REPORT_S):
                with report_lock:
                    if self._engine.num_decodes != num_decodes_before:
                        self._send(last_report)
                num_decodes_before = self._engine.num_decodes

        repeater = threading.Thread(
            target=repeat_last_report,
            name="localspec-life",
            daemon=True,
        )
        repeater.start()
        watch = Watch(progress, self._measurements[number])
        try:
            return message.function(
                self._engine,
                *message.arguments,
                watch=watch,
                **message.keywords,
            )
        finally:
            del self._measurements[number]
            is_done.set()
            repeater.join()


class _Pipe:
    """The pipe to the other process. Several threads may send messages through it.

    Args:
        pipe: This process's end of the pipe.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._sending = threading.Lock()

        self.is_silent = False
        """Whether nothing more is sent, since this process and its answers are ending."""

    def send(self, message: object) -> None:
        """Send a message. Raises OSError if the other process has ended."""
        with self._sending:
            if not self.is_silent:
                self._pipe.send(message)

    def try_send(self, message: object) -> None:
        """Send a message, unless the other process has ended."""
        with contextlib.suppress(OSError):
            self.send(message)


def serve_engine(
    pipe: Connection,
    preset: str | os.PathLike[str] | Preset | None,
    arguments: LoadKeywords,
    servers: tuple[str, ...],
    patience_s: float,
) -> None:
    """Load an engine, then handle messages until the other process sends None, or ends.

    Args:
        pipe: The pipe to the other process.
        preset: As for `localspec.load`.
        arguments: Further arguments of `localspec.load`.
        servers: Addresses of the RPC servers that have layers of the models.
        patience_s: Seconds in which this process has to end after the last message.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the application to handle
    messages = _Pipe(pipe)

    def end(*_signal: object) -> None:
        messages.is_silent = True  # its answers count as lost, not as cancelled
        sys.exit(0)

    # A service manager sends SIGTERM to all processes of a service. `sys.exit` closes the
    # engine, which writes caches to disk.
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
        pool = ThreadPoolExecutor(_NUM_POOL_THREADS, "localspec-request")
        server = EngineServer(engine, messages.try_send, servers, pool)
        with pool, engine, ending_within(patience_s):
            messages.send(Result(0, facts_of(engine)))
            for message in iter(pipe.recv, None):
                server.handle(message)


def facts_of(engine: Engine) -> dict[str, Any]:
    """Facts about an engine and its vocabulary, by name, which the other process gets first."""
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
    """Load an embedder, then answer questions until the other process sends None, or ends.

    Args:
        pipe: The pipe to the other process.
        path: The embedder's file.
        patience_s: Seconds in which this process has to end after the last message.
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
                    messages.try_send(Failed(message.number, error))
                else:
                    messages.try_send(Result(message.number, value))
