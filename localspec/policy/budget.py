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
    """What drafting has saved so far, a grant, and a share of what resting has missed.

    It is never less than nothing: a bet at good odds needs no backing, and lost ones would
    have to be paid off, by the grant alone, before a resting draft was looked at again.

    All in seconds; target_only_s is what a target-only step takes now, lost_s what drafting
    would probably have saved since it was tried.
    """

    def __init__(self) -> None:
        self._saved_s = 0.0
        self._granted_s = 0.0

    def pass_by(self, seconds: float) -> None:
        """Plain decoding would have taken that long: a share of it is granted."""
        self._granted_s += _GRANTED_SHARE * seconds

    def save(self, seconds: float, target_only_s: float) -> None:
        """Drafting, replaying or choosing saved that much; it is negative where it cost."""
        saved_s = max(self._saved_s + seconds, -self._grant_s(target_only_s))
        self._saved_s = min(saved_s, _MAX_SAVED_STEPS * target_only_s)

    def left_s(self, target_only_s: float) -> float:
        """What may be lost even if nothing comes of it."""
        # Once target-only steps have become faster, more may be spent than they grant.
        return max(self._saved_s + self._grant_s(target_only_s), 0.0)

    def for_replay_s(self, target_only_s: float, lost_s: float) -> float:
        """What replaying may cost."""
        return self.left_s(target_only_s) + _REPLAY_SHARE * lost_s

    def _grant_s(self, target_only_s: float) -> float:
        return self._granted_s + _GRANTED_STEPS * target_only_s
