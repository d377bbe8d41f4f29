"""What an answer may say, and the states that it is in behind each drafted token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on

Mask = NDArray[np.bool_]


class Constraint(Protocol):
    """Which tokens may come next in one answer, behind those that it was told of.

    Every method raises ConstraintError where its limits are reached. Behind a token that ends
    the answer nothing is forbidden, as nothing of it is emitted.
    """

    @property
    def is_done(self) -> bool:
        """Whether only a token that ends the answer may come next."""

    def mask(self) -> Mask | None:
        """(vocab,) True where a token may come next; None where any may.

        One that ends the answer may where what was said is whole. Where one text alone can
        follow, it may be left with its usual spelling; `validate` takes any.
        """

    def validate(self, tokens: Sequence[int]) -> int:
        """How many of the tokens, from the first on, may come. Changes nothing."""

    def commit(self, tokens: Sequence[int]) -> None:
        """Go on behind these.

        Raises ConstraintError if they may not come, and is of no use then.
        """

    def copy(self) -> Self:
        """A copy that continues from here by itself."""

    def forced(self) -> list[int]:
        """Tokens that spell what has to come next, perhaps not as the only ones that do.

        Ends after a token that ends the answer.
        """


class ConstraintStates:
    """A constraint behind the text and, one after the other, behind what is drafted."""

    def __init__(self, committed: Constraint) -> None:
        self.committed = committed
        self._drafted: list[int] = []
        self._state: Constraint | None = None  # behind those, if they may come

    def commit(self, tokens: Sequence[int]) -> None:
        """The text continues with these."""
        self._drafted, self._state = [], None
        self.committed.commit(tokens)

    def behind(self, draft_tokens: Sequence[int]) -> Constraint | None:
        """The state behind these tokens; None if they may not come. Not to be changed.

        What the call before has asked for, and more, costs only the rest.
        """
        if not draft_tokens:
            return self.committed
        num_known = len(self._drafted)
        if num_known == 0 or list(draft_tokens[:num_known]) != self._drafted:
            self._drafted, self._state, num_known = [], self.committed.copy(), 0
        for token in draft_tokens[num_known:]:
            self._drafted.append(token)
            if self._state is not None and self._state.validate([token]):
                self._state.commit([token])
            else:
                self._state = None
        return self._state
