"""The interface of proposers, which give draft tokens; the draft model, and forced tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from localspec.pictures.cells import without_cells
from localspec.sampling.chain import SamplerChain
from localspec.sampling.constraint import Constraint
from localspec.sampling.distribution import CERTAIN, Distribution, Logits
from localspec.speculative.model_api import Decode, Decoding, Model
from localspec.speculative.policy_api import (
    CERTAIN_CONFIDENCE,
    MAX_DRAFT_TOKENS,
    DraftOff,
    Extent,
    ProposerKind,
    ProposerState,
    ReplayScores,
)
from localspec.speculative.shared_vocabulary import SharedVocabulary

Draw = Callable[[int, Distribution], int]  # (index in the step, distribution) → token
# The draft tokens so far → the distribution of the next one and the confidence in it; None if
# there is no next one.
NextRow = Callable[[list[int]], tuple[Distribution, float] | None]


class Proposal(NamedTuple):
    """K draft tokens, and the K distributions from which they were drawn."""

    draft_tokens: list[int]
    distributions: list[Distribution]

    confidences: list[float]
    """(K,) the proposer's confidence in each token, 0 … 1."""

    num_read: int = 0
    """How many tokens of the text the proposer read first."""

    def extend(
        self,
        next_row: NextRow,
        extent: Extent,
        draw: Draw,
        is_end: Callable[[int], bool],
    ) -> Proposal:
        """Draw token after token, as long as `extent` says that another is worth it.

        Also ends after an end token, and when `next_row` returns None. Returns this proposal.
        """
        row = next_row(self.draft_tokens)
        while row is not None:
            distribution, confidence = row
            if not self.add(distribution, confidence, extent, draw, is_end):
                break
            row = next_row(self.draft_tokens)
        return self

    def add(
        self,
        distribution: Distribution,
        confidence: float,
        extent: Extent,
        draw: Draw,
        is_end: Callable[[int], bool],
    ) -> bool:
        """Draw one more token if `extent` says that it is worth it.

        Returns whether another may follow: False after an end token, or if none is worth it.
        """
        drafted = self.draft_tokens
        num_worth = extent.num_worth(len(drafted), confidence)
        if num_worth <= 0:
            return False
        drafted.append(draw(len(drafted), distribution))
        self.distributions.append(distribution)
        self.confidences.append(confidence)
        # A token that is drawn must stay, since dropping it would change the distribution.
        return num_worth > 1 and not is_end(drafted[-1])


class Proposer:
    """The base class of proposers, which propose draft tokens for a text.

    By default its methods suit a proposer that stores nothing of the answer or the text.
    Methods that may decode yield their decodes.
    """

    kind: ProposerKind
    """An engine has at most one proposer of each kind."""

    keeps_sizes = False
    """`DraftPolicy.keeps_sizes` of the present policy."""

    def reset(self, chain: SamplerChain) -> None:
        """Reset the state that belongs to one answer.

        Args:
            chain: The chain of the next answer.
        """

    def pause(self, num_tokens: int) -> None:
        """Note that no proposal is wanted for the next `num_tokens` tokens of the text.

        So the target need not compute rows for this proposer.
        """

    def state(self, tokens: Sequence[int]) -> ProposerState:
        """How many tokens it can propose after the text, and how many it must read first."""
        raise NotImplementedError

    def propose(
        self,
        tokens: Sequence[int],
        extent: Extent,
        chain: SamplerChain,
        draw: Draw,
    ) -> Decoding[Proposal]:
        """Propose tokens after `tokens`. Ends after an end token.

        Args:
            tokens: The text. The proposer's `state` for it must allow a proposal.
            extent: Decides how many tokens are worth it.
            chain: The answer's chain.
            draw: Draws each token from its distribution.
        """
        raise NotImplementedError

    def replay(
        self,
        tokens: Sequence[int],
        probs: Sequence[float],
        chain: SamplerChain,
    ) -> Decoding[ReplayScores]:
        """Judge what it would have proposed for the last tokens of the text.

        By default it judges none.

        Args:
            tokens: The text.
            probs: The probabilities of the text's last tokens in the target's distributions.
            chain: The answer's chain.
        """
        yield from ()
        return ReplayScores([], 0)

    def read_from(self, position: int) -> None:
        """Forget the text, and read it again only from `position` on."""

    def truncate(self, num_tokens: int) -> None:
        """Forget the text after its first num_tokens."""


