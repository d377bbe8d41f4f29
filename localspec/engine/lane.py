"""Lanes: the models' contexts hold several texts side by side, one in each lane.

A lane runs one answer at a time.
"""

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
from localspec.streaming.record import AnswerRecord, Reading
from localspec.streaming.reply import Piece
from localspec.vocabulary import WholeVocabulary

# The generator that produces an answer. It yields the decodes that it needs, and is sent their
# rows; it also yields the pieces of the answer and the progress of reading the prompt.
Producing = Generator[Decode | Piece | Reading, Any, None]


class Lane:
    """One text's sequence in each context, and the loop that runs an answer there.

    Args:
        models: Views of the models at this sequence.
        decoder: The loop with these models.
        clock: Measures the time of the lane's answers.
        drafting: What may draft, and how much.
        profile: The file of what the policies learn; None where nothing is saved.
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
        # As the target was opened: the policy of threads may change the target's own number.
        self._num_threads = models.target.num_threads

        self.profile = profile
        """The file of what the policies learn; None where nothing is saved."""

        self.record: AnswerRecord | None = None
        """The answer that runs here; None while the lane is free."""

        self.decode: Decode | None = None
        """The decode that the answer wants."""

        self.is_paused = False
        """Whether the answer waits for its reader to catch up."""

        self.reading_s = 0.0
        """Seconds that the prompt has taken so far."""

        self.owner: Callable[[], object | None] = nobody
        """Returns the text's owner; None once the owner is gone, or if nobody owns the text."""

        self.scope = Scope(scales=models.target.scales)
        """The scope of the text: see `Scope`."""

        self.last_used = 0
        """When the text was last used: a number that the cache pool counts up."""

        self.memory: TextMemory | None = None
        """Earlier texts, if they are remembered."""

        self.default_policy = decoder.draft_policy
        """The draft policy of answers that ask for no other."""

        self._producing: Producing | None = None  # the answer, until it has ended
        # The loop's policy before the present answer; None unless the answer brings a policy.
        self._policy_before: DraftPolicy | None = None
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
        """Give the lane an answer to run. producing: produces the answer."""
        self.record = record
        self._producing = producing

    def resume(self) -> tuple[Producing, AnswerRecord]:
        """Note that the answer continues: it is not paused, and no longer wants its decode.

        Returns the generator that produces the answer, and the answer's record.
        """
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
        """Remove the answer from the lane, and close its generator. Idempotent."""
        producing = self._producing
        self._producing = None
        self.record = None
        self.decode = None
        self.is_paused = False
        if producing is not None:
            producing.close()

    def enter(self, scope: Scope) -> None:
        """Change the scope of the lane's text. If it is another scope, the text is dropped.

        Under other scales of the target's adapters the lane gets another draft policy, too.
        """
        if scope == self.scope:
            return
        self.decoder.truncate(0)  # first, so that an exception leaves no text with two scopes
        self.scope = scope
        target = self.models.target
        if scope.scales != target.scales:
            target.scales = scope.scales
            self._choose_policy()

    def _choose_policy(self) -> None:
        """Choose the default policy for the target's scales: they change what is accepted."""
        has_default = self.decoder.draft_policy is self.default_policy
        learning = choose_draft_policy(
            self.models,
            self._drafting,
            self.decoder.proposers,
            self._num_threads,
        )
        self.default_policy = learning.policy
        self.profile = learning.profile
        if has_default:
            self.decoder.draft_policy = self.default_policy

    def make_ready(self) -> None:
        """Prepare models and loop for an answer, or for other work."""
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
            policy: The answer's draft policy; None for the lane's.
            reference: The tokens of the answer's prediction, for the lookup to propose from.
        """
        self.models.target.on_batch = on_batch
        if policy is not None:
            self._policy_before = self.decoder.draft_policy
            # What the lane's policy has measured holds for this one, too.
            policy.keeps_sizes = self._policy_before.keeps_sizes
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
        if self._policy_before is not None:
            self.decoder.draft_policy = self._policy_before
        self._policy_before = None
        for lookup in self._lookups:
            lookup.refer_to(())
            lookup.memory = self.memory

    def learned(self) -> dict[str, Any] | None:
        """What the policies have learned, in JSON's types for the profile.

        None, so that nothing is saved, if the lane's draft policy is fixed, or after work that
        shared a decode with another text or waited for one: such times say little about a text
        alone. Call it after `reset`, since an answer may have a draft policy of its own.
        """
        policy = self.decoder.draft_policy
        if self.clock.num_shared > self._num_shared:
            return None
        if not isinstance(policy, AdaptiveDraftPolicy):
            return None
        learned = policy.as_dict()
        learned["threads"] = self.decoder.thread_policy.as_dict()
        for lookup in self._lookups:
            learned["lookup"] = lookup.as_dict()
        return learned

    def interrupt(self) -> None:
        """Interrupt the decodes of this lane's models. From any thread."""
        for model in self.models.all:
            model.interrupt()

    def common_with(self, tokens: Sequence[int], scope: Scope) -> int:
        """How many of `tokens`, from the first on, are cached here; 0 for another scope."""
        if scope != self.scope:
            return 0
        common = common_length(self.decoder.tokens, tokens)
        return min(common, self.decoder.target.num_cached)

    def sizes(self) -> list[int]:
        """The bytes of a saved state, for each of `Models.saved`; 0 where nothing is saved."""
        sizes = []
        for model in self.models.saved:
            size = 0
            if not self._is_partial(model):
                size = model.cache.state_bytes()
            sizes.append(size)
        return sizes

    def _is_partial(self, model: object) -> bool:
        """Whether `model` is a draft whose cache lacks the beginning of the text.

        Such a cache is not saved. A saved state does not say where the cache begins, so it
        would be taken for a cache of the whole text. A head knows where its own cache begins.
        """
        for proposer in self.decoder.proposers:
            if isinstance(proposer, DraftModel) and proposer.model is model:
                return proposer.kind is ProposerKind.DRAFT and proposer.begins_at > 0
        return False

    def copied(self) -> PooledCache | None:
        """A copy of the text and the models' states, without the head's data.

        None if nothing is cached, or copying fails.
        """
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
        """A copy of the common beginning of this text and `tokens`; None if copying fails.

        It has the states of the target and the head, and none of the draft. An answer may be
        running in this lane: the copied states may cover more tokens, even drafted ones, and
        `restore` cuts them off.
        """
        try:
            states: list[CacheState | None] = [self.models.target.cache.save_state()]
        except CacheError:
            return None
        if self.models.draft is not None:
            states.append(None)
        head = None
        if self.models.head is not None:
            head = self.models.head.copy_state()
        num_common = common_length(self.decoder.tokens, tokens)
        return PooledCache(list(tokens[:num_common]), states, head, self.scope)

    def restore(self, text: PooledCache) -> None:
        """Load a copied text and its caches into this lane, in place of the lane's text."""
        self.decoder.truncate(0)
        # Set first: even if an exception ends this, each cache holds a prefix of the text.
        self.decoder.tokens = text.tokens
        for model, state in zip(self.models.saved, text.states, strict=True):
            if state is not None:
                # After an error the cache is empty: the text is decoded again.
                with contextlib.suppress(CacheError):
                    model.restore_state(state)
        target = self.decoder.target
        # A copy made during a step can have drafted tokens after its text: see `beginning`.
        if target.num_cached > len(text.tokens):
            self.decoder.truncate(len(text.tokens))
        head = self.models.head
        if text.head is not None and head is not None:
            head.restore_copy(text.head, target.num_cached)


def nobody() -> None:
    """Returns None, as `Lane.owner` of a text that nobody owns."""


def open_lanes(
    models: Models,
    drafting: Drafting,
) -> tuple[list[Lane], SharedVocabulary | None]:
    """Open a lane for each sequence of the models' contexts.

    Returns:
        The lanes; and the tokens that target and draft share, None without a draft or if
        drafting is off.

    Raises:
        PairError: If target and draft have different tokenizers.
    """
    shared = None
    if models.draft is not None and not drafting.is_off:
        shared = shared_vocabulary(models.target.vocabulary, models.draft.vocabulary)
    lanes: list[Lane] = []
    for number in range(models.num_sequences):
        lane_models = models
        if number > 0:
            lane_models = models.sibling(number)
        clock = LaneClock()
        proposers, off_reason = choose_proposers(lane_models, drafting, shared)
        learning, thread_policy = choose_policies(
            lane_models,
            drafting,
            proposers,
            clock.was_alone,
        )
        decoder = SpeculativeDecoder(
            lane_models.target,
            proposers,
            learning.policy,
            thread_policy,
            off_reason,
            clock.now,
        )
        lanes.append(Lane(lane_models, decoder, clock, drafting, learning.profile))
    return lanes, shared
