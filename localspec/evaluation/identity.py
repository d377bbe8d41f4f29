"""Compares texts with drafting, token by token, with those without.

This works for the rules greedy and coupled, which choose a token by the target's row alone.
Batches of one token and of several compute that row with different kernels, so the choice may
differ where two tokens are nearly tied. How near such a tie can be is measured.
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
# Accepted draft tokens of each rule. If 1.2 % of those of both rules were wrong, at least one
# would be seen 9 times in 10
ENOUGH_ACCEPTED = 100
COMPARED_TEXT_TOKENS = 64
_FARTHEST = 100.0  # logits; a wider gap counts as infinite
_PRECISION = 1e-5  # of a gap, in logits
_NUM_MEASURED = 17  # rows, at the end of a text, and up to a divergence
_NO_TOKEN = -1  # in place of the token of a text that has ended
_NEAR_TOP = 10.0  # logits; a token further below the best one is never chosen
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
    """Rows whose best token is another one in the larger batch."""

    largest_difference: float = 0.0
    """The largest difference of a logit near the top of its row."""

    widest_gap_changed: float = 0.0
    """The widest gap, in logits, between the best token of a row and one that became the best
    in the other batch."""

    @property
    def bound(self) -> float:
        """Of two tokens whose logits are no farther apart than this, either may be chosen.

        Rounding can move both of them.
        """
        return 2.0 * self.largest_difference

    def add(self, single: Logits, batched: Logits) -> None:
        """Compare two (vocab,) rows for the same token, from batches of one and of several."""
        self.num_rows += 1
        self.num_equal += np.array_equal(single, batched)
        is_near = single >= single.max() - _NEAR_TOP
        differences = np.abs(single[is_near] - batched[is_near])
        self.largest_difference = max(self.largest_difference, float(differences.max()))
        best = int(single.argmax())
        other = int(batched.argmax())
        if best != other:
            self.num_argmax_changed += 1
            gap = float(single[best] - single[other])
            self.widest_gap_changed = max(self.widest_gap_changed, gap)

    def measure(self, target: Model, rows: Logits, tokens: Sequence[int]) -> None:
        """Compare rows from batches of one token with those from larger batches.

        Afterwards the cache holds a part of the tokens.

        Args:
            target: The model.
            rows: (rows, vocab) the rows after the last tokens, from batches of one token.
            tokens: The text.
        """
        num_before = len(tokens) - len(rows)
        sizes = {min(size, target.max_outputs) for size in _BATCH_SIZES}
        for size in sorted(sizes):
            if size > len(rows):  # a short text
                break
            self.largest_size = max(self.largest_size, size)
            target.truncate(min(num_before, target.num_cached))
            # A cache with a sliding window may have been cut further back.
            missing = tokens[target.num_cached : num_before]
            if missing:
                target.decode(missing, 0)
            last_begin = len(rows) - size
            for begin in range(0, last_begin + 1, size):
                position = num_before + begin
                batch = tokens[position : position + size]
                batched_rows = target.decode(batch, size)
                for index, batched in enumerate(batched_rows):
                    self.add(rows[begin + index], batched)


@dataclass(frozen=True, slots=True)
class Divergence:
    """A token that the target alone would not have chosen there."""

    prompt: int
    """The number of the prompt, from 0."""

    seed: int | None
    """None for greedy text."""

    num_draft_tokens: int
    """The number of draft tokens of each step."""

    position: int
    """The token's position in the answer."""

    expected_token: int
    """The target's own choice; -1 if its text had ended."""

    token: int
    """The token that was chosen with drafts; -1 if the text ended too soon."""

    gap: float
    """By how many logits the other token has to gain on the expected one to be chosen instead,
    in the row from a batch of one token. Infinite if no change is enough. Within the bound of
    `Rounding` this is a near tie, beyond it a bug."""


@dataclass(slots=True)
class Identity:
    """The result of comparing texts."""

    num_texts: int = 0
    num_tokens: int = 0
    """Compared tokens. Those after the first divergence of a text are not compared."""

    num_accepted: int = 0
    """The accepted draft tokens among the compared ones."""

    num_identical: int = 0
    """The accepted draft tokens that the target would choose, too."""

    divergences: list[Divergence] = field(default_factory=list)

    @property
    def is_enough(self) -> bool:
        """Whether enough accepted draft tokens were compared for a verdict."""
        return self.num_accepted >= ENOUGH_ACCEPTED

    def bugs(self, bound: float) -> list[Divergence]:
        """The divergences that rounding does not explain.

        Args:
            bound: As `Rounding.bound`.
        """
        return [divergence for divergence in self.divergences if divergence.gap > bound]


