"""What a constraint forces: the keys, brackets and commas that have to come next.

It costs next to nothing to know. The bytes are certain, the tokens that spell them are not
where others may spell them, too: so they are judged like any other draft.
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
    ReplayScores,
)
from localspec.speculative.proposers import Draw, Proposal


class Forced:
    """Proposes what the answer's constraint forces, if it has one.

    is_end: the target's end-of-generation test; nothing is proposed after such a token.
    """

    kind = ProposerKind.FORCED

    def __init__(self, is_end: Callable[[int], bool]) -> None:
        self._is_end = is_end
        self._constraint: Constraint | None = None

    def begin(self, chain: SamplerChain) -> None:
        """See `Proposer.begin`."""
        self._constraint = chain.constraint

    def state(self, tokens: Sequence[int]) -> ProposerState:
        """See `Proposer.state`. tokens: must end where the constraint was settled."""
        if self._constraint is None:
            return ProposerState(0)
        num_tokens = min(len(self._constraint.forced()), MAX_DRAFT_TOKENS)
        return ProposerState(num_tokens, confidence=CERTAIN_CONFIDENCE)

    def propose(
        self, tokens: Sequence[int], extent: Extent, chain: SamplerChain, draw: Draw
    ) -> Proposal:
        """See `Proposer.propose`. Its distributions are one-hot, so nothing is drawn."""
        proposal = Proposal([], [], [], 0)
        drafted = proposal.draft_tokens
        for token in [] if self._constraint is None else self._constraint.forced():
            num_worth = extent.num_worth(len(drafted), CERTAIN_CONFIDENCE)
            if num_worth <= 0:
                break
            drafted.append(token)
            proposal.distributions.append(Distribution(np.array([token]), CERTAIN))
            proposal.confidences.append(CERTAIN_CONFIDENCE)
            if num_worth == 1 or self._is_end(token):
                break
        return proposal

    def replay(
        self, tokens: Sequence[int], probs: Sequence[float], chain: SamplerChain
    ) -> ReplayScores:
        """See `Proposer.replay`: it has nothing to say of what is there already."""
        return ReplayScores([], 0)

    def read_from(self, position: int) -> None:
        """See `Proposer.read_from`: it reads nothing of the text."""

    def truncate(self, num_tokens: int) -> None:
        """See `Proposer.truncate`: it knows nothing of the text."""
