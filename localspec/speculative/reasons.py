"""Why steps did not draft, in words for people."""

from __future__ import annotations

from localspec.speculative.metrics import Stats
from localspec.speculative.policy_api import DraftOff

_DRAFT_OFF = {
    DraftOff.NO_DRAFT: "no draft model",
    DraftOff.SET_TO_ZERO: "draft off",
    DraftOff.TARGET_CANNOT_ROLL_BACK: "draft off: the target's cache cannot be cut back",
    DraftOff.DRAFT_CONTEXT_FULL: "draft off: the text is longer than the draft's context",
    DraftOff.NO_HEAD: "no head: 'localspec explain' says why",
    DraftOff.HEAD_LACKS_ROWS: "draft off: the head has to see the text first",
    DraftOff.TOKEN_UNKNOWN_TO_DRAFT: "draft off: the text has a token the draft lacks",
    DraftOff.NOTHING_REPEATS: "little to draft from: the text does not repeat itself",
    DraftOff.MEASURING: "measuring what a target-only step costs",
    DraftOff.DOES_NOT_PAY: "draft off where it did not pay",
    DraftOff.OVER_BUDGET: "draft off for now: trying it would cost more time than it may lose",
}


def why_off(reason: DraftOff) -> str:
    """A reason for not drafting, in words."""
    return _DRAFT_OFF[reason]


def why_mostly_off(stats: Stats) -> str | None:
    """Why most steps of an answer did not draft, in words; None if most did."""
    if stats.draft_off is None or 2 * sum(stats.draft_off_steps.values()) < stats.num_steps:
        return None
    reason = max(stats.draft_off_steps, key=lambda off: stats.draft_off_steps[off])
    never_pays = stats.outlook is not None and stats.outlook.break_even is None
    if never_pays and reason in (DraftOff.DOES_NOT_PAY, DraftOff.OVER_BUDGET):
        return "draft off: at what it costs here none would pay"
    return _DRAFT_OFF[reason]
