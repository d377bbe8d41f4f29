"""Compares texts with drafting, token by token, with those without.

For the rules greedy and coupled, whose choices are functions of the target's row. Batches of
several tokens and of one compute that row with different kernels, so the choice may differ
where two tokens are nearly tied; how near is measured.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from localspec.sampling.chain import SamplerChain
from localspec.sampling.distribution import Logits
from localspec.sampling.params import SamplingParams
from localspec.speculative.loop import Request, SpeculativeDecoder
from localspec.speculative.metrics import Provenance
from localspec.speculative.model_api import Model
from localspec.speculative.policy_api import FixedDraftPolicy
from localspec.speculative.randomness import Randomness
from localspec.speculative.rules import StepStart, make_rule

GREEDY = SamplingParams(temperature=0)
NUMS_DRAFT_TOKENS = (1, 3, 8)
# Draft tokens of each rule. Both together show an error in 1.2 % of them 9 times in 10.
ENOUGH_ACCEPTED = 100
COMPARED_TEXT_TOKENS = 64
_FARTHEST = 100.0  # logits
_NUM_MEASURED = 17  # last rows of a text, and those in front of a divergence
_NEAR_TOP = 10.0  # logits; tokens further below the best are never chosen
_BATCH_SIZES = (2, 4, 9, 17)  # of steps with 1, 3, 8 and 16 draft tokens


@dataclass(slots=True)
class Rounding:
    """Differences between rows of logits from batches of one and of several tokens."""

    num_rows: int = 0
    num_equal: int = 0
    """Rows that are equal to the bit."""

    largest_size: int = 1
    """Tokens of the largest batch."""

    num_argmax_changed: int = 0
    largest_difference: float = 0.0
    """The largest difference of a logit near the top of its row."""

    widest_gap_changed: float = 0.0
    """The widest gap, in logits, between two best tokens of which the other became the best."""

    @property
    def bound(self) -> float:
        """Tokens closer than this, in logits, may be chosen for each other: both can move."""
        return 2.0 * self.largest_difference

    def add(self, single: Logits, batched: Logits) -> None:
        """Compare two (vocab,) rows."""
        near = single >= single.max() - _NEAR_TOP
        self.num_rows += 1
        self.num_equal += np.array_equal(single, batched)
        difference = float(np.abs(single[near] - batched[near]).max())
        self.largest_difference = max(self.largest_difference, difference)
        best = int(single.argmax())
        other = int(batched.argmax())
        if best != other:
            self.num_argmax_changed += 1
            gap = float(single[best] - single[other])
            self.widest_gap_changed = max(self.widest_gap_changed, gap)

    def measure(self, target: Model, rows: Logits, tokens: Sequence[int]) -> None:
        """Compare rows, each decoded in a batch of one, with those of batches of other sizes.

        The cache keeps some of the tokens.

        Args:
            rows: The rows after each of the last len(rows) tokens.
        """
        num_before = len(tokens) - len(rows)
        for size in sorted({min(size, target.max_outputs) for size in _BATCH_SIZES}):
            self.largest_size = max(self.largest_size, size)
            target.truncate(min(num_before, target.num_cached))
            if missing := tokens[target.num_cached : num_before]:
                target.decode(missing, 0)  # a sliding window could not be cut that far
            for begin in range(0, len(rows) - size + 1, size):
                at = num_before + begin
                batch = target.decode(tokens[at : at + size], size)
                for single, batched in zip(rows[begin:], batch, strict=False):
                    self.add(single, batched)


@dataclass(frozen=True, slots=True)
class Divergence:
    """A token that the target alone would not have chosen there (-1: no token)."""

    prompt: int
    seed: int | None
    num_draft_tokens: int
    position: int
    expected_token: int
    token: int
    gap: float
    """How many logits the two tokens would have to move towards each other, in the row from
    a batch of one, for the other to be chosen; infinite if no move is enough. Within the
    bound of `Rounding` it is a near tie, beyond it a bug."""


@dataclass(slots=True)
class Identity:
    """The result of comparing texts."""

    num_texts: int = 0
    num_tokens: int = 0
    """Compared tokens, without those after the first divergence of a text."""

    num_accepted: int = 0
    """How many of them were accepted draft tokens."""

    num_identical: int = 0
    """How many accepted draft tokens the target would choose, too."""

    divergences: list[Divergence] = field(default_factory=list)

    @property
    def is_enough(self) -> bool:
        """Whether enough draft tokens were compared for a verdict."""
        return self.num_accepted >= ENOUGH_ACCEPTED

    def bugs(self, bound: float) -> list[Divergence]:
        """Divergences beyond rounding."""
        return [found for found in self.divergences if found.gap > bound]


@dataclass(frozen=True, slots=True)
class Reference:
    """The target's own text of a prompt, and its row before each token: (tokens, vocab)."""

    prompt_tokens: list[int]
    seed: int | None
    request: Request
    plain: list[int]
    rows: Logits

    def choice(self, position: int, row: Logits) -> int:
        """The token that the target chooses at a position with this row."""
        chain = self.request.chain
        if chain.params.is_greedy and chain.constraint is None:
            return int(row.argmax())
        distribution = chain.distribution(row, self.prompt_tokens, self.plain[:position])
        return self.request.rule.draw(StepStart(0, position))(0, distribution)

    def first_divergence(self, written: _Text) -> tuple[int, int, int, float] | None:
        """Position, expected token, token and gap of the first divergence, or None.

        The missing end of a cut text does not count.
        """
        text = written.tokens
        plain = self.plain[written.begin :]
        for index, token in enumerate(text[: len(plain)]):
            if token != plain[index]:
                position = written.begin + index
                return position, plain[index], token, self._gap(position, plain[index], token)
        if len(text) > len(plain):
            return len(self.plain), -1, text[len(plain)], math.inf
        if written.is_whole and len(text) < len(plain):
            return written.begin + len(text), plain[len(text)], -1, math.inf
        return None

    def _gap(self, position: int, expected: int, token: int) -> float:
        def is_chosen(gap: float) -> bool:
            moved = self.rows[position].copy()
            moved[token] += gap / 2
            moved[expected] -= gap / 2
            return self.choice(position, moved) == token

        low = 0.0
        high = _FARTHEST
        if token < 0 or not is_chosen(high):
            return math.inf
        while high - low > 1e-5:
            middle = (low + high) / 2
            low, high = (low, middle) if is_chosen(middle) else (middle, high)
        return high


