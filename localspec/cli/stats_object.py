"""`Stats` as JSON has it."""

from __future__ import annotations

import dataclasses
from typing import Any

from localspec.speculative.metrics import Stats


def stats_as_object(stats: Stats) -> dict[str, Any]:
    """Every measured number and every rate."""
    return {
        **dataclasses.asdict(stats),
        "decode_time_s": stats.decode_time_s,
        "tokens_per_s": stats.tokens_per_s,
        "prompt_tokens_per_s": stats.prompt_tokens_per_s,
        "acceptance_rate": stats.acceptance_rate,
        "mean_acceptance_length": stats.mean_acceptance_length,
    }
