"""An engine in a process of its own: a native crash there is an exception here."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.engine.base import BaseEngine, Found
from localspec.engine.sources import OTHER_KEYWORDS, LoadKeywords
from localspec.errors import (
    ClosedError,
    CrashedError,
    EngineError,
    Interrupted,
    OptionError,
    check_keywords,
)
from localspec.isolated.process import ChildProcess
from localspec.isolated.watch import Watch
from localspec.presets.preset import Preset
from localspec.speculative.metrics import Meter
from localspec.streaming.access import LineSlot, busy, in_use
from localspec.streaming.answer_text import Said
from localspec.streaming.cancellation import CancelCheck
from localspec.streaming.exchange import Exchange
from localspec.streaming.options import AnswerOptions
from localspec.streaming.prompt import Prompt
from localspec.streaming.reply import Piece, Reply
from localspec.streaming.thinking import Part
from localspec.vocabulary import Vocabulary

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on

    from localspec.engine.models import EngineMemory
    from localspec.pictures.picture import Picture
    from localspec.pictures.vision import Vision

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
        self._access.num_answers = facts["parallel"]
        self._preset, self._arguments = preset, arguments
        self._starting = threading.RLock()  # a signal handler may come to it within itself
        self._closed = False
        self._num_answers = 0
        self._num_cancels = 0
        self._owner_numbers: weakref.WeakKeyDictionary[object, int] = (
            weakref.WeakKeyDictionary()
        )
        self._num_owners = 0
        self._numbering = threading.Lock()  # held while something gets its number
        self._gone_owners: set[int] = set()  # of which every change is one call of C
        self._reading = (0, 0)
        self._cells: dict[bytes, list[int]] = {}  # of pictures, by their digests
        self.description, self.drafting = facts["description"], facts["drafting"]
        self.context_length = facts["context_length"]
        self.trained_context_length = facts["trained_context_length"]
        self.chat_template, self.exactness = facts["chat_template"], facts["exactness"]
        self.shared_vocabulary = facts["shared_vocabulary"]

    @property
    def vocabulary(self) -> Vocabulary:
        ask = functools.partial(self._ask, "vocabulary")
        return RemoteVocabulary(ask, self._facts)  # kept it would keep this

    @property
    def vision(self) -> Vision | None:
        ask = functools.partial(self._ask, "cells")
        return RemoteVision(ask, self._cells) if self._facts["can_see"] else None

    def _ask(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        return self._running().call(method, *arguments, **keywords)

    @property
    def _reading_progress(self) -> tuple[int, int]:
        """Updated after each batch of a long prompt."""
        return self._reading

    def _measure(
        self, function: Callable[..., Found], *arguments: Any, watch: Watch, **keywords: Any
    ) -> Found:
        """In the child, so the function is one of a module."""
        with self._exclusively() as process:
            number = self._next_number()  # it is cancelled as an answer is
            with watch.cancellation.obeyed(lambda: process.cancel(number, number)):
                found: Found = process.call(
                    "measure",
                    number,
                    function,
                    *arguments,
                    on_report=lambda told: watch.progress(*told),
                    **keywords,
                )
        return found

    def memory(self) -> EngineMemory:
        memory: EngineMemory = self._ask("engine", "memory")
        return memory

    def remember(self, text: str | Sequence[int]) -> None:
        with self._exclusively() as process:
            process.call("engine", "remember", text)

    def free_kept(self) -> None:
        with self._exclusively() as process:
            process.call("engine", "free_kept")

    def _save_caches_of(self, owner: object, path: Path) -> bool:
        return self._owned("_save_caches_of", owner, path)

    def _load_caches_of(self, owner: object, path: Path) -> bool:
        return self._owned("_load_caches_of", owner, path)

    def _owned(self, method: str, owner: object, path: Path) -> bool:
        with self._exclusively() as process:
            return bool(process.call("owned", method, self._owner_number(owner), path))

    @property
    def process_id(self) -> int | None:
        """The child's number, for whoever watches processes."""
        return self._process.number

    def _running(self) -> ChildProcess:
        """The child, started again if it has ended. Raises EngineError once this is closed."""
        self._own_process.require("the isolated engine")
        self._require_not_ending()
        with self._starting:
            if self._closed:
                raise ClosedError("the engine is closed", "Load it again.")
            if not self._process.is_running():
                self._process.stop(is_closed=False)
                self._process = ChildProcess(self._preset, self._arguments, None)
                self._access.num_answers = self._process.facts["parallel"]
            return self._process

    def _check_options(self, options: AnswerOptions) -> None:
        # Who may propose is known in the child alone.
        self._own_process.require("the isolated engine")
        self._require_not_ending()

    def _pieces(self, slot: LineSlot, exchange: Exchange) -> Generator[Piece, None, None]:
        """The pieces come from the child, those of a few milliseconds together."""
        read: list[Piece] = []
        cancellation = exchange.cancellation
        is_cancelled = functools.partial(self._is_cancelled, cancellation)
        try:
            prompt = exchange.prompt(is_cancelled)
            waits = exchange.options.queue
            self._access.take(slot, busy, waits=waits, is_cancelled=is_cancelled)
        except Interrupted:
            exchange.abandon()
            return
        number = self._next_number()
        process = self._begin(number, exchange, prompt)

        def on_report(told: tuple[int, int, bool]) -> None:
            num_decoded, num_tokens, is_cached = told
            self._reading = num_decoded, num_tokens
            (exchange.on_cached if is_cached else exchange.on_prompt)(*self._reading)

        try:
            with cancellation.obeyed(lambda: process.cancel(number, number)):
                while pieces := process.call("next_pieces", number, on_report=on_report):
                    for piece in pieces:
                        read.append(piece)
                        yield piece
        finally:
            try:
                if self._own_process.is_this():
                    num_read = sum(len(piece.token_ids) for piece in read)
                    exchange.result = process.ended(number, num_read)
            finally:
                if exchange.result is None:  # the child is lost, or its answer
                    exchange.result = _result_of(read, prompt, exchange)
                exchange.remember(*exchange.result)

    def _begin(self, number: int, exchange: Exchange, prompt: Prompt) -> ChildProcess:
        """Begin an answer: the child that does."""
        process, gone = self._running(), list(self._gone_owners)
        owner = None if exchange.owner is None else self._owner_number(exchange.owner)
        # As it was asked for, without a function of this process. Its turn has come; it waits
        # where the child, which was started again, has fewer at once.
        told = replace(
            exchange.options, sampling=exchange.sampling, changes={}, on_prompt=None, queue=True
        )
        question = prompt._replace(pictures=()), told, exchange.turn, owner
        digests = [picture.digest for picture in prompt.pictures]

        def begin() -> None:
            # The child has seen most pictures before, which are megabytes.
            if not process.call("begin", number, question, gone, (digests, ())):
                process.call("begin", number, question, gone, (digests, prompt.pictures))

        try:
            begin()
        except CrashedError:  # unnoticed, as where an RPC server left while it was idle
            process = self._running()
            begin()
        self._gone_owners.difference_update(gone)
        try:
            exchange.begin()  # once it is clear that the child refuses nothing
        except BaseException:
            process.ended(number, 0)
            raise
        return process

    def _next_number(self) -> int:
        """The number of the next answer or measurement."""
        with self._numbering:
            self._num_answers += 1
            return self._num_answers

    def _prepare(
        self, make_tokens: Callable[[CancelCheck], list[int]], *, owner: object
    ) -> None:
        if self._access.slots:
            return
        process = self._running()
        before = self._num_answers, self._num_cancels

        def is_cancelled() -> bool:
            return before != (self._num_answers, self._num_cancels)

        try:
            tokens = make_tokens(is_cancelled)
            if not tokens or is_cancelled():
                return
            process.call("prepare", tokens, self._owner_number(owner))
        except Interrupted:
            pass
        except EngineError:
            if not self._closed:
                raise

    def _keep_on_disk(self) -> None:
        """Have the child write the caches that the disk lacks, until an answer begins."""
        if not self._access.slots and self._process.is_running():  # a lost one has nothing
            self._process.tell("keep_on_disk")

    def _owner_number(self, owner: object) -> int:
        with self._numbering:
            number = self._owner_numbers.get(owner)
            if number is None:
                self._num_owners += 1
                number = self._owner_numbers[owner] = self._num_owners
                weakref.finalize(owner, self._gone_owners.add, number)
            return number

    @contextlib.contextmanager
    def _exclusively(self) -> Generator[ChildProcess, None, None]:
        """The child, while no answer may run. Raises EngineError if one does."""
        with self._access.slot() as slot:
            self._access.take(slot, in_use)
            yield self._running()

    def cancel(self) -> None:
        if self._own_process.is_this():
            self._num_cancels += 1
            self._process.cancel(0, self._num_answers)

    def _close(self) -> None:
        if not self._own_process.is_this():
            return
        self._access.end_here()
        with self._access.slot() as slot:
            self._access.take(slot, in_use, waits=True)
            with self._starting:  # `_running` may be about to start another process
                self._closed = True
                self._process.stop()


