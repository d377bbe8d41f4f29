"""Lookup: proposes the tokens that followed an earlier occurrence of the last tokens.

Saxena, "Prompt Lookup Decoding" (2023), and Oliaro et al., "SuffixDecoding" (arXiv
2411.04975), which searches earlier texts as well. It costs almost nothing, and pays where text
is copied: summaries, edits, code, the same files again. The index of the text grows with the
text, and shrinks when the text is cut. The part that is cut off stays in a memory. A reference,
such as the expected text of the answer, is searched as well.

Proposals follow from these texts alone, and each token is proposed with probability 1. So the
memory changes how many tokens a step emits, but not which ones.
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
_FOLLOWED_FROM = SIZES[1]  # an occurrence is followed if at least this many tokens match
# An occurrence that was followed may be resumed after some replaced tokens. At least FROM
# tokens have to match, at most WITHIN tokens after the text differed, and at most AWAY tokens
# from the position at which the occurrence would continue.
_RESUMED_FROM = 2
_RESUMED_WITHIN = 24
_RESUMED_AWAY = 16
MOST_REMEMBERED = 1_000_000  # tokens; about 30 bytes each
_RUN = SIZES[-1]
_KNOWN_RUN = 2 * _RUN  # tokens; a known run of this length is not added again
_KEPT_SHARE = 0.75  # the share of the bound that is kept once the bound is exceeded


class Occurrence(NamedTuple):
    """An earlier occurrence of the last tokens."""

    text: array[int]

    position: int
    """The position in `text` of the token after the occurrence."""


class TextMemory:
    """Earlier texts. A part that several texts have in common is stored once.

    If there are more tokens than a bound, the least recently used parts are forgotten.

    Args:
        most_tokens: The bound, in tokens of all texts together.
    """

    def __init__(self, most_tokens: int = MOST_REMEMBERED) -> None:
        self.index = NgramIndex()
        self.num_changes = 0  # after a change, a `Lookup` searches again
        self._most_tokens = most_tokens
        self._begins: list[int] = []  # the first position of each part, ascending
        self._last_uses: list[int] = []  # the time of each part's last use, counted by `add`
        self._now = 0

    def __len__(self) -> int:
        """The number of tokens, including a gap after each part."""
        return len(self.index)

    def add(self, tokens: Sequence[int]) -> None:
        """Add the parts of a text that are not known yet, leaving out pictures and gaps."""
        for is_text, run in itertools.groupby(tokens, lambda token: token > GAP):
            if is_text:
                text = array("i", run)
                if len(text) > SIZES[0]:  # else no token follows a run
                    self._add_run(text)

    def _add_run(self, text: array[int]) -> None:
        """Add the parts of a text without pictures and gaps that are not known yet.

        Each part is stored with up to _RUN known tokens on each side, so that a match can
        continue into the part and out of it.
        """
        self._now += 1
        tokens = np.array(text, np.int32)
        is_known = self.index.contains_runs(tokens)
        # Where `is_known` changes: for each stretch of True its first index and its end.
        edges = np.flatnonzero(np.diff(is_known, prepend=False, append=False))
        new_begin = 0  # the first token that may be new
        part_begin = 0
        for first, end in edges.reshape(-1, 2).tolist():
            known_begin = first - _RUN + 1  # the first token of the run that ends at `first`
            if end - known_begin >= _KNOWN_RUN:
                part = text[part_begin : known_begin + _RUN]
                self._append(part, known_begin - new_begin)
                new_begin = end
                part_begin = end - _RUN
        self._append(text[part_begin:], len(text) - new_begin)
        self._forget_some()

    def mark_used(self, occurrence: Occurrence) -> None:
        """Mark the part of this occurrence as just used, if it is in the memory."""
        if occurrence.text is self.index.text:
            number = bisect.bisect_right(self._begins, occurrence.position) - 1
            self._last_uses[number] = self._now

    def _append(self, tokens: array[int], num_new: int) -> None:
        """Append a part and a gap, if at least one of its tokens is new."""
        if num_new <= 0:
            return
        self._begins.append(len(self.index))
        self._last_uses.append(self._now)
        tokens.append(GAP)
        self.index.read(tokens)
        self.num_changes += 1

    def _forget_some(self) -> None:
        """If there are too many tokens, keep only the parts that were used last."""
        if len(self.index) <= self._most_tokens:
            return
        ends = [*self._begins[1:], len(self.index)]
        # Of parts that were used at the same time, the one that was added last comes first.
        last_used_first = sorted(range(len(ends)), key=lambda n: (-self._last_uses[n], -n))
        num_free = int(_KEPT_SHARE * self._most_tokens)
        kept = []
        for number in last_used_first:
            num_free -= ends[number] - self._begins[number]
            if num_free < 0:
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
        self._last_uses = [self._last_uses[number] for number in kept]
        self.num_changes += 1


# First guesses of how often, in percent, the next token is the found one. They were counted in
# versions of this project's files in the order of their writing, in its files after one
# another, and in novels. A row is for matches of 2, 4, 8, 16, 32, 64 tokens and more. Its four
# groups are for 1, 2, 3 and more occurrences that continue alike, and the four numbers of each
# for 0, 1, 2 and more occurrences that continue differently. The last two rows are for resumed
# matches of 1 token, and of 2 or 3.
_FIRST_GUESSES = (
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
_FIRST_WEIGHT = 8  # the first guesses count as much as this number of tokens
_MOST_COUNTED = 256  # above this number of tokens of a kind, its counts are halved


class FindingKind(NamedTuple):
    """A kind of found token: three indices into `_FIRST_GUESSES`, and the source."""

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
        """The kind of a found token.

        Args:
            length: How many tokens before it match.
            num_alike: How many occurrences continue with this token, 1 or more.
            num_different: How many occurrences continue with another one.
            source: The source of the token.
            is_resumed: Whether an occurrence that was followed before is resumed.
        """
        num_usual_rows = len(_FIRST_GUESSES) - _NUM_RESUMED
        log2 = length.bit_length() - 1
        if is_resumed and length < RESUMED_BELOW:
            row = num_usual_rows + log2
        else:
            row = min(log2 - 1, num_usual_rows - 1)
        return cls(row, min(num_alike, 4) - 1, min(num_different, 3), source)


class Found(NamedTuple):
    """The result of a search: occurrences of the last `length` tokens of the text.

    The first occurrence is followed: its continuation is proposed.
    """

    occurrences: list[Occurrence]
    length: int
    is_resumed: bool = False
    """Whether the first one resumes an occurrence that was followed before."""


_NOTHING = Found([], 0)


class Lookup(Proposer):
    """Proposes from the text itself, a reference, and a memory of earlier texts.

    Args:
        is_end: Whether a token ends the answer. Nothing is proposed after such a token.
        memory: The memory of earlier texts; None to remember none.
    """

    kind = ProposerKind.LOOKUP

    def __init__(self, is_end: Callable[[int], bool], memory: TextMemory | None = None) -> None:
        self.memory = memory
        self._is_end = is_end
        # For each kind, how many found tokens were right, and how many there were.
        self._counts: dict[FindingKind, list[float]] = {}
        self._own = NgramIndex()  # the text
        self._reference = NgramIndex()
        self._chain: SamplerChain | None = None  # the chain of the answer
        self._found = _NOTHING  # the result of the last search
        # The occurrence that was followed last, and the length of the text at that time.
        self._followed: tuple[Occurrence, int] | None = None
        self._answer_from = 0  # the answer's position in the text
        self._forced: list[int] = []  # tokens between the text and the found continuation
        # The length of the text, and the memory's changes, at the last search.
        self._found_at: tuple[int, int] | None = None
        self._expected: list[tuple[int, FindingKind]] = []  # the found continuation so far
        self._alive: list[Occurrence] = []  # occurrences that continued as expected so far
        self._num_judged = 0  # first tokens of the text that no replay judges any more

    def as_dict(self) -> dict[str, list[float]]:
        """The counts of each kind, to save for the next process."""
        counts = {}
        for kind, (num_right, num_found) in self._counts.items():
            name = " ".join(str(int(part)) for part in kind)
            counts[name] = [round(num_right, 2), round(num_found, 2)]
        return counts

    def restore(self, counts: Mapping[str, Sequence[float]]) -> None:
        """Continue with the counts of `as_dict`. Raises one of `DAMAGES` for wrong ones."""
        for name, (num_right, num_found) in counts.items():
            length, alike, different, source = (int(part) for part in name.split())
            kind = FindingKind(length, alike, different, MatchSource(source))
            if not 0.0 <= num_right <= num_found <= _MOST_COUNTED:
                raise ValueError(f"{num_right} of {num_found} tokens were right")
            kind_counts = self._counts_of(kind)
            kind_counts[0] = float(num_right)
            kind_counts[1] = max(float(num_found), 1.0)  # a divisor

    def refer_to(self, tokens: Sequence[int]) -> None:
        """Also search these tokens from now on. An empty sequence drops the reference."""
        reference = NgramIndex()
        reference.read(tokens)
        self._reference = reference
        self._found_at = None
        self._followed = None

    def reset(self, chain: SamplerChain) -> None:
        self._chain = chain
        self._answer_from = chain.num_prompt_tokens

    def state(self, tokens: Sequence[int]) -> ProposerState:
        """The state after the text, for which it searches a continuation.

        The answer's constraint, if it has one, must have been committed to the text's end.
        """
        self._find_continuation(tokens)
        if self._chain is not None and self._chain.constraint is not None:
            self._join_forced(self._chain)
        found_token = self._next(0)
        if found_token is None:
            return ProposerState(0, draft_off=DraftOff.NOTHING_REPEATS)
        _, kind = found_token
        return ProposerState(
            MAX_DRAFT_TOKENS,
            num_unjudged=max(len(tokens) - self._num_judged, 0),
            confidence=self._confidence(kind),
            source=kind.source,
        )

    def _find_continuation(self, tokens: Sequence[int]) -> None:
        """Search for a continuation of these tokens, unless the last search was the same."""
        self._index_new_tokens(tokens)
        num_changes = 0
        if self.memory is not None:
            num_changes = self.memory.num_changes
        if self._found_at != (len(tokens), num_changes):
            self._set_found(self._search(), [])
            self._found_at = (len(tokens), num_changes)

    def _set_found(self, found: Found, forced: list[int]) -> None:
        """Set the result of the last search.

        Args:
            found: The result.
            forced: The forced tokens between the text and the found continuation.
        """
        self._found = found
        self._alive = found.occurrences
        self._forced = forced
        self._expected.clear()

    def _join_forced(self, chain: SamplerChain) -> None:
        """Search after the forced tokens, unless an allowed continuation was found."""
        assert chain.constraint is not None
        found_token = self._next(0)
        forced = chain.constraint.forced()[: MAX_DRAFT_TOKENS - 1]
        # A forced token is more certain than a resumed occurrence.
        is_usable = (
            found_token is not None
            and not self._found.is_resumed
            and chain.num_allowed([found_token[0]]) > 0
        )
        if forced and not self._forced and not is_usable:
            found = self._search(forced)
            if found.occurrences:
                self._set_found(found, list(forced))

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
        forced = self._forced

        def next_row(drafted: list[int]) -> tuple[Distribution, float] | None:
            num_drafted = len(drafted)
            if num_drafted < len(forced):
                token_ids = np.array([forced[num_drafted]])
                return Distribution(token_ids, CERTAIN), CERTAIN_CONFIDENCE
            found_token = self._next(num_drafted - len(forced))
            # After a token that the constraint forbids, every further token would be refused.
            if found_token is None or chain.num_allowed(drafted) < num_drafted:
                return None
            token, kind = found_token
            token_ids = np.array([token])
            return Distribution(token_ids, CERTAIN), self._confidence(kind)

        proposal = Proposal([], [], []).extend(next_row, extent, draw, self._is_end)
        self._num_judged = len(tokens) + len(proposal.draft_tokens)
        return proposal

    def replay(
        self,
        tokens: Sequence[int],
        probs: Sequence[float],
        chain: SamplerChain,
    ) -> Decoding[ReplayScores]:
        """Search for each of the last tokens as if the text ended before it.

        Tokens for which nothing is found are not judged.
        """
        yield from ()
        num_replayed = min(len(probs), _MAX_REPLAYED)
        first = max(len(tokens) - num_replayed, self._num_judged)
        self._cut(min(first, len(tokens)))
        chances = []
        sources = []
        for position in range(first, len(tokens)):
            self._find_continuation(tokens[:position])
            found_token = self._next(0)
            if found_token is not None:
                # A one-hot proposal is accepted exactly if the target draws the same token.
                token, kind = found_token
                acceptance = float(token == tokens[position])
                chances.append((self._confidence(kind), acceptance))
                sources.append(kind.source)
        self._num_judged = len(tokens)
        self._find_continuation(tokens)
        return ReplayScores(chances, 0, sources)

    def truncate(self, num_tokens: int) -> None:
        """Forget the text after its first num_tokens. A long part is added to the memory."""
        if self.memory is not None and len(self._own) - num_tokens > MAX_DRAFT_TOKENS:
            begin = max(num_tokens - SIZES[-1], 0)
            self.memory.add(self._own.text[begin:])
        self._cut(num_tokens)

    def _cut(self, num_tokens: int) -> None:
        if num_tokens < len(self._own):
            self._num_judged = min(self._num_judged, num_tokens)
            self._found_at = None
            self._followed = None
            self._own.truncate(num_tokens)

    def _index_new_tokens(self, tokens: Sequence[int]) -> None:
        """Read the new tokens of the text, and count how many of them were expected."""
        num_read = len(self._own)
        if num_read == len(tokens):
            return
        new_tokens = tokens[num_read:]
        num_forced = len(self._forced)
        is_next = self._found_at is not None and self._found_at[0] == num_read
        if is_next and list(new_tokens[:num_forced]) == self._forced:
            pairs = zip(new_tokens[num_forced:], self._expected, strict=False)
            for token, (expected_token, kind) in pairs:
                counts = self._counts_of(kind)
                counts[0] += token == expected_token
                counts[1] += 1
                if counts[1] > _MOST_COUNTED:
                    counts[:] = [count / 2 for count in counts]
                if token != expected_token:
                    break
                if self.memory is not None:
                    self.memory.mark_used(self._found.occurrences[0])
        self._expected.clear()
        self._own.read(new_tokens)

    def _confidence(self, kind: FindingKind) -> float:
        """The share of found tokens of this kind that were right, 0 … 1."""
        num_right, num_found = self._counts_of(kind)
        return num_right / num_found

    def _counts_of(self, kind: FindingKind) -> list[float]:
        """The counts of a kind, at first the guesses: right tokens, and all found tokens."""
        percent = _FIRST_GUESSES[kind.length][kind.alike][kind.different]
        num_right = percent / 100 * _FIRST_WEIGHT
        return self._counts.setdefault(kind, [num_right, _FIRST_WEIGHT])

    def _search(self, forced: Sequence[int] = ()) -> Found:
        """Search for earlier occurrences of the text's end with the forced tokens after it.

        Sets `_followed` if the match is long enough.
        """
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
        """The occurrences of the longest run at the text's end that occurred before.

        Args:
            end: The text, or its last tokens.
            hashes: The hashes of the end: see `run_hashes`.
        """
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
        """The occurrence that was followed, resumed after replaced tokens.

        A short match near it says more than an equally short match elsewhere. Returns `found`
        if it is longer, if no match is near, or if no occurrence was followed lately.

        Args:
            end: The end of the text.
            num_tokens: The length of the text.
            found: The longest match.
        """
        if self._followed is None:
            return found
        (text, position), num_tokens_then = self._followed
        num_since = num_tokens - num_tokens_then
        if num_since > _RESUMED_WITHIN:
            return found
        expected = position + num_since
        last_token = end[-1]
        first = max(expected - _RESUMED_AWAY, 1)
        stop = min(expected + _RESUMED_AWAY + 1, len(text))
        # The longest match counts; of equally long ones the nearest.
        matches = []
        for candidate in range(first, stop):
            if text[candidate - 1] == last_token and text[candidate] != GAP:
                length = _match_length(text, candidate, end, 1)
                matches.append((length, -abs(candidate - expected), candidate))
        length, _, resumed = max(matches, default=(0, 0, 0))
        if length < max(found.length, 1):
            return found
        occurrences = [Occurrence(text, resumed)]
        for other in found.occurrences:
            if other.text is not text or other.position != resumed:
                occurrences.append(other)
        return Found(occurrences, length, is_resumed=True)

    def _next(self, num_drafted: int) -> tuple[int, FindingKind] | None:
        """The token to propose after num_drafted found ones of the same draft, and its kind.

        None if no further token is found. The first occurrence gives the token. For its kind,
        the occurrences count that continued like the first one so far: `_alive`, from which the
        others are removed. The token is added to `_expected`.
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
        """The source of the token after an occurrence and num_drafted tokens."""
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
        # The text is followed by the draft, so that a repetition at its end continues.
        num_after_text = position - len(text)
        if num_after_text < len(self._forced):
            return self._forced[num_after_text]
        return self._expected[num_after_text - len(self._forced)][0]


