"""The target's text in the tokens of a draft that has another tokenizer, kept in step.

Both have the same bytes. The text grows and is cut by the target's tokens. The draft's tokens
follow: only the end is tokenised again, from the beginning of a word on.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from localspec.sampling.distribution import TokenIds
from localspec.speculative.shared_vocabulary import cannot_spell, common_tokens
from localspec.vocabulary import Vocabulary, WholeVocabulary


class TokenMaps:
    """From ids of the target to ids of the draft ("own" ids), as arrays made once.

    target_ids, own_ids: (m,) each pair of tokens that mean the same, ascending by the target's.
    to_own: (target_size,) the same as a table; -1 where the draft has no such token. atoms: the
    control tokens among them. pieces, own_pieces: bytes of all tokens, control tokens by their
    entries. own_bytes: (256,) the draft's tokens of single bytes, -1 where it has none.
    can_spell: (target_size,) whether the draft can spell the token in some way. Raises
    PairError if they have too little in common, or the draft cannot spell any text.

    Control tokens mean the same if their entries are the same, or if both are the token that
    ends an answer. The token that starts the target's texts has no bytes: a draft has its own.
    """

    def __init__(self, target: WholeVocabulary, draft: WholeVocabulary) -> None:
        self.pieces, self.own_pieces = target.spelled_out(), draft.spelled_out()
        self.common = common_tokens(self.pieces, self.own_pieces)
        control, own_control = set(target.control_ids()), set(draft.control_ids())
        # Of several tokens with the same bytes the last one counts: single bytes come before
        # characters, and what was added for whole words after what it is made of.
        names = {(t in control, piece): t for t, piece in enumerate(self.pieces) if piece}
        own_names = {(o in own_control, piece): o for o, piece in enumerate(self.own_pieces)}
        pairs = {token: own_names[name] for name, token in names.items() if name in own_names}
        if target.eos not in pairs and draft.eos not in pairs.values() and draft.eos >= 0:
            pairs[target.eos] = draft.eos
        pairs.pop(-1, None)
        self.atoms = {token: own for token, own in pairs.items() if token in control}
        self.own_controls = frozenset(own_control)
        self.target_ids: TokenIds = np.array(sorted(pairs), dtype=np.int64)
        self.own_ids: TokenIds = np.array([pairs[t] for t in sorted(pairs)], dtype=np.int64)
        self.to_own: TokenIds = np.full(len(self.pieces), -1, dtype=np.int64)
        self.to_own[self.target_ids] = self.own_ids
        single = {
            piece[0]: own
            for own, piece in enumerate(self.own_pieces)
            if len(piece) == 1 and own not in own_control
        }
        if not single:
            raise cannot_spell()
        self.own_bytes = [single.get(byte, -1) for byte in range(256)]
        if target.add_bos and target.bos >= 0:
            self.pieces[target.bos] = b""
            self.atoms.pop(target.bos, None)
        self.own_start = [draft.bos] if draft.add_bos and draft.bos >= 0 else []
        missing = set(range(256)) - single.keys()
        self.can_spell = np.array(
            [not missing.intersection(piece) for piece in self.pieces], dtype=np.bool_
        )
        self.can_spell[list(self.atoms)] = True


# Bytes that are tokenised again at most: longer than most words.
_LOOK_BACK = 64
_LONGEST_KEPT, _MOST_KEPT = 16, 1 << 14  # characters of words that are not tokenised again
_MOST_AT_ONCE = 1 << 18  # characters: below what a tokenizer refuses
# With surrogateescape, bytes that are no characters are these.
_PARTS = re.compile("[\udc80-\udcff]+|[^\udc80-\udcff]+")


class Reading(NamedTuple):
    """A text in tokens of the target, and in the draft's own, which end at bytes own_ends."""

    tokens: list[int]
    own: list[int]
    own_ends: list[int]


