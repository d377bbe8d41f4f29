"""An engine in a process of its own: a native crash there is an exception here."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.engine.base import FACTS, BaseEngine, Found
from localspec.engine.sources import OTHER_KEYWORDS, LoadKeywords
from localspec.errors import (
    CrashedError,
    EngineError,
    Interrupted,
    OptionError,
    check_keywords,
)
from localspec.isolated.process import ChildProcess
from localspec.presets.presets import Preset
from localspec.streaming.answer_text import Prompt, Said
from localspec.streaming.cancellation import CancelCheck, Watch
from localspec.streaming.exchange import READ_ON, Exchange
from localspec.streaming.options import AnswerOptions
from localspec.streaming.reply import Piece, Reply
from localspec.vocabulary import Vocabulary

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on

    from localspec.engine.models import EngineMemory
    from localspec.pictures.picture import Picture, Vision

_MOST_KNOWN = 256  # pictures of which the tokens are kept


class IsolatedEngine(BaseEngine):
    """An `Engine` in a child process, with the same answers and chats.

    If libllama crashes, whoever reads the answer gets EngineError, the answer's reply and the
    conversation keep what was said, and the next question starts the process again. Its
    models may be on RPC servers, of which the error names those that do not answer; where the
    process says nothing for ten minutes it is taken for lost. Whether an answer's
    proposer is there is checked when it is read. preset, arguments: as for `localspec.load`,
    but for `llama_cpp.Llama` objects, which belong to this process.

    The process is started by spawn: a script needs its `if __name__ == "__main__":`.
    Raises what `localspec.load` raises.
    """

    def __init__(
        self,
        preset: str | os.PathLike[str] | Preset | None = None,
        *,
        progress: Callable[[float], None] | None = None,
        **arguments: Unpack[LoadKeywords],
    ) -> None:
        check_keywords(arguments, LoadKeywords.__annotations__, OTHER_KEYWORDS)
        given = {"model": None if isinstance(preset, Preset) else preset, **arguments}
        for role in ("model", "target", "draft"):
            if not isinstance(given.get(role), str | os.PathLike | None):
                raise OptionError(
                    f"the {role} of an isolated engine is an object of this process",
                    "Name its file instead.",
                )
        self._process = ChildProcess(preset, arguments, progress)
        self._facts = facts = self._process.facts
        super().__init__(facts["sampling"])
        self._preset, self._arguments = preset, arguments
        self._starting = threading.RLock()  # a signal handler may come to it within itself
        self._answers: dict[Exchange, _RemoteAnswer] = {}  # that are not over
        self._owner_numbers: weakref.WeakKeyDictionary[object, int] = (
            weakref.WeakKeyDictionary()
        )
        self._num_owners = 0
        self._changing = threading.RLock()  # held while these are changed
        self._gone_owners: set[int] = set()  # of which every change is one call of C
        self._reading = (0, 0)
        self._cells: dict[bytes, list[int]] = {}  # of pictures, by their digests
        for name in FACTS:
            setattr(self, name, facts[name])
        self._close_at_exit()

    @property
    def parallel(self) -> int:
        return int(self._process.facts["parallel"])

    @property
    def vocabulary(self) -> Vocabulary:
        return RemoteVocabulary(self._of_engine, self._facts)  # kept it would keep this

    @property
    def vision(self) -> Vision | None:
        ask = functools.partial(self._ask, "cells")
        return RemoteVision(ask, self._cells) if self._facts["can_see"] else None

    def _ask(self, method: str, *arguments: Any) -> Any:
        return self._running().call(method, *arguments)

    def _of_engine(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """The result of a method of the `Engine`, or of its vocabulary."""
        return self._running().call("engine", method, *arguments, **keywords)

    @property
    def _reading_progress(self) -> tuple[int, int]:
        """Updated after each batch of a long prompt."""
        return self._reading

    def _measure(
        self, function: Callable[..., Found], *arguments: Any, watch: Watch, **keywords: Any
    ) -> Found:
        """In the child, so the function is one of a module."""
        process, cancellation = self._running(), watch.cancellation
        call = process.begin(
            "measure",
            function,
            *arguments,
            on_report=lambda told: watch.progress(*told),
            **keywords,
        )
        with cancellation.obeyed(lambda: process.tell("cancel", call.number)):
            found: Found = call.result()
        return found

    def memory(self) -> EngineMemory:
        memory: EngineMemory = self._of_engine("memory")
        return memory

    def remember(self, text: str | Sequence[int]) -> None:
        self._of_engine("remember", text)

    def free_kept(self) -> None:
        self._of_engine("free_kept")

    def _save_caches_of(self, owner: object, path: Path) -> bool:
        return bool(self._ask("owned", "_save_caches_of", self._owner_number(owner), path))

    def _load_caches_of(self, owner: object, path: Path) -> bool:
        return bool(self._ask("owned", "_load_caches_of", self._owner_number(owner), path))

    @property
    def process_id(self) -> int | None:
        """The child's number, for whoever watches processes."""
        return self._process.process_id

    def _running(self) -> ChildProcess:
        """The child, started again if it has ended. Raises EngineError once this is closed."""
        self._own_process.require("the isolated engine")
        with self._starting:
            self._require_not_ending()
            if not self._process.is_running():
                self._process.close()
                self._process = ChildProcess(self._preset, self._arguments, None)
            return self._process

    def _check_options(self, options: AnswerOptions) -> None:
        # Who may propose is known in the child alone.
        self._own_process.require("the isolated engine")
        self._require_not_ending()

    def _start(self, exchange: Exchange) -> None:
        self._check_options(exchange.options)
        # In the reader's thread, since the process may have to be started again.
        exchange.outbox.put(lambda: self._ask_for(exchange, is_again=False))

    def _ask_for(self, exchange: Exchange, *, is_again: bool) -> None:
        """Have the child let an answer wait in line. is_again: after another was lost."""
        process = self._running()
        gone = list(self._gone_owners)
        owner = None if exchange.owner is None else self._owner_number(exchange.owner)
        with self._changing:
            if exchange.is_over:
                return
            answer = self._answers[exchange] = _RemoteAnswer(
                self, exchange, process, is_again=is_again
            )
            # As it was asked for, without a function of this process.
            told = replace(
                exchange.options, sampling=exchange.sampling, changes={}, on_prompt=None
            )
            process.num_asked += 1
            process.ask(answer, "ask", told, owner, gone, is_of_main=exchange.is_of_main)
        self._gone_owners.difference_update(gone)

    def _read_on(self, exchange: Exchange) -> None:
        answer = self._answers.get(exchange)
        if answer is not None and exchange.num_taken % READ_ON == 0:
            answer.process.tell("read_on", answer.number, exchange.num_taken)

    def _end(self, exchange: Exchange) -> None:
        with self._changing:
            answer = self._answers.get(exchange)
            if answer is not None:
                answer.end()
            elif exchange.is_over:
                exchange.outbox.put([])  # Ctrl-C may have lost it
            else:  # the child does not know of it
                exchange.is_over = True
                exchange.outbox.put(exchange.conclude())

    def _may_wait(self) -> bool:
        return not self._process.is_of_this_thread()

    def _prepare(
        self, make_tokens: Callable[[CancelCheck], list[int]], *, owner: object
    ) -> None:
        if self._answers:
            return
        process = self._running()
        before = process.num_asked
        try:
            tokens = make_tokens(lambda: process.num_asked != before)
            if tokens and process.num_asked == before:
                process.call("prepare", tokens, self._owner_number(owner))
        except Interrupted:
            pass
        except EngineError:
            if not self._is_ending:
                raise

    def _keep_on_disk(self) -> None:
        """Have the child write the caches that the disk lacks, until an answer begins."""
        if not self._answers and self._process.is_running():  # a lost one has nothing
            self._process.tell("keep_on_disk")

    def _owner_number(self, owner: object) -> int:
        with self._changing:
            number = self._owner_numbers.get(owner)
            if number is None:
                self._num_owners += 1
                number = self._owner_numbers[owner] = self._num_owners
                weakref.finalize(owner, self._gone_owners.add, number)
            return number

    def cancel(self) -> None:
        if self._own_process.is_this():
            self._process.cancel()
            for exchange, answer in tuple(self._answers.items()):
                if exchange.is_admitted:
                    exchange.cancellation.request()
                    answer.end()

    def _close(self) -> None:
        if self._own_process.is_this():
            with self._starting:  # `_running` may be about to start another process
                self._process.close_engine()