@dataclass(frozen=True, slots=True)
class Reference:
    """The target's own text after a prompt, written without drafts."""

    prompt_tokens: list[int]
    seed: int | None
    """None for greedy text."""

    request: Request
    plain: list[int]
    """The tokens of the text."""

    rows: Logits
    """(tokens, vocab) the row from which each token was chosen."""

    def choice(self, position: int, row: Logits) -> int:
        """The token that the target chooses at a position with this row."""
        chain = self.request.chain
        if chain.params.is_greedy and chain.constraint is None:
            return int(row.argmax())
        distribution = chain.distribution(row, self.prompt_tokens, self.plain[:position])
        # For these rules only the position counts, not the number of the step.
        draw = self.request.rule.draw(StepStart(0, position))
        return draw(0, distribution)

    def first_divergence(
        self,
        text: _Text,
        prompt: int,
        num_draft_tokens: int,
    ) -> Divergence | None:
        """The first divergence of a text with drafts, or None.

        A text that was cut off does not diverge where it ends.

        Args:
            text: The text.
            prompt, num_draft_tokens: As for `Divergence`.
        """

        def divergence(index: int, expected: int, token: int) -> Divergence:
            position = text.begin + index
            gap = self._gap(position, expected, token)
            return Divergence(
                prompt=prompt,
                seed=self.seed,
                num_draft_tokens=num_draft_tokens,
                position=position,
                expected_token=expected,
                token=token,
                gap=gap,
            )

        plain = self.plain[text.begin :]
        for index, (expected, token) in enumerate(zip(plain, text.tokens, strict=False)):
            if token != expected:
                return divergence(index, expected, token)
        num_plain = len(plain)
        num_written = len(text.tokens)
        if num_written > num_plain:
            return divergence(num_plain, _NO_TOKEN, text.tokens[num_plain])
        if text.is_whole and num_written < num_plain:
            return divergence(num_written, plain[num_written], _NO_TOKEN)
        return None

    def _gap(self, position: int, expected: int, token: int) -> float:
        """The gap of a divergence, as `Divergence.gap`, by bisection."""

        def is_chosen(gap: float) -> bool:
            moved = self.rows[position].copy()
            moved[token] += gap / 2
            moved[expected] -= gap / 2
            return self.choice(position, moved) == token

        low = 0.0
        high = _FARTHEST
        if _NO_TOKEN in (expected, token) or not is_chosen(high):
            return math.inf
        while high - low > _PRECISION:
            middle = (low + high) / 2
            if is_chosen(middle):
                high = middle
            else:
                low = middle
        return high