def _result_of(
    pieces: Sequence[Piece], prompt: Prompt, exchange: Exchange
) -> tuple[Reply, Said | None]:
    """The result of pieces that were read, where that of the process was lost with it.

    As `Exchange.remember` gets it. Of a call that an earlier answer began, only the end may be
    here.
    """
    meter = Meter(len(prompt.tokens), 0, 0.0)
    for piece in pieces:
        meter.tokens[piece.provenance] += len(piece.token_ids)
    said = Said.of([Part(each.text, each.is_thought, call=each.call) for each in pieces])
    logprobs = tuple(piece.logprobs for piece in pieces if piece.logprobs is not None)
    reply = Reply(
        text=said.text,
        token_ids=tuple(token for piece in pieces for token in piece.token_ids),
        finish_reason="cancelled",
        stats=meter.stats(0.0, None, None),
        seed=exchange.options.seed,
        rule=exchange.rule,
        logprobs=None if exchange.options.logprobs is None else logprobs,
        thoughts=said.thoughts,
        tool_calls=() if prompt.num_said else said.tool_calls,
        num_thought_tokens=sum(len(each.token_ids) for each in pieces if each.is_thought),
    )
    return reply, None if prompt.num_said else said


class RemoteVocabulary:
    """A `Vocabulary`. ask: what one returns, by its name and arguments."""

    def __init__(self, ask: Callable[..., Any], facts: dict[str, Any]) -> None:
        self._ask = ask
        self.bos, self.eos, self.add_bos = facts["bos"], facts["eos"], facts["add_bos"]

    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> str:
        return str(self._ask("detokenize", list(tokens), special=special))

    def tokenize(
        self, text: str, *, parse_special: bool, after: int | None = None
    ) -> list[int]:
        keywords = {"parse_special": parse_special, "after": after}
        return list(self._ask("tokenize", text, **keywords))

    def text(self, token: int) -> str:
        return str(self._ask("text", token))

    def control_texts(self) -> list[str]:
        return list(self._ask("control_texts"))

    def is_control(self, token: int) -> bool:
        return bool(self._ask("is_control", token))


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
