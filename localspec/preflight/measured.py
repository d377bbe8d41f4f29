"""What was measured of a pair on this machine when it ran."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from localspec.errors import DAMAGES
from localspec.gguf_file.content import FileContent
from localspec.gguf_file.header import Header
from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.policy.profile import latest_learned
from localspec.policy.speedup import Curve, best_draft_tokens, expected_speedup
from localspec.speculative.policy_api import MAX_DRAFT_TOKENS, ProposerKind

_ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9)


def measured_costs(
    models: Sequence[Header], kind: ProposerKind, *, is_block: bool
) -> Curve | None:
    """The costs of decoding, in target-only steps; None if these never ran, or too little.

    models: the target's header first, and again for a head in its file. is_block: whether
    `kind` drafts any number of tokens at once.
    """
    contents = []
    for header in models:
        content = FileContent(header).digest()
        if content is None:
            return None
        contents.append(content)
    learned = latest_learned(contents)
    if learned is None:
        return None
    try:
        # The costs of a quiet machine.
        policy = AdaptiveDraftPolicy({kind: 0.0}, max(map(int, learned["costs"])))
        policy.restore(learned)
    except DAMAGES:
        return None
    ratios = policy.target_cost.ratios(0, optimistic=False)
    (prospect,) = policy.prospects
    draft_share = prospect.cost.token_s(1.0)
    if len(policy.target_cost.measured(0)) < 2 or draft_share == 0.0:
        return None
    return Curve(tuple(ratios), draft_share, is_block)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedGain:
    """The best number of draft tokens at an acceptance rate, and the speed-up over plain."""

    acceptance: float
    num_draft_tokens: int
    speedup: float


def expected_gains(costs: Curve) -> Iterator[ExpectedGain]:
    """The best there is to gain at typical acceptance rates."""
    for acceptance in _ACCEPTANCES:
        best = best_draft_tokens(costs, acceptance, MAX_DRAFT_TOKENS)
        yield ExpectedGain(
            acceptance=acceptance,
            num_draft_tokens=best,
            speedup=expected_speedup(costs, acceptance, best),
        )
