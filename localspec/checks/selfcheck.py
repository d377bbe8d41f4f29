"""The check of `localspec verify`: whether drafting is lossless on this machine.

Greedy and seeded text must be the same with and without drafting, except at near ties, whose
width is measured. Sampled text must follow the target's own distributions.
"""

from __future__ import annotations

import enum
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from localspec.checks.distribution_check import (
    BIAS,
    RULES,
    DistributionCheck,
    DistributionResult,
)
from localspec.checks.identity import ENOUGH_ACCEPTED, GREEDY, Identity, IdentityCheck
from localspec.checks.limit import EndedBy, ended_by, limited
from localspec.checks.prompts import check_lengths
from localspec.checks.rounding import Rounding
from localspec.engine.engine import Engine
from localspec.errors import Interrupted, OptionError
from localspec.isolated.watch import OnMeasured, Watch
from localspec.sampling.chain import SamplerChain
from localspec.sampling.constraint import Constraint
from localspec.sampling.params import SamplingParams
from localspec.sampling.resolver import Resolver
from localspec.speculative.loop import SpeculativeDecoder
from localspec.speculative.rule_name import RuleName
from localspec.streaming.options import AnswerOptions
from localspec.streaming.prompt import Prompt

_IDENTITY_SHARE = 0.5  # of the time limit, for comparing texts
_SPARE = 1.2  # times the seconds that should be needed
_CONFIRMING = 4  # times as many tokens, which show a bias of half the size


class Finding(enum.Enum):
    """The result of a check."""

    LOSSLESS = "lossless"
    NOT_LOSSLESS = "NOT lossless"
    NOT_ENOUGH = "not enough evidence"  # nothing is wrong, but too little was checked


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a check. confirmations: second tests of suspect rules, with fresh seeds.

    seconds_needed: probably enough for a finding; None if unknown or hopeless. is_hopeless:
    whether no time would be enough with these prompts, because too few draft tokens are
    accepted. ended_by: the reason if the check ended early.
    """

    rounding: Rounding
    greedy: Identity
    seeded: Identity
    distributions: tuple[DistributionResult, ...]
    confirmations: tuple[DistributionResult, ...]
    time_s: float
    seconds_needed: float | None
    is_hopeless: bool
    ended_by: EndedBy | None

    @property
    def identity_bugs(self) -> list[str]:
        """Differences from the target's texts, one per line."""
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
        """Rules that do not follow the target's distribution, one per line."""
        return [
            f"texts by the rule {result.rule} do not follow the target's distribution "
            f"(by {result.view}: p = {result.p_value:.1e} over {result.num_tokens} tokens, "
            "confirmed)"
            for result in self.confirmations
            if result.is_suspect
        ]

    @property
    def identity(self) -> Finding:
        """The finding on greedy and seeded text."""
        is_enough = self.greedy.is_enough and self.seeded.is_enough
        return _finding(self.identity_bugs, is_enough=is_enough)

    @property
    def statistics(self) -> Finding:
        """The finding on sampled text."""
        is_enough = self.visible_bias <= BIAS and not self.open_suspicions
        return _finding(self.distribution_bugs, is_enough=is_enough)

    @property
    def open_suspicions(self) -> list[RuleName]:
        """Suspect rules whose second test was not finished."""
        if self.ended_by is None:
            return []
        suspects = {result.rule for result in self.distributions if result.is_suspect}
        confirmed = {result.rule for result in self.confirmations if result.is_suspect}
        return [rule for rule in RULES if rule in suspects - confirmed]

    @property
    def visible_bias(self) -> float:
        """The smallest bias that would have shown in every rule and view."""
        return max(result.smallest_bias for result in self.distributions)

    @property
    def finding(self) -> Finding:
        """The finding on all text: lossless only if both are."""
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
    seconds: float,
    num_samples: int | None,
    watch: Watch,
    options: AnswerOptions,
) -> Report:
    """Check an engine on prompts of token ids, until there is enough evidence.

    seconds: the time limit. It and the watch's cancellation end the check even within a decode;
    the results so far are returned. num_samples: tokens to sample per rule (None: as many as
    needed). options: only their constraint is used. The engine's draft policy is restored
    afterwards. Raises ContextError for a prompt that leaves no room for an answer, OptionError
    if nothing drafts, ConstraintError for a constraint that cannot be enforced.
    """
    check_lengths(prompts, engine.context_length)
    chosen = engine._draft_policy
    ending: EndedBy | None = None
    try:
        with limited(watch.cancellation, seconds) as ended, engine.exclusively() as loop:
            if not loop.proposers:
                raise OptionError(
                    "there is nothing to check: nothing drafts for this target",
                    "Use a --draft with a target whose cache can be rolled back.",
                )

            def constraint(prompt: list[int]) -> Constraint | None:
                return engine._constraint(options, Prompt(prompt))

            work = _Check(engine, loop, prompts, constraint, watch.progress)
            try:
                with ended.obeyed(engine.cancel):
                    work.run(_IDENTITY_SHARE * seconds, num_samples)
            except Interrupted:
                ending = ended_by(watch.cancellation)
            return work.report(ending)
    finally:
        engine._draft_policy = chosen


