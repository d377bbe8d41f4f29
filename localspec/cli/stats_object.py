"""`Stats` as JSON has it."""

from __future__ import annotations

import dataclasses
from typing import Any

from localspec.metrics import Stats


def stats_as_object(stats: Stats) -> dict[str, Any]:
    """Every measured number and every rate, with names in place of enums."""
    return {
        **dataclasses.asdict(stats),
        "steps_per_proposer": {k.value: n for k, n in stats.steps_per_proposer.items()},
        "draft_off": stats.draft_off.value if stats.draft_off else None,
        "draft_off_steps": {reason.value: n for reason, n in stats.draft_off_steps.items()},
        "outlook": None
        if stats.outlook is None
        else {
            **dataclasses.asdict(stats.outlook),
            "proposer": stats.outlook.proposer.value,
        },
        "decode_time_s": stats.decode_time_s,
        "tokens_per_s": stats.tokens_per_s,
        "prompt_tokens_per_s": stats.prompt_tokens_per_s,
        "acceptance_rate": stats.acceptance_rate,
        "mean_acceptance_length": stats.mean_acceptance_length,
    }
