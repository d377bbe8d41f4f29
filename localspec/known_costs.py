"""Costs of decodes as they were learned before, for who asks without loading a model."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.automatic import AutomaticDraftLength
from localspec.content import FileContent
from localspec.draft_length import ProposerKind
from localspec.header import Header
from localspec.profile import latest_learned
from localspec.speedup import Curve


def known_costs(headers: Sequence[Header]) -> Curve | None:
    """Of a pair whose files are here, in plain steps of its target; None if it never ran here.

    headers: of target and draft, see `model_file.check_model_file`.
    """
    contents = []
    for header in headers:
        content = FileContent(header).digest()
        if content is None:
            return None
        contents.append(content)
    learned = latest_learned(contents)
    if learned is None:
        return None
    policy = AutomaticDraftLength({ProposerKind.DRAFT: 0.0})
    try:
        policy.restore(learned)
    except (ValueError, TypeError, KeyError):
        return None
    ratios = policy.target_cost.ratios(0, hopeful=False)
    draft_share = policy.prospects[0].cost.token_s(1.0)
    if len(policy.target_cost.measured(0)) < 2 or draft_share == 0.0:
        return None
    return Curve(tuple(ratios), draft_share)
