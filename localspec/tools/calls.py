"""The calls that an answer can have, and how these are written."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from localspec.tools.forms import CallForm
from localspec.tools.grammar import CallGrammar
from localspec.tools.tool import ToolCall, ToolUse, new_call_id


class CallPiece(NamedTuple):
    """A piece of a call.

    number: of the call in its answer, from 0. id, name: the call's, in each of its pieces.
    json: the next part of its arguments' text. is_last: the call is complete.
    """

    number: int
    id: str
    name: str
    json: str
    is_last: bool


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls that an answer can have, and how these are written.

    shown: ids of control tokens that are among the form's marks, and are rendered to be seen.
    grammar: what keeps the answer to the form and the tools' schemas; None if it is free,
    so that only what was read to its end is known to be a call. key: the calls' ids are made
    of it, so that they are the same each time that the answer is read.
    """

    form: CallForm
    use: ToolUse
    shown: frozenset[int] = frozenset()
    grammar: CallGrammar | None = None
    key: str = field(default_factory=new_call_id)

    def id_of(self, number: int) -> str:
        """The id of a call of the answer, by its number, from 0."""
        return hashlib.sha256(f"{self.key} {number}".encode()).hexdigest()[: len(self.key)]

    @property
    def have_frame(self) -> bool:
        """Whether the grammar is of the whole answer, with its thoughts."""
        return self.grammar is not None and self.grammar.has_frame


def whole_calls(pieces: Iterable[CallPiece | None]) -> tuple[ToolCall, ...]:
    """The calls that pieces make, without one that was cut."""
    texts: dict[int, str] = {}
    calls = []
    for piece in pieces:
        if piece is None:
            continue
        texts[piece.number] = texts.get(piece.number, "") + piece.json
        if piece.is_last:
            calls.append(ToolCall(piece.id, piece.name, texts[piece.number]))
    return tuple(calls)
