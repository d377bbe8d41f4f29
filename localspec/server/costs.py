"""The costs of answers, as protocols count them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from localspec.server.answering import Finished
from localspec.speculative.metrics import Stats, why_mostly_off, why_off
from localspec.speculative.policy_api import ProposerKind
from localspec.streaming.reply import Reply, StepFacts

LOWEST_LOGPROB = -9999.0  # for an impossible token: JSON has no infinity


def usage_of(
    finished: Sequence[Finished], num_answers: int = 1, *, has_prediction: bool = False
) -> dict[str, Any]:
    """The tokens of all answers in OpenAI's fields; a prompt with several counts once."""
    stats = [each.reply.stats for each in finished]
    firsts = stats[::num_answers]
    num_read = sum(each.prompt_tokens for each in firsts)
    num_said = sum(each.completion_tokens for each in stats)
    lookup = ProposerKind.LOOKUP
    kept = sum(each.accepted_per_proposer.get(lookup, 0) for each in stats)
    proposed = sum(each.drafted_per_proposer.get(lookup, 0) for each in stats)
    return {
        "prompt_tokens": num_read,
        "completion_tokens": num_said,
        "total_tokens": num_read + num_said,
        "prompt_tokens_details": {
            "cached_tokens": sum(each.cached_prompt_tokens for each in firsts)
        },
        "completion_tokens_details": {
            "reasoning_tokens": sum(each.reply.num_thought_tokens for each in finished),
            "accepted_prediction_tokens": kept if has_prediction else 0,
            "rejected_prediction_tokens": proposed - kept if has_prediction else 0,
        },
    }


def own_fields(reply: Reply) -> dict[str, Any]:
    """Fields that no protocol has: timings, and the parts of a schema that were not kept to."""
    told: dict[str, Any] = {"timings": _timings_of(reply.stats)}
    if reply.not_kept:
        told["not_kept"] = list(reply.not_kept)
    return told


def explanation(reply: Reply) -> dict[str, Any]:
    """Facts about the drafts of an answer, and why there were no more, for clients that ask.

    steps_per_length: steps that proposed 0, 1, 2 … tokens, up to the most. Drafted and accepted
    tokens are counted per position in a draft and per proposer. outlook: what the automatic
    policy expects of the next draft token: acceptance and break_even from 0 to 1, and
    step_ratios v(n).
    """
    stats = reply.stats
    last = max((n for n, steps in enumerate(stats.steps_per_length) if steps), default=0)
    return {
        "steps_per_length": stats.steps_per_length[: last + 1],
        "drafted_per_position": stats.drafted_per_position[:last],
        "accepted_per_position": stats.accepted_per_position[:last],
        "proposers": {
            kind.value: {
                "steps": steps,
                "drafted": stats.drafted_per_proposer.get(kind, 0),
                "accepted": stats.accepted_per_proposer.get(kind, 0),
            }
            for kind, steps in stats.steps_per_proposer.items()
        },
        "steps_not_drafted": {
            why_off(reason): steps for reason, steps in stats.draft_off_steps.items()
        },
        "outlook": None if stats.outlook is None else asdict(stats.outlook),
        "threads": None if stats.threads is None else asdict(stats.threads),
        "exact": stats.exact,
        "rule": reply.rule,
        "seed": reply.seed,
    }


def step_object(step: StepFacts, prompt_tokens: int) -> dict[str, Any]:
    """Facts about a step, for clients that ask what was drafted. draft_off is in words."""
    return {
        "prompt_tokens": prompt_tokens,
        "drafted": step.num_drafted,
        "accepted": step.num_accepted,
        "threads": step.num_threads,
        "draft_off": None if step.draft_off is None else why_off(step.draft_off),
    }


def _timings_of(stats: Stats) -> dict[str, Any]:
    """Timings in llama-server's fields. draft_off: why most steps had no draft, or None."""
    num_read = stats.prompt_tokens - stats.cached_prompt_tokens
    prompt_s, decode_s = stats.time_to_first_token_s, stats.decode_time_s
    return {
        "cache_n": stats.cached_prompt_tokens,
        "prompt_n": num_read,
        "prompt_ms": 1000 * prompt_s,
        "prompt_per_token_ms": _ratio(1000 * prompt_s, num_read),
        "prompt_per_second": _ratio(num_read, prompt_s),
        "predicted_n": stats.completion_tokens,
        "predicted_ms": 1000 * decode_s,
        "predicted_per_token_ms": _ratio(1000 * decode_s, stats.decoded_tokens),
        "predicted_per_second": _ratio(stats.decoded_tokens, decode_s),
        "draft_n": stats.num_draft_tokens,
        "draft_n_accepted": stats.num_accepted,
        "draft_off": why_mostly_off(stats),
    }


def _ratio(amount: float, by: float) -> float:
    return amount / by if by else 0.0