class _Check:
    """A check, and its results so far."""

    def __init__(
        self,
        engine: Engine,
        loop: SpeculativeDecoder,
        prompts: Sequence[list[int]],
        constraint: Callable[[list[int]], Constraint | None],
        progress: OnMeasured,
    ) -> None:
        self._prompts = prompts
        self._progress = progress
        self._rounding = Rounding()
        sampled = SamplingParams() if engine.sampling.is_greedy else engine.sampling
        resolver = Resolver(engine.vocabulary)

        def chain(params: SamplingParams, prompt: list[int]) -> SamplerChain:
            return resolver.chain(params, len(prompt), constraint(prompt))

        is_end = engine.vocabulary.is_end
        self._greedy, self._seeded = (
            IdentityCheck(loop, is_end, functools.partial(chain, params), self._rounding)
            for params in (GREEDY, sampled)
        )
        self._sampling = DistributionCheck(loop, prompts, is_end, constraint)
        self._samples = self._sampling.samples(RULES)
        self._again = self._sampling.samples(())
        self._has_prompts = True  # left, whose texts were not compared
        self._started_s = time.monotonic()
        self._compare_s: float | None = None  # once known
        self._sample_s: float | None = None

    def run(self, compare_s: float, num_samples: int | None) -> None:
        """Check until there is enough evidence. compare_s: seconds for comparing texts.

        Raises Interrupted.
        """
        self._compare(compare_s)
        self._compare_s = self._spent_s()
        self._sampling.add(self._samples, num_samples, self._tell_sampling)
        self._sample_s = self._spent_s() - self._compare_s
        self._confirm()

    def report(self, ending: EndedBy | None) -> Report:
        """The report on the results so far."""
        identities = (self._greedy.result, self._seeded.result)
        is_enough = all(found.is_enough for found in identities)
        distributions = tuple(self._samples.results())
        spent_s = self._spent_s()
        return Report(
            self._rounding,
            *identities,
            distributions,
            tuple(self._again.results()),
            spent_s,
            self._needed_s(spent_s, identities, distributions),
            not (is_enough or self._has_prompts),
            ending,
        )

    def _needed_s(
        self,
        spent_s: float,
        identities: Sequence[Identity],
        distributions: Sequence[DistributionResult],
    ) -> float | None:
        """Seconds that a finding probably takes; None if unknown."""
        compare_s = spent_s if self._compare_s is None else self._compare_s
        sample_s = spent_s - compare_s if self._sample_s is None else self._sample_s
        share = min(1.0, *(found.num_accepted / ENOUGH_ACCEPTED for found in identities))
        largest = max(result.smallest_bias for result in distributions)
        if share == 0.0 or largest == 1.0:
            return None
        compare_s /= share
        sample_s *= max(1.0, (largest / BIAS) ** 2)  # bias ~ 1/√tokens
        if self._samples.suspects:
            sample_s *= 1 + _CONFIRMING
        return _SPARE * max(compare_s / _IDENTITY_SHARE, compare_s + sample_s)

    def _spent_s(self) -> float:
        return time.monotonic() - self._started_s

    def _compare(self, limit_s: float) -> None:
        """Compare greedy and seeded texts, until there are enough or the time is over."""
        for number, prompt in enumerate(self._prompts):
            for name, check, seed in (
                ("greedy", self._greedy, None),
                ("seeded", self._seeded, number),
            ):
                if not check.result.is_enough:
                    self._progress(
                        f"Comparing {name} text {number + 1} of {len(self._prompts)}: "
                        f"{check.result.num_accepted} of {ENOUGH_ACCEPTED} tokens",
                        None,
                    )
                    check.run(number, prompt, seed)
                if self._spent_s() > limit_s:
                    return
            if self._greedy.result.is_enough and self._seeded.result.is_enough:
                return
        self._has_prompts = False

    def _tell_sampling(self, share: float) -> None:
        spent_s = self._spent_s() - (self._compare_s or 0.0)
        left_s = spent_s * (1.0 - share) / share if share > 0.0 else None
        self._progress(f"Checking sampled text: {share:.0%} of the evidence", left_s)

    def _confirm(self) -> None:
        """Test suspect rules again, with enough tokens to decide."""
        suspects = self._samples.suspects
        if not suspects:
            return
        self._again = self._sampling.samples(suspects)
        num_tokens = max(
            result.num_tokens for result in self._samples.results() if result.rule in suspects
        )
        self._sampling.add(
            self._again,
            _CONFIRMING * num_tokens,
            lambda share: self._progress(f"Testing suspect rules again: {share:.0%}", None),
        )
