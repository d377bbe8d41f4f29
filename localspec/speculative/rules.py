"""The rules of verification with their random numbers: how tokens are drawn and judged.

`verify` has the rules as pure functions; here each gets the random numbers of a step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, get_args

from localspec.errors import OptionError
from localspec.sampling.distribution import Distribution
from localspec.speculative import verify
from localspec.speculative.policy_api import RuleName
from localspec.speculative.proposers import Draw, Proposal
from localspec.speculative.randomness import Purpose, Randomness
from localspec.speculative.verify import Verdict


class StepStart(NamedTuple):
    """The place of a step in the answer."""

    step: int
    """Its number, from 0."""

    num_emitted: int
    """How many tokens of the answer come before it."""


def rule_name(name: RuleName | None, *, is_greedy: bool, seed: int | None) -> RuleName:
    """The rule of an answer: "greedy" at temperature 0, else the named one.

    Without a name, it is "coupled" with a seed and "block" without one.

    Args:
        name: The name that was asked for, if any.
        is_greedy: Whether the temperature is 0.
        seed: The seed that was asked for, if any.

    Raises:
        OptionError: If there is no such rule, and for "greedy" at another temperature.
    """
    if name is not None and name not in get_args(RuleName):
        raise OptionError(
            f"there is no rule of verification {name!r}",
            f"Choose one of: {', '.join(get_args(RuleName))}.",
        )
    if name == "greedy" and not is_greedy:
        raise OptionError("the rule greedy needs temperature 0", "Set it, or choose another.")
    if is_greedy:
        return "greedy"
    if name is not None:
        return name
    if seed is None:
        return "block"
    return "coupled"


def make_rule(name: RuleName, randomness: Randomness) -> Rule:
    """The rule of that name, with its random numbers."""
    if name == "greedy":
        return _Matching(name, verify.argmax)
    if name == "coupled":
        return _Matching(name, randomness.gumbel_max)
    if name == "token":
        return _Sampling(name, verify.token, randomness)
    return _Sampling(name, verify.block, randomness)


class _Matching:
    """Draft and target choose a token with one function; it is kept if both chose the same."""

    def __init__(self, name: RuleName, choose: Callable[[int, Distribution], int]) -> None:
        self.name: RuleName = name
        self._choose = choose

    def draw(self, start: StepStart) -> Draw:
        """The function that draws the draft tokens of a step."""
        return lambda index, distribution: self._choose(start.num_emitted + index, distribution)

    def verdict(
        self,
        start: StepStart,
        targets: list[Distribution],
        proposal: Proposal,
    ) -> Verdict:
        """Judge a proposal.

        Args:
            start: The step.
            targets: The target's rows, one more than the proposal has tokens.
            proposal: The proposal.
        """
        return verify.match(targets, proposal.draft_tokens, self.draw(start))


class _Sampling:
    """Draft tokens are drawn from the draft's distribution and judged against the target's."""

    def __init__(
        self,
        name: RuleName,
        judge: Callable[..., Verdict],
        randomness: Randomness,
    ) -> None:
        self.name: RuleName = name
        self._judge = judge
        self._randomness = randomness

    def draw(self, start: StepStart) -> Draw:
        uniforms = self._randomness.uniforms(start.step)[Purpose.DRAFT]
        return lambda index, distribution: distribution.draw(uniforms[index])

    def verdict(
        self,
        start: StepStart,
        targets: list[Distribution],
        proposal: Proposal,
    ) -> Verdict:
        uniforms = self._randomness.uniforms(start.step)
        return self._judge(
            targets,
            proposal.distributions,
            proposal.draft_tokens,
            uniforms[Purpose.ACCEPT],
            uniforms[Purpose.RESIDUAL, 0],
        )


Rule = _Matching | _Sampling
