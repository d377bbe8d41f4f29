"""A head that drafts a whole block in one decode, as a proposer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from localspec.sampling.chain import SamplerChain
from localspec.sampling.distribution import Distribution, Logits
from localspec.speculative.policy_api import (
    MAX_DRAFT_TOKENS,
    REPLAY_TOKENS,
    DraftOff,
    Extent,
    ProposerKind,
    ProposerState,
    ReplayScores,
)
from localspec.speculative.proposers import Draw, Proposal, Proposer, chance, confidence_in

# Chance of being accepted below which the places behind a token are not judged: a draft would
# probably have ended there.
_PROBABLY = 0.5


class BlockModel(Protocol):
    """A head whose cache holds a part of its target's text, which it reads as rows.

    context_length: of text and draft. max_draft_tokens: of a block. begins_at, num_cached: the
    first token that it has read, and how many.
    """

    context_length: int
    max_draft_tokens: int
    begins_at: int
    num_cached: int

    @property
    def readable(self) -> range:
        """Positions of the text of which it can read the row, and the one behind."""

    def read_from(self, position: int) -> None:
        """Forget everything, and continue at that position of the text."""

    def truncate(self, num_cached: int) -> None:
        """Forget all but the first tokens that it has read."""

    def decode_block(self, tokens: Sequence[int], num_tokens: int) -> None:
        """Read tokens, and decode a block that begins with the last of them."""

    def row(self, drafted: Sequence[int]) -> Logits:
        """(vocab,) logits of the next token of the block: a view that may be written to."""

    def confidence(self, place: int) -> float | None:
        """How likely the block's token there is right; None if the head does not say."""


class Blocks(Proposer):
    """Proposes the tokens of one block.

    The law of a token is its row of the block. A row was computed before anything was drawn, so
    the laws are independent of each other; or it is chosen by the token drawn before, as with
    DFlash2. Both are laws that a token was really drawn from, given those before it, which is
    all that the rules ask for.
    """

    kind = ProposerKind.HEAD

    def __init__(self, head: BlockModel, is_end: Callable[[int], bool]) -> None:
        self._head = head
        self._is_end = is_end
        self._num_judged = 0  # tokens at the front of the text that it has proposed or judged

    def state(self, tokens: Sequence[int]) -> ProposerState:
        head, readable = self._head, self._head.readable
        if len(tokens) - 1 not in readable:
            return ProposerState(0, draft_off=DraftOff.HEAD_LACKS_ROWS)
        room = min(head.context_length - len(tokens), head.max_draft_tokens)
        if room <= 0:
            return ProposerState(0, draft_off=DraftOff.DRAFT_CONTEXT_FULL)
        if self._num_read < readable.start:
            head.read_from(readable.start)
        return ProposerState(
            room,
            num_missing=self._to_read(tokens),
            num_skipped=max(head.begins_at - readable.start, 0),
            num_unjudged=self._num_unjudged(tokens),
            is_block=True,
        )

    def propose(
        self, tokens: Sequence[int], extent: Extent, chain: SamplerChain, draw: Draw
    ) -> Proposal:
        head, num_read = self._head, self._to_read(tokens)
        # Whatever is drawn or refused later, since each row depends on the number of places.
        size = min(extent.limit, head.max_draft_tokens)
        head.decode_block(tokens[self._num_read :], size)

        def next_row(drafted: list[int]) -> tuple[Distribution, float] | None:
            if len(drafted) == size:
                return None
            row = head.row(drafted)
            distribution = chain.draft_distribution(row, tokens, drafted)
            own = head.confidence(len(drafted))
            return distribution, confidence_in(row, distribution) if own is None else own

        proposal = Proposal([], [], [], num_read)
        proposal.extend(next_row, extent, draw, self._is_end)
        self._num_judged = len(tokens) + len(proposal.draft_tokens)
        return proposal

    def replay(
        self, tokens: Sequence[int], probs: Sequence[float], chain: SamplerChain
    ) -> ReplayScores:
        # One block at the latest tokens, as far as it would have been accepted.
        count = min(self._num_unjudged(tokens), len(probs))
        self._num_judged = len(tokens)
        if count == 0:
            return ReplayScores([], 0)
        head, first = self._head, len(tokens) - count
        self._cut(first - 1)
        before, after = tokens[:first], tokens[first:]
        num_read = self._to_read(before)
        head.decode_block(before[self._num_read :], count)
        chances = []
        for place, token in enumerate(after):
            row = head.row(after[:place])
            distribution = chain.draft_distribution(row, before, after[:place])
            own = head.confidence(place)
            confidence = confidence_in(row, distribution) if own is None else own
            chances.append((confidence, chance(distribution, token, probs[place - count])))
            if chances[-1][1] < _PROBABLY:
                break
        return ReplayScores(chances, num_read)

    def _num_unjudged(self, tokens: Sequence[int]) -> int:
        """Tokens at the end that a block behind those before them shows."""
        # It has to have read one token, at least.
        first = max(self._head.readable.start, self._head.begins_at)
        begin = max(self._num_judged, first + 2)
        return min(max(len(tokens) - begin, 0), self._head.max_draft_tokens, REPLAY_TOKENS)

    @property
    def _num_read(self) -> int:
        """The position behind the tokens that it has read."""
        return self._head.begins_at + self._head.num_cached

    def _to_read(self, tokens: Sequence[int]) -> int:
        """Tokens to read before a draft; 1 where they are no more than a step emits.

        Each draft reads those in one small decode, so they are part of its cost.
        """
        count = len(tokens) - self._num_read
        return 1 if count <= 1 + MAX_DRAFT_TOKENS else count

    def read_from(self, position: int) -> None:
        # As close to the position as it can.
        self._head.read_from(max(position, self._head.readable.start))

    def truncate(self, num_tokens: int) -> None:
        self._num_judged = min(self._num_judged, num_tokens)
        self._cut(num_tokens)

    def _cut(self, num_tokens: int) -> None:
        head = self._head
        if num_tokens <= head.begins_at:
            head.read_from(0)
        else:
            head.truncate(min(head.num_cached, num_tokens - head.begins_at))
