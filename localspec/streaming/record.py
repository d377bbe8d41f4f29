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
from localspec.streaming.answer_text import Prompt, WholeMessage
from localspec.streaming.cancellation import CancelCheck, Cancellation
from localspec.streaming.line import Place
from localspec.streaming.outbox import Outbox
from localspec.streaming.reply import AnswerJson, Ending, Piece, Reply
from localspec.streaming.thinking import Part
from localspec.tools.tool import ToolCall

MOST_AHEAD = 32  # unread pieces at which an answer pauses
# An engine in a process of its own gets the number of read pieces after every 16 of them.
PIECES_PER_REPORT = 16


class State(enum.IntEnum):
    """The states of an answer, in their order. An answer never goes back, and may skip states.

    An answer that is cancelled while it waits goes from ASKED to ENDING. An answer that is
    never read goes from NEW to OVER.
    """

    NEW = 0
    """The reader has not asked for its first piece or its start."""

    ASKED = 1
    """The answer waits in line."""

    ADMITTED = 2
    """Its turn in the line has come, and its prompt is being made."""

    PRODUCING = 3
    """It has a lane, and `on_begin` has notified its conversation."""

    ENDING = 4
    """The engine ends the answer after the last piece that was read."""

    OVER = 5
    """The engine has finished with the answer. Its reply is made, unless it was refused."""


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
    """A prompt, with facts that are known once it is made."""

    prompt: Prompt

    num_dropped_turns: int = 0
    """How many of the conversation's oldest turns are left out of the prompt."""

    num_stable: int | None = None
    """How many of the prompt's first tokens stay the same while the user's text grows; None for
    all of them."""


class PromptSource(Protocol):
    """Makes a prompt in the process that has the model. It is pickled to get there."""

    def make(self, maker: Any, is_cancelled: CancelCheck) -> MadePrompt:
        """Make the prompt.

        Args:
            maker: The `chat.workshop.PromptWorkshop` of the model.
            is_cancelled: Called now and then. Once it returns True, the work ends.

        Raises:
            LocalspecError: If the prompt cannot be made.
            Interrupted: If `is_cancelled` has returned True.
        """


class Reading(NamedTuple):
    """Progress of decoding a prompt, for the reader of its answer."""

    num_in_cache: int
    """Tokens of the prompt that are in the cache: decoded now, or by an earlier answer."""

    num_tokens: int
    """All tokens of the prompt."""

    is_first: bool = False
    """Whether this is the first report, before any token of the prompt is decoded."""


@dataclass(frozen=True, slots=True)
class PromptFacts:
    """Facts about an answer whose prompt is made, before it begins."""

    made: MadePrompt
    """The prompt. From another process it comes without its tokens, unless the record has
    `sends_prompt`."""

    num_tokens: int
    """Tokens of the prompt."""

    not_kept: tuple[str, ...] = ()
    """The parts of the JSON schema that the constraint does not enforce."""

    has_tool_words: bool = False
    """Whether tools are described in words: see `Prompt`."""


# Items for the reader of an answer: its pieces, the progress of its prompt, the error that
# ended it (StopIteration if it was produced to its end), and last, once it is over, its ending.
ReaderItem = Piece | Reading | BaseException | Ending


