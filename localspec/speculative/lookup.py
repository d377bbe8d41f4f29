"""Lookup: proposes the tokens that followed an earlier occurrence of the last tokens.

Saxena, "Prompt Lookup Decoding" (2023), and Oliaro et al., "SuffixDecoding" (arXiv
2411.04975), which looks into earlier texts as well. It costs almost nothing, and pays where
text is copied: summaries, edits, code, the same files again. The index of the text grows with
it and shrinks when the text is cut. A part that is cut off stays in a memory; a reference, such
as the expected text of the answer, is searched as well.

Proposals follow from these texts alone, and each token is proposed as certain. So the memory
changes how many tokens a step emits, never which.
"""

from __future__ import annotations

import bisect
import itertools
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from localspec.sampling.chain import SamplerChain
from localspec.sampling.distribution import CERTAIN, Distribution
from localspec.speculative.model_api import Decoding
from localspec.speculative.ngram_index import GAP, SIZES, NgramIndex, run_hashes
from localspec.speculative.policy_api import (
    CERTAIN_CONFIDENCE,
    MAX_DRAFT_TOKENS,
    DraftOff,
    Extent,
    MatchSource,
    ProposerKind,
    ProposerState,
    ReplayScores,
)
from localspec.speculative.proposers import Draw, Proposal, Proposer

LONGEST_MATCH = 64  # tokens; a longer match is no better
_MAX_REPLAYED = 16  # the most tokens that a replay judges
_FOLLOWED_FROM = SIZES[1]  # an occurrence is followed if at least this many tokens agree
# An occurrence that was followed may be resumed after some replaced tokens. It has to agree in
# at least FROM tokens, at most WITHIN tokens after the text left it, and at most AWAY tokens
# from the position at which it would continue.
_RESUMED_FROM = 2
_RESUMED_WITHIN = 24
_RESUMED_AWAY = 16
MOST_REMEMBERED = 1_000_000  # tokens; about 30 bytes each
_RUN = SIZES[-1]
_KNOWN_RUN = 2 * _RUN  # tokens; a known run as long is not added again
_KEPT_SHARE = 0.75  # share of the bound that is kept once it is reached


class Occurrence(NamedTuple):
    """An earlier occurrence of the last tokens."""

    text: array[int]

    position: int
    """The position in `text` of the token after the occurrence."""


class TextMemory:
    """Earlier texts, each part of them once.

    Above the bound the least recently used parts are forgotten.

    Args:
        most_tokens: The bound, in tokens of all texts together.
    """

    def __init__(self, most_tokens: int = MOST_REMEMBERED) -> None:
        self.index = NgramIndex()
        self.num_changes = 0  # counted, since users search again after a change
        self._most_tokens = most_tokens
        self._begins: list[int] = []  # the first position of each part, ascending
        self._used: list[int] = []  # the last use of each part: a larger number is later
        self._now = 0

    def __len__(self) -> int:
        """Tokens, including the gaps between texts."""
        return len(self.index)

    def add(self, tokens: Sequence[int]) -> None:
        """Remember the parts of a text that are not known already, without gaps in it."""
        # The runs between gaps and cells of pictures.
        for is_text, run in itertools.groupby(tokens, lambda token: token > GAP):
            if is_text:
                text = array("i", run)
                if len(text) > SIZES[0]:
                    self._add(text)

    def _add(self, text: array[int]) -> None:
        """Remember the parts of a text without gaps that are not known already."""
        self._now += 1
        known = self.index.contains_runs(np.array(text, np.int32)).astype(np.int8)
        # Pairs of indices at which known runs end: from the first to before the second.
        edges = np.flatnonzero(np.diff(known, prepend=0, append=0))
        begin = 0  # of the new tokens
        for first, end in edges.reshape(-1, 2).tolist():
            known_from = first - _RUN + 1
            if end - known_from >= _KNOWN_RUN:
                part = text[max(begin - _RUN, 0) : known_from + _RUN]
                self._append(part, known_from - begin)
                begin = end
        self._append(text[max(begin - _RUN, 0) :], len(text) - begin)
        self._forget_some()

    def mark_used(self, found: Occurrence) -> None:
        """Mark the part with this occurrence as just used, if it is in the memory."""
        if found.text is self.index.text:
            number = bisect.bisect_right(self._begins, found.position) - 1
            self._used[number] = self._now

    def _append(self, tokens: array[int], num_new: int) -> None:
        """Add a part if at least one of its tokens is new."""
        if num_new <= 0:
            return
        self._begins.append(len(self.index))
        self._used.append(self._now)
        tokens.append(GAP)
        self.index.read(tokens)
        self.num_changes += 1

    def _forget_some(self) -> None:
        if len(self.index) <= self._most_tokens:
            return
        ends = [*self._begins[1:], len(self.index)]
        left = int(_KEPT_SHARE * self._most_tokens)
        kept = []
        for number in sorted(range(len(ends)), key=lambda n: (-self._used[n], -n)):
            left -= ends[number] - self._begins[number]
            if left < 0:
                break
            kept.append(number)
        kept.sort()
        text = array("i")
        begins = []
        for number in kept:
            begins.append(len(text))
            text += self.index.text[self._begins[number] : ends[number]]
        index = NgramIndex()
        index.read(text)
        self.index = index
        self._begins = begins
        self._used = [self._used[number] for number in kept]
        self.num_changes += 1


