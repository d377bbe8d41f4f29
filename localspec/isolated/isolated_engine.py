"""An engine in a process of its own: a native crash there raises an exception here."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.chat.prompt_source import MessagesSource
from localspec.engine.base import FACTS, BaseEngine, Result
from localspec.engine.sources import LoadKeywords
from localspec.errors import EngineError, OptionError
from localspec.isolated.process import ChildProcess
from localspec.isolated.process_messages import (
    Begun,
    ControlTexts,
    Detokenize,
    EndAnswer,
    Ended,
    EndIdleWork,
    EndMeasure,
    FreeKept,
    FromChild,
    IsControl,
    KeepOnDisk,
    LoadCaches,
    LoadProgress,
    Lost,
    MakePrompt,
    Measure,
    MeasureReport,
    MemoryTaken,
    PictureCells,
    PicturesMissing,
    Pieces,
    Prepare,
    PromptProgress,
    PromptText,
    ReadOn,
    Remember,
    SaveCaches,
    SetScales,
    StartAnswer,
    Stopped,
    Tokenize,
    TokenPiece,
    TokenText,
)
from localspec.isolated.sent_pictures import KnownPicture, pictures_of, with_pictures
from localspec.keywords import check_keywords
from localspec.pictures.picture import Picture
from localspec.presets.presets import Adapter, Preset
from localspec.streaming.answer_options import AnswerOptions
from localspec.streaming.cancellation import Watch
from localspec.streaming.record import (
    PIECES_PER_REPORT,
    AnswerPlan,
    AnswerRecord,
    MadePrompt,
    PromptFacts,
    PromptSource,
    State,
)
from localspec.streaming.reply import Ending
from localspec.system.call_thread import CallThread
from localspec.vocabulary import Vocabulary

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on

    from localspec.engine.open_models import EngineMemory
    from localspec.pictures.picture import Vision

logger = logging.getLogger(__name__)

_MOST_TRIES = 3  # to start an answer, if processes end before it has begun


class IsolatedEngine(BaseEngine):
    """An `Engine` in a child process, with the same answers and chats.

    If libllama crashes, the reader of the answer gets EngineError. The answer's reply and the
    conversation keep the text so far, and the next question starts the process again. If layers
    of the models are on RPC servers, the error names the servers that do not answer, and a
    process without a message for ten minutes counts as lost. Whether the engine has the
    proposer that an answer asks for is only checked when the answer is read.

    The process is started by spawn: a script needs its `if __name__ == "__main__":`.
    Raises what `localspec.load` raises.

    Args:
        preset: As for `localspec.load`, but no `llama_cpp.Llama` object: those belong to this
            process.
        progress: As for `localspec.load`.
        arguments: As for `localspec.load`, but no `llama_cpp.Llama` objects.
    """

    def __init__(
        self,
        preset: str | os.PathLike[str] | Preset | None = None,
        *,
        progress: Callable[[float], None] | None = None,
        **arguments: Unpack[LoadKeywords],
    ) -> None:
        check_keywords(arguments, LoadKeywords.__annotations__)
        models: dict[str, object] = {}
        if not isinstance(preset, Preset):
            models["model"] = preset
        models["target"] = arguments.get("target")
        models["draft"] = arguments.get("draft")
        for role, model in models.items():
            if not isinstance(model, str | os.PathLike | None):
                raise OptionError(
                    f"the {role} of an isolated engine is an object of this process",
                    "Name its file instead.",
                )
        self._process = ChildProcess(preset, arguments, progress)
        facts = self._process.facts
        self._facts = facts
        super().__init__(facts["sampling"], facts["parallel"], facts["adapters"])
        self._preset = preset
        self._arguments = arguments
        # Held while `_process` is checked, started again or closed. Reentrant: a signal handler
        # may take it in the thread that holds it.
        self._process_lock = threading.RLock()
        # Held while adapters are set, so that the child gets them in the order set here.
        # Reentrant for the same reason; taken before `_process_lock`.
        self._adapters_lock = threading.RLock()
        self._attempts: dict[AnswerRecord, _Attempt] = {}  # of answers that are not over
        self._owner_numbers: weakref.WeakKeyDictionary[object, int] = (
            weakref.WeakKeyDictionary()
        )
        self._num_owners = 0
        # Held while `_attempts`, `_owner_numbers` and `_num_owners` are changed.
        self._attempts_lock = threading.RLock()
        # The numbers of owners that were freed, of which the child does not know yet. Changed
        # without a lock, by finalizers too: each method of a set is one call of C.
        self._gone_owners: set[int] = set()
        self._reading = (0, 0)  # see `_reading_progress`
        for name in FACTS:
            setattr(self, name, facts[name])
        self._close_at_exit()

    @property
    def parallel(self) -> int:
        return int(self._process.facts["parallel"])

    @property
    def vocabulary(self) -> Vocabulary:
        # Not kept: it would form a reference cycle.
        return RemoteVocabulary(self._running_process, self._facts)

    @property
    def vision(self) -> Vision | None:
        if self._facts["can_see"]:
            return RemoteVision(self._running_process)
        return None

    def _set_adapters(self, adapters: tuple[Adapter, ...]) -> None:
        with self._adapters_lock:
            with self._process_lock:
                super()._set_adapters(adapters)
                # A process that is started again needs them, too.
                self._arguments = {**self._arguments, "adapters": adapters}
                process = self._process
            # Without `_process_lock`: the thread that brings the result may need it before, to
            # start the next answer.
            if process.is_running():
                process.call(SetScales(self.adapter_scales))

    @property
    def _reading_progress(self) -> tuple[int, int]:
        """As in `BaseEngine`; updated after each batch of a prompt."""
        return self._reading

    def _measure(
        self,
        function: Callable[..., Result],
        *arguments: Any,
        watch: Watch,
        **keywords: Any,
    ) -> Result:
        """Call a function with the child's engine, and return its result: see `BaseEngine`.

        Args:
            function: The function, which has to be importable from a module.
            arguments, keywords: Its further arguments.
            watch: Gets the progress; its cancellation ends the function.
        """
        process = self._running_process()

        def report(message: LoadProgress | MeasureReport) -> None:
            assert isinstance(message, MeasureReport)
            watch.progress(message.stage, message.left_s)

        call = process.request(
            lambda number: Measure(number, function, arguments, keywords),
            report,
        )
        end_measure = EndMeasure(call.number)
        with watch.cancellation.obeyed(lambda: process.send(end_measure)):
            result: Result = call.result()
        return result

    def memory(self) -> EngineMemory:
        memory: EngineMemory = self._running_process().call(MemoryTaken())
        return memory

    def remember(self, text: str | Sequence[int]) -> None:
        self._running_process().call(Remember(text))

    def free_kept(self) -> None:
        self._running_process().call(FreeKept())

    def _save_caches_of(self, owner: object, path: Path) -> bool:
        conversation = self._conversation_number(owner)

        def message(number: int) -> SaveCaches:
            return SaveCaches(number, conversation, path)

        return bool(self._running_process().request(message).result())

    def _load_caches_of(self, owner: object, path: Path) -> bool:
        conversation = self._conversation_number(owner)

        def message(number: int) -> LoadCaches:
            return LoadCaches(number, conversation, path)

        return bool(self._running_process().request(message).result())

    @property
    def process_id(self) -> int | None:
        """The number of the child process, for programs that watch it."""
        return self._process.process_id

    def _running_process(self) -> ChildProcess:
        """The child, started again if it has ended.

        Raises ClosedError, and what loading the models raises.
        """
        self._own_process.require("the isolated engine")
        with self._process_lock:
            self._require_not_ending()
            if not self._process.is_running():
                self._process.close()
                logger.info("loading the models again, since their process ended")
                self._process = ChildProcess(self._preset, self._arguments, None)
            return self._process

    def _make_plan(self, options: AnswerOptions) -> AnswerPlan:
        # Only the child knows the proposers: it checks whether the engine has those asked for.
        self._own_process.require("the isolated engine")
        self._require_not_ending()
        return super()._make_plan(options)

    def _start(self, record: AnswerRecord) -> None:
        self._own_process.require("the isolated engine")
        self._require_not_ending()
        self._join_line(record)

    def _produce_admitted(self, record: AnswerRecord) -> None:
        if self._process.is_running():
            self._start_in_child(record)
        else:  # the process has to be started again, which takes a while
            CallThread(lambda: self._start_in_child(record), daemon=True).start()

    def _start_in_child(self, record: AnswerRecord, num_tries: int = 1) -> None:
        """Have the child produce an admitted answer. An error goes to the record's outbox.

        Args:
            record: The answer's record.
            num_tries: The number of tries, this one included.
        """
        try:
            self._send_start(record, self._running_process(), num_tries)
        except Exception as error:
            record.outbox.put(error)

    def _send_start(self, record: AnswerRecord, process: ChildProcess, num_tries: int) -> None:
        """Send the message that starts an answer, unless the answer has been ended.

        Raises what `AnswerRecord.source` raises.

        Args:
            record: The answer's record.
            process: The child.
            num_tries: The number of tries, this one included.
        """
        source = record.source()
        gone_owners = list(self._gone_owners)
        conversation = None
        if record.owner is not None:
            conversation = self._conversation_number(record.owner)
        with self._attempts_lock:
            if record.state is not State.ADMITTED:
                return
            attempt = _Attempt(self, record, process, num_tries, pictures_of(source))
            # The answer's options as its plan has them, without functions of this process.
            # `queue` is set, since the child may still have to end the answer before this one.
            options = replace(
                record.options,
                sampling=record.plan.sampling,
                changes={},
                adapter_scales=dict(enumerate(record.plan.scales)),
                on_prompt=None,
                queue=True,
            )
            message = StartAnswer(
                attempt.number,
                _without_sent_pictures(source, process),
                options,
                record.turn_number,
                conversation,
                record.client,
                record.finds_its_text,
                record.sends_prompt,
                gone_owners,
            )
            self._attempts[record] = attempt
            process.send_request(attempt, message)
            if record.state is not State.ADMITTED:
                attempt.end()  # a signal handler has ended it before the message was sent
        self._gone_owners.difference_update(gone_owners)

    def _note_piece_read(self, record: AnswerRecord) -> None:
        attempt = self._attempts.get(record)
        is_report_due = record.num_read_pieces % PIECES_PER_REPORT == 0
        if attempt is not None and is_report_due:
            attempt.process.send(ReadOn(attempt.number, record.num_read_pieces))

    def _end(self, record: AnswerRecord) -> None:
        with self._attempts_lock:
            attempt = self._attempts.get(record)
            if record.state is State.OVER:
                self._give_ending(record)
            elif attempt is not None:
                attempt.end()
            else:  # the child does not know the answer
                self._conclude(record, None)

    def _conclude(self, record: AnswerRecord, ending: Ending | None) -> None:
        """Make an answer's reply, and pass its place in line to the next answer. Idempotent.

        Args:
            record: The answer's record.
            ending: The ending from the child; None if the child sent none.
        """
        with self._attempts_lock:
            self._attempts.pop(record, None)
            if record.state is State.OVER:
                return
            try:
                record.conclude(ending)
            finally:
                record.advance(State.OVER)
                self._line.leave(record.place)  # before the reader can ask again
                self._give_ending(record)

    def _may_wait(self) -> bool:
        return not self._process.is_of_this_thread()

    def _make_prompt(self, source: PromptSource) -> MadePrompt:
        made: MadePrompt = self._running_process().call(MakePrompt(source))
        return made

    def _prompt_text(self, source: MessagesSource, *, opens_answer: bool) -> str:
        return str(self._running_process().call(PromptText(source, opens_answer)))

    def _prepare_next_prompt(self, source: PromptSource, *, owner: object) -> None:
        if self._line.num_places:
            return
        conversation = self._conversation_number(owner)
        try:
            process = self._running_process()
            for_child = _without_sent_pictures(source, process)
            process.request(lambda number: Prepare(number, for_child, conversation)).result()
        except EngineError:
            if not self._is_ending:
                raise

    def _keep_on_disk(self) -> None:
        """Have the child write the caches that the disk lacks, until an answer begins."""
        if not self._line.num_places and self._process.is_running():  # a lost child has none
            self._process.send(KeepOnDisk())

    def _conversation_number(self, owner: object) -> int:
        """The number that stands for an owner of texts in messages: for a chat, for example.

        When the owner is freed, the number is added to `_gone_owners`.
        """
        with self._attempts_lock:
            number = self._owner_numbers.get(owner)
            if number is None:
                self._num_owners += 1
                number = self._num_owners
                self._owner_numbers[owner] = number
                weakref.finalize(owner, self._gone_owners.add, number)
            return number

    def cancel(self) -> None:
        if self._own_process.is_this():
            self._process.send(EndIdleWork())
            for record in self._answers_at_work():
                record.cancellation.request()
                self._end(record)

    def _close(self) -> None:
        if self._own_process.is_this():
            with self._process_lock:  # so that `_running_process` starts no other process now
                self._process.close_engine()


class _Attempt:
    """A try to have an answer produced by one child. It receives the messages about the answer.

    Args:
        engine: The engine that answers.
        record: The answer's record.
        process: The child.
        num_tries: The number of tries, this one included.
        pictures: The pictures of the prompt, by their digests.
    """

    def __init__(
        self,
        engine: IsolatedEngine,
        record: AnswerRecord,
        process: ChildProcess,
        num_tries: int,
        pictures: Mapping[bytes, Picture],
    ) -> None:
        self.process = process
        self.number = process.next_number()
        self._engine = engine
        self._record = record
        self._num_tries = num_tries
        self._pictures = pictures

    @property
    def is_awaited(self) -> bool:
        """Whether the reader has taken all pieces so far and waits for more, or for the end."""
        record = self._record
        return record.num_put_pieces == record.num_read_pieces or record.state >= State.ENDING

    def receive(self, message: FromChild) -> None:
        """Take a message about the answer. Called in any thread."""
        record = self._record
        if isinstance(message, Pieces):
            for piece in message.pieces:
                record.put(piece)
        elif isinstance(message, PromptProgress):
            self._engine._reading = message.reading[:2]
            record.outbox.put(message.reading)
        elif isinstance(message, Begun):
            self._start_producing(message)
        elif isinstance(message, Stopped):
            record.outbox.put(message.error)
        elif isinstance(message, Ended):
            self._engine._conclude(record, message.ending)
        elif isinstance(message, PicturesMissing):
            self.process.sent_pictures.clear()
            self._engine._start_in_child(record, self._num_tries)
        elif isinstance(message, Lost):
            self._handle_loss()

    def end(self) -> None:
        """Have the child end the answer after the pieces that were read."""
        record = self._record
        if record.state < State.ENDING:
            record.advance(State.ENDING)
        # Sent in state ENDING, too: Ctrl-C may have come after the state was set, before the
        # message was sent.
        message = EndAnswer(self.number, record.num_read_tokens, record.num_read_pieces)
        self.process.send_request(self, message)

    def _start_producing(self, message: Begun) -> None:
        """Note that the child has begun to produce the answer."""
        try:
            with self._engine._attempts_lock:
                if self._record.state is State.ADMITTED:
                    self._record.start_producing(self._with_pictures(message.facts))
        except Exception as error:
            self._record.outbox.put(error)

    def _with_pictures(self, facts: PromptFacts) -> PromptFacts:
        """The facts with the prompt's pictures, of which the child sends only the digests."""
        made = facts.made
        pictures = []
        for known_picture in made.prompt.pictures:
            picture = self._pictures.get(known_picture.digest)
            if picture is not None:
                pictures.append(picture)
        prompt = made.prompt._replace(pictures=tuple(pictures))
        return replace(facts, made=made._replace(prompt=prompt))

    def _handle_loss(self) -> None:
        """After the loss of the child, try to start the answer in another one.

        The answer fails instead if it has begun, if the engine is closing, after `_MOST_TRIES`
        tries, or if the child was making its prompt, which may be why the child was lost. An
        answer that is ending is concluded.
        """
        engine = self._engine
        record = self._record
        prompts = self.process.prompts
        is_suspect = prompts.is_at_work and prompts.number == self.number
        if record.state >= State.ENDING:
            engine._conclude(record, None)
            return
        with engine._attempts_lock:
            engine._attempts.pop(record, None)
        has_begun = record.state is not State.ADMITTED
        may_try_again = not (has_begun or engine._is_ending or is_suspect)
        if is_suspect and prompts.excess:
            record.outbox.put(
                OptionError(prompts.excess, "Ask with a simpler schema, grammar or template.")
            )
        elif may_try_again and self._num_tries < _MOST_TRIES:
            num_tries = self._num_tries + 1
            CallThread(lambda: engine._start_in_child(record, num_tries), daemon=True).start()
        else:
            record.outbox.put(self.process.lost_error())


