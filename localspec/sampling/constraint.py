"""The constraint of an answer, and its states after each drafted token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from localspec.errors import ConstraintError

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on

Mask = NDArray[np.bool_]


class Constraint(Protocol):
    """Decides which tokens may come next in one answer, after the committed ones.

    Every method raises ConstraintError if it would take too much work. After a token that ends
    the answer nothing is forbidden, because nothing after it is emitted.
    """

    @property
    def is_done(self) -> bool:
        """Whether only a token that ends the answer may come next."""

    def mask(self) -> Mask | None:
        """(vocab,) True for tokens that may come next; None if all may.

        A token that ends the answer may come when the answer is complete. If only one text can
        follow, only the tokens of its usual spelling may be True; `validate` takes any
        spelling.
        """

    def validate(self, tokens: Sequence[int]) -> int:
        """How many of the tokens, counted from the first, may come. Nothing is changed."""

    def commit(self, tokens: Sequence[int]) -> None:
        """Continue after these tokens.

        Raises ConstraintError if they may not come. The constraint cannot be used after that.
        """

    def copy(self) -> Self:
        """An independent copy in the same state."""

    def forced(self) -> list[int]:
        """Tokens that spell the only text that may come next; others may spell it too.

        The last of them may be a token that ends the answer.
        """


def commit_error(problem: str) -> ConstraintError:
    """The error of `Constraint.commit` for tokens that may not come."""
    return ConstraintError(problem, "Ask again: this answer has gone wrong.")


class ConstraintStates:
    """The states of a constraint: after the text, and after drafted tokens."""

    def __init__(self, committed: Constraint) -> None:
        self.committed = committed
        self._drafted: list[int] = []
        self._state: Constraint | None = None  # after the drafted tokens, if they may come

    def commit(self, tokens: Sequence[int]) -> None:
        """Continue the text with tokens."""
        self._drafted = []
        self._state = None
        self.committed.commit(tokens)

    def after(self, draft_tokens: Sequence[int]) -> Constraint | None:
        """The state after draft tokens; None if they may not come. It must not be changed.

        If they begin with the draft tokens of the last call, only the other ones cost time.
        """
        if not draft_tokens:
            return self.committed
        num_known = len(self._drafted)
        begins_alike = list(draft_tokens[:num_known]) == self._drafted
        if num_known == 0 or not begins_alike:
            self._drafted = []
            self._state = self.committed.copy()
            num_known = 0
        for token in draft_tokens[num_known:]:
            self._drafted.append(token)
            if self._state is not None and self._state.validate([token]):
                self._state.commit([token])
            else:
                self._state = None
        return self._state