# First guesses of the percentage of tokens that come as found. They were counted in versions of
# this project's files in the order of their writing, in its files after one another, and in
# novels. A row is for matches of 2, 4, 8, 16, 32, 64 tokens and more. Its columns are for 1, 2,
# 3 and more occurrences that continue alike, and within them for 0, 1, 2 and more that continue
# differently. The last rows are for resumed matches of 1 token, and of 2 or 3.
_FIRST = (
    ((34, 13, 10, 7), (61, 29, 25, 16), (77, 46, 33, 28), (78, 63, 57, 42)),
    ((62, 29, 23, 18), (81, 45, 36, 33), (86, 65, 49, 47), (92, 76, 63, 61)),
    ((84, 31, 30, 20), (86, 52, 44, 43), (96, 80, 55, 50), (95, 78, 73, 60)),
    ((94, 32, 35, 36), (94, 65, 50, 58), (96, 80, 60, 60), (96, 85, 75, 70)),
    ((99, 42, 50, 55), (99, 75, 73, 75), (99, 85, 80, 80), (98, 90, 85, 85)),
    ((99, 50, 60, 60), (99, 82, 85, 85), (99, 90, 90, 90), (99, 92, 95, 95)),
    ((70,) * 4,) * 4,
    ((90,) * 4,) * 4,
)
_NUM_RESUMED = 2  # rows
RESUMED_BELOW = 1 << _NUM_RESUMED  # tokens of a match
_FIRST_WEIGHT = 8  # weight of the first guesses, in tokens
_MOST_COUNTED = 256  # tokens of a kind after which all counts are halved


class FindingKind(NamedTuple):
    """A kind of finding: indices into `_FIRST`, and the source."""

    length: int
    alike: int
    different: int
    source: MatchSource

    @classmethod
    def of(
        cls,
        length: int,
        num_alike: int,
        num_different: int,
        source: MatchSource,
        *,
        is_resumed: bool,
    ) -> FindingKind:
        """The kind of a finding.

        Args:
            length: Tokens that match.
            num_alike: Occurrences that continue as found, 1 or more.
            num_different: Occurrences that continue differently.
            source: The source of the finding.
            is_resumed: Whether it resumes an occurrence that was followed before.
        """
        num_others = len(_FIRST) - _NUM_RESUMED
        if is_resumed and length < RESUMED_BELOW:
            row = num_others + length.bit_length() - 1
        else:
            row = min(length.bit_length() - 2, num_others - 1)
        return cls(row, min(num_alike, 4) - 1, min(num_different, 3), source)


class Found(NamedTuple):
    """Occurrences of the last `length` tokens, the one to follow first."""

    occurrences: list[Occurrence]
    length: int
    is_resumed: bool = False
    """Whether the first one resumes an occurrence that was followed before."""


_NOTHING = Found([], 0)