def _longest_first(occurrences: list[Occurrence], last: array[int], length: int) -> Found:
    """The occurrences, with the first one of those that match longest in front.

    Args:
        occurrences: Occurrences of the last `length` tokens, at least one.
        last: The last tokens of the text.
        length: How many tokens match in all of them.
    """
    best = 0
    longest = 0
    for number, (text, end) in enumerate(occurrences):
        if length == SIZES[-1]:
            match_length = _doubled_match_length(text, end, last, length)
        else:
            match_length = _match_length(text, end, last, length)
        if match_length > longest:
            best = number
            longest = match_length
    others = occurrences[:best] + occurrences[best + 1 :]
    return Found([occurrences[best], *others], longest)


def _doubled_match_length(
    text: array[int],
    end: int,
    last: array[int],
    length: int,
) -> int:
    """How many tokens before `end` match the last ones, as `length` times a power of 2.

    It compares whole runs, which is fast.

    Args:
        text: The text of an occurrence.
        end: The position after the occurrence.
        last: The last tokens of the text that is continued.
        length: How many tokens are known to match.
    """
    most = min(end, len(last))
    while length < LONGEST_MATCH and 2 * length <= most:
        before = text[end - 2 * length : end - length]
        if before != last[-2 * length : -length]:
            break
        length *= 2
    return length


def _match_length(
    text: array[int],
    end: int,
    last: array[int],
    length: int,
) -> int:
    """How many tokens before `end` match the last ones, at most SIZES[-1].

    Arguments as for `_doubled_match_length`.
    """
    most = min(end, len(last), SIZES[-1])
    while length < most and text[end - length - 1] == last[-length - 1]:
        length += 1
    return length
