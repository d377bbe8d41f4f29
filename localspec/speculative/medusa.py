"""Medusa heads as a proposer: one head per draft token, all reading the same row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from localspec.sampling.chain import SamplerChain
from localspec.sampling.distribution import Distribution, Logits
from localspec.speculative.policy_api import (
    REPLAY_TOKENS,
    DraftOff,
    Extent,
    ProposerKind,
    ProposerState,
    ReplayScores,
)
from localspec.speculative.proposers import (
    Draw,
    Proposal,
    Proposer,
    chance,
    confidence_in,
)


class RowHeads(Protocol):
    """Heads that each read a row of their target."""

    @property
    def num_heads(self) -> int:
        """How many tokens they can draft."""

    @property
    def rows_at(self) -> range:
        """Positions of the text whose rows the target has given."""

    def logits(self, head: int, position: int) -> Logits:
        """(vocab,) float32 logits of a head, for the token head + 2 positions further on.

        A view that may be written to, and is valid until the next call.
        """


class Medusa(Proposer):
    """Proposes from the row of the last token that the target has decoded.

    The token after that is known: the target drew it. The heads draft the ones that follow.
    No head knows what the one before it drafted, so their distributions are independent.
    """

    kind = ProposerKind.HEAD

    def __init__(self, heads: RowHeads, is_end: Callable[[int], bool]) -> None:
        self._heads = heads
        self._is_end = is_end
        self._num_judged = 0  # tokens at the front of the text that it has proposed or judged

    def state(self, tokens: Sequence[int]) -> ProposerState:
        rows_at = self._heads.rows_at
        if len(tokens) - 2 not in rows_at:
            return ProposerState(0, draft_off=DraftOff.HEAD_LACKS_ROWS)
        num_unjudged = len(tokens) - max(self._num_judged, rows_at.start + 2)
        return ProposerState(self._heads.num_heads, num_unjudged=max(num_unjudged, 0))

    def propose(
        self, tokens: Sequence[int], extent: Extent, chain: SamplerChain, draw: Draw
    ) -> Proposal:

        def next_row(drafted: list[int]) -> tuple[Distribution, float] | None:
            if len(drafted) == self._heads.num_heads:
                return None
            row = self._heads.logits(len(drafted), len(tokens) - 2)
            distribution = chain.draft_distribution(row, tokens, drafted)
            return distribution, confidence_in(row, distribution)

        proposal = Proposal([], [], []).extend(next_row, extent, draw, self._is_end)
        self._num_judged = len(tokens) + len(proposal.draft_tokens)
        return proposal

    def replay(
        self, tokens: Sequence[int], probs: Sequence[float], chain: SamplerChain
    ) -> ReplayScores:
        # Only the first head is judged.
        end = len(tokens)
        first = max(self._heads.rows_at.start + 2, self._num_judged, end - len(probs))
        chances = []
        for position in range(max(first, end - REPLAY_TOKENS), end):
            row = self._heads.logits(0, position - 2)
            distribution = chain.draft_distribution(row, tokens[:position], [])
            judged = chance(distribution, tokens[position], probs[position - end])
            chances.append((confidence_in(row, distribution), judged))
        self._num_judged = end
        return ReplayScores(chances, 0)

    def truncate(self, num_tokens: int) -> None:
        self._num_judged = min(self._num_judged, num_tokens)