class AnswerRecord:
    """An answer, from the question to the reply.

    Subclasses may choose the prompt's source, and are notified when the answer begins and ends.

    Args:
        options: The answer's options.
        source: Makes its prompt; None if a subclass overrides `source`.
    """

    turn_number: int = 0
    """The number of the conversation's turn, a part of every random number's address."""

    owner: object | None = None
    """The conversation, whose KV cache is kept while other conversations get answers; None
    without a conversation."""

    client: str = ""
    """The client that asks. An answer never reuses the cached text of another client."""

    finds_its_text: bool = False
    """Whether the engine searches its earlier texts for the one that the prompt continues: for
    clients that send each conversation as a whole."""

    sends_prompt: bool = False
    """Whether the process that asks needs the prompt's tokens."""

    plan: AnswerPlan
    """Set when the engine accepts the record."""

    facts: PromptFacts | None = None
    """Set from PRODUCING on."""

    def __init__(self, options: AnswerOptions, source: PromptSource | None = None) -> None:
        self.options = options
        self._source = source
        self.state = State.NEW
        self.cancellation = Cancellation()
        self.outbox: Outbox[ReaderItem] = Outbox()
        self.place = Place(None)
        self.num_put_pieces = 0  # pieces in the outbox or read
        self.read_pieces: list[Piece] = []
        self._num_read_tokens = 0  # tokens of `read_pieces`
        self.ending: Ending | None = None  # set once the answer is over
        self._failure: Exception | None = None  # a copy of the error by which it failed
        self._reply: Reply | None = None

    def advance(self, state: State) -> None:
        """Advance to a state, unless the answer is already in a later one."""
        # One statement without a call: no signal handler or other thread can interrupt it.
        self.state = state if state > self.state else self.state

    def try_advance(self, expected: State, state: State) -> bool:
        """Advance to a state if the answer is in the expected one. Returns whether it did."""
        with self.cancellation.lock:
            if self.state is not expected:
                return False
            self.advance(state)
            return self.state is state  # False if a signal handler has gone further

    @property
    def has_begun(self) -> bool:
        """Whether production of the answer has begun. Then it gets a reply, however it ends."""
        return self.facts is not None

    @property
    def num_read_tokens(self) -> int:
        """How many tokens the reader has read."""
        return self._num_read_tokens

    @property
    def is_ahead(self) -> bool:
        """Whether production should pause, since `MOST_AHEAD` pieces are unread."""
        return self.num_put_pieces - self.num_read_pieces >= MOST_AHEAD

    @property
    def num_read_pieces(self) -> int:
        """How many pieces the reader has read."""
        return len(self.read_pieces)

    def put(self, piece: Piece) -> None:
        """Give the reader a piece."""
        self.num_put_pieces += 1
        self.outbox.put(piece)

    def try_read(self, piece: Piece) -> bool:
        """Count a piece as read, unless the answer is cancelled. Returns whether it counts."""
        with self.cancellation.lock:
            if self.cancellation.is_requested:
                return False
            self.read_pieces.append(piece)
            self._num_read_tokens += len(piece.token_ids)
            return True

    def start_producing(self, facts: PromptFacts) -> None:
        """Note that the prompt is made and production starts.

        Raises what `on_begin` raises; then the answer has not begun.
        """
        self.on_begin(facts.made)
        self.facts = facts
        self.advance(State.PRODUCING)

    def conclude(self, ending: Ending | None) -> Ending:
        """Make the reply from the pieces that were read and the ending, and call `on_end`.

        An answer that was refused gets no reply. An answer that was cancelled before it began
        gets one, but `on_end` is not called. `on_end` gets no message if a part of it is lost.

        Args:
            ending: None for an answer that has not begun, or whose process is lost.

        Returns:
            The ending, made here if there was none.
        """
        num_prompt_tokens = 0
        is_continued = False
        if self.facts is not None:
            num_prompt_tokens = self.facts.num_tokens
            is_continued = self.facts.made.prompt.num_said > 0
        # This answer continues the message of an earlier one, whose text only the process had.
        is_part_lost = ending is None and is_continued
        if ending is None:
            ending = _ending_without_process(self.read_pieces, num_prompt_tokens)
        self.ending = ending
        is_refused = self.facts is None and not self.cancellation.is_requested
        if is_refused:
            return ending
        pieces = [*self.read_pieces, *ending.last_pieces]
        message = None
        if not is_part_lost:
            message = ending.message or _message_of(pieces)
        self._reply = _make_reply(self, pieces, ending, message)
        if self.facts is not None:
            self.on_end(self._reply, message)
        return ending

    @property
    def reply_if_over(self) -> Reply | None:
        """The reply; None if the answer is not over, or was refused."""
        return self._reply

    @property
    def failure(self) -> Exception | None:
        """A new copy of the error by which the answer failed; None if it has not failed."""
        return copy.copy(self._failure)

    def fail(self, error: BaseException) -> None:
        """Keep a copy of the error by which the answer has failed.

        Ctrl-C is not kept. The copy has no traceback, which would keep its frames alive.
        """
        if isinstance(error, Exception):
            with contextlib.suppress(Exception):  # an application's error may refuse a copy
                self._failure = copy.copy(error)

    def reply(self) -> Reply:
        """The reply of an answer that is over. Raises the error if the answer was refused."""
        if self._reply is None:
            raise self.failure or EngineError(
                "there is no reply: the answer failed before it began",
                "See the error that its first reader got, and ask again.",
            )
        return self._reply

    def source(self) -> PromptSource:
        """The source of the prompt. Called when the answer is admitted.

        An override may raise an error, which refuses the answer.
        """
        assert self._source is not None
        return self._source

    def on_begin(self, made: MadePrompt) -> None:
        """Called in the producing thread when the answer begins.

        An override may raise an error, which refuses the answer.
        """

    def on_reading(self, reading: Reading) -> None:
        """Tell `options.on_prompt` the progress of the prompt. Called in the reader's thread.

        An exception in `on_prompt` ends the answer.
        """
        on_prompt = self.options.on_prompt
        if on_prompt is not None and not reading.is_first:
            on_prompt(reading.num_in_cache, reading.num_tokens)

    def on_end(self, reply: Reply, message: WholeMessage | None) -> None:
        """Called when an answer that had begun has ended, in any way.

        Args:
            reply: The reply.
            message: The whole message, with the part that an earlier answer gave; None if that
                part was lost with a process.
        """