class _RemoteAnswer:
    """An answer that the child produces, at this end. is_again: after another child was lost.

    Its process hands on what the child tells of it, by `hear`, in the thread of the pipe.
    """

    def __init__(
        self,
        engine: IsolatedEngine,
        exchange: Exchange,
        process: ChildProcess,
        *,
        is_again: bool,
    ) -> None:
        self.process = process
        self.number = process.next_number()
        self._engine = engine
        self._exchange = exchange
        self._is_again = is_again
        self._prompt: Prompt | None = None
        self._pieces: list[Piece] = []  # that were told
        self._is_ending = self._is_concluded = False

    @property
    def is_awaited(self) -> bool:
        """Whether its reader waits for more than there is."""
        exchange = self._exchange
        return exchange.num_told == exchange.num_taken or self._is_ending

    def hear(self, kind: str, value: Any) -> None:
        """Take what the child tells, or that it is lost."""
        exchange, put = self._exchange, self._exchange.outbox.put
        if kind == "admitted":
            exchange.is_admitted = True
            put(self._go_on)
        elif kind == "begun":
            try:
                exchange.begin()
                exchange.has_begun = True
            except Exception as error:
                put(error)
        elif kind == "progress":
            put(functools.partial(self._report, value))
        elif kind == "pieces":
            self._pieces += value
            exchange.num_told += len(value)
            for piece in value:
                put(piece)
        elif kind == "failed":
            put(value)
        elif kind == "done":
            self._conclude(*value)
        else:
            self._lost()

    def end(self) -> None:
        """Have it end behind what was read."""
        self._is_ending = True
        # Whether it was told before or not: Ctrl-C may have come between.
        exchange = self._exchange
        self.process.ask(self, "end", exchange.num_read, exchange.num_taken)

    def _go_on(self) -> None:
        """Make the prompt, and have the answer produced; in the reader's thread."""
        engine, exchange, call = self._engine, self._exchange, self.process.call
        with contextlib.suppress(Interrupted):  # it is being ended
            is_cancelled = functools.partial(engine._is_cancelled, exchange.cancellation)
            self._prompt = prompt = exchange.prompt(is_cancelled)
            owner = None if exchange.owner is None else engine._owner_number(exchange.owner)
            question = prompt._replace(pictures=()), exchange.turn, owner
            digests = [picture.digest for picture in prompt.pictures]
            try:
                # The child has seen most pictures before, which are megabytes.
                if not call("produce", self.number, question, digests, ()):
                    call("produce", self.number, question, digests, prompt.pictures)
            except CrashedError:
                if self._is_again:
                    raise  # else it is asked for again

    def _report(self, told: tuple[int, int, bool]) -> None:
        self._engine._reading = reading = told[:2]
        exchange = self._exchange
        (exchange.on_cached if told[2] else exchange.on_prompt)(*reading)

    def _lost(self) -> None:
        """Have it asked for again, where nothing has come of it; else end it."""
        exchange, engine = self._exchange, self._engine
        if self._is_ending:
            self._conclude(None, [])
        elif exchange.has_begun or self._is_again or engine._is_ending:
            exchange.outbox.put(self._fail)
        else:
            exchange.outbox.put(lambda: engine._ask_for(exchange, is_again=True))

    def _fail(self) -> None:
        raise self.process.lost()

    def _conclude(self, result: tuple[Reply, Said | None] | None, rest: list[Piece]) -> None:
        """Set the result, and tell the reader that it is over. Once."""
        exchange, engine = self._exchange, self._engine
        with engine._changing:
            if self._is_concluded:
                return
            self._is_concluded = True
        try:
            if exchange.has_begun and self._prompt is not None:
                read = self._pieces[: exchange.num_taken]
                exchange.result = result or exchange.result_of(read, self._prompt)
                exchange.remember(*exchange.result)
            else:
                exchange.conclude()
        finally:
            exchange.outbox.put(rest)
            with engine._changing:  # only now: who ends it again must find its result
                exchange.is_over = True
                engine._answers.pop(exchange, None)


class RemoteVocabulary:
    """A `Vocabulary`. ask: what a method of the engine returns, by its name and arguments."""

    def __init__(self, ask: Callable[..., Any], facts: dict[str, Any]) -> None:
        self.bos, self.eos, self.add_bos = facts["bos"], facts["eos"], facts["add_bos"]
        self.tokenize = functools.partial(ask, "vocabulary.tokenize")
        self.detokenize = functools.partial(ask, "vocabulary.detokenize")
        self.text = functools.partial(ask, "vocabulary.text")
        self.control_texts = functools.partial(ask, "vocabulary.control_texts")
        self.is_control = functools.partial(ask, "vocabulary.is_control")


class RemoteVision:
    """A `Vision`. ask: gives a picture's tokens; known: those of pictures by their digests.

    A conversation asks for the same pictures again and again, and a picture is megabytes.
    """

    def __init__(
        self, ask: Callable[[Picture], list[int]], known: dict[bytes, list[int]]
    ) -> None:
        self._ask = ask
        self._known = known

    def cells(self, picture: Picture) -> list[int]:
        tokens = self._known.get(picture.digest)
        if tokens is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            tokens = self._known[picture.digest] = self._ask(picture)
        return list(tokens)
