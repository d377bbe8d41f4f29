"""The tokens that two tokenizers have in common, by their bytes.

With them a draft can propose for a target whose tokens have other ids: token-level
intersection, Timor et al. (arXiv 2502.05202).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from localspec.errors import PairError

# Of the smaller vocabulary. A draft that cannot say most of what it means is hardly ever right.
_LEAST_COMMON = 0.25
_OTHER_DRAFT = "Choose a draft of the same family, or leave it away (draft_tokens=0)."

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
        """The same, and how often such a draft may be expected to be right."""
        return f"{self}; {_EXPECTED}"


def common_tokens(target: Sequence[bytes], draft: Sequence[bytes]) -> CommonTokens:
    """Compare the bytes of all tokens of a target and of a draft, in the order of their ids.

    Raises PairError if too few are the same, or the draft cannot spell any text.
    """
    number = len((set(target) & set(draft)) - {b""})
    if number < _LEAST_COMMON * min(len(target), len(draft)):
        raise PairError(
            f"the draft does not fit the target: only {number} of their {len(target)} and "
            f"{len(draft)} tokens have the same bytes",
            _OTHER_DRAFT,
        )
    if not any(len(piece) == 1 for piece in draft):
        raise cannot_spell()
    return CommonTokens(number, len(target), len(draft))


def cannot_spell() -> PairError:
    """The error of a draft without ordinary tokens of single bytes."""
    return PairError(
        "the draft does not fit the target: it has no tokens of single bytes, in which any "
        "text can be spelled",
        _OTHER_DRAFT,
    )