class Lookup(Proposer):
    """Proposes from the text itself, a reference, and a memory of earlier texts.

    Args:
        is_end: The target's end-of-generation test; nothing is proposed after such a token.
        memory: The memory of earlier texts; None to remember none.
    """

    kind = ProposerKind.LOOKUP

    def __init__(self, is_end: Callable[[int], bool], memory: TextMemory | None = None) -> None:
        self.memory = memory
        self._is_end = is_end
        # For each kind, tokens that came as found, and all tokens.
        self._counts: dict[FindingKind, list[float]] = {}
        self._own = NgramIndex()  # the text
        self._reference = NgramIndex()
        self._chain: SamplerChain | None = None  # the answer's
        self._found = _NOTHING
        # An occurrence that was followed, and the length of the text at that time.
        self._followed: tuple[Occurrence, int] | None = None
        self._answer_from = 0  # the answer's position in the text
        self._forced: list[int] = []  # tokens between the text and the found continuation
        # The length of the text, and the memory's changes, at the last search.
        self._found_at: tuple[int, int] | None = None
        self._expected: list[tuple[int, FindingKind]] = []  # the next tokens as found
        self._alive: list[Occurrence] = []  # occurrences that continued as expected so far
        self._judged = 0  # tokens at the front of the text that no replay judges again

    def as_dict(self) -> dict[str, list[float]]:
        """How findings fared, by their kinds; to be kept for the next process."""
        kept = {}
        for kind, (came, seen) in self._counts.items():
            name = " ".join(str(int(part)) for part in kind)
            kept[name] = [round(came, 2), round(seen, 2)]
        return kept

    def restore(self, kept: Mapping[str, Sequence[float]]) -> None:
        """Continue from `as_dict`. Raises ValueError for impossible values."""
        for name, (came, seen) in kept.items():
            length, alike, different, source = (int(part) for part in name.split())
            kind = FindingKind(length, alike, different, MatchSource(source))
            if not 0.0 <= came <= seen <= _MOST_COUNTED:
                raise ValueError(f"{came} of {seen} tokens came")
            self._counts_of(kind)[:] = [float(came), max(float(seen), 1.0)]

    def refer_to(self, tokens: Sequence[int]) -> None:
        """Search these tokens as well from now on. An empty sequence drops the reference."""
        reference = NgramIndex()
        reference.read(tokens)
        self._reference = reference
        self._found_at = None
        self._followed = None

    def reset(self, chain: SamplerChain) -> None:
        self._chain = chain
        self._answer_from = chain.num_prompt_tokens

    def state(self, tokens: Sequence[int]) -> ProposerState:
        """`tokens` must end where the answer's constraint was committed, if it has one."""
        self._find_continuation(tokens)
        if self._chain is not None and self._chain.constraint is not None:
            self._join_forced(self._chain)
        first = self._next(0)
        if first is None:
            return ProposerState(0, draft_off=DraftOff.NOTHING_REPEATS)
        return ProposerState(
            MAX_DRAFT_TOKENS,
            num_unjudged=max(len(tokens) - self._judged, 0),
            confidence=self._chance(first[1]),
            source=first[1].source,
        )

    def _find_continuation(self, tokens: Sequence[int]) -> None:
        """Search for a continuation of these tokens, unless the last search was the same."""
        self._index_new_tokens(tokens)
        changes = 0
        if self.memory is not None:
            changes = self.memory.num_changes
        if self._found_at != (len(tokens), changes):
            self._take(self._look(), [])
            self._found_at = (len(tokens), changes)

    def _take(self, found: Found, forced: list[int]) -> None:
        self._found = found
        self._alive = found.occurrences
        self._forced = forced
        self._expected.clear()

    def _join_forced(self, chain: SamplerChain) -> None:
        """Search after the forced tokens, unless an allowed continuation was found."""
        assert chain.constraint is not None
        first = self._next(0)
        forced = chain.constraint.forced()[: MAX_DRAFT_TOKENS - 1]
        # A forced token is surer than a resumed occurrence.
        is_of_use = (
            first is not None
            and not self._found.is_resumed
            and chain.num_allowed([first[0]]) > 0
        )
        if forced and not self._forced and not is_of_use:
            found = self._look(forced)
            if found.occurrences:
                self._take(found, list(forced))

    def propose(
        self,
        tokens: Sequence[int],
        extent: Extent,
        chain: SamplerChain,
        draw: Draw,
    ) -> Decoding[Proposal]:
        """Propose the tokens after the longest match. Each distribution is one-hot."""
        yield from ()
        self.state(tokens)

        def next_row(drafted: list[int]) -> tuple[Distribution, float] | None:
            # Nothing is kept after a token that the constraint forbids.
            if len(drafted) < len(self._forced):
                forced = np.array([self._forced[len(drafted)]])
                return Distribution(forced, CERTAIN), CERTAIN_CONFIDENCE
            found = self._next(len(drafted) - len(self._forced))
            if found is None or chain.num_allowed(drafted) < len(drafted):
                return None
            token, kind = found
            return Distribution(np.array([token]), CERTAIN), self._chance(kind)

        proposal = Proposal([], [], []).extend(next_row, extent, draw, self._is_end)
        self._judged = len(tokens) + len(proposal.draft_tokens)
        return proposal

    def replay(
        self,
        tokens: Sequence[int],
        probs: Sequence[float],
        chain: SamplerChain,
    ) -> Decoding[ReplayScores]:
        yield from ()
        first = max(len(tokens) - min(len(probs), _MAX_REPLAYED), self._judged)
        self._cut(min(first, len(tokens)))
        chances = []
        sources = []
        for position in range(first, len(tokens)):
            self._find_continuation(tokens[:position])
            found = self._next(0)
            if found is not None:
                # A one-hot proposal is kept exactly if the target draws the token.
                token, kind = found
                chances.append((self._chance(kind), float(token == tokens[position])))
                sources.append(kind.source)
        self._judged = len(tokens)
        self._find_continuation(tokens)
        return ReplayScores(chances, 0, sources)

    def truncate(self, num_tokens: int) -> None:
        """Forget the text after its first num_tokens; a longer part goes to the memory."""
        if self.memory is not None and len(self._own) - num_tokens > MAX_DRAFT_TOKENS:
            begin = max(num_tokens - SIZES[-1], 0)
            self.memory.add(self._own.text[begin:])
        self._cut(num_tokens)

    def _cut(self, num_tokens: int) -> None:
        if num_tokens < len(self._own):
            self._judged = min(self._judged, num_tokens)
            self._found_at = None
            self._followed = None
            self._own.truncate(num_tokens)

    def _index_new_tokens(self, tokens: Sequence[int]) -> None:
        """Read the new tokens of the text, and learn whether they came as found."""
        num_read = len(self._own)
        if num_read == len(tokens):
            return
        new = tokens[num_read:]
        num_forced = len(self._forced)
        is_next = self._found_at is not None and self._found_at[0] == num_read
        if is_next and list(new[:num_forced]) == self._forced:
            for token, (found, kind) in zip(new[num_forced:], self._expected, strict=False):
                counts = self._counts_of(kind)
                counts[0] += token == found
                counts[1] += 1
                if counts[1] > _MOST_COUNTED:
                    counts[:] = [count / 2 for count in counts]
                if token != found:
                    break
                if self.memory is not None:
                    self.memory.mark_used(self._found.occurrences[0])
        self._expected.clear()
        self._own.read(new)

    def _chance(self, kind: FindingKind) -> float:
        """The share of tokens of this kind that came as they were found, 0 … 1."""
        came, seen = self._counts_of(kind)
        return came / seen

    def _counts_of(self, kind: FindingKind) -> list[float]:
        share = _FIRST[kind.length][kind.alike][kind.different] / 100
        return self._counts.setdefault(kind, [share * _FIRST_WEIGHT, _FIRST_WEIGHT])

    def _look(self, forced: Sequence[int] = ()) -> Found:
        """Search for the end of the text followed by the forced tokens."""
        end = self._own.text
        hashes = self._own.end_hashes
        if forced:
            end = end[-LONGEST_MATCH:] + array("i", forced)
            hashes = run_hashes(end)
        num_tokens = len(self._own) + len(forced)
        found = self._longest(end, hashes)
        if found.length < RESUMED_BELOW:
            found = self._resumed(end, num_tokens, found)
        least = _FOLLOWED_FROM
        if found.is_resumed:
            least = _RESUMED_FROM
        if found.length >= least:
            self._followed = (found.occurrences[0], num_tokens)
        return found

    def _longest(self, end: array[int], hashes: Sequence[int]) -> Found:
        """The occurrences of the longest run at this end that occurred before."""
        indexes = [self._reference, self._own]
        if self.memory is not None:
            indexes.append(self.memory.index)
        indexes = [index for index in indexes if index]  # those that are not empty
        occurrences: list[Occurrence] = []
        length = 0
        for level, hash_ in enumerate(hashes):
            run = end[-SIZES[level] :]
            longer = []
            for index in indexes:
                for position in index.ends(level, hash_, run):
                    longer.append(Occurrence(index.text, position))
            if not longer:
                break
            occurrences = longer
            length = SIZES[level]
        if occurrences:
            return _longest_first(occurrences, end, length)
        return _NOTHING

    def _resumed(self, end: array[int], num_tokens: int, found: Found) -> Found:
        """The followed occurrence, resumed after replaced tokens; if it is not, `found`.

        A short match near it says more than an equally short match elsewhere.

        Args:
            end: The end of the text.
            num_tokens: The length of the text.
            found: The longest match.
        """
        if self._followed is None:
            return found
        (text, position), num_before = self._followed
        passed = num_tokens - num_before
        if passed > _RESUMED_WITHIN:
            return found
        expected = position + passed
        last = end[-1]
        first = max(expected - _RESUMED_AWAY, 1)
        # The longest match counts; of equally long ones the nearest.
        near = []
        for at in range(first, min(expected + _RESUMED_AWAY + 1, len(text))):
            if text[at - 1] == last and text[at] != GAP:
                near.append((_matching(text, at, end, 1), -abs(at - expected), at))
        length, _, at = max(near, default=(0, 0, 0))
        if length < max(found.length, 1):
            return found
        occurrences = [Occurrence(text, at)]
        for other in found.occurrences:
            if other.text is not text or other.position != at:
                occurrences.append(other)
        return Found(occurrences, length, is_resumed=True)

    def _next(self, num_drafted: int) -> tuple[int, FindingKind] | None:
        """The token to propose after num_drafted earlier ones of the same draft, and its kind.

        The first occurrence gives the token. Its kind counts, of the occurrences that continued
        alike so far, how many do so again.
        """
        if num_drafted < len(self._expected):
            return self._expected[num_drafted]
        if not self._alive:
            return None
        first = self._alive[0]
        token = self._following(first, num_drafted)
        if token == GAP:
            return None
        alike = [first]
        num_different = 0
        for occurrence in self._alive[1:]:
            following = self._following(occurrence, num_drafted)
            if following == token:
                alike.append(occurrence)
            elif following != GAP:
                num_different += 1
        self._alive = alike
        kind = FindingKind.of(
            self._found.length + num_drafted,
            len(alike),
            num_different,
            self._source(first, num_drafted),
            is_resumed=self._found.is_resumed,
        )
        self._expected.append((token, kind))
        return token, kind

    def _source(self, occurrence: Occurrence, num_drafted: int) -> MatchSource:
        if occurrence.text is self._reference.text:
            return MatchSource.PROMPT
        if occurrence.text is not self._own.text:
            return MatchSource.OTHER
        position = occurrence.position + num_drafted
        if position < self._answer_from:
            return MatchSource.PROMPT
        return MatchSource.ANSWER

    def _following(self, occurrence: Occurrence, num_drafted: int) -> int:
        """The token after an occurrence and num_drafted tokens; GAP if there is none."""
        text = occurrence.text
        position = occurrence.position + num_drafted
        if position < len(text):
            return text[position]
        if text is not self._own.text:
            return GAP
        # The drafted tokens follow the end of the text, so that a period continues.
        after_text = position - len(text)
        if after_text < len(self._forced):
            return self._forced[after_text]
        return self._expected[after_text - len(self._forced)][0]


