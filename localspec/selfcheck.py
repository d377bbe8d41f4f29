"""Is it lossless here? Checks that users run on their own pair and their own machine.

Greedy text and seeded text with the draft must be those without it, up to near ties, whose
width is measured; sampled text must follow the target's own laws.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from localspec.engine import Engine
from localspec.errors import ContextError
from localspec.identity_check import Identity, IdentityCheck
from localspec.law_check import RULES, LawCheck, LawResult
from localspec.resolver import Resolver
from localspec.rounding import Rounding
from localspec.sampling import SamplingParams
from localspec.speculative import Speculation

GREEDY = SamplingParams(temperature=0)

Progress = Callable[[str, float], None]  # (what is being done, share done of all, 0 … 1)


@dataclass(frozen=True, slots=True)
class Report:
    """What a check found. confirmations: suspect rules again, with fresh seeds."""

    rounding: Rounding
    greedy: Identity
    seeded: Identity
    laws: tuple[LawResult, ...]
    confirmations: tuple[LawResult, ...]
    time_s: float

    @property
    def bugs(self) -> list[str]:
        """What is wrong, a line each; empty if it holds."""
        bound = self.rounding.bound
        lines = [
            f"{name} text of prompt {found.prompt + 1} with {found.num_draft_tokens} draft "
            f"tokens leaves the target's at token {found.position + 1}: {found.token} in place "
            f"of {found.expected_token}, {found.gap:.3g} logits apart (rounding: {bound:.3g})"
            for name, identity in (("greedy", self.greedy), ("seeded", self.seeded))
            for found in identity.bugs(bound)
        ]
        return lines + [
            f"texts by the rule {law.rule} do not follow the target's law "
            f"(by {law.view}: p = {law.p_value:.1e} over {law.num_tokens} tokens, confirmed)"
            for law in self.confirmations
            if law.is_suspect
        ]

    @property
    def holds(self) -> bool:
        return not self.bugs


def check(
    engine: Engine,
    prompts: Sequence[list[int]],
    *,
    budget_s: float,
    max_samples: int | None,
    progress: Progress,
) -> Report:
    """Check an engine on prompts of token ids, within about budget_s seconds.

    max_samples: tokens sampled per rule at the most (None: what the time allows). The
    engine's draft length is afterwards what it was. Raises ContextError for a prompt that
    leaves no room for an answer.
    """
    for prompt in prompts:
        if len(prompt) >= engine.context_length:
            raise ContextError(
                f"a prompt has {len(prompt)} tokens; the context holds {engine.context_length}",
                "Leave it out, or choose a larger context (--ctx).",
            )
    chosen = engine.draft_length
    try:
        with engine.exclusively() as loop:
            return _check(engine, loop, prompts, budget_s, max_samples, progress)
    finally:
        engine.draft_length = chosen


def _check(
    engine: Engine,
    loop: Speculation,
    prompts: Sequence[list[int]],
    budget_s: float,
    max_samples: int | None,
    progress: Progress,
) -> Report:
    started = time.monotonic()
    is_end = engine.vocabulary.is_end
    rounding = Rounding()
    sampled = SamplingParams() if engine.sampling.is_greedy else engine.sampling
    transforms = Resolver(engine.vocabulary).transforms
    greedy, seeded = (
        IdentityCheck(loop, is_end, functools.partial(transforms, params), rounding)
        for params in (GREEDY, sampled)
    )
    for number, prompt in enumerate(prompts):
        progress("greedy and seeded text", number / len(prompts) / 2)
        greedy.run(number, prompt, None)
        seeded.run(number, prompt, number)
        if time.monotonic() - started > budget_s / 2:
            break
    laws = LawCheck(loop, prompts, is_end)
    # A tenth is left for asking suspects again.
    share_s = (started + budget_s - time.monotonic()) * 0.9
    found = laws.run(
        RULES,
        time.monotonic() + share_s,
        max_samples,
        lambda share: progress("sampled text", 0.5 + share * 0.4),
    )
    suspects = [rule for rule in RULES if any(r.is_suspect and r.rule == rule for r in found)]
    confirmations: list[LawResult] = []
    if suspects:
        confirmations = laws.run(
            suspects,
            time.monotonic() + share_s * len(suspects) / len(RULES),
            max_samples,
            lambda share: progress("suspects again", 0.9 + share * 0.1),
        )
    progress("done", 1.0)
    return Report(
        rounding,
        greedy.result,
        seeded.result,
        tuple(found),
        tuple(confirmations),
        time.monotonic() - started,
    )