class DraftModel(Proposer):
    """A small model that shares the target's tokenizer.

    Its cache holds a part of the text. The part begins at the first token of the text, or at a
    later one, to save the time of reading a long prompt for a draft that may not pay. The
    emitted tokens are right with any draft distribution, as long as drafts are drawn from it.

    Args:
        model: The model.
        shared: Ids that mean the same token to target and draft. Other ids are removed before
            the distribution is formed, so they are never drawn.
        is_end: Whether a token ends the answer.
    """

    kind = ProposerKind.DRAFT
    _reads_ahead = True  # whether it uses `_read_ahead` if decodes keep their sizes

    def __init__(
        self,
        model: Model,
        shared: SharedVocabulary,
        is_end: Callable[[int], bool],
    ) -> None:
        self.model = model
        self._begin = 0  # position in the text of the cache's first token
        self._num_known = 0  # first tokens of the text that are checked: in its vocabulary
        self._num_judged = 0  # first tokens of the text that no replay judges any more
        self._shared_size = shared.size
        different = [difference.token for difference in shared.differences]
        self._different = np.array(different, dtype=np.int64)
        self._is_end = is_end

    @property
    def begins_at(self) -> int:
        """Position in the text of the first token that it has read."""
        return self._begin

    def state(self, tokens: Sequence[int]) -> ProposerState:
        # Only new tokens are checked, since this is called before each step of a long text.
        new_tokens = tokens[self._num_known :]
        if max(new_tokens, default=0) >= self.model.vocab_size:
            return ProposerState(0, draft_off=DraftOff.TOKEN_UNKNOWN_TO_DRAFT)
        self._num_known = len(tokens)
        # One more than the context, since the last draft token is never decoded.
        room = self.model.context_length + 1 - len(tokens)
        if room <= 0:
            return ProposerState(0, draft_off=DraftOff.DRAFT_CONTEXT_FULL)
        return ProposerState(
            room,
            num_missing=len(tokens) - self.begins_at - self.model.num_cached,
            num_skipped=self.begins_at,
            num_unjudged=self._num_unjudged(tokens),
        )

    def propose(
        self,
        tokens: Sequence[int],
        extent: Extent,
        chain: SamplerChain,
        draw: Draw,
    ) -> Decoding[Proposal]:
        # First it decodes the tokens that it lacks, all at once: a whole prompt in its first
        # step, later the last token or two. Its own draft tokens are already in its cache.
        missing = self._missing(tokens)
        num_read = len(without_cells(missing))  # skipping the cells of pictures takes no time
        proposal = Proposal([], [], [], num_read)
        if self.keeps_sizes and self._reads_ahead and len(missing) > 1:
            yield from self._read_ahead(missing[:-1], extent.limit)
            missing = missing[-1:]
        drafted = proposal.draft_tokens
        may_follow = True
        while may_follow:
            if len(drafted) == 1:
                # From here on it decodes its own tokens, which may be refused.
                self.model.checkpoint()
            rows = yield from self._rows(drafted[-1:] or missing, 1)
            row = rows[0]
            distribution = chain.draft_distribution(row, tokens, drafted)
            confidence = confidence_in(row, distribution)
            may_follow = proposal.add(distribution, confidence, extent, draw, self._is_end)
        self._num_judged = len(tokens) + len(proposal.draft_tokens)
        return proposal

    def replay(
        self,
        tokens: Sequence[int],
        probs: Sequence[float],
        chain: SamplerChain,
    ) -> Decoding[ReplayScores]:
        # Before it can propose, it has to read all missing tokens but the last in any case. The
        # rows of that decode show what it would have proposed.
        missing = self._missing(tokens)[:-1]
        num_rows = min(self._num_unjudged(tokens), len(probs), self.model.max_outputs)
        if not missing:
            return ReplayScores([], 0)
        rows = yield from self._rows(missing, num_rows)
        self._num_judged = len(tokens)
        first = len(tokens) - num_rows
        before = tokens[:first]
        after = tokens[first:]
        probs = probs[len(probs) - num_rows :]
        chances = []
        for index, row in enumerate(rows):
            distribution = chain.draft_distribution(row, before, after[:index])
            acceptance = chance(distribution, after[index], probs[index])
            chances.append((confidence_in(row, distribution), acceptance))
        return ReplayScores(chances, len(missing))

    def _missing(self, tokens: Sequence[int]) -> Sequence[int]:
        """The tokens of the text that its cache lacks."""
        return tokens[self.begins_at + self.model.num_cached :]

    def _num_unjudged(self, tokens: Sequence[int]) -> int:
        """How many of the text's last tokens a replay would judge: those after missing ones.

        Missing tokens that it has proposed before do not count. A recurrent draft lacks them
        again, since it is rolled back to the token at which it began to draft.
        """
        begin = max(self.begins_at + self.model.num_cached + 1, self._num_judged)
        return max(len(tokens) - begin, 0)

    def _rows(self, tokens: Sequence[int], num_rows: int) -> Decoding[Logits]:
        """Decode tokens. Returns the rows after the last num_rows of them.

        (num_rows, shared vocabulary) logits, -inf for ids with another meaning in the target. A
        view, valid until the next decode.
        """
        logits = yield Decode(self.model, tokens, num_rows)
        rows = logits[:, : self._shared_size]
        rows[:, self._different] = -np.inf
        return rows

    def _read_ahead(self, missing: Sequence[int], limit: int) -> Decoding[None]:
        """Read tokens before the last one, so that each decode with rows has one token.

        After a draft that was accepted as a whole there is one token to read. That decode asks
        for a row, which nothing uses, to be like all others of one token: libllama keeps one
        graph for decodes without rows and one for decodes with rows.

        Args:
            missing: The tokens to read.
            limit: The most tokens of the next draft.
        """
        num_rows = 0
        if len(missing) == 1:
            num_rows = 1
        yield Decode(self.model, missing, num_rows)

    def read_from(self, position: int) -> None:
        self.model.truncate(0)
        self._begin = position

    def truncate(self, num_tokens: int) -> None:
        self._num_known = min(self._num_known, num_tokens)
        self._num_judged = min(self._num_judged, num_tokens)
        if num_tokens <= self.begins_at:
            self.read_from(0)
        else:
            self.model.truncate(min(self.model.num_cached, num_tokens - self.begins_at))


