"""The one record of an answer: its question, its state, and its result."""

from __future__ import annotations

import contextlib
import copy
import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from localspec.constraints.spec import ClassSchema
from localspec.errors import EngineError
from localspec.sampling.logprobs import TokenLogprobs
from localspec.sampling.params import SamplingParams
from localspec.speculative.metrics import Meter
from localspec.speculative.policy_api import FixedDraftPolicy, ProposerKind, RuleName
from localspec.streaming.answer_options import AnswerOptions
from localspec.streaming.answer_text import Prompt, Said
from localspec.streaming.cancellation import CancelCheck, Cancellation
from localspec.streaming.line import Place
from localspec.streaming.outbox import Outbox
from localspec.streaming.reply import Ending, Piece, Reply, SaidJson
from localspec.streaming.thinking import Part
from localspec.tools.tool import ToolCall

MOST_AHEAD = 32  # unread pieces at which an answer pauses
READ_ON = 16  # read pieces after which the other process gets their number


class State(enum.IntEnum):
    """The states of an answer. It passes them in this order, and may leave some out.

    An answer that is cancelled while it waits goes from ASKED to ENDING. One that is never read
    goes from NEW to OVER.
    """

    NEW = 0
    """The reader has not asked for its first piece or its start."""

    ASKED = 1
    """It waits in line."""

    ADMITTED = 2
    """Its turn has come: its prompt is made."""

    PRODUCING = 3
    """It has a lane, and its conversation was notified."""

    ENDING = 4
    """It is being ended after the pieces that were read."""

    OVER = 5
    """Its reply is there, if it has one, and the engine is free."""


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """Settings of an answer that are decided once, when it is asked for."""

    sampling: SamplingParams
    """The sampling settings of the options, or by default the engine's."""

    rule: RuleName
    """The rule by which draft tokens are judged."""

    policy: FixedDraftPolicy | None = None
    """How much to draft; None for the engine's policy."""

    kinds: frozenset[ProposerKind] | None = None
    """The kinds of proposers that may propose; None for all."""

    scales: tuple[float, ...] = ()
    """The scale of each adapter of the target."""


class MadePrompt(NamedTuple):
    """A prompt, with facts that its making has shown."""

    prompt: Prompt

    num_leaving: int = 0
    """How many of a conversation's oldest turns it leaves out."""

    num_stable: int | None = None
    """How many of its first tokens stay as the text grows; None for all of them."""


class PromptSource(Protocol):
    """Makes a prompt in the process that has the model. It can be sent to that process."""

    def make(self, maker: Any, is_cancelled: CancelCheck) -> MadePrompt:
        """The prompt.

        Args:
            maker: The `chat.workshop.PromptWorkshop` of the model.
            is_cancelled: Ends the work soon once it returns True.

        Raises:
            LocalspecError: If the prompt cannot be made.
            Interrupted: Once it is cancelled.
        """


class Reading(NamedTuple):
    """Progress of decoding a prompt, for the reader of its answer."""

    num_decoded: int
    """Tokens that are decoded, including tokens that were cached."""

    num_tokens: int
    """Tokens of the prompt."""

    is_first: bool = False
    """Whether only cached tokens are decoded yet."""


@dataclass(frozen=True, slots=True)
class PromptFacts:
    """Facts about an answer whose prompt is made, before it begins."""

    made: MadePrompt
    """The prompt; from another process without tokens, unless `sends_prompt` is set."""

    num_tokens: int
    """Tokens of the prompt."""

    not_kept: tuple[str, ...] = ()
    """The parts of the JSON schema that the answer is not held to."""

    has_tool_words: bool = False
    """Whether tools are described in words: see `Prompt`."""


# Items for the reader of an answer: its pieces, the progress of its prompt, the error that
# ended it (StopIteration at its own end), and last, once it is over, its ending.
ForReader = Piece | Reading | BaseException | Ending


