"""Tests whether texts sampled with drafting follow the target's own distributions.

Each token that a rule accepted or drew is compared with the target's distribution at its
position, which is computed again, without drafting, once the text is complete. There are three
views, each a `CategoryTest`: by rank in the target's distribution; by token id, the order in
which tokens are drawn, where a bad random number shows; and by whether the draft overrates the
token, where accepting too many draft tokens shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localspec.checks.martingale import CategoryTest
from localspec.sampling.chain import SamplerChain
from localspec.sampling.constraint import Constraint, Mask
from localspec.sampling.distribution import Logits, Probs
from localspec.sampling.params import SamplingParams
from localspec.speculative.loop import Request, SpeculativeDecoder
from localspec.speculative.model import Model
from localspec.speculative.policy_api import FixedDraftPolicy
from localspec.speculative.proposers import DraftModel
from localspec.speculative.randomness import Randomness, fresh_seed
from localspec.speculative.rule_name import RuleName
from localspec.speculative.rules import make_rule

RULES: tuple[RuleName, ...] = ("token", "block", "coupled")
VIEWS = ("rank", "token id", "overrated by the draft")  # the last one needs a draft model
# Probability of a false suspicion, over all tests together. A suspect rule is tested again with
# fresh seeds, so the probability of a false alarm is at most ALPHA² / 3.
ALPHA = 0.01
BIAS = 0.03  # of a category's probability; a verdict needs to see as little
CHECK_POWER = 0.95  # of one test; 9 times in 10 both tests show it
# Without filters, where rounding at the edge could let a token in or out.
UNFILTERED = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
NUM_DRAFT_TOKENS = 4
SAMPLED_TEXT_TOKENS = 64
_ALPHA_EACH = ALPHA / (len(RULES) * len(VIEWS))
_RANK_EDGES = (1, 2, 4, 16)  # categories: best, second, to 4th, to 16th, others


@dataclass(frozen=True, slots=True)
class DistributionResult:
    """One rule in one view. smallest_bias: the smallest bias of a category's probability that
    shows with a probability of CHECK_POWER."""

    rule: RuleName
    view: str
    num_tokens: int
    p_value: float
    smallest_bias: float

    @property
    def is_suspect(self) -> bool:
        """Whether the tokens do not follow the distribution; False if there are too few."""
        return self.p_value < _ALPHA_EACH and self.smallest_bias < 1.0


class Samples:
    """Sampled tokens of some rules, counted in each view."""

    def __init__(self, rules: Sequence[RuleName], *, has_draft: bool) -> None:
        num_views = len(VIEWS) if has_draft else len(VIEWS) - 1
        self.tests = {
            rule: [CategoryTest(len(_RANK_EDGES) + 1), CategoryTest(2), CategoryTest(2)][
                :num_views
            ]
            for rule in rules
        }

    def results(self) -> list[DistributionResult]:
        """The results of every rule and view so far, valid at any time."""
        return [
            DistributionResult(rule, view, test.num_tokens, test.p_value, _visible(test))
            for rule, views in self.tests.items()
            for view, test in zip(VIEWS, views, strict=False)
        ]

    @property
    def suspects(self) -> list[RuleName]:
        """Rules that a view suspects."""
        results = self.results()
        return [
            rule for rule in self.tests if any(r.is_suspect and r.rule == rule for r in results)
        ]

    def shares(self, num_tokens: int | None) -> dict[RuleName, float]:
        """How much of each rule is done; 1 is enough.

        num_tokens: enough for a rule; None: as many as make a bias of BIAS visible in every
        view.
        """
        return {rule: _share_done(views, num_tokens) for rule, views in self.tests.items()}


@dataclass(slots=True)
class DistributionCheck:
    """Samples texts and compares them with the target's distributions.

    prompts: token ids. is_end: the target's end-of-generation test. constraint: makes a new
    constraint of the answer to a prompt, or None.
    """

    loop: SpeculativeDecoder
    prompts: Sequence[list[int]]
    is_end: Callable[[int], bool]
    constraint: Callable[[list[int]], Constraint | None]

    def samples(self, rules: Sequence[RuleName]) -> Samples:
        """Empty counts for these rules."""
        return Samples(rules, has_draft=self._draft is not None)

    def add(
        self, samples: Samples, num_tokens: int | None, progress: Callable[[float], None]
    ) -> None:
        """Sample texts of each rule in turn, until there are enough: see `Samples.shares`.

        progress: called with the share that is done. Raises Interrupted; the tokens compared
        by then are counted, and at most one text that was cut is not.

        The end depends on how small a bias would show, on a clock, or on a person who does not
        see the results, but never on which tokens were drawn; so the p-values are valid
        whenever it ends.
        """
        number = 0
        while True:
            shares = samples.shares(num_tokens)
            progress(min(1.0, min(shares.values())))
            unfinished = [rule for rule, share in shares.items() if share < 1.0]
            if not unfinished:
                return
            prompt = self.prompts[number % len(self.prompts)]
            for rule in unfinished:
                self._add_text(prompt, rule, samples.tests[rule])
            number += 1

    @property
    def _draft(self) -> DraftModel | None:
        proposers = self.loop.proposers
        return next((p for p in proposers if isinstance(p, DraftModel)), None)

    def _add_text(self, prompt: list[int], rule: RuleName, views: list[CategoryTest]) -> None:
        loop = self.loop
        room = loop.target.context_length - len(prompt)
        loop.draft_policy = FixedDraftPolicy(NUM_DRAFT_TOKENS)
        loop.start(prompt)
        made = make_rule(rule, is_greedy=False, seed=None, randomness=Randomness(fresh_seed()))
        request = Request(
            SamplerChain(
                UNFILTERED, num_prompt_tokens=len(prompt), constraint=self.constraint(prompt)
            ),
            made,
            min(SAMPLED_TEXT_TOKENS, room),
            self.is_end,
        )
        emitted = [
            (token, step.num_draft_tokens > 0)
            for step in loop.steps(request)
            for token in step.tokens
        ]
        text = [token for token, _ in emitted]
        # Nothing that the loop computed is trusted: both caches are emptied.
        loop.truncate(0)
        by_rank, by_id, *by_draft = views
        rows = _rows(loop.target, self._draft, prompt, text)
        constraint = self.constraint(prompt)
        for (token, is_judged), (target_row, draft_row) in zip(emitted, rows, strict=True):
            mask = None if constraint is None else constraint.mask()
            if constraint is not None:
                constraint.commit([token])
            if not is_judged:
                continue
            target = _dense(target_row, mask)
            by_rank.add(*_rank_category(target, token))
            by_id.add(*_two_halves(np.cumsum(target) < 0.5, target, token))
            if draft_row is None:
                continue
            draft = _dense(draft_row, None)
            overrated = np.zeros(len(target), dtype=bool)
            overrated[: len(draft)] = draft > target[: len(draft)]
            by_draft[0].add(*_two_halves(overrated, target, token))


def _visible(test: CategoryTest) -> float:
    return test.smallest_visible_bias(_ALPHA_EACH, CHECK_POWER)


def _share_done(views: list[CategoryTest], num_tokens: int | None) -> float:
    """How much of a rule is done; the visible bias falls with the root of the tokens."""
    if num_tokens is not None:
        return min(view.num_tokens for view in views) / num_tokens
    return min((BIAS / _visible(view)) ** 2 for view in views)


def _rows(
    target: Model, draft: DraftModel | None, prompt: list[int], text: list[int]
) -> Iterator[tuple[Logits, Logits | None]]:
    """Both models' rows before every token of the text; the draft's as far as its context goes.
    The caches are left filled.
    """
    if len(prompt) > 1:
        target.decode(prompt[:-1], 0)
    whole = [*prompt, *text]
    size = target.max_outputs if draft is None else draft.model.max_outputs
    for begin in range(len(prompt) - 1, len(whole) - 1, size):
        end = min(begin + size, len(whole) - 1)
        targets = target.decode(whole[begin:end], end - begin)
        if draft is None or draft.state(whole[:end]).max_tokens == 0:
            yield from ((row, None) for row in targets)
        else:
            yield from zip(targets, draft.rows(whole[:end], end - begin), strict=True)


def _dense(row: Logits, mask: Mask | None) -> Probs:
    """(vocab,) probabilities of a row of logits; 0 outside the mask."""
    left = row if mask is None else np.where(mask[: len(row)], row, -np.inf)
    weights: Probs = np.exp(left - left.max(), dtype=np.float64)
    weights /= weights.sum()
    return weights


def _two_halves(chosen: NDArray[np.bool_], probs: Probs, token: int) -> tuple[Probs, int]:
    """(2,) probabilities of the others and the chosen tokens (vocab,), and this one's half."""
    share = float(probs[chosen].sum())
    return np.array([1.0 - share, share]), int(chosen[token])


def _rank_category(probs: Probs, token: int) -> tuple[Probs, int]:
    """(categories,) probabilities of the ranks in `_RANK_EDGES`, and the token's category."""
    best = np.argpartition(-probs, min(_RANK_EDGES[-1], len(probs) - 1))[: _RANK_EDGES[-1]]
    best = best[np.argsort(-probs[best], kind="stable")]
    reached = np.cumsum(probs[best])
    mass = np.diff([0.0, *(reached[min(e, len(best)) - 1] for e in _RANK_EDGES), 1.0])
    places = np.flatnonzero(best == token)
    rank = int(places[0]) if len(places) else len(probs)
    return mass, int(np.searchsorted(_RANK_EDGES, rank, side="right"))
