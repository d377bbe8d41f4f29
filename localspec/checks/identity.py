"""Compares texts with drafting, token by token, with those without.

For the rules greedy and coupled, whose choices are functions of the target's row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from localspec.checks.rounding import Rounding, single_rows
from localspec.sampling.chain import SamplerChain
from localspec.sampling.distribution import Logits
from localspec.sampling.params import SamplingParams
from localspec.speculative.loop import Request, SpeculativeDecoder
from localspec.speculative.metrics import Provenance
from localspec.speculative.policy_api import FixedDraftPolicy
from localspec.speculative.randomness import Randomness
from localspec.speculative.rules import StepStart, make_rule

GREEDY = SamplingParams(temperature=0)
NUMS_DRAFT_TOKENS = (1, 3, 8)
ENOUGH_ACCEPTED = 200  # draft tokens; 9 times in 10 they show that 1.2 % are wrong
COMPARED_TEXT_TOKENS = 64
_FARTHEST = 100.0  # logits


@dataclass(frozen=True, slots=True)
class Divergence:
    """A token that the target alone would not have chosen there (-1: no token).

    gap: how many logits the two tokens would have to move towards each other, in the row from
    a batch of one, for the other to be chosen; infinite if no move is enough. Within the bound
    of `Rounding` it is a near tie, beyond it a bug.
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
    """The result of comparing texts.

    num_tokens: compared tokens, without those after the first divergence of a text;
    num_accepted: how many of them were accepted draft tokens; num_identical: how many accepted
    draft tokens the target would choose, too.
    """

    num_texts: int = 0
    num_tokens: int = 0
    num_accepted: int = 0
    num_identical: int = 0
    divergences: list[Divergence] = field(default_factory=list)

    @property
    def is_enough(self) -> bool:
        """Whether enough draft tokens were compared for a verdict."""
        return self.num_accepted >= ENOUGH_ACCEPTED

    @property
    def smallest_fault(self) -> float:
        """The smallest share of wrong draft tokens that would show 9 times in 10."""
        return 1.0 - 0.1 ** (1 / self.num_accepted) if self.num_accepted else 1.0

    def bugs(self, bound: float) -> list[Divergence]:
        """Divergences beyond rounding."""
        return [found for found in self.divergences if found.gap > bound]


@dataclass(slots=True)
class IdentityCheck:
    """Compares texts of one rule, prompt by prompt, and measures rounding at the same time.

    The rule is greedy at temperature 0, else coupled. make_chain: the samplers for a prompt.
    """

    loop: SpeculativeDecoder
    is_end: Callable[[int], bool]
    make_chain: Callable[[list[int]], SamplerChain]
    rounding: Rounding
    result: Identity = field(default_factory=Identity)

    def run(self, prompt: int, prompt_tokens: list[int], seed: int | None) -> None:
        """Compare the texts of a prompt: one without drafting, and one for each K.

        prompt: its number. Raises Interrupted; the tokens drafted by then are compared if the
        text without drafting was complete.
        """
        plain = _Text()
        self._write(plain, prompt_tokens, seed, 0)
        tokens = [*prompt_tokens, *plain.tokens[:-1]]
        rows = single_rows(self.loop.target, tokens, len(plain.tokens))
        self.rounding.measure(self.loop.target, rows, tokens)
        judge = _Judge(self._request(seed, prompt_tokens), prompt_tokens, plain.tokens, rows)
        self._add(plain, judge, prompt, seed, 0)
        for num_draft_tokens in NUMS_DRAFT_TOKENS:
            text = _Text()
            try:
                self._write(text, prompt_tokens, seed, num_draft_tokens)
            finally:
                self._add(text, judge, prompt, seed, num_draft_tokens)

    def _add(self, text: _Text, judge: _Judge, prompt: int, seed: int | None, k: int) -> None:
        """Add the comparison of a text, which may be cut off."""
        found = judge.first_divergence(text)
        compared = text.provenance if found is None else text.provenance[: found[0] + 1]
        num_accepted = compared.count(Provenance.ACCEPTED)
        is_draft_other = found is not None and compared[-1:] == [Provenance.ACCEPTED]
        self.result.num_texts += 1
        self.result.num_tokens += len(compared)
        self.result.num_accepted += num_accepted
        self.result.num_identical += num_accepted - is_draft_other
        if found is not None:
            self.result.divergences.append(Divergence(prompt, seed, k, *found))

    def _request(self, seed: int | None, prompt_tokens: list[int]) -> Request:
        chain = self.make_chain(prompt_tokens)
        is_greedy = chain.params.is_greedy
        rule = make_rule(
            None if is_greedy else "coupled",
            is_greedy=is_greedy,
            seed=seed,
            randomness=Randomness(seed or 0),
        )
        room = self.loop.target.context_length - len(prompt_tokens)
        return Request(chain, rule, min(COMPARED_TEXT_TOKENS, room), self.is_end)

    def _write(self, text: _Text, prompt: list[int], seed: int | None, k: int) -> None:
        self.loop.truncate(0)
        self.loop.start(prompt)
        self.loop.draft_policy = FixedDraftPolicy(k)
        for step in self.loop.steps(self._request(seed, prompt)):
            text.tokens += step.tokens
            text.provenance += step.provenance
        text.is_whole = True


@dataclass(slots=True)
class _Text:
    """A text so far. is_whole: whether it ended by itself."""

    tokens: list[int] = field(default_factory=list)
    provenance: list[Provenance] = field(default_factory=list)
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class _Judge:
    """Compares tokens with the target's own choices after the plain text."""

    request: Request
    prompt_tokens: list[int]
    plain: list[int]
    rows: Logits

    def first_divergence(self, written: _Text) -> tuple[int, int, int, float] | None:
        """Position, expected token, token and gap of the first divergence, or None.

        The missing end of a cut text does not count.
        """
        text = written.tokens
        rows = self.rows if written.is_whole else self.rows[: len(text)]
        for position, row in enumerate(rows):
            expected = self._choice(position, row)
            token = text[position] if position < len(text) else -1
            if token != expected:
                return position, expected, token, self._gap(position, expected, token)
            if token != self.plain[position]:
                return None  # the rows belong to the plain text
        if len(text) > len(self.plain):
            return len(self.plain), -1, text[len(self.plain)], math.inf
        return None

    def _choice(self, position: int, row: Logits) -> int:
        chain = self.request.chain
        distribution = chain.distribution(row, self.prompt_tokens, self.plain[:position])
        return self.request.rule.draw(StepStart(0, position))(0, distribution)

    def _gap(self, position: int, expected: int, token: int) -> float:
        def is_chosen(gap: float) -> bool:
            moved = self.rows[position].copy()
            moved[token] += gap / 2
            moved[expected] -= gap / 2
            return self._choice(position, moved) == token

        low, high = 0.0, _FARTHEST
        if token < 0 or not is_chosen(high):
            return math.inf
        while high - low > 1e-5:
            middle = (low + high) / 2
            low, high = (low, middle) if is_chosen(middle) else (middle, high)
        return high
