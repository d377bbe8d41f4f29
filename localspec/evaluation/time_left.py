"""How long a check still takes, by the time that its parts have taken so far."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from localspec.evaluation.identity import ENOUGH_ACCEPTED, NUMS_DRAFT_TOKENS, Identity

CheckPart = Literal["writing", "comparing"]


@dataclass(slots=True)
class Pace:
    """The seconds of each part of a check."""

    seconds: dict[CheckPart, float] = field(
        default_factory=lambda: {"writing": 0.0, "comparing": 0.0}
    )

    num_written: int = 0
    """Tokens of the target's own texts that are complete."""

    num_texts: int = 0
    """The number of these texts."""

    is_comparing: bool = False
    """Whether the last of these texts is not compared as a whole yet."""

    @contextlib.contextmanager
    def timed(self, part: CheckPart) -> Iterator[None]:
        """A block whose time is added to a part, also if it is interrupted."""
        started_s = time.monotonic()
        try:
            yield
        finally:
            self.seconds[part] += time.monotonic() - started_s

    def seconds_left(self, identities: Sequence[Identity]) -> float | None:
        """Seconds until there is enough evidence; None before the first text is complete.

        Until a drafted token was accepted, all are assumed to be accepted, and each to cost as
        much as a token of the target's texts.

        Args:
            identities: The results so far, one for each rule.
        """
        if not self.num_texts:
            return None
        token_s = self.seconds["writing"] / self.num_written
        num_accepted = 0
        num_compared = 0
        for identity in identities:
            num_accepted += identity.num_accepted
            num_compared += identity.num_tokens
        accepted_s = token_s
        acceptance = 1.0
        if num_accepted:
            accepted_s = self.seconds["comparing"] / num_accepted
            acceptance = num_accepted / num_compared

        text_tokens = self.num_written / self.num_texts
        # Each text is written once and compared with each number of draft tokens.
        accepted_per_text = acceptance * len(NUMS_DRAFT_TOKENS) * text_tokens
        num_lacking = 0
        texts_lacking = 0
        for identity in identities:
            lacking_here = max(ENOUGH_ACCEPTED - identity.num_accepted, 0)
            num_lacking += lacking_here
            # No text serves two rules.
            texts_lacking += math.ceil(lacking_here / accepted_per_text)
        if self.is_comparing and texts_lacking:
            texts_lacking -= 1  # the one that is compared is written already
        writing_s = texts_lacking * text_tokens * token_s
        comparing_s = num_lacking * accepted_s
        return writing_s + comparing_s
