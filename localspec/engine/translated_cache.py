"""The cache of a draft with another tokenizer, with what it has read, as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from localspec.engine.kept_text import SavesState
from localspec.llama.cache_state import CacheState
from localspec.speculative.own_text import Reading
from localspec.speculative.proposers import Proposer
from localspec.speculative.translated import TranslatedDraft

if TYPE_CHECKING:
    from localspec.engine.models import Models
    from localspec.llama.model import LlamaModel


def saved_caches(models: Models, proposers: Sequence[Proposer]) -> list[SavesState]:
    """The caches that are kept of texts that wait, the target's first."""
    drafts = [proposer for proposer in proposers if isinstance(proposer, TranslatedDraft)]
    if models.draft is None or not drafts:
        return list(models.saved)
    return [models.target, TranslatedCache(models.draft, drafts[0])]


class TranslatedCache:
    """A `SavesState`. Its states begin with the tokens, the target's and the draft's own.

    model: whose cache it is. draft: the proposer that reads with it.
    """

    def __init__(self, model: LlamaModel, draft: TranslatedDraft) -> None:
        self._model = model
        self._draft = draft
        self._translated = draft.translated

    def state_bytes(self) -> int:
        # One that has not read all of the text would be believed to have.
        is_whole = self._draft.begins_at == 0 and self._translated.num_cached > 0
        return self._model.state_bytes() if is_whole else 0

    def outline(self) -> CacheState:
        return self._model.outline()

    def reach(self, state: CacheState, num_tokens: int) -> int:
        return min(state.num_cached, num_tokens)

    def save_state(self) -> CacheState:
        state, read = (
            self._model.save_state(),
            self._translated.text.reading(self._model.num_cached),
        )
        numbers = [len(read.tokens), len(read.own), *read.tokens, *read.own, *read.own_ends]
        head = np.array(numbers, dtype=np.int64).view(np.uint8)
        return CacheState(self._translated.num_cached, np.concatenate([head, state.data]))

    def restore_state(self, state: CacheState) -> None:
        num_tokens, num_own = _numbers(state, 0, 2)
        tokens = _numbers(state, 2, num_tokens)
        own = _numbers(state, 2 + num_tokens, num_own)
        own_ends = _numbers(state, 2 + num_tokens + num_own, num_own)
        begin = 8 * (2 + num_tokens + 2 * num_own)
        self._model.restore_state(CacheState(num_own, state.data[begin:]))
        self._translated.text.go_on(Reading(tokens, own, own_ends))


def _numbers(state: CacheState, first: int, count: int) -> list[int]:
    numbers: list[int] = state.data[8 * first : 8 * (first + count)].view(np.int64).tolist()
    return numbers
