"""Prompt lookup: proposes what followed the last few tokens where they occurred before.

Saxena, "Prompt Lookup Decoding" (2023). It costs almost nothing, and pays where text is copied:
summaries, edits, code. The index grows with the text and shrinks when the text is cut; it is
never built again. A reference, such as the expected text of the answer, is searched as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from localspec.sampling.chain import SamplerChain
from localspec.sampling.distribution import CERTAIN, Distribution
from localspec.speculative.policy_api import (
    MAX_DRAFT_TOKENS,
    DraftOff,
    Extent,
    ProposerKind,
    ProposerState,
    ReplayScores,
)
from localspec.speculative.proposers import Draw, Proposal, Proposer

_LONG, _SHORT = 3, 2  # tokens of a key; the long one is tried first
_NUM_COMPARED = 16  # the most occurrences of a key that are compared
LONGEST_MATCH = 32  # tokens; a longer match is no better
_MAX_REPLAYED = 16  # tokens that a replay judges at most


class Index:
    """Finds where the last few tokens occurred before in a text.

    A signal handler's exception may end any change half way; the next change then starts over
    with an empty index.
    """

    def __init__(self) -> None:
        self.text: list[int] = []
        # Key → ends of its occurrences, ascending: the position after each.
        self._ends: dict[tuple[int, ...], list[int]] = {}
        self._is_changing = False

    def read(self, tokens: Sequence[int]) -> None:
        """Index the new tokens. A key is indexed once a token follows it."""
        self._begin_change()
        text = self.text
        for position in range(len(text), len(tokens)):
            for size in (_LONG, _SHORT):
                if position >= size:
                    key = tuple(text[position - size : position])
                    self._ends.setdefault(key, []).append(position)
            text.append(tokens[position])
        self._is_changing = False

    def truncate(self, num_tokens: int) -> None:
        """Keep the first num_tokens."""
        self._begin_change()
        while len(self.text) > num_tokens:
            for size in (_LONG, _SHORT):
                key = tuple(self.text[-size - 1 : -1])
                if len(key) == size:
                    ends = self._ends[key]
                    ends.pop()
                    if not ends:
                        del self._ends[key]
            self.text.pop()
        self._is_changing = False

    def _begin_change(self) -> None:
        if self._is_changing:
            self.text, self._ends = [], {}
        self._is_changing = True

    def longest_match(self, end: Sequence[int]) -> Match:
        """The longest earlier occurrence of the last tokens of `end`; of equal ones the last.

        `end` may be the text itself.
        """
        text, best, best_length = self.text, -1, 0
        for size in (_LONG, _SHORT):
            for position in reversed(self._ends.get(tuple(end[-size:]), [])[-_NUM_COMPARED:]):
                length = size
                most = min(position, len(end), LONGEST_MATCH)
                while length < most and text[position - length - 1] == end[-length - 1]:
                    length += 1
                if length > best_length:
                    best, best_length = position, length
            if best >= 0:
                break
        return Match(text, best, best_length)


class Match(NamedTuple):
    """A text, the position in it of what may come next, and how many tokens before it agree."""

    text: list[int]
    position: int
    length: int


class Lookup(Proposer):
    """Proposes from the text itself, and from a reference.

    Its confidence in what it finds is 1 - 1 / (1 + n), where the last n tokens agree.
    is_end: the target's end-of-generation test; nothing is proposed after such a token.
    """

    kind = ProposerKind.LOOKUP

    def __init__(self, is_end: Callable[[int], bool]) -> None:
        self._is_end = is_end
        self._own = Index()
        self._reference = Index()
        self._found = Match([], -1, 0)
        self._judged = 0  # tokens at the front of the text that no replay judges again

    def refer_to(self, tokens: Sequence[int]) -> None:
        """Search these tokens as well from now on. An empty sequence drops the reference."""
        reference = Index()
        reference.read(tokens)
        self._reference = reference

    @property
    def match_length(self) -> int:
        """How many tokens before it agree with the place that the last `state` found."""
        return self._found.length

    def state(self, tokens: Sequence[int]) -> ProposerState:
        self._own.read(tokens)
        own = self._own.longest_match(self._own.text)
        other = self._reference.longest_match(self._own.text)
        self._found = own if own.length > other.length else other
        if self._found.position < 0:
            return ProposerState(0, draft_off=DraftOff.NOTHING_REPEATS)
        return ProposerState(
            MAX_DRAFT_TOKENS,
            num_unjudged=max(len(tokens) - self._judged, 0),
            confidence=1.0 - 1.0 / (1 + self._found.length),
        )

    def propose(
        self, tokens: Sequence[int], extent: Extent, chain: SamplerChain, draw: Draw
    ) -> Proposal:
        """Propose what follows the longest match. Each distribution is one-hot."""
        confidence = self.state(tokens).confidence

        def next_row(drafted: list[int]) -> tuple[Distribution, float] | None:
            # The drafted tokens follow the end of the text, so that a period continues.
            position = self._found.position + len(drafted)
            known = len(self._found.text)
            is_over = position >= known and self._found.text is not self._own.text
            # Nothing is kept after a token that the constraint forbids.
            is_over |= chain.num_allowed(drafted) < len(drafted)
            if confidence is None or is_over:
                return None
            token = (
                self._found.text[position] if position < known else drafted[position - known]
            )
            return Distribution(np.array([token]), CERTAIN), confidence

        proposal = Proposal([], [], []).extend(next_row, extent, draw, self._is_end)
        self._judged = len(tokens) + len(proposal.draft_tokens)
        return proposal

    def replay(
        self, tokens: Sequence[int], probs: Sequence[float], chain: SamplerChain
    ) -> ReplayScores:
        first = max(len(tokens) - min(len(probs), _MAX_REPLAYED), self._judged)
        self.truncate(min(first, len(tokens)))
        chances = []
        for position in range(first, len(tokens)):
            state = self.state(tokens[:position])
            if state.confidence is not None:
                # A distribution of one token x accepts x whatever the target's distribution of
                # it is.
                hit = self._found.text[self._found.position] == tokens[position]
                chances.append((state.confidence, float(hit)))
        self._judged = len(tokens)
        self.state(tokens)
        return ReplayScores(chances, 0)

    def truncate(self, num_tokens: int) -> None:
        self._judged = min(self._judged, num_tokens)
        self._own.truncate(num_tokens)
