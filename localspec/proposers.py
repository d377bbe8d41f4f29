"""Where draft tokens come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from localspec.draft_length import DraftOff
from localspec.model import Model
from localspec.pair import SharedVocabulary
from localspec.sampling import Distribution, Logits
from localspec.transforms import Transforms


class Proposal(NamedTuple):
    """K draft tokens and the K laws they were really drawn from; if none, perhaps why."""

    draft_tokens: list[int]
    distributions: list[Distribution]
    draft_off: DraftOff | None = None


Draw = Callable[[int, Distribution], int]  # (index in the step, law) → token


class Proposer(Protocol):
    """Anything that proposes draft tokens for a text."""

    @property
    def context_length(self) -> int:
        """The longest text, drafted tokens included, it can propose for."""

    def propose(
        self, tokens: Sequence[int], num_wanted: int, transforms: Transforms, draw: Draw
    ) -> Proposal:
        """Up to num_wanted tokens to follow `tokens`, each drawn by `draw` from its law."""

    def truncate(self, num_tokens: int) -> None:
        """Forget whatever it knows of the text beyond its first num_tokens."""


class DraftModel:
    """A small model that shares the target's tokenizer.

    shared: ids that mean the same token to target and draft. Mass elsewhere is cut before
    the law is formed, so nothing else is ever drawn. is_end: the target's
    end-of-generation test. Nothing is proposed after an end token.
    """

    def __init__(
        self, model: Model, shared: SharedVocabulary, is_end: Callable[[int], bool]
    ) -> None:
        self.model = model
        self._shared_size = shared.size
        self._different = np.array([d.token for d in shared.differences], dtype=np.int64)
        self._is_end = is_end

    @property
    def context_length(self) -> int:
        # The last draft token is never decoded here, hence the one more.
        return self.model.context_length + 1

    def propose(
        self, tokens: Sequence[int], num_wanted: int, transforms: Transforms, draw: Draw
    ) -> Proposal:
        # Whatever the draft lacks comes first, in one decode: the whole prompt at its first
        # step, later the last token or two. Its own draft tokens are cached already.
        missing = tokens[self.model.num_cached :]
        if not self.knows(missing):
            return Proposal([], [], DraftOff.TOKEN_UNKNOWN_TO_DRAFT)
        proposal = Proposal([], [])
        for index in range(num_wanted):
            law = transforms.law(self.next_row(missing), tokens, proposal.draft_tokens)
            drawn = draw(index, law)
            proposal.draft_tokens.append(drawn)
            proposal.distributions.append(law)
            # Stopping behind a token is fine, since the token stays; dropping one is not.
            if self._is_end(drawn):
                break
            missing = [drawn]
        return proposal

    def knows(self, tokens: Sequence[int]) -> bool:
        """Whether every one of the tokens is in the draft's vocabulary."""
        return max(tokens) < self.model.vocab_size

    def next_row(self, tokens: Sequence[int]) -> Logits:
        """Logits (shared vocabulary,) behind its text and `tokens`, which it knows.

        -inf where an id is another token to the target. A view, valid until the next.
        """
        row = self.model.decode(tokens, 1)[0, : self._shared_size]
        row[self._different] = -np.inf
        return row

    def truncate(self, num_tokens: int) -> None:
        self.model.truncate(min(self.model.num_cached, num_tokens))
