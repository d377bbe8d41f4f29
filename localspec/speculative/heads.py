"""A trained head as a proposer: besides the text it reads the target's hidden rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from localspec.speculative.model import Model
from localspec.speculative.policy_api import DraftOff, ProposerKind, ProposerState
from localspec.speculative.proposers import DraftModel
from localspec.speculative.shared_vocabulary import SharedVocabulary


class HeadModel(Model, Protocol):
    """A head whose cache holds a part of its target's text, read with the target's rows.

    `truncate` also drops what it has read with rows of its own.
    """

    @property
    def begins_at(self) -> int:
        """Position in the text of the first token that it has read."""

    @property
    def readable(self) -> range:
        """Positions of the text at which it can read: the row before is there."""

    @property
    def max_draft_tokens(self) -> int:
        """The most tokens that it can draft in a row."""

    def read_from(self, position: int) -> None:
        """Forget everything, and continue at that position of the text."""


class Head(DraftModel):
    """A draft that belongs to its target and has the same vocabulary.

    It cannot read tokens whose rows are no longer kept, and skips them.
    """

    kind = ProposerKind.HEAD

    def __init__(self, model: HeadModel, is_end: Callable[[int], bool]) -> None:
        size = model.vocab_size
        super().__init__(model, SharedVocabulary(size, size, size, ()), is_end)
        self._head = model

    @property
    def begins_at(self) -> int:
        # The head's, which may go to another text.
        return self._head.begins_at

    def state(self, tokens: Sequence[int]) -> ProposerState:
        readable = self._head.readable
        if len(tokens) - 1 not in readable:
            return ProposerState(0, draft_off=DraftOff.HEAD_LACKS_ROWS)
        if self.begins_at + self.model.num_cached < readable.start:
            self.read_from(readable.start)
        state = super().state(tokens)
        return state._replace(
            max_tokens=min(state.max_tokens, self._head.max_draft_tokens),
            num_skipped=max(self.begins_at - readable.start, 0),
        )

    def read_from(self, position: int) -> None:
        # As close to the position as it can.
        position = max(position, self._head.readable.start)
        super().read_from(position)
        self._head.read_from(position)