class OwnText:
    """A text in the tokens of the target, `tokens`, and in those of the draft, `own`.

    own is up to date after `settle`. num_same: how many of its tokens at the front have not
    changed since num_same was last set.
    """

    def __init__(self, maps: TokenMaps, vocabulary: Vocabulary) -> None:
        self.maps = maps
        self._vocabulary = vocabulary
        # A text that follows an ordinary token gets no space before it.
        self._ordinary = next(own for own in maps.own_bytes if own >= 0)
        self._words: dict[str, list[int]] = {}  # words that were tokenised before
        self._data = bytearray()
        self._ends: list[int] = []  # of the target's tokens, in bytes
        self._own_ends: list[int] = []
        self.tokens: list[int] = []
        self.own: list[int] = []
        self.num_same = 0
        self.cut(0)

    @property
    def num_own_bytes(self) -> int:
        """Bytes of the text that the draft's tokens cover."""
        return self._own_ends[-1] if self.own else 0

    def reading(self, num_own: int) -> Reading:
        """The text with the first num_own of the draft's tokens."""
        return Reading(self.tokens, self.own[:num_own], self._own_ends[:num_own])

    def go_on(self, reading: Reading) -> None:
        """Replace the text by one that was read before."""
        self.cut(0)
        self.extend(reading.tokens)
        self.own += reading.own
        self._own_ends += reading.own_ends
        self.num_same = len(self.own)

    def num_covered(self, num_own: int) -> int:
        """How many of the target's tokens, from the first on, lie within the first num_own."""
        if num_own == 0:
            return 0
        return bisect_right(self._ends, self._own_ends[num_own - 1])

    def num_own_at(self, num_tokens: int) -> int:
        """How many of the draft's tokens end where the first num_tokens do; 0 if none ends."""
        end = self._ends[num_tokens - 1]
        num_own = bisect_right(self._own_ends, end)
        return num_own if num_own and self._own_ends[num_own - 1] == end else 0

    def cut(self, num_tokens: int) -> None:
        """Keep the first num_tokens of the target's tokens."""
        del self.tokens[num_tokens:], self._ends[num_tokens:]
        end = self._ends[-1] if self._ends else 0
        del self._data[end:]
        self._keep_own(bisect_right(self._own_ends, end) if num_tokens else 0)

    def extend(self, tokens: Sequence[int]) -> None:
        """Continue with tokens of the target. The cells of pictures have no bytes."""
        pieces, data, ends = self.maps.pieces, self._data, self._ends
        for token in tokens:
            if token >= 0:
                data += pieces[token]
            ends.append(len(data))
        self.tokens += tokens

    def follow(self, token: int, own: int) -> None:
        """Continue with a token of the target that is one of the draft's."""
        self.settle()
        self.extend([token])
        self.own.append(own)
        self._own_ends.append(len(self._data))

    def settle(self) -> None:
        """Bring the draft's tokens up to date.

        They stay as they are up to the last boundary that they share with the new ones.
        """
        if not self.own:
            self.own += self.maps.own_start
            self._own_ends += [0] * len(self.own)
        if self.num_own_bytes == len(self._data):
            return
        start = self._restart()
        own, ends = self._spelled(start)
        index_of = {end: index for index, end in enumerate(ends)}
        kept = len(self.own)
        while kept and self._own_ends[kept - 1] > start:
            index = index_of.get(self._own_ends[kept - 1])
            if index is not None:
                own, ends = own[index + 1 :], ends[index + 1 :]
                break
            kept -= 1
        self._keep_own(kept)
        self.own += own
        self._own_ends += ends

    def _keep_own(self, num_own: int) -> None:
        del self.own[num_own:], self._own_ends[num_own:]
        self.num_same = min(self.num_same, num_own)

    def _restart(self) -> int:
        """The byte to tokenise from: most tokenizers begin anew with a space after a word."""
        data, end = self._data, self.num_own_bytes
        for own, at in zip(reversed(self.own), reversed(self._own_ends), strict=True):
            is_word = data[at : at + 1] == b" " and not data[at - 1 : at].isspace()
            if is_word or end - at > _LOOK_BACK or own in self.maps.own_controls:
                return at
        return 0

    def _spelled(self, start: int) -> tuple[list[int], list[int]]:
        """The draft's tokens from a byte on, and where they end."""
        own: list[int] = []
        ends: list[int] = []
        begin = start
        for index in range(bisect_right(self._ends, start), len(self.tokens)):
            atom = self.maps.atoms.get(self.tokens[index])
            if atom is not None:
                self._spell(begin, self._ends[index - 1] if index else 0, own, ends)
                begin = self._ends[index]
                own.append(atom)
                ends.append(begin)
        self._spell(begin, len(self._data), own, ends)
        return own, ends

    def _spell(self, begin: int, end: int, own: list[int], ends: list[int]) -> None:
        """Add the draft's tokens of bytes begin … end, and where they end."""
        pieces = self.maps.own_pieces
        for part in _PARTS.findall(self._data[begin:end].decode("utf-8", "surrogateescape")):
            is_text = not "\udc80" <= part[0] <= "\udcff"
            for token in self._of_text(part) if is_text else self._of_bytes(part):
                begin += len(pieces[token])
                own.append(token)
                ends.append(begin)

    def _of_text(self, text: str) -> list[int]:
        """Tokens that spell exactly these bytes, if need be those of single bytes."""
        known = self._words.get(text)
        if known is not None:
            return known
        if len(text) < _MOST_AT_ONCE:
            own = self._vocabulary.tokenize(text, parse_special=False, after=self._ordinary)
            pieces = self.maps.own_pieces
            if b"".join([pieces[token] for token in own]) == text.encode():
                if len(text) <= _LONGEST_KEPT and len(self._words) < _MOST_KEPT:
                    self._words[text] = own
                return own
        if len(text) == 1:
            return self._of_bytes(text)
        half = len(text) // 2
        return self._of_text(text[:half]) + self._of_text(text[half:])

    def _of_bytes(self, text: str) -> list[int]:
        return [self.maps.own_bytes[byte] for byte in text.encode("utf-8", "surrogateescape")]
