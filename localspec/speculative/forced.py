"""Proposes what a constraint forces: the keys, brackets and commas that have to come next.

That costs almost nothing. The bytes are certain, but other tokens may spell the same bytes, so
the tokens are judged like any other draft.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from localspec.sampling.chain import SamplerChain
from localspec.sampling.constraint import Constraint
from localspec.sampling.distribution import CERTAIN, Distribution
from localspec.speculative.policy_api import (
    CERTAIN_CONFIDENCE,
    MAX_DRAFT_TOKENS,
    Extent,
    ProposerKind,
    ProposerState,
)
from localspec.speculative.proposers import Draw, Proposal, Proposer


class Forced(Proposer):
    """Proposes what the answer's constraint forces, if it has one.

    is_end: the target's end-of-generation test; nothing is proposed after such a token.
    """

    kind = ProposerKind.FORCED

    def __init__(self, is_end: Callable[[int], bool]) -> None:
        self._is_end = is_end
        self._constraint: Constraint | None = None

    def begin(self, chain: SamplerChain) -> None:
        self._constraint = chain.constraint

    def state(self, tokens: Sequence[int]) -> ProposerState:
        """`tokens` must end where the constraint was committed."""
        if self._constraint is None:
            return ProposerState(0)
        num_tokens = min(len(self._constraint.forced()), MAX_DRAFT_TOKENS)
        return ProposerState(num_tokens, confidence=CERTAIN_CONFIDENCE)

    def propose(
        self, tokens: Sequence[int], extent: Extent, chain: SamplerChain, draw: Draw
    ) -> Proposal:
        """Propose the forced tokens. Each distribution is one-hot."""
        forced = [] if self._constraint is None else self._constraint.forced()

        def next_row(drafted: list[int]) -> tuple[Distribution, float] | None:
            if len(drafted) == len(forced):
                return None
            token = np.array([forced[len(drafted)]])
            return Distribution(token, CERTAIN), CERTAIN_CONFIDENCE

        return Proposal([], [], []).extend(next_row, extent, draw, self._is_end)
