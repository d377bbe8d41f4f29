"""Compares the vocabularies of a target and a draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from localspec.errors import PairError
from localspec.vocabulary import TokenTable

_NUM_SHOWN = 5
# A few renamed special tokens cost only some acceptance. If more tokens differ, it is another
# tokenizer, and the draft's ids would mean other tokens.
_MAX_DIFFERENT = 0.01


@dataclass(frozen=True, slots=True)
class Difference:
    """An id that names two tokens."""

    token: int
    target_text: bytes
    draft_text: bytes

    def __str__(self) -> str:
        return f"{self.token} is {self.target_text!r} and {self.draft_text!r}"


@dataclass(frozen=True, slots=True)
class SharedVocabulary:
    """Ids below `size`, except `differences`, mean the same to target and draft.

    Larger ids exist in only one of the two; they are usually padding.
    """

    size: int
    target_size: int
    draft_size: int
    differences: tuple[Difference, ...]

    def __str__(self) -> str:
        parts = [f"{self.size - len(self.differences)} tokens shared"]
        if self.target_size != self.draft_size:
            parts.append(f"{self.target_size} in the target, {self.draft_size} in the draft")
        if self.differences:
            parts.append(
                f"{len(self.differences)} differ: {_first_differences(self.differences)}"
            )
        return "; ".join(parts)


def shared_vocabulary(target: TokenTable, draft: TokenTable) -> SharedVocabulary:
    """The common part of the vocabularies of a pair, by the texts of their ids.

    Vocabularies of one tokenizer may be padded to different sizes (152 064 and 151 936,
    say), and a few ids may have other names, which the draft never proposes. Raises
    PairError, with the first ids that differ, if the tokenizers are not the same.
    """
    if target.kind != draft.kind:
        raise _does_not_fit(
            f"their tokenizers are of different types ({target.kind}, {draft.kind})"
        )
    if target.add_bos != draft.add_bos or (target.add_bos and target.bos != draft.bos):
        raise _does_not_fit("they begin a text with different tokens")
    size = min(target.size, draft.size)
    of_target = target.entries()[:size]
    of_draft = draft.entries()[:size]
    differences: tuple[Difference, ...] = ()
    if of_target != of_draft:
        differences = _differences(of_target, of_draft)
    if len(differences) > _MAX_DIFFERENT * size:
        raise _does_not_fit(
            f"{len(differences)} of {size} tokens differ: {_first_differences(differences)}"
        )
    return SharedVocabulary(size, target.size, draft.size, differences)


def _differences(
    of_target: Sequence[bytes],
    of_draft: Sequence[bytes],
) -> tuple[Difference, ...]:
    """The ids whose texts differ."""
    differences = []
    pairs = zip(of_target, of_draft, strict=True)
    for token, (target_text, draft_text) in enumerate(pairs):
        if target_text != draft_text:
            differences.append(Difference(token, target_text, draft_text))
    return tuple(differences)


def _first_differences(differences: tuple[Difference, ...]) -> str:
    """The first differences, in words."""
    words = ", ".join(str(difference) for difference in differences[:_NUM_SHOWN])
    if len(differences) > _NUM_SHOWN:
        words += " …"
    return words


def _does_not_fit(why: str) -> PairError:
    return PairError(
        f"the draft does not fit the target: {why}",
        'Choose a draft with the target\'s tokenizer; proposer="lookup" needs none.',
    )
