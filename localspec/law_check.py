"""Do texts sampled with the draft follow the target's own laws?

Every token of such a text is held against the target's law behind everything before it,
which is computed anew, without draft, after the text is there. Three views, each a
`CategoryTest`: by rank in the target's law; by token id, in whose order laws are drawn
from, so that a bad uniform shows; and by whether the draft overrates the token, where
accepting too readily shows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localspec.draft_length import FixedDraftLength
from localspec.martingale import CategoryTest
from localspec.proposers import DraftModel
from localspec.randomness import Randomness, fresh_seed
from localspec.rules import RuleName, make_rule
from localspec.sampling import Logits, Probs, SamplingParams
from localspec.speculative import Request, Speculation
from localspec.transforms import Transforms

RULES: tuple[RuleName, ...] = ("token", "block", "coupled")
VIEWS = ("rank", "token id", "overrated by the draft")
ALPHA = 1e-4  # of a false alarm, over all tests together
# Without filters, so that no rounding at the edge of one can let a token in or out.
UNFILTERED = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
NUM_DRAFT_TOKENS = 4
TEXT_TOKENS = 48
_RANK_EDGES = (1, 2, 4, 16)  # categories: best, second, to 4th, to 16th, others


@dataclass(frozen=True, slots=True)
class LawResult:
    """One rule in one view. smallest_bias: of a category's probability, to be seen 9 in 10."""

    rule: RuleName
    view: str
    num_tokens: int
    p_value: float
    smallest_bias: float

    @property
    def is_suspect(self) -> bool:
        return self.p_value < ALPHA / (len(RULES) * len(VIEWS))


@dataclass(slots=True)
class LawCheck:
    """Samples texts and holds them against the target's laws.

    prompts: token ids. is_end: the target's end-of-generation test.
    """

    loop: Speculation
    prompts: Sequence[list[int]]
    is_end: Callable[[int], bool]

    def run(
        self,
        rules: Sequence[RuleName],
        deadline: float,
        max_tokens: int | None,
        progress: Callable[[float], None],
    ) -> list[LawResult]:
        """Results of every view of the rules, from texts in turn until the deadline.

        deadline: of time.monotonic. max_tokens: enough for a rule (None: no limit).
        """
        tests = {
            rule: [CategoryTest(len(_RANK_EDGES) + 1), CategoryTest(2), CategoryTest(2)]
            for rule in rules
        }
        started, number = time.monotonic(), 0
        while True:
            prompt = self.prompts[number % len(self.prompts)]
            for rule in rules:
                self._add_text(prompt, rule, tests[rule])
            number += 1
            num_tokens = min(views[0].num_tokens for views in tests.values())
            spent = (time.monotonic() - started) / max(1e-9, deadline - started)
            done = max(spent, num_tokens / max_tokens if max_tokens else 0.0)
            progress(min(1.0, done))
            if done >= 1.0:
                break
        alpha = ALPHA / (len(RULES) * len(VIEWS))
        return [
            LawResult(
                rule, view, test.num_tokens, test.p_value, test.smallest_visible_bias(alpha)
            )
            for rule, views in tests.items()
            for view, test in zip(VIEWS, views, strict=True)
        ]

    def _add_text(self, prompt: list[int], rule: RuleName, views: list[CategoryTest]) -> None:
        loop = self.loop
        room = loop.target.context_length - len(prompt)
        loop.draft_length = FixedDraftLength(NUM_DRAFT_TOKENS)
        loop.start(prompt)
        made = make_rule(rule, is_greedy=False, seed=None, randomness=Randomness(fresh_seed()))
        request = Request(
            Transforms(UNFILTERED, num_prompt_tokens=len(prompt)),
            made,
            min(TEXT_TOKENS, room),
            self.is_end,
        )
        text = [token for step in loop.steps(request) for token in step.tokens]
        # Nothing of what the loop computed is trusted: both caches are emptied.
        loop.truncate(0)
        by_rank, by_id, by_draft = views
        drafts = _draft_rows(loop, prompt, text)
        for token, target_row in zip(text, _target_rows(loop, prompt, text), strict=True):
            target = _dense(target_row)
            by_rank.add(*_rank_category(target, token))
            by_id.add(*_two_halves(np.cumsum(target) < 0.5, target, token))
            if (draft_row := next(drafts, None)) is None:
                continue
            draft = _dense(draft_row)
            overrated = np.zeros(len(target), dtype=bool)
            overrated[: len(draft)] = draft > target[: len(draft)]
            by_draft.add(*_two_halves(overrated, target, token))


def _target_rows(loop: Speculation, prompt: list[int], text: list[int]) -> Iterator[Logits]:
    """The target's rows in front of every token of the text; its cache is left filled."""
    target = loop.target
    if len(prompt) > 1:
        target.decode(prompt[:-1], 0)
    pending = [prompt[-1], *text[:-1]]
    for begin in range(0, len(pending), target.max_outputs):
        batch = pending[begin : begin + target.max_outputs]
        yield from target.decode(batch, len(batch))


def _draft_rows(loop: Speculation, prompt: list[int], text: list[int]) -> Iterator[Logits]:
    """The draft's rows in front of every token, as far as it can follow the text."""
    draft = next((p for p in loop.proposers if isinstance(p, DraftModel)), None)
    if draft is None:
        return
    missing = prompt
    for length, token in enumerate(text, len(prompt)):
        if length >= draft.context_length or not draft.knows(missing):
            return
        yield draft.next_row(missing)
        missing = [token]


def _dense(row: Logits) -> Probs:
    """(vocab,) probabilities of a row of logits, unfiltered."""
    weights: Probs = np.exp(row - row.max(), dtype=np.float64)
    weights /= weights.sum()
    return weights


def _two_halves(chosen: NDArray[np.bool_], probs: Probs, token: int) -> tuple[Probs, int]:
    """(2,) probabilities of the others and the chosen tokens (vocab,), and this one's half."""
    share = float(probs[chosen].sum())
    return np.array([1.0 - share, share]), int(chosen[token])


def _rank_category(probs: Probs, token: int) -> tuple[Probs, int]:
    """(categories,) probabilities of the ranks in `_RANK_EDGES`, and the token's category."""
    best = np.argsort(-probs, kind="stable")[: _RANK_EDGES[-1]]
    reached = np.cumsum(probs[best])
    mass = np.diff([0.0, *(reached[min(e, len(best)) - 1] for e in _RANK_EDGES), 1.0])
    places = np.flatnonzero(best == token)
    rank = int(places[0]) if len(places) else len(probs)
    return mass, int(np.searchsorted(_RANK_EDGES, rank, side="right"))
