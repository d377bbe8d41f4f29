"""Compares the vocabularies of a target and a draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from localspec.errors import PairError
from localspec.vocabulary import TokenTable

_NUM_SHOWN = 5
# A few renamed special tokens cost some acceptance at most. Where more differs it is another
# tokenizer, and a draft would hardly ever be right.
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
            parts.append(f"{len(self.differences)} differ: {_shown(self.differences)}")
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
    theirs, ours = target.entries()[:size], draft.entries()[:size]
    differences: tuple[Difference, ...] = ()
    if theirs != ours:
        both = enumerate(zip(theirs, ours, strict=True))
        differences = tuple(Difference(i, t, d) for i, (t, d) in both if t != d)
    if len(differences) > _MAX_DIFFERENT * size:
        raise _does_not_fit(
            f"{len(differences)} of {size} tokens differ: {_shown(differences)}"
        )
    return SharedVocabulary(size, target.size, draft.size, differences)


def _shown(differences: tuple[Difference, ...]) -> str:
    more = " …" if len(differences) > _NUM_SHOWN else ""
    return ", ".join(map(str, differences[:_NUM_SHOWN])) + more


def _does_not_fit(why: str) -> PairError:
    return PairError(
        f"the draft does not fit the target: {why}",
        "Choose a draft of the same family, or leave it away (draft_tokens=0).",
    )


# Share of the smaller vocabulary. With less in common, a draft is hardly ever right.
_LEAST_COMMON = 0.25

# docs/performance.md: what a draft with another tokenizer may be expected to reach.
_EXPECTED = (
    "expect about 0.6 of its tokens to be right: SmolLM2 135M, which has 80% in common with "
    "Qwen2.5-Coder 1.5B, had 0.66 on HumanEval and 0.59 on MT-bench, greedily"
)


@dataclass(frozen=True, slots=True)
class CommonTokens:
    """How many tokens of two tokenizers have the same bytes, under ids of their own."""

    number: int
    target_size: int
    draft_size: int

    def __str__(self) -> str:
        return (
            f"other tokenizers, {self.number} tokens in common: "
            f"{self.number / self.target_size:.0%} of the target's {self.target_size}, "
            f"{self.number / self.draft_size:.0%} of the draft's {self.draft_size}"
        )

    def with_expectation(self) -> str:
        """Text with how often such a draft may be expected to be right."""
        return f"{self}; {_EXPECTED}"


def common_tokens(target: Sequence[bytes], draft: Sequence[bytes]) -> CommonTokens:
    """Compare the bytes of all tokens of a target and of a draft, in the order of their ids.

    With common tokens a draft can propose for a target whose tokens have other ids: token-level
    intersection, Timor et al. (arXiv 2502.05202). Raises PairError if too few are the same, or
    the draft cannot spell any text.
    """
    number = len((set(target) & set(draft)) - {b""})
    if number < _LEAST_COMMON * min(len(target), len(draft)):
        raise _does_not_fit(
            f"only {number} of their {len(target)} and {len(draft)} tokens have the same bytes"
        )
    if not any(len(piece) == 1 for piece in draft):
        raise cannot_spell()
    return CommonTokens(number, len(target), len(draft))


def cannot_spell() -> PairError:
    """The error of a draft without ordinary tokens of single bytes."""
    return _does_not_fit("it has no tokens of single bytes, in which any text can be spelled")