@dataclass(slots=True)
class IdentityCheck:
    """Compares texts of one rule, prompt by prompt, and measures rounding at the same time.

    The rule is greedy at temperature 0, else coupled.
    """

    loop: SpeculativeDecoder
    is_end: Callable[[int], bool]
    make_chain: Callable[[Sequence[int], Sequence[int]], SamplerChain]
    """The samplers for a prompt and the tokens that are said."""

    rounding: Rounding
    num_wanted: int = ENOUGH_ACCEPTED
    """Accepted draft tokens after which it ends."""

    result: Identity = field(default_factory=Identity)

    def reference(self, prompt_tokens: list[int], seed: int | None) -> Reference:
        """The target's own text, decoded token by token without the loop, in an empty cache.

        Its last rows are measured. The cache holds prompt and text, or a part. Raises
        Interrupted.
        """
        self.loop.truncate(0)
        target = self.loop.target
        request = self._request(prompt_tokens, seed)
        rows = np.empty((request.max_tokens, target.vocab_size), dtype=np.float32)
        plain: list[int] = []
        reference = Reference(prompt_tokens, seed, request, plain, rows)
        if len(prompt_tokens) > 1:
            target.decode(prompt_tokens[:-1], 0)
        for position, row in enumerate(rows):
            row[:] = target.decode([(plain or prompt_tokens)[-1]], 1)[0]
            plain.append(reference.choice(position, row))
            if self.is_end(plain[-1]):
                break
        reference = dataclasses.replace(reference, rows=rows[: len(plain)])
        self._measure(reference, _NUM_MEASURED, len(plain))
        return reference

    def compare(self, prompt: int, reference: Reference) -> None:
        """Compare texts with each number of draft tokens, until there are enough, or a bug.

        Raises Interrupted; the tokens drafted by then are compared.

        Args:
            prompt: Its number.
        """
        self.loop.truncate(0)
        for num_draft_tokens in NUMS_DRAFT_TOKENS:
            begin = 0
            # Behind a near tie the next text goes on with the target's own token.
            while begin < len(reference.plain):
                if self._is_decided:
                    return
                begin = self._compare_from(begin, prompt, reference, num_draft_tokens)

    @property
    def _is_decided(self) -> bool:
        """Whether there is enough, or a bug: all rows of its text are measured by then."""
        is_enough = self.result.num_accepted >= self.num_wanted
        return is_enough or bool(self.result.bugs(self.rounding.bound))

    def _compare_from(self, begin: int, prompt: int, reference: Reference, k: int) -> int:
        """Compare a text from a position on. Returns the position behind what was compared."""
        text = _Text(begin)
        self.loop.start([*reference.prompt_tokens, *reference.plain[:begin]])
        self.loop.draft_policy = FixedDraftPolicy(k)
        try:
            self._write(text, reference)
        finally:
            found = self._add(text, reference, prompt, k)
        # So far only a sample was measured: what rounds farther is no bug. So the rows in front
        # of the divergence are measured, and all of them if that was not enough.
        for num_rows, end in ((_NUM_MEASURED, (found or 0) + 1), (len(reference.rows),) * 2):
            if self.result.bugs(self.rounding.bound):
                self.loop.truncate(0)
                self._measure(reference, num_rows, end)
                self.loop.truncate(0)
        if found is None:
            return len(reference.plain)
        return found + 1

    def _measure(self, reference: Reference, num_rows: int, end: int) -> None:
        """Measure the rounding of the last num_rows of the text's first `end` rows."""
        rows = reference.rows[:end]
        tokens = [*reference.prompt_tokens, *reference.plain[: len(rows) - 1]]
        self.rounding.measure(self.loop.target, rows[-num_rows:], tokens)

    def _add(self, text: _Text, reference: Reference, prompt: int, k: int) -> int | None:
        """Add the comparison of a text, which may be cut off. Returns where it diverges."""
        found = reference.first_divergence(text)
        num_compared = len(text.tokens) if found is None else found[0] + 1 - text.begin
        compared = text.provenance[:num_compared]
        num_accepted = compared.count(Provenance.ACCEPTED)
        is_draft_other = found is not None and compared[-1:] == [Provenance.ACCEPTED]
        self.result.num_texts += 1
        self.result.num_tokens += len(compared)
        self.result.num_accepted += num_accepted
        self.result.num_identical += num_accepted - is_draft_other
        if found is None:
            return None
        self.result.divergences.append(Divergence(prompt, reference.seed, k, *found))
        return found[0]

    def _request(
        self, prompt_tokens: list[int], seed: int | None, said: Sequence[int] = ()
    ) -> Request:
        chain = self.make_chain(prompt_tokens, said)
        rule = make_rule(
            "greedy" if chain.params.is_greedy else "coupled",
            Randomness(seed or 0, num_said=len(said)),
        )
        left = self.loop.target.context_length - len(prompt_tokens)
        max_tokens = min(COMPARED_TEXT_TOKENS, left) - len(said)
        return Request(chain, rule, max_tokens, self.is_end)

    def _write(self, text: _Text, reference: Reference) -> None:
        """Write a text until it ends, diverges, or enough was accepted."""
        num_lacking = self.num_wanted - self.result.num_accepted
        said = reference.plain[: text.begin]
        for step in self.loop.steps(
            self._request(reference.prompt_tokens, reference.seed, said)
        ):
            text.tokens += step.tokens
            text.provenance += step.provenance
            num_lacking -= step.num_accepted
            end = text.begin + len(text.tokens)
            if num_lacking <= 0 or text.tokens != reference.plain[text.begin : end]:
                return
        text.is_whole = True


@dataclass(slots=True)
class _Text:
    """A text so far, from a position on."""

    begin: int
    tokens: list[int] = field(default_factory=list)
    provenance: list[Provenance] = field(default_factory=list)
    is_whole: bool = False
    """Whether the text has its end."""
