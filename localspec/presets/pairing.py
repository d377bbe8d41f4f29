"""Whether a model can draft for another one, and whether it is small enough to pay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from localspec.errors import PairError
from localspec.gguf_file.header import Header
from localspec.gguf_file.header_vocabulary import HeaderVocabulary
from localspec.speculative.shared_vocabulary import (
    CommonTokens,
    SharedVocabulary,
    common_tokens,
    shared_vocabulary,
)

# Of the target's bytes. The more bytes a draft has, the more its tokens cost; with the usual
# acceptance little is gained once three of them cost as much as one token of the target.
LARGEST_SHARE = 1 / 3
# A draft with another tokenizer is right less often, so it has to cost less.
LARGEST_TRANSLATED_SHARE = 1 / 6


class ChosenDraft(NamedTuple):
    """A draft for a target, or why there is none, in words.

    common: what the two have in common, if their tokenizers differ.
    """

    path: Path | None
    common: CommonTokens | None
    why_not: str


def choose_draft(
    target: Header, others: Iterable[tuple[Path, Header]], names: Mapping[Path, str]
) -> ChosenDraft:
    """The smallest model with the target's tokenizer, if it has at most a third of its size,
    or else the smallest with enough tokens in common and at most a sixth.

    others: models that could draft, ascending by size. names: what to call them.
    """
    why_not, translated = "no other model here has its tokenizer", None
    for path, other in others:
        share = other.weights_bytes / target.weights_bytes
        if have_one_tokenizer(target, other):
            why_not = _why_too_large(names.get(path, path.name), share)
            if not why_not:
                return ChosenDraft(path, None, "")
            break
        if translated is None and share <= LARGEST_TRANSLATED_SHARE:
            translated = _translated(target, path, other)
    return translated or ChosenDraft(None, None, why_not)


def _translated(target: Header, path: Path, draft: Header) -> ChosenDraft | None:
    try:
        found = compare_vocabularies(target, draft)
    except PairError:
        return None
    return ChosenDraft(path, found, "") if isinstance(found, CommonTokens) else None


def _why_too_large(draft: str, share: float) -> str:
    """Why a draft is too large; empty if it is small enough. share: of the target's size."""
    if share >= 1:
        return "it is the smallest here with its tokenizer"
    if share <= LARGEST_SHARE:
        return ""
    return f"{draft} has its tokenizer and {share:.0%} of its size, above a third"


def have_one_tokenizer(target: Header, draft: Header) -> bool:
    """Whether their tokens have the same ids, but for a few."""
    try:
        shared_vocabulary(HeaderVocabulary(target), HeaderVocabulary(draft))
    except PairError:
        return False
    return True


def compare_vocabularies(target: Header, draft: Header) -> SharedVocabulary | CommonTokens:
    """The vocabulary that they share, or what two tokenizers have in common.

    Raises PairError if that is too little.
    """
    theirs, own = HeaderVocabulary(target), HeaderVocabulary(draft)
    try:
        return shared_vocabulary(theirs, own)
    except PairError:
        return common_tokens(theirs.spelled_out(), own.spelled_out())


def size_warning(target: Header, draft: Header) -> str:
    """A sentence about a draft that is too large; empty if it is small enough."""
    share = draft.weights_bytes / target.weights_bytes
    if share <= LARGEST_SHARE:
        return ""
    names = f"{draft.path.name} drafts for {target.path.name}"
    if share > 1:
        return f"{names} and is larger: target and draft may have been swapped"
    return f"{names} and has {share:.0%} of its size: above a third drafting hardly pays"
