"""The one record of an answer: what was asked, how far it is, and what became of it."""

from __future__ import annotations

import contextlib
import copy
import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from localspec.constraints.spec import ClassSchema
from localspec.errors import EngineError
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

MOST_AHEAD = 32  # pieces that an answer is ahead of its reader
READ_ON = 16  # pieces, after which another process hears how many were read


class State(enum.IntEnum):
    """The states of an answer. It passes them in this order, and may leave some out.

    One that is cancelled while it waits goes from ASKED to ENDING; one that is never read goes
    from NEW to OVER.
    """

    NEW = 0
    """Nobody has asked for its first piece, or for its start."""

    ASKED = 1
    """It waits in line."""

    ADMITTED = 2
    """Its turn has come: its prompt is made."""

    PRODUCING = 3
    """It has a lane. Its conversation knows of it."""

    ENDING = 4
    """It is being ended after what was read of it."""

    OVER = 5
    """Its reply is there, if it has one, and the engine is free."""


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """What an answer is to do, decided once."""

    sampling: SamplingParams
    """As the options say, or by default the engine's."""

    rule: RuleName
    """The rule by which draft tokens are judged."""

    policy: FixedDraftPolicy | None = None
    """How much to draft; None for the engine's policy."""

    kinds: frozenset[ProposerKind] | None = None
    """Who may propose; None for all."""

    scales: tuple[float, ...] = ()
    """Of each adapter of the target."""


class MadePrompt(NamedTuple):
    """A prompt, and what else its making has shown."""

    prompt: Prompt

    num_leaving: int = 0
    """The oldest turns of a conversation that are left out of it."""

    num_stable: int | None = None
    """The first tokens, which stay as the text grows; None for all of them."""


class PromptSource(Protocol):
    """What a prompt is made of, where the model is. It can be sent to another process."""

    def make(self, maker: Any, is_cancelled: CancelCheck) -> MadePrompt:
        """The prompt.

        Args:
            maker: the `chat.workshop.PromptWorkshop` of the model.
            is_cancelled: ends the work soon once it is true.

        Raises:
            LocalspecError: if the prompt cannot be made.
            Interrupted: once it is cancelled.
        """


class Reading(NamedTuple):
    """How far a prompt is read, for the reader of its answer."""

    num_decoded: int
    """Tokens that are decoded, those that were cached among them."""

    num_tokens: int
    """Tokens of the prompt."""

    is_first: bool = False
    """Whether nothing but cached tokens is decoded yet."""


@dataclass(frozen=True, slots=True)
class PromptFacts:
    """What is known of an answer once its prompt is made and it is about to begin."""

    made: MadePrompt
    """The prompt. Between processes it has no tokens where nobody asks for them."""

    num_tokens: int
    """Tokens of the prompt."""

    not_kept: tuple[str, ...] = ()
    """The parts of the JSON schema that the answer is not held to."""

    has_tool_words: bool = False
    """Whether tools are described in words: see `Prompt`."""


# What the reader of an answer gets: pieces; how far its prompt is read; what ended it,
# StopIteration at its own end; and at last, once it is over, its ending.
ForReader = Piece | Reading | BaseException | Ending


