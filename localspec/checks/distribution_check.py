"""Do texts sampled with the draft follow the target's own distributions?

Every token of such a text that came of judging draft tokens is held against the target's
distribution after everything before it, which is computed again, without draft, after the text
is there. Three views, each a `CategoryTest`: by rank in the target's distribution; by token id,
in whose order distributions are drawn from, so that a bad uniform shows; and by whether the
draft overrates the token, where accepting too readily shows.
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
VIEWS = ("rank", "token id", "overrated by the draft")  # the last one not of lookup
# Of suspecting anything that is right, over all tests together. A suspect rule is asked again,
# with fresh seeds, so a false alarm is at most as likely as ALPHA² / 3.
ALPHA = 0.01
BIAS = 0.03  # of a category's probability, that has to be visible
POWER = 0.95  # each time, hence 9 times in 10 both times
# Without filters, so that no rounding at the edge of one can let a token in or out.
UNFILTERED = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
NUM_DRAFT_TOKENS = 4
TEXT_TOKENS = 64
_ALPHA_EACH = ALPHA / (len(RULES) * len(VIEWS))
_RANK_EDGES = (1, 2, 4, 16)  # categories: best, second, to 4th, to 16th, others


@dataclass(frozen=True, slots=True)
class DistributionResult:
    """One rule in one view. smallest_bias: of a category's probability, to be seen so often
    as POWER says."""

    rule: RuleName
    view: str
    num_tokens: int
    p_value: float
    smallest_bias: float

    @property
    def is_suspect(self) -> bool:
        """Whether they fell as they should not; of too few to tell anything they did not."""
        return self.p_value < _ALPHA_EACH and self.smallest_bias < 1.0


class Samples:
    """Tokens of some rules, as the views count them."""

    def __init__(self, rules: Sequence[RuleName], *, has_draft: bool) -> None:
        num_views = len(VIEWS) if has_draft else len(VIEWS) - 1
        self.tests = {
            rule: [CategoryTest(len(_RANK_EDGES) + 1), CategoryTest(2), CategoryTest(2)][
                :num_views
            ]
            for rule in rules
        }

    def results(self) -> list[DistributionResult]:
        """Of every view of the rules; at any time: see `DistributionCheck.add`."""
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
        """Of what is asked of each rule. num_tokens: enough for a rule; None: as many as it
        takes for a bias of BIAS to be visible in every view."""
        return {rule: _share_done(views, num_tokens) for rule, views in self.tests.items()}


@dataclass(slots=True)
class DistributionCheck:
    """Samples texts and holds them against the target's distributions.

    prompts: token ids. is_end: the target's end-of-generation test. constraint: of the answer
    to a prompt, if it has one; each call makes another.
    """

    loop: SpeculativeDecoder
    prompts: Sequence[list[int]]
    is_end: Callable[[int], bool]
    constraint: Callable[[list[int]], Constraint | None]

    def samples(self, rules: Sequence[RuleName]) -> Samples:
        """Room for tokens of these rules."""
        return Samples(rules, has_draft=self._draft is not None)

    def add(
        self, samples: Samples, num_tokens: int | None, progress: Callable[[float], None]
    ) -> None:
        """Sample texts of each rule in turn, until there are enough: see `Samples.shares`.

        progress: gets the share that is done. Raises Interrupted; the tokens that were compared
        by then have been counted.

        When it ends hangs on what could be seen, or on a clock, or on somebody who is shown no
        result, but never on how the tokens fell; so the p-values are what they are called
        whenever it ends. Of the text that an interrupt cuts, tokens that were not compared are
        left out, which is at most one text.
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
            min(TEXT_TOKENS, room),
            self.is_end,
        )
        emitted = [
            (token, step.num_draft_tokens > 0)
            for step in loop.steps(request)
            for token in step.tokens
        ]
        text = [token for token, _ in emitted]
        # Nothing of what the loop computed is trusted: both caches are emptied.
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
    return test.smallest_visible_bias(_ALPHA_EACH, POWER)


def _share_done(views: list[CategoryTest], num_tokens: int | None) -> float:
    """Of what is asked of a rule; what can be seen goes with the root of the tokens."""
    if num_tokens is not None:
        return min(view.num_tokens for view in views) / num_tokens
    return min((BIAS / _visible(view)) ** 2 for view in views)


def _rows(
    target: Model, draft: DraftModel | None, prompt: list[int], text: list[int]
) -> Iterator[tuple[Logits, Logits | None]]:
    """Both models' rows in front of every token of the text, the draft's as far as it can
    follow. The caches are left filled.
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
    """(vocab,) probabilities of a row of logits, of those that the mask has."""
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
