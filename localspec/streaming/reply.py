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
    from localspec.streaming.answer_text import Said


class StepFacts(NamedTuple):
    """A step of an answer: what its one decode of the target tried."""

    num_drafted: int
    """Draft tokens that were proposed."""

    num_accepted: int
    """Draft tokens that were accepted."""

    num_threads: int
    """The threads of the decode."""

    draft_off: DraftOff | None
    """Why nothing was proposed, where that has a reason."""


FinishReason = Literal["stop", "tool_calls", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of an answer that came with one token.

    text is the text that became certain with this token. While a character is incomplete or a
    stop string is possible, it is empty, and the text comes with a later token. The last piece
    may have such text without a token of its own.
    """

    text: str
    token_ids: tuple[int, ...]
    provenance: Provenance
    logprobs: TokenLogprobs | None = None
    """The token's log-probabilities, if asked for."""

    is_thought: bool = False
    """Whether this is a thought of the model, not speech, if the prompt was made from messages.
    The marks between thoughts and speech are in no text. A token that ends one and begins the
    other gives two pieces, the second without a token."""

    call: CallPiece | None = None
    """More of a call of a tool, in a piece without text."""

    step: StepFacts | None = field(
        default=None,
        repr=False,
        compare=False,
    )
    """Facts about the step, with its first token."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How an answer ended. With the pieces that were read it makes the reply."""

    finish_reason: FinishReason
    """Why it ended. "cancelled" also if the reader left pieces unread. Never "tool_calls": the
    reply knows whether there are calls."""

    stats: Stats
    """The statistics of the tokens that were read."""

    stopped_by: str | None = None
    """The stop string that ended it, if one did."""

    rest: tuple[Piece, ...] = ()
    """The text that waited for tokens that do not come, in pieces without tokens."""

    said: Said | None = None
    """The whole message, if an earlier answer gave the beginning of it."""


@dataclass(frozen=True)
class SaidJson:
    """A whole answer with a JSON schema.

    Pickling drops a class that cannot be pickled, as one that is defined in a function.
    """

    text: str
    """The JSON."""

    kind: Any
    """The class that made the schema, if one did."""

    def __reduce__(self) -> tuple[type[SaidJson], tuple[str, Any]]:
        try:
            pickle.dumps(self.kind)
        except Exception:  # kinds of objects raise different errors
            return SaidJson, (self.text, None)
        return SaidJson, (self.text, self.kind)

    @functools.cached_property
    def value(self) -> Any:
        """The object of the class, or the value. Raises ParseError."""
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

    If it continues an earlier answer, it has the new text, but the tool_calls of both.
    """

    text: str
    """The speech; if the answer was cut, without an incomplete character."""

    token_ids: tuple[int, ...]
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
    """The model's thoughts, if the prompt was made from messages. token_ids include the end
    token, if the model ended the answer itself."""

    tool_calls: tuple[ToolCall, ...] = ()
    """The whole calls of tools that the model asks for."""

    not_kept: tuple[str, ...] = ()
    """The keywords of the JSON schema that were not enforced, as ("format path",
    "uniqueItems")."""

    stopped_by: str | None = None
    """The stop string that ended it, or None."""

    num_thought_tokens: int = 0
    """How many of token_ids are thoughts."""

    _json: SaidJson | None = None

    @property
    def parsed(self) -> Any:
        """The value of an answer with a json_schema.

        An object of the schema's class, if it was made from one; else the value of the JSON,
        mostly a dict. None without a schema, if the answer was cut, also by a stop string, and
        if it calls tools or lacks its trigger.

        Raises ParseError if checks of the class fail that its schema does not have.
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
