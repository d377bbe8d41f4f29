"""Can a model draft for another one, and is it small enough to be worth it?"""

from __future__ import annotations

from localspec.gguf_file.header import Header
from localspec.gguf_file.header_vocabulary import HeaderVocabulary
from localspec.speculative.shared_vocabulary import SharedVocabulary, shared_vocabulary

# A share of the target's bytes. What a draft token costs grows with the draft's, and a draft
# that is right as often as drafts are gains little once three of its tokens cost as much as one
# of the target.
LARGEST_SHARE = 1 / 3


def compare_vocabularies(target: Header, draft: Header) -> SharedVocabulary:
    """What two models share. Raises PairError if their tokenizers are not the same."""
    return shared_vocabulary(HeaderVocabulary(target), HeaderVocabulary(draft))


def is_small_enough(draft_bytes: int, target_bytes: int) -> bool:
    """Whether a draft of that size is likely to pay."""
    return draft_bytes <= LARGEST_SHARE * target_bytes


def size_warning(target: Header, draft: Header) -> str:
    """What is wrong with the sizes of a pair, in a sentence; empty if nothing is."""
    share = draft.weights_bytes / target.weights_bytes
    if is_small_enough(draft.weights_bytes, target.weights_bytes):
        return ""
    names = f"{draft.path.name} drafts for {target.path.name}"
    if share > 1:
        return f"{names} and is larger: target and draft may have been swapped"
    return f"{names} and has {share:.0%} of its size: above a third drafting hardly pays"
