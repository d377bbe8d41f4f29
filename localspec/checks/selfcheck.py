"""Is it lossless here? Checks that users run on their own pair and their own machine.

Greedy text and seeded text with the draft must be those without it, up to near ties, whose
width is measured; sampled text must follow the target's own distributions.
"""

from __future__ import annotations

import enum
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from localspec.chat.prompt import Prompt
from localspec.checks.distribution_check import (
    BIAS,
    RULES,
    DistributionCheck,
    DistributionResult,
)
from localspec.checks.identity import (
    ENOUGH_ACCEPTED,
    NUMS_DRAFT_TOKENS,
    Identity,
    IdentityCheck,
)
from localspec.checks.rounding import Rounding
from localspec.engine.engine import Engine
from localspec.errors import ContextError, OptionError
from localspec.sampling.chain import SamplerChain
from localspec.sampling.constraint import Constraint
from localspec.sampling.params import SamplingParams
from localspec.sampling.resolver import Resolver
from localspec.speculative.loop import SpeculativeDecoder
from localspec.streaming.options import AnswerOptions

GREEDY = SamplingParams(temperature=0)
_IDENTITY_SHARE = 0.5  # of the time, that comparing texts may take
_SPARE = 1.2  # more seconds than were worked out to be needed
_CONFIRMING = 4  # times the tokens, with which a bias of half the size is visible

Progress = Callable[[str, float], None]  # (what is being done, share done of all, 0 … 1)


class Finding(enum.Enum):
    """What a check says."""

    LOSSLESS = "lossless"
    NOT_LOSSLESS = "NOT lossless"
    NOT_ENOUGH = "not enough evidence"  # nothing is wrong, but little was looked at


@dataclass(frozen=True, slots=True)
class Report:
    """What a check found. confirmations: suspect rules again, with fresh seeds.

    seconds_needed: that are probably enough for a finding; None if with these prompts no time
    is, since too few tokens are the draft's.
    """

    rounding: Rounding
    greedy: Identity
    seeded: Identity
    distributions: tuple[DistributionResult, ...]
    confirmations: tuple[DistributionResult, ...]
    time_s: float
    seconds_needed: float | None

    @property
    def identity_bugs(self) -> list[str]:
        """Where texts differ from the target's, a line each."""
        bound = self.rounding.bound
        return [
            f"{name} text of prompt {found.prompt + 1} with {found.num_draft_tokens} draft "
            f"tokens leaves the target's at token {found.position + 1}: {found.token} in place "
            f"of {found.expected_token}, {found.gap:.3g} logits apart (rounding: {bound:.3g})"
            for name, identity in (("greedy", self.greedy), ("seeded", self.seeded))
            for found in identity.bugs(bound)
        ]

    @property
    def distribution_bugs(self) -> list[str]:
        """Which rules do not follow the target's distribution, a line each."""
        return [
            f"texts by the rule {result.rule} do not follow the target's distribution "
            f"(by {result.view}: p = {result.p_value:.1e} over {result.num_tokens} tokens, "
            "confirmed)"
            for result in self.confirmations
            if result.is_suspect
        ]

    @property
    def identity(self) -> Finding:
        """Of greedy and seeded text."""
        is_enough = self.greedy.is_enough and self.seeded.is_enough
        return _finding(self.identity_bugs, is_enough=is_enough)

    @property
    def statistics(self) -> Finding:
        """Of sampled text."""
        return _finding(self.distribution_bugs, is_enough=self.visible_bias <= BIAS)

    @property
    def visible_bias(self) -> float:
        """The smallest bias that would have been seen in every rule and view."""
        return max(result.smallest_bias for result in self.distributions)

    @property
    def finding(self) -> Finding:
        """Of all: lossless only if both are."""
        both = (self.identity, self.statistics)
        for finding in (Finding.NOT_LOSSLESS, Finding.NOT_ENOUGH):
            if finding in both:
                return finding
        return Finding.LOSSLESS


def _finding(bugs: Sequence[str], *, is_enough: bool) -> Finding:
    if bugs:
        return Finding.NOT_LOSSLESS
    return Finding.LOSSLESS if is_enough else Finding.NOT_ENOUGH


def check(
    engine: Engine,
    prompts: Sequence[list[int]],
    *,
    budget_s: float,
    num_samples: int | None,
    progress: Progress,
    options: AnswerOptions,
) -> Report:
    """Check an engine on prompts of token ids, until there is enough evidence.

    It takes about budget_s seconds at the most, and four times as long as sampling if a rule
    is suspect.
    num_samples: tokens to sample per rule (None: as many as evidence takes). options: what the
    texts are to fit; nothing else of them counts. The engine's draft length is afterwards what
    it was. Raises ContextError for a prompt that leaves no room for an answer, OptionError
    where nobody proposes tokens, ConstraintError for what no text can be kept to.
    """
    for prompt in prompts:
        if len(prompt) >= engine.context_length:
            raise ContextError(
                f"a prompt has {len(prompt)} tokens; the context holds {engine.context_length}",
                "Leave it out, or choose a larger context (--ctx).",
            )
    chosen = engine.draft_policy
    try:
        with engine.exclusively() as loop:
            if not loop.proposers:
                raise OptionError(
                    "there is nothing to check: no tokens are proposed for this target",
                    "Name a --draft whose target can take tokens back, without --no-draft.",
                )
            constraint = functools.partial(_constraint, engine, options)
            return _Check(
                engine, loop, prompts, budget_s, num_samples, progress, constraint
            ).run()
    finally:
        engine.draft_policy = chosen


