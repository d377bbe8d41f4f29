"""From the ids of a target's tokens to those of a draft with another tokenizer."""

from __future__ import annotations

import numpy as np

from localspec.sampling.distribution import TokenIds
from localspec.speculative.common_tokens import cannot_spell, common_tokens
from localspec.vocabulary import WholeVocabulary


class TokenMaps:
    """From ids of the target to ids of the draft ("own" ids), as arrays made once.

    target_ids, own_ids: (m,) each pair of tokens that mean the same, ascending by the target's.
    to_own: (target_size,) the same as a table; -1 where the draft has no such token. atoms: the
    control tokens among them. pieces, own_pieces: bytes of all tokens, control tokens by their
    entries. own_bytes: (256,) the draft's tokens of single bytes, -1 where it has none.
    can_spell: (target_size,) whether the draft can spell the token in some way. Raises
    PairError if they have too little in common, or the draft cannot spell any text.

    Control tokens mean the same if their entries are the same, or if both are the token that
    ends an answer. What starts the target's texts has no bytes: a draft has its own start.
    """

    def __init__(self, target: WholeVocabulary, draft: WholeVocabulary) -> None:
        self.pieces, self.own_pieces = target.spelled_out(), draft.spelled_out()
        self.common = common_tokens(self.pieces, self.own_pieces)
        control, own_control = set(target.control_ids()), set(draft.control_ids())
        pairs = dict(_pairs(self.pieces, control, self.own_pieces, own_control))
        if target.eos not in pairs and draft.eos not in pairs.values() and draft.eos >= 0:
            pairs[target.eos] = draft.eos
        pairs.pop(-1, None)
        self.atoms = {token: own for token, own in pairs.items() if token in control}
        self.own_controls = frozenset(own_control)
        self.target_ids: TokenIds = np.array(sorted(pairs), dtype=np.int64)
        self.own_ids: TokenIds = np.array([pairs[t] for t in sorted(pairs)], dtype=np.int64)
        self.to_own: TokenIds = np.full(len(self.pieces), -1, dtype=np.int64)
        self.to_own[self.target_ids] = self.own_ids
        self.own_bytes = _single_bytes(self.own_pieces, own_control)
        if max(self.own_bytes) < 0:
            raise cannot_spell()
        if target.add_bos and target.bos >= 0:
            self.pieces[target.bos] = b""
            self.atoms.pop(target.bos, None)
        self.own_start = [draft.bos] if draft.add_bos and draft.bos >= 0 else []
        missing = {byte for byte, own in enumerate(self.own_bytes) if own < 0}
        self.can_spell = np.array(
            [not missing.intersection(piece) for piece in self.pieces], dtype=np.bool_
        )
        self.can_spell[list(self.atoms)] = True


def _pairs(
    pieces: list[bytes], control: set[int], own_pieces: list[bytes], own_control: set[int]
) -> list[tuple[int, int]]:
    # Of several tokens with the same bytes the last one counts: single bytes come before
    # characters, and what was added for whole words after what it is made of.
    names = {(token in control, piece): token for token, piece in enumerate(pieces) if piece}
    own_names = {(own in own_control, piece): own for own, piece in enumerate(own_pieces)}
    return [
        (token, own_names[name]) for name, token in sorted(names.items()) if name in own_names
    ]


def _single_bytes(own_pieces: list[bytes], own_control: set[int]) -> list[int]:
    own_bytes = [-1] * 256
    for own, piece in enumerate(own_pieces):
        if len(piece) == 1 and own not in own_control:
            own_bytes[piece[0]] = own
    return own_bytes
