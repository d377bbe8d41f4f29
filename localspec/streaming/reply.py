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
    """A step of an answer: what was tried in one decode of the target."""

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

    text is whatever became certain with this token: it is empty while a character is incomplete
    or a stop string is possible, and then comes with a later token. The last piece may bring
    such text without a token of its own.
    """

    text: str
    token_ids: tuple[int, ...]
    provenance: Provenance
    logprobs: TokenLogprobs | None = None
    """The token's, if asked for."""

    is_thought: bool = False
    """Whether the model thought it rather than said it, where the prompt was made from
    messages. The marks between the two are in no text. A token that ends the one and begins
    the other gives two pieces, the second without a token."""

    call: CallPiece | None = None
    """More of a call of a tool, in a piece without text."""

    step: StepFacts | None = field(default=None, repr=False, compare=False)
    """What the step tried, with its first token."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How an answer ended. With the pieces that were read it makes the reply."""

    finish_reason: FinishReason
    """Why it ended: "cancelled" also where the reader did not read what was there. Never
    "tool_calls": the reply knows whether there are calls.
    """

    stats: Stats
    """Of the tokens that were read."""

    stopped_by: str | None = None
    """The stop string that ended it, if one did."""

    rest: tuple[Piece, ...] = ()
    """The text that was held for tokens that do not come, in pieces without tokens."""

    said: Said | None = None
    """The whole message, where an earlier answer gave the beginning of it."""


@dataclass(frozen=True)
class SaidJson:
    """A whole answer that was to fit a JSON schema.

    A pickled one has no class where that cannot be pickled, as one that a function defines.
    """

    text: str
    """The JSON."""

    kind: Any
    """The class that made the schema, if one did."""

    def __reduce__(self) -> tuple[type[SaidJson], tuple[str, Any]]:
        try:
            pickle.dumps(self.kind)
        except Exception:  # each kind of object has its own
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

    Of an answer that was continued it has what is new, but all of the answer's tool_calls.
    """

    text: str
    """What was said, without half a character where it was cut."""

    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    """"stop" (end token or stop string), "tool_calls" (the same, where the answer calls
    tools), "length" (max_tokens or the context), "cancelled"."""

    stats: Stats
    seed: int | None
    """The one that was given, or None."""

    rule: RuleName
    """The one that accepted draft tokens."""

    logprobs: tuple[TokenLogprobs, ...] | None = None
    """One for each of token_ids, or None if they were not asked for."""

    thoughts: str = ""
    """What the model thought, where the prompt was made from messages. token_ids include the
    end token, if the model ended the answer itself."""

    tool_calls: tuple[ToolCall, ...] = ()
    """Those that the model asks for, whole."""

    not_kept: tuple[str, ...] = ()
    """What of the JSON schema that was given the answer was not kept to, by keyword, as
    ("format path", "uniqueItems")."""

    stopped_by: str | None = None
    """The stop string that ended it, or None."""

    num_thought_tokens: int = 0
    """How many of token_ids are thoughts."""

    _json: SaidJson | None = None

    @property
    def parsed(self) -> Any:
        """What the answer to a json_schema means.

        An object of the class that the schema was, else the value of the JSON: a dict, mostly.
        None where no schema was given, where the answer was cut, also by a stop string, and
        where it calls tools or has no trigger.

        Raises ParseError where the class has checks that its schema does not, and they fail.
        """
        if self._json is None:
            return None
        return self._json.value

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        num_tokens = len(self.token_ids)
        tokens = f"{num_tokens} {'token' if num_tokens == 1 else 'tokens'}"
        return f"<Reply {reprlib.repr(self.text)}, {tokens}, {self.finish_reason}>"