def _constraint(engine: Engine, options: AnswerOptions, prompt: list[int]) -> Constraint | None:
    return engine.constraint(options, Prompt(prompt))


@dataclass(frozen=True, slots=True)
class _Check:
    engine: Engine
    loop: SpeculativeDecoder
    prompts: Sequence[list[int]]
    budget_s: float
    num_samples: int | None
    progress: Progress
    constraint: Callable[[list[int]], Constraint | None]

    def run(self) -> Report:
        started = time.monotonic()
        rounding = Rounding()
        greedy, seeded = self._compare(started + _IDENTITY_SHARE * self.budget_s, rounding)
        identity_s = time.monotonic() - started
        is_end = self.engine.vocabulary.is_end
        check = DistributionCheck(self.loop, self.prompts, is_end, self.constraint)
        distributions = check.run(
            RULES,
            started + self.budget_s,
            self.num_samples,
            lambda share: self.progress("sampled text", 0.3 + share * 0.6),
        )
        distributions_s = time.monotonic() - started - identity_s
        confirmations = self._confirm(check, distributions, distributions_s)
        self.progress("done", 1.0)
        num_texts = (1 + len(NUMS_DRAFT_TOKENS)) * len(self.prompts)
        compare_s = _compare_needs_s(identity_s, (greedy, seeded), num_texts)
        return Report(
            rounding,
            greedy,
            seeded,
            tuple(distributions),
            tuple(confirmations),
            time.monotonic() - started,
            _check_needs_s(compare_s, _distributions_need_s(distributions_s, distributions)),
        )

    def _compare(self, deadline: float, rounding: Rounding) -> tuple[Identity, Identity]:
        """Greedy and seeded texts, until they are enough or the deadline; a prompt at least."""
        sampling = self.engine.sampling
        sampled = SamplingParams() if sampling.is_greedy else sampling
        resolver = Resolver(self.engine.vocabulary)

        def chain(params: SamplingParams, prompt: list[int]) -> SamplerChain:
            return resolver.chain(params, len(prompt), self.constraint(prompt))

        is_end = self.engine.vocabulary.is_end
        greedy, seeded = (
            IdentityCheck(self.loop, is_end, functools.partial(chain, params), rounding)
            for params in (GREEDY, sampled)
        )
        for number, prompt in enumerate(self.prompts):
            self.progress("greedy and seeded text", 0.3 * number / len(self.prompts))
            if not greedy.result.is_enough:
                greedy.run(number, prompt, None)
            if not seeded.result.is_enough:
                seeded.run(number, prompt, number)
            is_enough = greedy.result.is_enough and seeded.result.is_enough
            if is_enough or time.monotonic() > deadline:
                break
        return greedy.result, seeded.result

    def _confirm(
        self,
        check: DistributionCheck,
        distributions: Sequence[DistributionResult],
        distributions_s: float,
    ) -> list[DistributionResult]:
        """Suspect rules once more, by so many more tokens that a suspicion is decided."""
        suspects = [
            rule
            for rule in RULES
            if any(r.is_suspect and r.rule == rule for r in distributions)
        ]
        if not suspects:
            return []
        return check.run(
            suspects,
            time.monotonic() + _CONFIRMING * distributions_s,
            _CONFIRMING
            * max(result.num_tokens for result in distributions if result.rule in suspects),
            lambda share: self.progress("suspects again", 0.9 + share * 0.1),
        )


def _compare_needs_s(
    seconds: float, identities: Sequence[Identity], num_texts: int
) -> float | None:
    """Of comparing texts, for enough of them; None if there are no more. seconds: so far."""
    share = min(1.0, *(found.num_accepted / ENOUGH_ACCEPTED for found in identities))
    has_more = all(found.is_enough or found.num_texts < num_texts for found in identities)
    return seconds / share if share > 0.0 and has_more else None


def _distributions_need_s(
    seconds: float, distributions: Sequence[DistributionResult]
) -> float | None:
    """Of sampling, for enough tokens; None if none was judged. seconds: so far."""
    if not all(result.num_tokens for result in distributions):
        return None
    # What can be seen goes with the root of the tokens.
    return seconds * max(1.0, *((result.smallest_bias / BIAS) ** 2 for result in distributions))


def _check_needs_s(compare_s: float | None, distributions_s: float | None) -> float | None:
    if compare_s is None or distributions_s is None:
        return None
    return _SPARE * max(compare_s / _IDENTITY_SHARE, compare_s + distributions_s)
