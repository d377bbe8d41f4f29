"""Compares the vocabularies of a target and a draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from localspec.errors import PairError
from localspec.vocabulary import TokenTable

_NUM_SHOWN = 5  # differences that a message lists
# The largest share of ids that may differ. A few renamed special tokens only lower the
# acceptance. If more differ, the tokenizer is another, and most ids mean other tokens.
_MAX_DIFFERENT = 0.01


@dataclass(frozen=True, slots=True)
class Difference:
    """A token id with different texts in target and draft."""

    token: int
    target_text: bytes
    draft_text: bytes

    def __str__(self) -> str:
        return f"{self.token} is {self.target_text!r} and {self.draft_text!r}"


@dataclass(frozen=True, slots=True)
class SharedVocabulary:
    """The common part of two vocabularies: ids below `size`, except those of `differences`.

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
    """Compare the vocabularies of a target and a draft by the texts of their ids.

    Vocabularies of one tokenizer may be padded to different sizes, for example 152 064 and
    151 936, and a few ids may have different texts: the draft never proposes these. Raises
    PairError, with the first ids that differ, if the tokenizers are not the same.
    """
    if target.kind != draft.kind:
        raise _does_not_fit(
            f"their tokenizers are of different types ({target.kind}, {draft.kind})"
        )
    have_other_bos = target.add_bos and target.bos != draft.bos
    if target.add_bos != draft.add_bos or have_other_bos:
        raise _does_not_fit("they begin a text with different tokens")
    size = min(target.size, draft.size)
    target_texts = target.entries()[:size]
    draft_texts = draft.entries()[:size]
    differences: tuple[Difference, ...] = ()
    if target_texts != draft_texts:
        differences = _differences(target_texts, draft_texts)
    if len(differences) > _MAX_DIFFERENT * size:
        raise _does_not_fit(
            f"{len(differences)} of {size} tokens differ: {_first_differences(differences)}"
        )
    return SharedVocabulary(size, target.size, draft.size, differences)


def _differences(
    target_texts: Sequence[bytes],
    draft_texts: Sequence[bytes],
) -> tuple[Difference, ...]:
    """The ids whose texts differ; the index of each text is its id."""
    differences = []
    pairs = zip(target_texts, draft_texts, strict=True)
    for token, (target_text, draft_text) in enumerate(pairs):
        if target_text != draft_text:
            differences.append(Difference(token, target_text, draft_text))
    return tuple(differences)


def _first_differences(differences: tuple[Difference, ...]) -> str:
    """The first differences as a message lists them, with "…" if there are more."""
    listed = ", ".join(str(difference) for difference in differences[:_NUM_SHOWN])
    if len(differences) > _NUM_SHOWN:
        listed += " …"
    return listed


def _does_not_fit(why: str) -> PairError:
    return PairError(
        f"the draft does not fit the target: {why}",
        'Choose a draft with the target\'s tokenizer; proposer="lookup" needs none.',
    )