def _message_of(pieces: Sequence[Piece]) -> WholeMessage:
    parts = [Part(piece.text, piece.is_thought, call=piece.call) for piece in pieces]
    return WholeMessage.of(parts)


def _make_reply(
    record: AnswerRecord,
    pieces: Sequence[Piece],
    ending: Ending,
    message: WholeMessage | None,
) -> Reply:
    """The reply: the joined texts and tokens of the pieces, with the facts of the ending.

    Args:
        record: The answer.
        pieces: All its pieces.
        ending: How it ended.
        message: The whole message; None if its earlier part was lost with a process.
    """
    new_message = _message_of(pieces)  # without the part that an earlier answer gave
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
    if message is not None:
        tool_calls = message.tool_calls
    not_kept: tuple[str, ...] = ()
    if record.facts is not None:
        not_kept = record.facts.not_kept
    finish_reason = ending.finish_reason
    if finish_reason == "stop" and tool_calls:
        finish_reason = "tool_calls"
    is_whole = finish_reason == "stop" and ending.stopped_by is None
    json = None
    if is_whole and message is not None:
        json = _json_of(record.options, message.text)
    return Reply(
        text=new_message.text,
        token_ids=tuple(token_ids),
        finish_reason=finish_reason,
        stats=ending.stats,
        seed=record.options.seed,
        rule=record.plan.rule,
        logprobs=None if record.options.logprobs is None else tuple(logprobs),
        thoughts=new_message.thoughts,
        tool_calls=tool_calls,
        not_kept=not_kept,
        stopped_by=ending.stopped_by,
        num_thought_tokens=num_thought,
        _json=json,
    )


def _json_of(options: AnswerOptions, text: str) -> AnswerJson | None:
    """The part of a whole answer that its JSON schema constrains.

    Args:
        options: The answer's options.
        text: The speech, with the part that an earlier answer gave.

    Returns:
        The text after the first trigger, or all of it if the options have no trigger; None
        without a schema, and if no trigger is in the text.
    """
    schema = options.json_schema
    if schema is None:
        return None
    trigger_ends = []
    for trigger in options.triggers:
        if trigger in text:
            trigger_ends.append(text.index(trigger) + len(trigger))
    if options.triggers and not trigger_ends:
        return None
    kind = None
    if isinstance(schema, ClassSchema):
        kind = schema.kind
    json_begin = min(trigger_ends, default=0)
    return AnswerJson(text[json_begin:], kind)


def _ending_without_process(read_pieces: Sequence[Piece], num_prompt_tokens: int) -> Ending:
    """The ending of an answer whose process is lost, or which has not begun.

    Its statistics count the tokens that were read, since nothing else is known.
    """
    meter = Meter(num_prompt_tokens, 0, 0.0)
    for piece in read_pieces:
        meter.tokens[piece.provenance] += len(piece.token_ids)
    return Ending("cancelled", meter.stats(0.0, None, None))