def _without_sent_pictures(source: PromptSource, process: ChildProcess) -> PromptSource:
    """A copy of a source for the child, with digests in place of pictures that were sent to it.

    The other pictures of the source count as sent from now on.
    """
    sent_pictures = process.sent_pictures.copy()

    def known_if_sent(picture: Any) -> Any:
        if isinstance(picture, Picture) and picture.digest in sent_pictures:
            return KnownPicture(picture.digest)
        return picture

    process.sent_pictures.update(pictures_of(source))
    return with_pictures(source, known_if_sent)


class RemoteVocabulary:
    """A `Vocabulary` in the child.

    Args:
        process: Returns the child, which is started again if it has ended.
        facts: The result of `child.facts_of`.
    """

    def __init__(self, process: Callable[[], ChildProcess], facts: dict[str, Any]) -> None:
        self._process = process
        self.bos: int = facts["bos"]
        self.eos: int = facts["eos"]
        self.add_bos: bool = facts["add_bos"]

    def tokenize(
        self,
        text: str,
        *,
        parse_special: bool,
        after: int | None = None,
    ) -> list[int]:
        """See `Vocabulary`."""
        tokens: list[int] = self._process().call(Tokenize(text, parse_special, after))
        return tokens

    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """See `Vocabulary`."""
        return str(self._process().call(Detokenize(tokens, special)))

    def piece(self, token: int) -> bytes:
        """See `Vocabulary`."""
        piece: bytes = self._process().call(TokenPiece(token))
        return piece

    def text(self, token: int) -> str:
        """See `Vocabulary`."""
        return str(self._process().call(TokenText(token)))

    def control_texts(self) -> list[str]:
        """See `Vocabulary`."""
        texts: list[str] = self._process().call(ControlTexts())
        return texts

    def is_control(self, token: int) -> bool:
        """See `Vocabulary`."""
        return bool(self._process().call(IsControl(token)))


class RemoteVision:
    """A `Vision` in the child.

    Args:
        process: Returns the child, which is started again if it has ended.
    """

    def __init__(self, process: Callable[[], ChildProcess]) -> None:
        self._process = process

    def cells(self, picture: Picture) -> list[int]:
        """See `Vision`."""
        cells: list[int] = self._process().call(PictureCells(picture))
        return cells