def chance(distribution: Distribution, token: int, prob: float) -> float:
    """The probability that a draft from q would have proposed x, given that the target drew x.

    With the target's distribution p, a draft proposes x and gets it accepted with probability
    min(p(x), q(x)). Given that x was drawn from p, that is min(1, q(x) / p(x)).

    Args:
        distribution: The draft's distribution q.
        token: The token x.
        prob: Its probability p(x).
    """
    return min(1.0, distribution.prob(token) / max(prob, 1e-9))


def confidence_in(row: Logits, distribution: Distribution) -> float:
    """The draft's confidence in its next token, 0 … 1: the probability of the likeliest token.

    In a one-hot distribution that would always be 1, so there it is the probability of the best
    logit against the second best.
    """
    if len(distribution.ids) > 1:
        return distribution.largest_prob
    best = int(distribution.ids[0])
    highest = row[best]
    row[best] = -np.inf  # for a moment, to find the second best
    second = row.max()
    row[best] = highest
    with np.errstate(over="ignore", invalid="ignore"):  # overflow to inf; rows without numbers
        confidence = float(1.0 / (1.0 + np.exp(second - highest)))
    if math.isnan(confidence):
        return 0.0
    return confidence


class ConstraintProposer(Proposer):
    """Proposes the tokens that the answer's constraint forces, if it has one.

    Args:
        is_end: Whether a token ends the answer. Nothing is proposed after such a token.
    """

    kind = ProposerKind.FORCED

    def __init__(self, is_end: Callable[[int], bool]) -> None:
        self._is_end = is_end
        self._constraint: Constraint | None = None

    def reset(self, chain: SamplerChain) -> None:
        self._constraint = chain.constraint

    def state(self, tokens: Sequence[int]) -> ProposerState:
        """How many tokens are forced; 0 without a constraint.

        The constraint must have been committed up to the end of `tokens`.
        """
        if self._constraint is None:
            return ProposerState(0)
        num_tokens = min(len(self._constraint.forced()), MAX_DRAFT_TOKENS)
        return ProposerState(num_tokens, confidence=CERTAIN_CONFIDENCE)

    def propose(
        self,
        tokens: Sequence[int],
        extent: Extent,
        chain: SamplerChain,
        draw: Draw,
    ) -> Decoding[Proposal]:
        """Propose the forced tokens. Each distribution is one-hot."""
        yield from ()
        forced: list[int] = []
        if self._constraint is not None:
            forced = self._constraint.forced()

        def next_row(drafted: list[int]) -> tuple[Distribution, float] | None:
            if len(drafted) == len(forced):
                return None
            token = np.array([forced[len(drafted)]])
            return Distribution(token, CERTAIN), CERTAIN_CONFIDENCE

        return Proposal([], [], []).extend(next_row, extent, draw, self._is_end)