class AnswerRecord:
    """An answer, from the question to the reply.

    Subclasses may make its prompt, and are notified of its beginning and end.

    Args:
        options: The answer's options.
        source: Makes its prompt; None if a subclass overrides `source`.
    """

    turn: int = 0
    """Makes the random numbers of each answer in a conversation its own."""

    owner: object | None = None
    """The conversation, whose text is kept while others are answered; None without one."""

    client: str = ""
    """The client that asks. No answer begins with a cached text of another client."""

    finds_its_text: bool = False
    """Whether the engine looks for the answered text that its prompt continues."""

    sends_prompt: bool = False
    """Whether the prompt's tokens are needed in the process that asks."""

    plan: AnswerPlan
    """Set when the engine accepts the record."""

    facts: PromptFacts | None = None
    """Set from PRODUCING on."""

    def __init__(self, options: AnswerOptions, source: PromptSource | None = None) -> None:
        self.options = options
        self._source = source
        self.state = State.NEW
        self.cancellation = Cancellation()
        self.outbox: Outbox[ForReader] = Outbox()
        self.place = Place(None)
        self.num_put = 0  # pieces for the reader, also those that were not taken yet
        self.read: list[Piece] = []  # pieces that the reader has taken
        self._num_read = 0  # tokens of these pieces
        self.ending: Ending | None = None  # set once the answer is over
        self._failure: Exception | None = None  # the error by which it failed
        self._reply: Reply | None = None

    def advance(self, state: State) -> None:
        """Advance to a state, unless a signal handler or another thread has gone further."""
        # One statement without a call: no signal handler or thread can come in between.
        self.state = state if state > self.state else self.state

    def leaves(self, before: State, state: State) -> bool:
        """Advance from one state to another. Returns False if it is not in the first."""
        with self.cancellation.lock:
            if self.state is not before:
                return False
            self.advance(state)
            return self.state is state

    @property
    def has_begun(self) -> bool:
        """Whether the answer has begun. If so, it has a reply, however it ends."""
        return self.facts is not None

    @property
    def num_read(self) -> int:
        """Tokens of the pieces that were read."""
        return self._num_read

    @property
    def is_ahead(self) -> bool:
        """Whether it should pause: `MOST_AHEAD` pieces are unread."""
        return self.num_put - self.num_taken >= MOST_AHEAD

    @property
    def num_taken(self) -> int:
        """Pieces that were read."""
        return len(self.read)

    def put(self, piece: Piece) -> None:
        """Give the reader a piece."""
        self.num_put += 1
        self.outbox.put(piece)

    def takes(self, piece: Piece) -> bool:
        """Note that a piece is read. Returns False for a piece after the cancellation."""
        with self.cancellation.lock:
            if self.cancellation.is_requested:
                return False
            self.read.append(piece)
            self._num_read += len(piece.token_ids)
            return True

    def start_producing(self, facts: PromptFacts) -> None:
        """Start producing: the prompt is made. Raises what `on_begin` raises."""
        self.on_begin(facts.made)
        self.facts = facts
        self.advance(State.PRODUCING)

    def conclude(self, ending: Ending | None) -> Ending:
        """Make the reply, from the pieces that were read and the ending.

        Args:
            ending: None for an answer that has not begun, or whose process is lost.

        Returns:
            The ending, for the reader.
        """
        num_prompt_tokens = 0
        is_continued = False
        if self.facts is not None:
            num_prompt_tokens = self.facts.num_tokens
            is_continued = self.facts.made.prompt.num_said > 0
        is_lost = ending is None
        if ending is None:
            ending = _lost(self.read, num_prompt_tokens)
        self.ending = ending
        if self.facts is None and not self.cancellation.is_requested:
            return ending  # it was refused, and has no reply
        pieces = [*self.read, *ending.rest]
        said = None
        if not (is_lost and is_continued):
            said = ending.said or _said_by(pieces)
        self._reply = _reply(self, pieces, ending, said)
        if self.facts is not None:
            self.on_end(self._reply, said)
        return ending

    @property
    def reply_if_over(self) -> Reply | None:
        """The reply, if there is one yet."""
        return self._reply

    @property
    def failure(self) -> Exception | None:
        """The error by which the answer failed, to raise again; None if it has not failed."""
        return copy.copy(self._failure)

    def fail(self, error: BaseException) -> None:
        """Keep the error by which the answer has failed.

        Ctrl-C is not kept. Nor is the traceback of an error, which would keep its frames alive.
        """
        if isinstance(error, Exception):
            with contextlib.suppress(Exception):  # an application's error may refuse a copy
                self._failure = copy.copy(error)

    def reply(self) -> Reply:
        """The reply of an answer that is over. Raises the error that refused the answer."""
        if self._reply is None:
            raise self.failure or EngineError(
                "there is no reply: the answer failed before it began",
                "See the error that its first reader got, and ask again.",
            )
        return self._reply

    def source(self) -> PromptSource:
        """The source of the prompt. Called once the answer is admitted; may raise to refuse."""
        assert self._source is not None
        return self._source

    def on_begin(self, made: MadePrompt) -> None:
        """Called in the producing thread when the answer begins; may raise to refuse."""

    def on_reading(self, reading: Reading) -> None:
        """Called in the reader's thread. An exception ends the answer."""
        on_prompt = self.options.on_prompt
        if on_prompt is not None and not reading.is_first:
            on_prompt(reading.num_decoded, reading.num_tokens)

    def on_end(self, reply: Reply, said: Said | None) -> None:
        """Called when an answer that had begun has ended, in any way.

        Args:
            reply: The reply.
            said: The whole message, with the part that an earlier answer gave; None if that
                part was lost with a process.
        """


