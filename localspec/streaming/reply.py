"""Pieces of an answer, and the whole reply."""

from __future__ import annotations

import functools
import pickle
import reprlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from localspec.errors import ParseError
from localspec.sampling.logprobs import TokenLogprobs
from localspec.speculative.metrics import Provenance, Stats
from localspec.speculative.policy_api import DraftOff, RuleName
from localspec.tools.python_types import class_object
from localspec.tools.tool import CallPiece, ToolCall, json_text, json_value

if TYPE_CHECKING:
    from localspec.streaming.answer_text import WholeMessage


class StepFacts(NamedTuple):
    """Facts about a step of an answer, which is one decode of the target."""

    num_drafted: int
    """Draft tokens that were proposed."""

    num_accepted: int
    """Draft tokens that were accepted."""

    num_threads: int
    """How many threads made the decode."""

    draft_off: DraftOff | None
    """Why nothing was proposed; None if something was, or if no reason is known."""


FinishReason = Literal["stop", "tool_calls", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of an answer that came with one token.

    text is the text that became certain with this token. While a character is incomplete, or
    the text may be the beginning of a stop string, text is empty, and a later piece has it. The
    last piece may have such text without a token of its own.
    """

    text: str
    token_ids: tuple[int, ...]
    provenance: Provenance
    logprobs: TokenLogprobs | None = None
    """The token's log-probabilities, if asked for."""

    is_thought: bool = False
    """Whether this is a thought of the model, not speech. Only in answers to messages. The
    marks between thoughts and speech are in no text. A token that ends a thought and begins
    speech gives two pieces, the second without a token."""

    call: CallPiece | None = None
    """The next part of a call of a tool, in a piece without text."""

    step: StepFacts | None = field(
        default=None,
        repr=False,
        compare=False,
    )
    """Facts about the step. Only the piece with the step's first token has them."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How an answer ended. With the pieces that were read it makes the reply."""

    finish_reason: FinishReason
    """Why it ended. "cancelled" also if the reader left tokens unread. Never "tool_calls",
    which only the reply says."""

    stats: Stats
    """The statistics of the tokens that were read."""

    stopped_by: str | None = None
    """The stop string that ended it, if one did."""

    last_pieces: tuple[Piece, ...] = ()
    """Pieces without tokens that follow the pieces that were read: further pieces of the last
    token, and text that waited for tokens that did not come."""

    message: WholeMessage | None = None
    """The whole message, if an earlier answer gave the beginning of it."""


@dataclass(frozen=True)
class AnswerJson:
    """The JSON of a whole answer that has a JSON schema.

    Pickling drops `kind` if it cannot be pickled, for example a class defined in a function.
    """

    text: str
    """The JSON."""

    kind: Any
    """The class that made the schema, if one did."""

    def __reduce__(self) -> tuple[type[AnswerJson], tuple[str, Any]]:
        try:
            pickle.dumps(self.kind)
        except Exception:  # different objects raise different errors
            return AnswerJson, (self.text, None)
        return AnswerJson, (self.text, self.kind)

    @functools.cached_property
    def value(self) -> Any:
        """An object of the class, or without a class the JSON's value. Raises ParseError."""
        try:
            value = json_value(self.text)
        except ValueError as error:
            raise ParseError(f"the answer is not JSON: {error}", "Ask again.") from error
        if self.kind is None:
            return value
        return class_object(self.kind, json_text(value))


@dataclass(frozen=True, slots=True, repr=False)
class Reply:
    """A whole answer. `str(reply)` is its text.

    If it continues an earlier answer, it has only the new text, but the tool_calls of both.
    """

    text: str
    """The speech; if the answer was cut, without an incomplete character."""

    token_ids: tuple[int, ...]
    """The answer's tokens, with the end token if the model ended the answer."""

    finish_reason: FinishReason
    """"stop" (end token or stop string), "tool_calls" (the same, where the answer calls
    tools), "length" (max_tokens or the context), "cancelled"."""

    stats: Stats
    seed: int | None
    """The seed that was asked for, or None."""

    rule: RuleName
    """The rule by which draft tokens were judged."""

    logprobs: tuple[TokenLogprobs, ...] | None = None
    """One for each of token_ids, or None if they were not asked for."""

    thoughts: str = ""
    """The model's thoughts, if the prompt was made from messages."""

    tool_calls: tuple[ToolCall, ...] = ()
    """The complete calls of tools that the model asks for."""

    not_kept: tuple[str, ...] = ()
    """The keywords of the JSON schema that were not enforced, as ("format path",
    "uniqueItems")."""

    stopped_by: str | None = None
    """The stop string that ended it, or None."""

    num_thought_tokens: int = 0
    """How many of token_ids are thoughts."""

    _json: AnswerJson | None = None

    @property
    def parsed(self) -> Any:
        """The value of an answer with a json_schema.

        An object of the class that made the schema, if one did; else the value of the JSON,
        usually a dict. None without a schema, for an answer that was cut or ended at a stop
        string, and for one that calls tools or lacks its trigger.

        Raises ParseError if the text is not JSON, or if the value fails a check of the class
        that its schema lacks.
        """
        if self._json is None:
            return None
        return self._json.value

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        num_tokens = len(self.token_ids)
        tokens = f"{num_tokens} tokens"
        if num_tokens == 1:
            tokens = "1 token"
        return f"<Reply {reprlib.repr(self.text)}, {tokens}, {self.finish_reason}>"
