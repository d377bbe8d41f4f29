"""The rules by which drafted tokens become text: rows, tokens and uniforms in, verdict out.

The contract: whatever the draft proposed, the emitted tokens follow the target's own
distribution. Nothing here calls a model, draws a random number or knows how many tokens come
next.

A drafted token to which the target gives probability 0 is judged like any other. Dropping it
unjudged would change the distribution: the draft drew it, so its replacement has to come from
the residual.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from localspec.sampling.distribution import Distribution, Probs, mass_of


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of judging K draft tokens.

    The first num_accepted of them are kept. next_token follows them: the token in place of a
    refused one if num_accepted < K, else the bonus token.
    """

    num_accepted: int
    next_token: int


def match(
    targets: Sequence[Distribution],
    draft_tokens: Sequence[int],
    choose: Callable[[int, Distribution], int],
) -> Verdict:
    """Keep draft tokens as long as each is the target's choice. The next token is its choice.

    With `argmax` this is the rule greedy. With Gumbel-max noise that the draft used too, this
    is the rule coupled (Daliri et al., arXiv 2408.07978, algorithm 1): the text depends on the
    noise alone, so the same noise gives the same text with any draft or none.

    Args:
        targets: K + 1 rows; row i is the distribution after the first i draft tokens.
        draft_tokens: The K draft tokens.
        choose: Returns the target's token for an index and its row. A pure function.
    """
    for index, draft_token in enumerate(draft_tokens):
        target_token = choose(index, targets[index])
        if draft_token != target_token:
            return Verdict(index, target_token)
    num_drafted = len(draft_tokens)
    return Verdict(num_drafted, choose(num_drafted, targets[-1]))


def argmax(_index: int, row: Distribution) -> int:
    """The only token of a one-hot row: the `choose` of the rule greedy."""
    return int(row.ids[0])


def token(
    targets: Sequence[Distribution],
    drafts: Sequence[Distribution],
    draft_tokens: Sequence[int],
    accept_uniforms: Probs,
    residual_uniform: float,
) -> Verdict:
    """Speculative sampling, token by token.

    Leviathan et al., arXiv 2211.17192, algorithm 1; Chen et al., arXiv 2302.01318, algorithm 2:
    accept X_i with probability min(1, target(X_i) / draft(X_i)); at the first refusal draw from
    the normalised positive part of target - draft; if none is refused draw from the last target
    row.

    Args:
        targets: K + 1 rows.
        drafts: The K distributions from which draft_tokens were really drawn.
        draft_tokens: The K draft tokens.
        accept_uniforms: (K,) in [0, 1), each used nowhere else.
        residual_uniform: One more uniform, used nowhere else.
    """
    for index, drawn in enumerate(draft_tokens):
        target = targets[index]
        draft = drafts[index]
        # u >= target / draft, multiplied out: rounding may make the draft's probability 0.
        if accept_uniforms[index] * draft.prob(drawn) >= target.prob(drawn):
            surplus = residual(target, draft)
            return Verdict(index, _replacement(target, surplus, residual_uniform))
    return Verdict(len(draft_tokens), targets[-1].draw(residual_uniform))


def block(
    targets: Sequence[Distribution],
    drafts: Sequence[Distribution],
    draft_tokens: Sequence[int],
    accept_uniforms: Probs,
    residual_uniform: float,
) -> Verdict:
    """Block verification: judge the draft tokens together and keep the longest good prefix.

    Sun et al., arXiv 2403.10444, algorithm 2 and theorem 1: never fewer tokens in
    expectation than `token`. With p_0 = 1 and p_i = min(1, p_(i-1) * target(X_i) /
    draft(X_i)), prefix i is kept with probability h_i = s_i / (s_i + 1 - p_i), where s_i is
    the mass of the surplus (p_i * target - draft)+ after it; h_K = p_K. The next token is drawn
    from this surplus, or from the last target row if all K are kept.

    The prefixes are tried from the longest on. A search from the front that stops at the first
    refusal would be another rule. Each prefix has its own uniform. Arguments as for `token`.
    """
    shares = [1.0]  # p_0 … p_K
    for index, drawn in enumerate(draft_tokens):
        target = targets[index].prob(drawn)
        draft = drafts[index].prob(drawn)
        share = 0.0
        if draft > 0.0:
            share = min(1.0, shares[-1] * target / draft)
        shares.append(share)
    num_drafted = len(draft_tokens)
    if num_drafted == 0 or accept_uniforms[num_drafted - 1] < shares[num_drafted]:
        return Verdict(num_drafted, targets[-1].draw(residual_uniform))
    for kept in range(num_drafted - 1, 0, -1):
        share = shares[kept]
        surplus = residual(targets[kept], drafts[kept], share)
        mass = surplus.total
        # u < h_i, multiplied out. For p_i = 1, h_i is 1, also where it is 0 / 0.
        if share == 1.0 or accept_uniforms[kept - 1] * (mass + 1.0 - share) < mass:
            break
    else:
        kept = 0
        surplus = residual(targets[0], drafts[0])
    return Verdict(kept, _replacement(targets[kept], surplus, residual_uniform))


def residual(target: Distribution, draft: Distribution, share: float = 1.0) -> Distribution:
    """The surplus (share * target - draft)+ over the tokens of the target's row.

    The token after a kept prefix is drawn from this distribution. Its total is the sum of the
    surplus probabilities. The arguments are not changed.
    """
    # In the units of the draft's masses, so that these can be subtracted as they are.
    factor = share * draft.total / target.total
    masses = target.masses * factor
    if target.has_first_ids:  # nothing was cut: the ids are the indices
        num_known = int(draft.ids.searchsorted(len(masses)))
        indices = slice(num_known) if draft.has_first_ids else draft.ids[:num_known]
        masses[indices] -= draft.masses[:num_known]
    elif len(target.ids) >= len(draft.ids):
        indices = np.searchsorted(target.ids, draft.ids)
        indices[indices == len(target.ids)] = 0  # out of range; the comparison drops it
        shared = target.ids[indices] == draft.ids
        masses[indices[shared]] -= draft.masses[shared]
    else:
        indices = np.searchsorted(draft.ids, target.ids)
        indices[indices == len(draft.ids)] = 0
        shared = draft.ids[indices] == target.ids
        masses[shared] -= draft.masses[indices[shared]]
    np.maximum(masses, 0.0, out=masses)
    masses /= draft.total
    return Distribution(target.ids, masses, mass_of(masses))


def _replacement(target: Distribution, surplus: Distribution, uniform: float) -> int:
    """Draw the token in place of a refused one from the surplus."""
    if surplus.total > 0.0:
        return surplus.draw(uniform)
    # Equal rows have no surplus: then only rounding can refuse a token.
    return target.draw(uniform)
