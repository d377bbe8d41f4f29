"""Lanes: as many answers run at once as the models' contexts hold texts side by side."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from localspec.engine.cache_pool import CachePool, TextPlace
from localspec.engine.cache_store import CacheStore
from localspec.engine.models import CacheRoom, Models
from localspec.engine.proposer_choice import (
    choose_policies,
    choose_proposers,
    shared_with_draft,
)
from localspec.engine.worker import LaneWork
from localspec.errors import CacheError
from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.policy.profile import Profile
from localspec.speculative.lookup import Lookup
from localspec.speculative.loop import SpeculativeDecoder
from localspec.speculative.policy_api import Drafting, DraftPolicy, FixedDraftPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from localspec.speculative.shared_vocabulary import SharedVocabulary

logger = logging.getLogger(__name__)


class Lane(TextPlace):
    """A text's sequence in each context, and the loop over them, where one answer runs.

    models: views at this sequence.
    """

    def __init__(self, models: Models, decoder: SpeculativeDecoder, work: LaneWork) -> None:
        super().__init__(decoder, models.saved, models.head)
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
) -> tuple[list[Lane], SharedVocabulary | None, Profile | None]:
    """A lane for each text that all contexts hold; the vocabulary that target and draft share;
    where what is learned is kept.

    Raises PairError if their tokenizers differ.
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
    return lanes, shared, profile
