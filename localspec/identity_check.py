"""Is a text with the draft, token by token, the text without?

True of the rules greedy and coupled, whose choices are functions of the target's row.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from localspec.draft_length import FixedDraftLength
from localspec.randomness import Randomness
from localspec.rounding import Rounding, single_rows
from localspec.rules import Place, make_rule
from localspec.sampling import Distribution, Logits, SamplingParams, distribution
from localspec.speculative import Request, Speculation

NUMS_DRAFT_TOKENS = (1, 3, 8)
TEXT_TOKENS = 64
_FARTHEST = 100.0  # logits


@dataclass(frozen=True, slots=True)
class Divergence:
    """A token that the target, asked alone, would not have chosen there (-1: no token).

    gap: how far apart, in logits, the two are in the row from a batch of one: as much as
    they would have to move together for the other to be chosen. Within the bound of
    `Rounding` it is a near tie; beyond, a bug.
    """

    prompt: int
    seed: int | None
    num_draft_tokens: int
    position: int
    expected_token: int
    token: int
    gap: float


@dataclass(slots=True)
class Identity:
    """What comparing texts found."""

    num_texts: int = 0
    num_tokens: int = 0
    num_accepted: int = 0
    divergences: list[Divergence] = field(default_factory=list)

    def bugs(self, bound: float) -> list[Divergence]:
        """Divergences that rounding does not explain."""
        return [found for found in self.divergences if found.gap > bound]


@dataclass(slots=True)
class IdentityCheck:
    """Compares texts of one rule, prompt by prompt, and measures rounding on the way."""

    loop: Speculation
    is_end: Callable[[int], bool]
    params: SamplingParams
    rounding: Rounding
    result: Identity = field(default_factory=Identity)

    def run(self, prompt: int, prompt_tokens: list[int], seed: int | None) -> None:
        """Add a prompt (its number, and its tokens): one text without draft, one for each K."""
        plain, _ = self._text(prompt_tokens, seed, 0)
        tokens = [*prompt_tokens, *plain[:-1]]
        rows = single_rows(self.loop.target, tokens, len(plain))
        self.rounding.measure(self.loop.target, rows, tokens)
        self._compare(prompt, seed, 0, plain, plain, rows)
        for num_draft_tokens in NUMS_DRAFT_TOKENS:
            drafted, num_accepted = self._text(prompt_tokens, seed, num_draft_tokens)
            self.result.num_accepted += num_accepted
            self._compare(prompt, seed, num_draft_tokens, plain, drafted, rows)

    def _request(self, seed: int | None, room: int) -> Request:
        rule = make_rule(
            None if self.params.is_greedy else "coupled",
            is_greedy=self.params.is_greedy,
            seed=seed,
            randomness=Randomness(seed or 0),
        )
        return Request(self.params, rule, min(TEXT_TOKENS, room), self.is_end)

    def _text(self, prompt: list[int], seed: int | None, k: int) -> tuple[list[int], int]:
        self.loop.truncate(0)
        self.loop.start(prompt)
        self.loop.draft_length = FixedDraftLength(k)
        request = self._request(seed, self.loop.target.context_length - len(prompt))
        steps = list(self.loop.steps(request))
        text = [token for step in steps for token in step.tokens]
        return text, sum(step.num_accepted for step in steps)

    def _compare(
        self,
        prompt: int,
        seed: int | None,
        num_draft_tokens: int,
        plain: list[int],
        text: list[int],
        rows: Logits,
    ) -> None:
        """Keep the first token that the row from the batch of one does not lead to."""
        self.result.num_texts += 1
        self.result.num_tokens += len(text)
        choose = self._request(seed, 1).rule.draw(Place(0, 0))
        found: tuple[int, int, int, float] | None = None
        for position, row in enumerate(rows):
            expected = choose(position, distribution(row, self.params))
            token = text[position] if position < len(text) else -1
            if token != expected:
                gap = self._gap(row, expected, token, functools.partial(choose, position))
                found = position, expected, token, gap
            if token != plain[position]:
                break  # the rows are those of the plain text
        else:
            if len(text) > len(plain):
                found = len(plain), -1, text[len(plain)], math.inf
        if found is not None:
            self.result.divergences.append(Divergence(prompt, seed, num_draft_tokens, *found))

    def _gap(
        self, row: Logits, expected: int, token: int, choose: Callable[[Distribution], int]
    ) -> float:
        def is_chosen(gap: float) -> bool:
            moved = row.copy()
            moved[token] += gap / 2
            moved[expected] -= gap / 2
            return choose(distribution(moved, self.params)) == token

        low, high = 0.0, _FARTHEST
        if token < 0 or not is_chosen(high):
            return math.inf
        while high - low > 1e-5:
            middle = (low + high) / 2
            low, high = (low, middle) if is_chosen(middle) else (middle, high)
        return high
