"""Lanes: as many answers run at once as the models' contexts hold texts side by side."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from localspec.engine.cache_pool import CachePool, SavesState, TextPlace
from localspec.engine.cache_store import CacheStore
from localspec.engine.models import CacheRoom, Models
from localspec.engine.proposer_choice import (
    choose_policies,
    choose_proposers,
    shared_with_draft,
)
from localspec.engine.worker import LaneWork
from localspec.errors import CacheError
from localspec.llama.cache_state import CacheState
from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.policy.profile import Profile
from localspec.speculative.lookup import Lookup
from localspec.speculative.loop import SpeculativeDecoder
from localspec.speculative.own_text import Reading, TokenMaps
from localspec.speculative.policy_api import Drafting, DraftPolicy, FixedDraftPolicy
from localspec.speculative.proposers import Proposer
from localspec.speculative.translated import TranslatedDraft

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from localspec.llama.model import LlamaModel
    from localspec.speculative.shared_vocabulary import CommonTokens, SharedVocabulary

logger = logging.getLogger(__name__)


class Lane(TextPlace):
    """A text's sequence in each context, and the loop over them, where one answer runs.

    models: views at this sequence.
    """

    def __init__(self, models: Models, decoder: SpeculativeDecoder, work: LaneWork) -> None:
        super().__init__(decoder, saved_caches(models, decoder.proposers), models.head)
        self.own_models = models
        self.work = work
        self.own_policy = decoder.draft_policy
        self._usual_policy: DraftPolicy | None = None  # while an answer has another
        self._lookups = [each for each in decoder.proposers if isinstance(each, Lookup)]
        self._num_shared = 0  # decodes, when the last work began

    def begin(self) -> None:
        """Make models and loop ready for work."""
        for model in self.own_models.all:
            model.begin()
        self._num_shared = self.work.num_shared
        self.use_usual()

    def use(
        self,
        on_batch: Callable[[int], None],
        policy: FixedDraftPolicy | None,
        reference: Sequence[int],
    ) -> None:
        """Set what an answer has of its own: its on_prompt, policy and prediction."""
        self.own_models.target.on_batch = on_batch
        if policy is not None:
            self._usual_policy = self.decoder.draft_policy
            policy.keeps_sizes = self._usual_policy.keeps_sizes
            self.decoder.draft_policy = policy
        self._refer_to(reference)

    def use_usual(self) -> None:
        """Undo `use`. Idempotent."""
        self.own_models.target.on_batch = None
        if self._usual_policy is not None:
            self.decoder.draft_policy = self._usual_policy
        self._usual_policy = None
        self._refer_to(())

    def _refer_to(self, reference: Sequence[int]) -> None:
        for lookup in self._lookups:
            lookup.refer_to(reference)

    def learned(self) -> dict[str, Any] | None:
        """The policies' findings, to be saved; None where they learn nothing.

        Beside other answers they learn nothing: decodes then cost time for these, too.
        """
        policy = self.decoder.draft_policy
        has_shared = self._num_shared < self.work.num_shared
        if has_shared or not isinstance(policy, AdaptiveDraftPolicy):
            return None
        return policy.as_dict()

    def interrupt(self) -> None:
        """End what the models do here within one decode. From any thread."""
        for model in self.own_models.all:
            model.interrupt()


def pool_of(lanes: Sequence[Lane], room: CacheRoom) -> CachePool[Lane]:
    """The pool for the texts of these lanes. Raises OptionError."""
    models, store = lanes[0].own_models, None
    if room.disk.num_bytes:
        target = models.target
        try:
            identities = models.identities()
            store = CacheStore(room.disk, identities, target.reach, target.context_length)
        except CacheError as error:
            logger.warning("conversations are not kept on disk: %s", error)
    return CachePool(lanes, room.memory_bytes, store)


def open_lanes(
    models: Models, drafting: Drafting
) -> tuple[list[Lane], SharedVocabulary | CommonTokens | None, Profile | None]:
    """A lane for each text that all contexts hold; the vocabulary that target and draft share;
    where what is learned is kept.

    Raises PairError if they share too little.
    """
    shared = shared_with_draft(models, drafting)
    lanes: list[Lane] = []
    profile = None
    for number in range(models.num_sequences):
        own = models if number == 0 else models.sibling(number)
        work = LaneWork()
        proposers, off = choose_proposers(own, drafting, shared)
        policies, profile = choose_policies(own, drafting, proposers, work.was_alone)
        decoder = SpeculativeDecoder(own.target, proposers, *policies, off, work.now)
        lanes.append(Lane(own, decoder, work))
    return lanes, shared.common if isinstance(shared, TokenMaps) else shared, profile


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
        state = self._model.save_state()
        read = self._translated.text.reading(self._model.num_cached)
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