@dataclass(slots=True)
class IdentityCheck:
    """Compares texts of one rule, prompt by prompt, and measures rounding at the same time.

    The rule is greedy at temperature 0, else coupled.
    """

    loop: SpeculativeDecoder
    is_end: Callable[[int], bool]
    make_chain: Callable[[Sequence[int], Sequence[int]], SamplerChain]
    """Makes the samplers for a prompt and the tokens of the answer so far."""

    rounding: Rounding
    num_wanted: int = ENOUGH_ACCEPTED
    """Accepted draft tokens after which the check ends."""

    result: Identity = field(default_factory=Identity)

    def reference(self, prompt_tokens: list[int], seed: int | None) -> Reference:
        """The target's own text, decoded token by token without the loop, in an empty cache.

        The rounding of its last rows is measured. Afterwards the cache is empty again. Raises
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
        last_token = prompt_tokens[-1]
        for position, row in enumerate(rows):
            row[:] = target.decode([last_token], 1)[0]
            last_token = reference.choice(position, row)
            plain.append(last_token)
            if self.is_end(last_token):
                break
        reference = dataclasses.replace(reference, rows=rows[: len(plain)])
        self._measure(reference, _NUM_MEASURED, len(plain))
        self.loop.truncate(0)
        return reference

    def compare(self, prompt: int, reference: Reference, num_draft_tokens: int) -> None:
        """Compare drafted texts with the target's own, until it ends or the check is decided.

        Raises Interrupted; the tokens that were drafted by then are compared.

        Args:
            prompt: The number of the prompt.
            reference: The target's own text of the prompt.
            num_draft_tokens: The number of draft tokens of each step.
        """
        begin = 0
        # A text ends at a near tie. The next one starts after the target's own token there.
        while begin < len(reference.plain) and not self._is_decided:
            begin = self._compare_from(begin, prompt, reference, num_draft_tokens)

    @property
    def _is_decided(self) -> bool:
        """Whether enough was compared, or there is a bug.

        By the time a bug is found all rows of its text were measured.
        """
        is_enough = self.result.num_accepted >= self.num_wanted
        return is_enough or bool(self.result.bugs(self.rounding.bound))

    def _compare_from(
        self,
        begin: int,
        prompt: int,
        reference: Reference,
        k: int,
    ) -> int:
        """Write and compare a text from a position on, as far as `_write` writes it.

        If it seems to have a bug, more rounding is measured.

        Returns the position after the divergence; without one, the end of the target's text.

        Args:
            begin: The position in the answer.
            prompt: The number of the prompt.
            reference: The target's own text.
            k: The number of draft tokens.
        """
        text = _Text(begin)
        self.loop.start([*reference.prompt_tokens, *reference.plain[:begin]])
        self.loop.draft_policy = FixedDraftPolicy(k)
        try:
            self._write(text, reference)
        finally:
            diverges_at = self._add(text, reference, prompt, k)
        if diverges_at is None:
            return len(reference.plain)
        end = diverges_at + 1
        # Only a sample of the rows was measured so far, and other rows may round further. So
        # measure the rows before the divergence. If it is still a bug, measure the whole text.
        self._measure_if_bug(reference, _NUM_MEASURED, end)
        num_rows = len(reference.rows)
        self._measure_if_bug(reference, num_rows, num_rows)
        return end

    def _measure_if_bug(self, reference: Reference, num_rows: int, end: int) -> None:
        """As `_measure`, if a divergence is wider than the rounding measured so far."""
        if self.result.bugs(self.rounding.bound):
            self.loop.truncate(0)
            self._measure(reference, num_rows, end)
            self.loop.truncate(0)

    def _measure(self, reference: Reference, num_rows: int, end: int) -> None:
        """Measure the rounding of a text's last num_rows rows before position `end`."""
        rows = reference.rows[:end]
        tokens = [*reference.prompt_tokens, *reference.plain[: len(rows) - 1]]
        self.rounding.measure(self.loop.target, rows[-num_rows:], tokens)

    def _add(
        self,
        text: _Text,
        reference: Reference,
        prompt: int,
        k: int,
    ) -> int | None:
        """Add the comparison of a text, which may be cut off, to the result.

        Returns the position of its divergence, or None.
        """
        divergence = reference.first_divergence(text, prompt, k)
        num_compared = len(text.tokens)
        if divergence is not None:
            num_compared = divergence.position + 1 - text.begin
        compared = text.provenance[:num_compared]
        num_accepted = compared.count(Provenance.ACCEPTED)
        self.result.num_texts += 1
        self.result.num_tokens += len(compared)
        self.result.num_accepted += num_accepted
        self.result.num_identical += num_accepted
        if divergence is None:
            return None
        if compared[-1:] == [Provenance.ACCEPTED]:
            self.result.num_identical -= 1  # the last compared token diverges
        self.result.divergences.append(divergence)
        return divergence.position

    def _request(
        self,
        prompt_tokens: list[int],
        seed: int | None,
        answer_tokens: Sequence[int] = (),
    ) -> Request:
        """The request for an answer after a prompt.

        Args:
            answer_tokens: The tokens that the answer already has.
        """
        chain = self.make_chain(prompt_tokens, answer_tokens)
        randomness = Randomness(seed or 0, num_said=len(answer_tokens))
        if chain.params.is_greedy:
            rule = make_rule("greedy", randomness)
        else:
            rule = make_rule("coupled", randomness)
        free_context = self.loop.target.context_length - len(prompt_tokens)
        max_tokens = min(COMPARED_TEXT_TOKENS, free_context) - len(answer_tokens)
        return Request(chain, rule, max_tokens, self.is_end)

    def _write(self, text: _Text, reference: Reference) -> None:
        """Write a text with drafts until it ends, diverges, or enough tokens were accepted."""
        num_lacking = self.num_wanted - self.result.num_accepted
        answer_tokens = reference.plain[: text.begin]
        request = self._request(reference.prompt_tokens, reference.seed, answer_tokens)
        for step in self.loop.steps(request):
            text.tokens += step.tokens
            text.provenance += step.provenance
            num_lacking -= step.num_accepted
            end = text.begin + len(text.tokens)
            if num_lacking <= 0 or text.tokens != reference.plain[text.begin : end]:
                return
        text.is_whole = True


@dataclass(slots=True)
class _Text:
    """The part of a text from a position on, as far as it was written."""

    begin: int
    """The position of its first token."""

    tokens: list[int] = field(default_factory=list)
    provenance: list[Provenance] = field(default_factory=list)
    is_whole: bool = False
    """Whether the text has its end."""
