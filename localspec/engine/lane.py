"""Lanes: one for each text that the models' contexts hold side by side. Each runs an answer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import Any

from localspec.engine.cache_file import PooledCache, Scope
from localspec.engine.lane_clock import LaneClock
from localspec.engine.open_models import Models
from localspec.engine.proposer_choice import (
    choose_draft_policy,
    choose_policies,
    choose_proposers,
)
from localspec.errors import CacheError
from localspec.exactness import Exactness
from localspec.llama.cache_state import CacheState
from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.policy.profile import Profile
from localspec.speculative.lookup import Lookup, TextMemory
from localspec.speculative.loop import SpeculativeDecoder
from localspec.speculative.model_api import Decode
from localspec.speculative.policy_api import (
    Drafting,
    DraftPolicy,
    FixedDraftPolicy,
    ProposerKind,
)
from localspec.speculative.prefix import common_length
from localspec.speculative.proposers import DraftModel
from localspec.speculative.shared_vocabulary import SharedVocabulary, shared_vocabulary
from localspec.streaming.answer_run import AnswerRun
from localspec.streaming.record import AnswerRecord, Reading
from localspec.streaming.reply import Piece
from localspec.vocabulary import WholeVocabulary

# What produces an answer. It is sent the rows of each decode.
Producing = Generator[Decode | Piece | Reading, Any, None]


class Lane:
    """A text's sequence in each context, and the loop over them, where one answer runs.

    Args:
        models: Views of the models at this sequence.
        decoder: The loop over them.
        clock: Measures the time of the lane's text.
        drafting: What may draft, and how much.
        profile: Keeps what the policies learn; None where nothing is kept.
    """

    def __init__(
        self,
        models: Models,
        decoder: SpeculativeDecoder,
        clock: LaneClock,
        drafting: Drafting,
        profile: Profile | None,
    ) -> None:
        self.models = models
        self.decoder = decoder
        self.clock = clock
        self._drafting = drafting
        self._num_threads = models.target.num_threads  # which the policy may change

        self.profile = profile
        """Keeps what the policies learn; None where nothing is kept."""

        self.record: AnswerRecord | None = None
        """The answer that runs here; None while the lane is free."""

        self.run: AnswerRun | None = None
        """The run of that answer, once it has begun with its text."""

        self.decode: Decode | None = None
        """The decode that the answer wants."""

        self.is_paused = False
        """Whether the answer waits for its reader to catch up."""

        self.reading_s = 0.0
        """Seconds that the prompt has taken so far."""

        self.owner: Callable[[], object | None] = nobody
        """Gives the text's owner; None once that is gone, or if nobody owns the text."""

        self.scope = Scope(scales=models.target.scales)
        """The text's scope."""

        self.last_used = 0
        """When the text was last used: a number that the cache pool counts up."""

        self.memory: TextMemory | None = None
        """Earlier texts, if they are remembered."""

        self.own_policy = decoder.draft_policy
        self._producing: Producing | None = None  # the answer, until it has ended
        self._usual_policy: DraftPolicy | None = None  # set while an answer has its own policy
        self._lookups: list[Lookup] = []
        for proposer in decoder.proposers:
            if isinstance(proposer, Lookup):
                self._lookups.append(proposer)
        self._num_shared = 0  # the clock's `num_shared` when the last work began

    @property
    def is_free(self) -> bool:
        """Whether no answer runs here."""
        return self.record is None

    @property
    def exactness(self) -> Exactness:
        """See `AnswerLane`."""
        return self.models.target.exactness

    @property
    def vocabulary(self) -> WholeVocabulary:
        """See `AnswerLane`."""
        return self.models.target.vocabulary

    @property
    def waited_s(self) -> float:
        """See `AnswerLane`."""
        return self.clock.waited_s

    def take(self, record: AnswerRecord, producing: Producing) -> None:
        """Give the lane an answer to run."""
        self.record = record
        self._producing = producing

    def resume(self) -> tuple[Producing, AnswerRecord]:
        """Note that the answer runs again. Returns what produces it, and its record."""
        assert self._producing is not None
        assert self.record is not None
        self.is_paused = False
        self.decode = None
        return self._producing, self.record

    def want(self, decode: Decode, num_decodes: int) -> None:
        """Note the decode that the answer wants. num_decodes: of all lanes so far."""
        self.decode = decode
        self.clock.want(num_decodes)

    def free(self) -> None:
        """Release the answer, and close what produced it."""
        producing = self._producing
        self._producing = None
        self.record = None
        self.decode = None
        self.is_paused = False
        if producing is not None:
            producing.close()

    def enter(self, scope: Scope) -> None:
        """Hold texts of that scope from now on; the text of another scope goes."""
        if scope == self.scope:
            return
        self.decoder.truncate(0)  # first, so that an exception leaves no text with two scopes
        self.scope = scope
        target = self.models.target
        if scope.scales != target.scales:
            target.scales = scope.scales
            self._choose_policy()

    def _choose_policy(self) -> None:
        """Choose the draft policy for these scales: they change how drafts fare."""
        is_own = self.decoder.draft_policy is self.own_policy
        learning = choose_draft_policy(
            self.models,
            self._drafting,
            self.decoder.proposers,
            self._num_threads,
        )
        self.own_policy = learning.policy
        self.profile = learning.profile
        if is_own:
            self.decoder.draft_policy = self.own_policy

    def make_ready(self) -> None:
        """Prepare models and loop for an answer."""
        for model in self.models.all:
            model.make_ready()
        self._num_shared = self.clock.num_shared
        self.reset()

    def configure(
        self,
        on_batch: Callable[[int], None],
        policy: FixedDraftPolicy | None,
        reference: Sequence[int],
    ) -> None:
        """Set what belongs to one answer.

        Args:
            on_batch: Called with the number of the prompt's decoded tokens.
            policy: Its draft policy; None for the lane's.
            reference: The tokens of its prediction, for the lookup.
        """
        self.models.target.on_batch = on_batch
        if policy is not None:
            self._usual_policy = self.decoder.draft_policy
            policy.keeps_sizes = self._usual_policy.keeps_sizes
            self.decoder.draft_policy = policy
        for lookup in self._lookups:
            lookup.refer_to(reference)

    def use_no_memory(self) -> None:
        """Remember no text, and propose nothing from remembered texts."""
        for lookup in self._lookups:
            lookup.memory = None

    def reset(self) -> None:
        """Undo `configure` and `use_no_memory`. Idempotent."""
        self.models.target.on_batch = None
        if self._usual_policy is not None:
            self.decoder.draft_policy = self._usual_policy
        self._usual_policy = None
        for lookup in self._lookups:
            lookup.refer_to(())
            lookup.memory = self.memory

    def learned(self) -> dict[str, Any] | None:
        """What the policies have learned, to be saved; None if there is nothing to save.

        Nothing is saved after work that shared a decode with another text, or waited for one:
        such times say little about a text alone.
        """
        policy = self.decoder.draft_policy
        has_shared = self._num_shared < self.clock.num_shared
        if has_shared or not isinstance(policy, AdaptiveDraftPolicy):
            return None
        learned = {**policy.as_dict(), "threads": self.decoder.thread_policy.as_dict()}
        for lookup in self._lookups:
            learned["lookup"] = lookup.as_dict()
        return learned

    def interrupt(self) -> None:
        """End what the models do here within one decode. From any thread."""
        for model in self.models.all:
            model.interrupt()

    def common_with(self, tokens: Sequence[int], scope: Scope) -> int:
        """How many of `tokens`, in that scope, are cached here."""
        if scope != self.scope:
            return 0
        common = common_length(self.decoder.tokens, tokens)
        return min(common, self.decoder.target.num_cached)

    def sizes(self) -> list[int]:
        """Bytes of each saved model's state; 0 if there is nothing to keep."""
        sizes = []
        for model in self.models.saved:
            size = 0
            if not self._is_partial(model):
                size = model.cache.state_bytes()
            sizes.append(size)
        return sizes

    def _is_partial(self, model: object) -> bool:
        """Whether `model` is a draft whose cache lacks the beginning of the text.

        Such a cache is not kept. A saved state does not say where it begins, so it would be
        taken for one of the whole text. A head's context does know where it begins.
        """
        for proposer in self.decoder.proposers:
            if isinstance(proposer, DraftModel) and proposer.model is model:
                return proposer.kind is ProposerKind.DRAFT and proposer.begins_at > 0
        return False

    def copied(self) -> PooledCache | None:
        """The text and states; None if nothing is cached, or copying fails."""
        states: list[CacheState | None] = []
        try:
            for model, size in zip(self.models.saved, self.sizes(), strict=True):
                state = None
                if size:
                    state = model.cache.save_state()
                states.append(state)
        except CacheError:
            return None  # then the text is decoded again when it comes back
        if not any(states):
            return None
        return PooledCache(self.decoder.tokens[:], states, scope=self.scope)

    def beginning(self, tokens: Sequence[int]) -> PooledCache | None:
        """A copy of the beginning that this text has in common with `tokens`.

        It comes with the states of target and head, which may hold more: `restore` cuts that
        off. So an answer may run here meanwhile, even if the cache holds drafted tokens.
        """
        try:
            state = self.models.target.cache.save_state()
        except CacheError:
            return None
        head = None
        if self.models.head is not None:
            head = self.models.head.copy_state()
        common = common_length(self.decoder.tokens, tokens)
        without_draft = [None] * (len(self.models.saved) - 1)
        return PooledCache(list(tokens[:common]), [state, *without_draft], head, self.scope)

    def restore(self, kept: PooledCache) -> None:
        """Load a copied text and its caches into this lane."""
        self.decoder.truncate(0)
        # Set first: even if an exception ends this, each cache holds a prefix of the text.
        self.decoder.tokens = kept.tokens
        for model, state in zip(self.models.saved, kept.states, strict=True):
            if state is not None:
                # After an error the cache is empty: what it lacks is decoded.
                with contextlib.suppress(CacheError):
                    model.restore_state(state)
        target = self.decoder.target
        # A copy made during a step can have drafted tokens after its text: see `beginning`.
        if target.num_cached > len(kept.tokens):
            self.decoder.truncate(len(kept.tokens))
        head = self.models.head
        if kept.head is not None and head is not None:
            head.restore_copy(kept.head, target.num_cached)


def nobody() -> None:
    """The owner of a text that nobody owns."""


def open_lanes(
    models: Models,
    drafting: Drafting,
) -> tuple[list[Lane], SharedVocabulary | None]:
    """A lane for each text that all contexts hold, and what target's and draft's tokens share.

    Raises PairError if their tokenizers differ.
    """
    shared = None
    if models.draft is not None and not drafting.is_off:
        shared = shared_vocabulary(models.target.vocabulary, models.draft.vocabulary)
    lanes: list[Lane] = []
    for number in range(models.num_sequences):
        own = models
        if number > 0:
            own = models.sibling(number)
        clock = LaneClock()
        proposers, off = choose_proposers(own, drafting, shared)
        learning, threads = choose_policies(own, drafting, proposers, clock.was_alone)
        decoder = SpeculativeDecoder(
            own.target,
            proposers,
            learning.policy,
            threads,
            off,
            clock.now,
        )
        lanes.append(Lane(own, decoder, clock, drafting, learning.profile))
    return lanes, shared
