"""What a user asks of drafting: who proposes, and how much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from localspec.errors import OptionError
from localspec.speculative.policy_api import FixedDraftPolicy

ProposerName = Literal["auto", "draft", "lookup", "none"]


@dataclass(frozen=True, slots=True)
class Drafting:
    """num_draft_tokens: per step; None is the automatic policy.

    proposer: "draft", the draft model; "lookup", the text itself; "auto", whichever pays;
    "none" is plain decoding. Raises OptionError for a value outside its range.
    """

    num_draft_tokens: int | None = None
    proposer: ProposerName = "auto"

    def __post_init__(self) -> None:
        if self.num_draft_tokens is not None:
            FixedDraftPolicy(self.num_draft_tokens)
        if self.proposer not in get_args(ProposerName):
            raise OptionError(
                f"there is no proposer {self.proposer!r}",
                f"Choose one of: {', '.join(get_args(ProposerName))}.",
            )

    @property
    def is_off(self) -> bool:
        """Whether nothing is ever to be proposed."""
        return self.num_draft_tokens == 0 or self.proposer == "none"

    @property
    def needs_draft_model(self) -> bool:
        """Whether a draft model would be used."""
        return not self.is_off and self.proposer in ("auto", "draft")
