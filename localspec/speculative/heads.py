"""Trained heads as proposers: besides the text they read the target's hidden rows.

`Head` drafts token by token, with a cache of its own (MTP, EAGLE-3). `Blocks` drafts from
rows that are all computed before a token is drawn (DFlash, Medusa).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from localspec.sampling.chain import SamplerChain
from localspec.sampling.distribution import Distribution, Logits
from localspec.speculative.model_api import Decode, Decoding, Model
from localspec.speculative.policy_api import (
    MAX_DRAFT_TOKENS,
    REPLAY_TOKENS,
    DraftOff,
    Extent,
    ProposerKind,
    ProposerState,
    ReplayScores,
)
from localspec.speculative.proposers import (
    DraftModel,
    Draw,
    Proposal,
    Proposer,
    chance,
    confidence_in,
)
from localspec.speculative.shared_vocabulary import SharedVocabulary

# A replay of a block ends after a token whose probability of acceptance is below this.
_LEAST_CHANCE = 0.5


class RowReader(Protocol):
    """A head, which reads a part of the text with the target's hidden rows."""

    read_size: int
    """The least number of tokens, or rows of the target, in a decode that drafts nothing.
    Smaller decodes are padded. The padding leaves no entries in the cache."""

    @property
    def begins_at(self) -> int:
        """Position in the text of the first token that it has read."""

    @property
    def readable(self) -> range:
        """Positions of the text at which it can read or begin a draft: their rows are kept."""

    @property
    def max_draft_tokens(self) -> int:
        """The most tokens that it can draft in a row."""

    def read_from(self, position: int) -> None:
        """Forget everything, and continue at that position of the text."""

    def pause(self, num_tokens: int) -> None:
        """Read none of the next `num_tokens` tokens: the target need not give their rows."""


class HeadModel(RowReader, Model, Protocol):
    """A head that drafts token by token, and caches what it has read.

    `truncate` also drops the entries that it made with its own rows.
    """

    num_layers: int
    """The head's layers. If there are several, each drafts one token."""


class Head(DraftModel):
    """A trained head as a draft: it has its target's vocabulary, and reads its hidden rows.

    It skips tokens whose rows are no longer kept, since it cannot read them.
    """

    kind = ProposerKind.HEAD

    def __init__(self, model: HeadModel, is_end: Callable[[int], bool]) -> None:
        size = model.vocab_size
        super().__init__(model, SharedVocabulary(size, size, size, ()), is_end)
        self._head = model
        # It saves new graphs. With several layers libllama makes one for each layer anyway.
        self._reads_ahead = model.num_layers == 1

    def reset(self, chain: SamplerChain) -> None:
        self._head.read_size = 0

    @property
    def begins_at(self) -> int:
        # The head stores it with its state, which may be copied to another text.
        return self._head.begins_at

    def pause(self, num_tokens: int) -> None:
        self._head.pause(num_tokens)

    def state(self, tokens: Sequence[int]) -> ProposerState:
        readable = self._head.readable
        if len(tokens) - 1 not in readable:
            return ProposerState(0, draft_off=DraftOff.HEAD_LACKS_ROWS)
        if self.begins_at + self.model.num_cached < readable.start:
            self.read_from(readable.start)
        state = super().state(tokens)
        return state._replace(
            max_tokens=min(state.max_tokens, self._head.max_draft_tokens),
            num_skipped=max(self.begins_at - readable.start, 0),
        )

    def _read_ahead(self, missing: Sequence[int], limit: int) -> Decoding[None]:
        self._head.read_size = max(self._head.read_size, limit)
        yield Decode(self.model, missing, 0)

    def read_from(self, position: int) -> None:
        # The rows of earlier tokens are not kept.
        position = max(position, self._head.readable.start)
        super().read_from(position)
        self._head.read_from(position)


class BlockModel(RowReader, Protocol):
    """A head that computes the rows of a whole draft at once."""

    context_length: int
    """The most tokens of text and draft together."""

    is_block: bool
    """Whether one decode gives all rows, so that drafts of all lengths cost the same."""

    num_cached: int
    """How many tokens it has read."""

    def truncate(self, num_cached: int) -> None:
        """Forget all but the first `num_cached` tokens that it has read."""

    def decode_block(self, tokens: Sequence[int], num_tokens: int) -> None:
        """Read all of the tokens but the last, and compute a draft of `num_tokens` after it."""

    def row(self, drafted: Sequence[int]) -> Logits:
        """(vocab,) logits of the token after these draft tokens: a view, may be written to."""

    def confidence(self, index: int) -> float | None:
        """The probability that the token at that index is right; None if the head has none."""


