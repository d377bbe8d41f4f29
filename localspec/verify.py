"""The rules by which drafted tokens become text: rows, tokens and uniforms in, verdict out.

The contract: whatever the draft proposed, the emitted tokens follow the target's own law.
Nothing here calls a model, draws a random number or knows how many tokens come next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from localspec.sampling import Distribution, Probs


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of K draft tokens: the first num_accepted are kept, then next_token follows.

    next_token is the recovered token if num_accepted < K, else the bonus token.
    """

    num_accepted: int
    next_token: int


def greedy(targets: Sequence[Distribution], draft_tokens: Sequence[int]) -> Verdict:
    """Keep draft tokens while each is the target's argmax; then the target's own argmax.

    targets: K + 1 one-hot rows, row i given the first i draft tokens.
    """
    for index, token in enumerate(draft_tokens):
        best = int(targets[index].ids[0])
        if token != best:
            return Verdict(index, best)
    return Verdict(len(draft_tokens), int(targets[-1].ids[0]))


def token(
    targets: Sequence[Distribution],
    drafts: Sequence[Distribution],
    draft_tokens: Sequence[int],
    accept_uniforms: Probs,
    residual_uniform: float,
) -> Verdict:
    """Speculative sampling, token by token.

    Leviathan et al., arXiv 2211.17192, algorithm 1; Chen et al., arXiv 2302.01318,
    algorithm 2: accept X_i with probability min(1, target(X_i) / draft(X_i)); at the first
    refusal draw from the normalised positive part of target - draft; if none is refused
    draw from the last target row.

    targets: K + 1 rows; drafts: the K laws that draft_tokens were really drawn from;
    accept_uniforms: (K,) in [0, 1), residual_uniform: one more, each used nowhere else.
    """
    for index, drawn in enumerate(draft_tokens):
        target, draft = targets[index], drafts[index]
        # Multiplied out, so that a draft probability of 0 cannot divide: it is never drawn.
        if accept_uniforms[index] * draft.prob(drawn) >= target.prob(drawn):
            return Verdict(index, residual(target, draft).draw(residual_uniform))
    return Verdict(len(draft_tokens), targets[-1].draw(residual_uniform))


def residual(target: Distribution, draft: Distribution) -> Distribution:
    """Law of the token in a refused draft token's place: (target - draft)+, renormalised.

    Returns new arrays; the arguments are left untouched.
    """
    surplus = target.probs.copy()
    if len(target.ids) >= len(draft.ids):
        places = np.searchsorted(target.ids, draft.ids)
        places[places == len(target.ids)] = 0  # no such place; the comparison drops it
        shared = target.ids[places] == draft.ids
        surplus[places[shared]] -= draft.probs[shared]
    else:
        places = np.searchsorted(draft.ids, target.ids)
        places[places == len(draft.ids)] = 0
        shared = draft.ids[places] == target.ids
        surplus[shared] -= draft.probs[places[shared]]
    np.maximum(surplus, 0.0, out=surplus)
    mass = surplus.sum()
    # Equal rows leave no surplus; only rounding can bring us here after a refusal.
    return Distribution(target.ids, surplus / mass) if mass > 0.0 else target
