"""The cache of a draft with another tokenizer, with what it has read, as bytes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from localspec.engine.cache_disk import CacheRoom
from localspec.engine.cache_pool import CachePool
from localspec.engine.cache_store import CacheStore
from localspec.engine.kept_text import SavesState
from localspec.errors import CacheError
from localspec.llama.cache_state import CacheState
from localspec.speculative.loop import SpeculativeDecoder
from localspec.speculative.own_text import Reading
from localspec.speculative.proposers import Proposer
from localspec.speculative.translated import TranslatedDraft

if TYPE_CHECKING:
    from localspec.engine.models import Models
    from localspec.llama.model import LlamaModel


logger = logging.getLogger(__name__)


def pool_of(models: Models, decoder: SpeculativeDecoder, room: CacheRoom) -> CachePool:
    """The pool for the texts of a loop over these models. Raises OptionError."""
    return CachePool(
        decoder,
        _saved_caches(models, decoder.proposers),
        room.memory_bytes,
        others=[] if models.head is None else [models.head],
        num_sequences=models.num_sequences,
        store=_store(models, room),
    )


def _store(models: Models, room: CacheRoom) -> CacheStore | None:
    """Where texts are kept on disk, if they may be."""
    if room.disk.num_bytes == 0:
        return None
    try:
        target = models.target
        return CacheStore(room.disk, models.identities(), target.reach, target.context_length)
    except CacheError as error:
        logger.warning("conversations are not kept on disk: %s", error)
        return None


def _saved_caches(models: Models, proposers: Sequence[Proposer]) -> list[SavesState]:
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
        self._number: int | None = 0  # of the sequence that the model works on
        self._others: dict[int, Reading] = {}  # what was read in others

    def state_bytes(self) -> int:
        # One that has not read all of the text would be believed to have.
        is_whole = self._draft.begins_at == 0 and self._translated.num_cached > 0
        return self._model.state_bytes() if is_whole else 0

    def use_sequence(self, number: int | None) -> None:
        if number == self._number:
            return
        if self._number is not None:
            read = self._translated.read_so_far()
            self._others[self._number] = read._replace(tokens=list(read.tokens))
        self._number = number
        self._model.use_sequence(number)
        if number is not None:
            self._translated.go_on(self._others.pop(number, Reading([], [], [])))

    def outline(self) -> CacheState:
        return self._model.outline()

    def reach(self, state: CacheState, num_tokens: int) -> int:
        return min(state.num_cached, num_tokens)

    def save_state(self) -> CacheState:
        state, read = self._model.save_state(), self._translated.read_so_far()
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
        self._translated.go_on(Reading(tokens, own, own_ends))


def _numbers(state: CacheState, first: int, count: int) -> list[int]:
    numbers: list[int] = state.data[8 * first : 8 * (first + count)].view(np.int64).tolist()
    return numbers
