"""Do a target and a draft speak the same tokens?"""

from __future__ import annotations

from typing import Protocol

from localspec.errors import PairError

_NUM_SHOWN = 5


class Tokens(Protocol):
    """The vocabulary facts a pair is compared by."""

    kind: int
    size: int
    bos: int
    add_bos: bool

    def entries(self) -> list[bytes]:
        """The text of every id, in order."""


def shared_vocab_size(target: Tokens, draft: Tokens) -> int:
    """How many ids, from 0, mean the same token to both.

    Vocabularies of one tokenizer may be padded to different sizes (152 064 and 151 936, say).
    Raises PairError, with the first ids that differ, if the tokenizers are not the same.
    """
    if target.kind != draft.kind:
        raise _does_not_fit(
            f"their tokenizers are of different types ({target.kind}, {draft.kind})"
        )
    if target.add_bos != draft.add_bos or (target.add_bos and target.bos != draft.bos):
        raise _does_not_fit("they begin a text with different tokens")
    shared = min(target.size, draft.size)
    theirs, ours = target.entries()[:shared], draft.entries()[:shared]
    if theirs == ours:
        return shared
    different = [i for i in range(shared) if theirs[i] != ours[i]]
    shown = ", ".join(f"{i} is {theirs[i]!r} and {ours[i]!r}" for i in different[:_NUM_SHOWN])
    raise _does_not_fit(f"{len(different)} of {shared} tokens differ: {shown}")


def _does_not_fit(why: str) -> PairError:
    return PairError(
        f"the draft does not fit the target: {why}",
        "Choose a draft of the same family, or leave it away (--no-draft).",
    )
