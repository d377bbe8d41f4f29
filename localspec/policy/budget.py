"""The time that finding out whether a draft pays may cost."""

from __future__ import annotations

# Time that may be lost at first [never right, short answers]
_GRANTED_STEPS = 6.0
# Share of plain decoding's time that may be lost later [never right, turning good]
_GRANTED_SHARE = 0.002
# The most time that drafting can save up [switching]
_MAX_STEPS = 60.0


class Budget:
    """The time that drafting saved so far, and a grant, in target-only steps.

    It never falls below 0. A bet at good odds needs no budget, and after lost bets the grant
    alone would have to pay the debt before a resting draft could be tried again.
    """

    def __init__(self) -> None:
        self.left = _GRANTED_STEPS

    def pass_by(self, num_tokens: int) -> None:
        """Grant a share of the time that plain decoding takes for so many tokens."""
        self.save(_GRANTED_SHARE * num_tokens)

    def save(self, steps: float) -> None:
        """Add the time that a draft, a replay or a decision saved; negative if it cost time."""
        self.left = min(max(self.left + steps, 0.0), _MAX_STEPS)
