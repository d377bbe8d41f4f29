"""Whether a model can draft for another one, and whether it is small enough to pay."""

from __future__ import annotations

from localspec.errors import PairError
from localspec.gguf_file.header import Header
from localspec.gguf_file.header_vocabulary import HeaderVocabulary
from localspec.speculative.common_tokens import CommonTokens, common_tokens
from localspec.speculative.shared_vocabulary import SharedVocabulary, shared_vocabulary

# Of the target's bytes. The more bytes a draft has, the more its tokens cost; with the usual
# acceptance little is gained once three of them cost as much as one token of the target.
LARGEST_SHARE = 1 / 3
# A draft with another tokenizer is right less often, so it has to cost less.
LARGEST_TRANSLATED_SHARE = 1 / 6


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