class AnswerRecord:
    """An answer, from the question to the reply.

    Subclasses make its prompt and hear of its beginning and end.

    Args:
        options: of the answer.
        source: what its prompt is made of; None where a subclass has its own `source`.
    """

    turn: int = 0
    """Makes the random numbers of each answer in a conversation its own."""

    owner: object | None = None
    """The conversation. Its text is kept while others are answered."""

    client: str = ""
    """Whose it is: no answer begins with a cached text of another client's."""

    finds_its_text: bool = False
    """Whether it continues the text that its prompt does, even another client's."""

    sends_prompt: bool = False
    """Whether the prompt's tokens are needed in the process that asks."""

    plan: AnswerPlan
    """What it is to do, once the engine has accepted it."""

    facts: PromptFacts | None = None
    """Known from PRODUCING on."""

    def __init__(self, options: AnswerOptions, source: PromptSource | None = None) -> None:
        self.options = options
        self._source = source
        self.state = State.NEW
        self.cancellation = Cancellation()
        self.outbox: Outbox[ForReader] = Outbox()
        self.place = Place(None)
        self.num_put = 0  # pieces for the reader, who may not have taken all of them
        self.read: list[Piece] = []  # pieces that the reader has taken
        self._num_read = 0  # tokens of these
        self.ending: Ending | None = None  # once it is over
        self._failure: Exception | None = None  # what it failed by
        self._reply: Reply | None = None

    def advance(self, state: State) -> None:
        """Go on to a state, unless a signal handler or another thread has gone further."""
        # In one statement without a call, between whose parts nobody else comes.
        self.state = state if state > self.state else self.state

    def leaves(self, before: State, state: State) -> bool:
        """Go on from one state to another. Returns False if it is not in the first."""
        with self.cancellation.lock:
            if self.state is not before:
                return False
            self.advance(state)
            return self.state is state

    @property
    def has_begun(self) -> bool:
        """Whether it was begun, so that it has a reply, however it ends."""
        return self.facts is not None

    @property
    def num_read(self) -> int:
        """Tokens of the pieces that were read."""
        return self._num_read

    @property
    def is_ahead(self) -> bool:
        """Whether so many pieces are unread that it should pause."""
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
        """Note that a piece is read. Returns False for one that comes after the wish to end."""
        with self.cancellation.lock:
            if self.cancellation.is_requested:
                return False
            self.read.append(piece)
            self._num_read += len(piece.token_ids)
            return True

    def start_producing(self, facts: PromptFacts) -> None:
        """The prompt is made: start to produce. Raises what refuses it."""
        self.on_begin(facts.made)
        self.facts = facts
        self.advance(State.PRODUCING)

    def conclude(self, ending: Ending | None) -> Ending:
        """Make the reply of the pieces that were read, and of how the answer ended.

        Args:
            ending: None for an answer that has not begun, or whose process is lost.

        Returns:
            The ending, for the reader.
        """
        is_lost = ending is None
        if ending is None:
            ending = _lost(self.read, 0 if self.facts is None else self.facts.num_tokens)
        self.ending = ending
        if self.facts is None and not self.cancellation.is_requested:
            return ending  # it was refused, and has no reply
        pieces = [*self.read, *ending.rest]
        is_continued = self.facts is not None and self.facts.made.prompt.num_said > 0
        said = None if is_lost and is_continued else ending.said or _said_by(pieces)
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
        """What the answer failed by, for a reader to raise again; None if it did not fail."""
        return copy.copy(self._failure)

    def fail(self, error: BaseException) -> None:
        """Keep what the answer has failed by.

        Ctrl-C is not kept. Nor is the traceback of any error, which would keep its readers.
        """
        if isinstance(error, Exception):
            with contextlib.suppress(Exception):  # an application's own may refuse a copy
                self._failure = copy.copy(error)

    def reply(self) -> Reply:
        """The reply of an answer that is over. Raises what refused the answer, if it was."""
        if self._reply is None:
            raise self.failure or EngineError(
                "there is no reply: the answer failed before it began",
                "See the error that its first reader got, and ask again.",
            )
        return self._reply

    def source(self) -> PromptSource:
        """What the prompt is made of, asked for once the answer is admitted. It may refuse."""
        assert self._source is not None
        return self._source

    def on_begin(self, made: MadePrompt) -> None:
        """Called when the answer begins, in the thread that produces it. It may refuse."""

    def on_reading(self, reading: Reading) -> None:
        """Called in the reader's thread. What it raises ends the answer."""
        on_prompt = self.options.on_prompt
        if on_prompt is not None and not reading.is_first:
            on_prompt(reading.num_decoded, reading.num_tokens)

    def on_end(self, reply: Reply, said: Said | None) -> None:
        """Called when an answer that had begun has ended, in any way.

        Args:
            reply: the reply.
            said: the whole message, with the part of it that an earlier answer gave; None where
                that part was lost with a process.
        """


def _said_by(pieces: Sequence[Piece]) -> Said:
    return Said.of([Part(each.text, each.is_thought, call=each.call) for each in pieces])


def _reply(
    record: AnswerRecord, pieces: Sequence[Piece], ending: Ending, said: Said | None
) -> Reply:
    """The sum of the pieces."""
    new = _said_by(pieces)
    has_logprobs = record.options.logprobs is not None
    logprobs = tuple(each.logprobs for each in pieces if each.logprobs is not None)
    num_thought = sum(len(each.token_ids) for each in pieces if each.is_thought)
    tool_calls = () if said is None else said.tool_calls
    finish_reason = ending.finish_reason
    if finish_reason == "stop" and tool_calls:
        finish_reason = "tool_calls"
    said_json = None
    if finish_reason == "stop" and said is not None and ending.stopped_by is None:
        said_json = _said_json(record.options, said.text)
    return Reply(
        text=new.text,
        token_ids=tuple(_token_ids(pieces)),
        finish_reason=finish_reason,
        stats=ending.stats,
        seed=record.options.seed,
        rule=record.plan.rule,
        logprobs=logprobs if has_logprobs else None,
        thoughts=new.thoughts,
        tool_calls=tool_calls,
        not_kept=() if record.facts is None else record.facts.not_kept,
        stopped_by=ending.stopped_by,
        num_thought_tokens=num_thought,
        _json=said_json,
    )


def _said_json(options: AnswerOptions, text: str) -> SaidJson | None:
    """The part of a whole answer that fits its JSON schema, if it has both.

    Args:
        options: of the answer.
        text: what was said, with what an earlier answer gave of it.
    """
    if options.json_schema is None:
        return None
    begins = [
        text.index(trigger) + len(trigger) for trigger in options.triggers if trigger in text
    ]
    if options.triggers and not begins:
        return None
    schema = options.json_schema
    kind = schema.kind if isinstance(schema, ClassSchema) else None
    return SaidJson(text[min(begins, default=0) :], kind)


def _token_ids(pieces: Sequence[Piece]) -> Iterator[int]:
    for piece in pieces:
        yield from piece.token_ids


def _lost(read: Sequence[Piece], num_prompt_tokens: int) -> Ending:
    """The ending of an answer of which nothing but the pieces that were read is left."""
    meter = Meter(num_prompt_tokens, 0, 0.0)
    for piece in read:
        meter.tokens[piece.provenance] += len(piece.token_ids)
    return Ending("cancelled", meter.stats(0.0, None, None))