def _longest_first(found: list[Occurrence], last: array[int], length: int) -> Found:
    """The occurrences with one that matches longest in front.

    Args:
        found: Occurrences of the last `length` tokens.
        last: The last tokens of the text.
        length: Tokens that match.
    """
    best = 0
    longest = 0
    for number, (text, end) in enumerate(found):
        if length == SIZES[-1]:
            matching = _doubled_matching(text, end, last, length)
        else:
            matching = _matching(text, end, last, length)
        if matching > longest:
            best = number
            longest = matching
    return Found([found[best], *found[:best], *found[best + 1 :]], longest)


def _doubled_matching(
    text: array[int],
    end: int,
    last: array[int],
    length: int,
) -> int:
    """How many tokens agree if the last `length` do, in doublings of that.

    Long runs are compared fast.
    """
    while length < LONGEST_MATCH and end >= 2 * length <= len(last):
        before = text[end - 2 * length : end - length]
        if before != last[-2 * length : -length]:
            break
        length *= 2
    return length


def _matching(
    text: array[int],
    end: int,
    last: array[int],
    length: int,
) -> int:
    """How many tokens agree, at most SIZES[-1], if the last `length` do."""
    most = min(end, len(last), SIZES[-1])
    while length < most and text[end - length - 1] == last[-length - 1]:
        length += 1
    return length