def _said_by(pieces: Sequence[Piece]) -> Said:
    parts = [Part(piece.text, piece.is_thought, call=piece.call) for piece in pieces]
    return Said.of(parts)


def _reply(
    record: AnswerRecord,
    pieces: Sequence[Piece],
    ending: Ending,
    said: Said | None,
) -> Reply:
    """The sum of the pieces."""
    new = _said_by(pieces)
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] = []
    num_thought = 0
    for piece in pieces:
        token_ids += piece.token_ids
        if piece.logprobs is not None:
            logprobs.append(piece.logprobs)
        if piece.is_thought:
            num_thought += len(piece.token_ids)
    tool_calls: tuple[ToolCall, ...] = ()
    if said is not None:
        tool_calls = said.tool_calls
    not_kept: tuple[str, ...] = ()
    if record.facts is not None:
        not_kept = record.facts.not_kept
    finish_reason = ending.finish_reason
    if finish_reason == "stop" and tool_calls:
        finish_reason = "tool_calls"
    said_json = None
    if finish_reason == "stop" and said is not None and ending.stopped_by is None:
        said_json = _said_json(record.options, said.text)
    return Reply(
        text=new.text,
        token_ids=tuple(token_ids),
        finish_reason=finish_reason,
        stats=ending.stats,
        seed=record.options.seed,
        rule=record.plan.rule,
        logprobs=None if record.options.logprobs is None else tuple(logprobs),
        thoughts=new.thoughts,
        tool_calls=tool_calls,
        not_kept=not_kept,
        stopped_by=ending.stopped_by,
        num_thought_tokens=num_thought,
        _json=said_json,
    )


def _said_json(options: AnswerOptions, text: str) -> SaidJson | None:
    """The part of a whole answer that fits its JSON schema; None without a schema or a trigger.

    Args:
        options: The answer's options.
        text: The speech, with the part that an earlier answer gave.
    """
    schema = options.json_schema
    if schema is None:
        return None
    begins = []
    for trigger in options.triggers:
        if trigger in text:
            begins.append(text.index(trigger) + len(trigger))
    if options.triggers and not begins:
        return None
    kind = None
    if isinstance(schema, ClassSchema):
        kind = schema.kind
    begin = min(begins, default=0)
    return SaidJson(text[begin:], kind)


def _lost(read: Sequence[Piece], num_prompt_tokens: int) -> Ending:
    """The ending of an answer whose process is lost: only the read pieces are known."""
    meter = Meter(num_prompt_tokens, 0, 0.0)
    for piece in read:
        meter.tokens[piece.provenance] += len(piece.token_ids)
    return Ending("cancelled", meter.stats(0.0, None, None))