class Blocks(Proposer):
    """Proposes the tokens of one block, whose rows are all computed before a token is drawn.

    The distribution of a token is its row of the block: either one row, whatever the tokens
    before it are, or one of several, which the token before it chooses (DFlash2). In both cases
    the distribution depends only on the tokens before it, and the rules need no more than that.
    """

    kind = ProposerKind.HEAD

    def __init__(self, head: BlockModel, is_end: Callable[[int], bool]) -> None:
        self._head = head
        self._is_end = is_end
        self._num_judged = 0  # first tokens of the text that no replay judges any more

    def reset(self, chain: SamplerChain) -> None:
        self._head.read_size = 0

    def pause(self, num_tokens: int) -> None:
        self._head.pause(num_tokens)

    def state(self, tokens: Sequence[int]) -> ProposerState:
        head = self._head
        readable = self._head.readable
        if len(tokens) - 1 not in readable:
            return ProposerState(0, draft_off=DraftOff.HEAD_LACKS_ROWS)
        room = min(head.context_length - len(tokens), head.max_draft_tokens)
        if room <= 0:
            return ProposerState(0, draft_off=DraftOff.DRAFT_CONTEXT_FULL)
        if self._num_read < readable.start:
            head.read_from(readable.start)
        return ProposerState(
            room,
            num_missing=self._num_to_read(tokens),
            num_skipped=max(head.begins_at - readable.start, 0),
            num_unjudged=self._num_unjudged(tokens),
            is_block=head.is_block,
        )

    def propose(
        self,
        tokens: Sequence[int],
        extent: Extent,
        chain: SamplerChain,
        draw: Draw,
    ) -> Decoding[Proposal]:
        yield from ()
        head = self._head
        num_read = self._num_to_read(tokens)
        # A row may depend on the size, so the size must not depend on tokens that are drawn.
        size = min(extent.limit, head.max_draft_tokens)
        if self.keeps_sizes:
            # The next block reads at most the tokens of this draft and the one after them.
            head.read_size = max(head.read_size, size + 1)
            size = min(head.read_size - 1, head.context_length - len(tokens))
        head.decode_block(tokens[self._num_read :], size)

        def next_row(drafted: list[int]) -> tuple[Distribution, float] | None:
            if len(drafted) < size:
                return self._row(tokens, drafted, chain)
            return None

        proposal = Proposal([], [], [], num_read)
        proposal.extend(next_row, extent, draw, self._is_end)
        self._num_judged = len(tokens) + len(proposal.draft_tokens)
        return proposal

    def _row(
        self,
        tokens: Sequence[int],
        drafted: Sequence[int],
        chain: SamplerChain,
    ) -> tuple[Distribution, float]:
        """The distribution of the token after the draft tokens, and the confidence in it."""
        row = self._head.row(drafted)
        distribution = chain.draft_distribution(row, tokens, drafted)
        confidence = self._head.confidence(len(drafted))
        if confidence is None:
            confidence = confidence_in(row, distribution)
        return distribution, confidence

    def replay(
        self,
        tokens: Sequence[int],
        probs: Sequence[float],
        chain: SamplerChain,
    ) -> Decoding[ReplayScores]:
        """Compute one block before the last tokens, and judge these in turn.

        It ends after the first of them that the block would probably not have proposed.
        """
        yield from ()
        count = min(self._num_unjudged(tokens), len(probs))
        self._num_judged = len(tokens)
        if count == 0:
            return ReplayScores([], 0)
        first = len(tokens) - count
        self._cut(first - 1)
        before = tokens[:first]
        after = tokens[first:]
        probs = probs[len(probs) - count :]
        num_read = self._num_to_read(before)
        self._head.decode_block(before[self._num_read :], count)
        chances: list[tuple[float, float]] = []
        for index, token in enumerate(after):
            distribution, confidence = self._row(before, after[:index], chain)
            acceptance = chance(distribution, token, probs[index])
            chances.append((confidence, acceptance))
            if acceptance < _LEAST_CHANCE:
                break
        return ReplayScores(chances, num_read)

    def _num_unjudged(self, tokens: Sequence[int]) -> int:
        """How many of the last tokens a replay would judge."""
        first = max(self._head.readable.start, self._head.begins_at)
        # Before a block there are at least a token that it reads, and the one it drafts after.
        begin = max(self._num_judged, first + 2)
        num_unjudged = max(len(tokens) - begin, 0)
        return min(num_unjudged, self._head.max_draft_tokens, REPLAY_TOKENS)

    @property
    def _num_read(self) -> int:
        """The position after the tokens that it has read."""
        return self._head.begins_at + self._head.num_cached

    def _num_to_read(self, tokens: Sequence[int]) -> int:
        """How many tokens have to be read before a draft, for the policy.

        1 if they are no more than a step emits: each draft reads the tokens of the last step,
        so that is part of its usual cost.
        """
        count = len(tokens) - self._num_read
        if count <= 1 + MAX_DRAFT_TOKENS:
            return 1
        return count

    def read_from(self, position: int) -> None:
        # The rows of earlier tokens are not kept.
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
