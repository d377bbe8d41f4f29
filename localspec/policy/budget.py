"""The time that finding out whether a draft pays may cost."""

from __future__ import annotations

# Time that may be lost at first, in target-only steps [never right, short answers]
_GRANTED_STEPS = 6.0
# Share of plain decoding's time that may be lost later [never right, turning good]
_GRANTED_SHARE = 0.002
# The most time that drafting can save up, in target-only steps [switching]
_MAX_SAVED_STEPS = 60.0
# Share of the probable loss that replaying may cost [beside a lookup, turning good]
_REPLAY_SHARE = 0.02


class Budget:
    """The time that drafting saved so far, a grant, and a share of the probable loss.

    It never falls below 0. A bet at good odds needs no budget, and after lost bets the grant
    alone would have to pay the debt before a resting draft could be tried again.

    All in seconds. target_only_s: what a target-only step takes now. lost_s: the probable loss,
    what drafting would have saved since the last replay or draft.
    """

    def __init__(self) -> None:
        self._saved_s = 0.0
        self._granted_s = 0.0

    def pass_by(self, seconds: float) -> None:
        """Grant a share of the time that plain decoding would have taken."""
        self._granted_s += _GRANTED_SHARE * seconds

    def save(self, seconds: float, target_only_s: float) -> None:
        """Add the time that a draft, a replay or a decision saved; negative if it cost time."""
        saved_s = max(self._saved_s + seconds, -self._grant_s(target_only_s))
        self._saved_s = min(saved_s, _MAX_SAVED_STEPS * target_only_s)

    def left_s(self, target_only_s: float) -> float:
        """How much time may be lost with nothing gained."""
        # After target-only steps became faster, more may be spent than the grant is now.
        return max(self._saved_s + self._grant_s(target_only_s), 0.0)

    def for_replay_s(self, target_only_s: float, lost_s: float) -> float:
        """How much a replay may cost."""
        return self.left_s(target_only_s) + _REPLAY_SHARE * lost_s

    def _grant_s(self, target_only_s: float) -> float:
        return self._granted_s + _GRANTED_STEPS * target_only_s
