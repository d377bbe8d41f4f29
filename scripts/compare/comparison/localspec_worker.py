"""A process that answers with localspec. Started by `comparison.workers`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import localspec
from comparison.contender import Answer, Request
from comparison.worker import serve
from localspec.sampling.params import SamplingParams
from localspec.speculative.policy_api import FixedDraftPolicy


def make(options: dict[str, Any]) -> Callable[[Request], Answer]:
    """options: arguments of localspec.load, and rests: whether no draft is ever asked for."""
    rests = options.pop("rests", False)
    engine = localspec.load(**options, memory=False)  # prompts are asked again
    if rests:
        engine._draft_policy = FixedDraftPolicy(0)

    def answer(request: Request) -> Answer:
        sampling = SamplingParams(
            temperature=request.temperature, top_k=0, top_p=1.0, min_p=0.0
        )
        stats = (
            engine.generate_raw(
                request.prompt,
                sampling=sampling,
                seed=request.seed,
                max_tokens=request.max_tokens,
            )
            .reply()
            .stats
        )
        seconds = stats.total_time_s - stats.time_to_first_token_s
        return Answer(
            num_tokens=stats.completion_tokens,
            tokens_per_s=(stats.completion_tokens - 1) / seconds if seconds > 0 else 0.0,
            num_drafted=stats.num_draft_tokens,
            num_kept=stats.num_accepted,
        )

    return answer


if __name__ == "__main__":
    serve(make)
