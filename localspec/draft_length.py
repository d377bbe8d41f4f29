"""How many tokens to propose in the next step, or why none."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

from localspec.errors import OptionError

MAX_DRAFT_TOKENS = 16


class DraftOff(enum.Enum):
    """Why a step proposed nothing. The words for people are the command line's."""

    NO_DRAFT = "no_draft"
    SET_TO_ZERO = "set_to_zero"
    TARGET_CANNOT_ROLL_BACK = "target_cannot_roll_back"
    DRAFT_CANNOT_ROLL_BACK = "draft_cannot_roll_back"
    DRAFT_CONTEXT_FULL = "draft_context_full"
    TOKEN_UNKNOWN_TO_DRAFT = "token_unknown_to_draft"


class DraftLength(Protocol):
    """A policy of the number of draft tokens."""

    def choose(self) -> int:
        """The number to propose in the next step; 0 is plain decoding."""


@dataclass(frozen=True, slots=True)
class FixedDraftLength:
    """The same number in every step. Raises OptionError outside 0 … MAX_DRAFT_TOKENS."""

    num_draft_tokens: int = 3

    def __post_init__(self) -> None:
        if not 0 <= self.num_draft_tokens <= MAX_DRAFT_TOKENS:
            raise OptionError(
                f"the number of draft tokens is {self.num_draft_tokens}",
                f"Choose 0 (plain decoding) to {MAX_DRAFT_TOKENS}.",
            )

    def choose(self) -> int:
        return self.num_draft_tokens
