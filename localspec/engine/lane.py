"""Lanes: as many answers run at once as the models' contexts hold texts side by side."""

from __future__ import annotations

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
        models: views of the models at this sequence.
        decoder: the loop over them.
        clock: the time of the text here.
        drafting: who may draft, and how much.
        profile: where what the policies learn is kept; None where nothing is.
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
        """Where what the policies learn is kept."""

        self.record: AnswerRecord | None = None
        """The answer that runs here; None while the lane is free."""

        self.run: AnswerRun | None = None
        """The same, once it has begun with its text."""

        self.decode: Decode | None = None
        """The decode that the answer wants."""

        self.is_paused = False
        """Whether the answer waits for its reader to catch up."""

        self.reading_s = 0.0
        """Seconds that the prompt has taken so far."""

        self.owner: Callable[[], object | None] = nobody
        """Gives the text's owner; None once that is gone, and of nobody's text."""

        self.scope = Scope(scales=models.target.scales)
        """Of the text."""

        self.last_used = 0
        """When the text was used last, in the cache pool's numbers."""

        self.memory: TextMemory | None = None
        """Earlier texts, if they are remembered."""

        self.own_policy = decoder.draft_policy
        self._producing: Producing | None = None  # the answer, until it has ended
        self._usual_policy: DraftPolicy | None = None  # while an answer has another
        self._lookups = [each for each in decoder.proposers if isinstance(each, Lookup)]
        self._num_shared = 0  # decodes, when the last work began

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
        """Begin with an answer."""
        self.record = record
        self._producing = producing

    def resume(self) -> tuple[Producing, AnswerRecord]:
        """Note that the answer is run on. Returns what produces it, and its record."""
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
        """Have no answer any more; what produced it is closed."""
        producing = self._producing
        self._producing = None
        self.record = None
        self.decode = None
        self.is_paused = False
        if producing is not None:
            producing.close()

    def enter(self, scope: Scope) -> None:
        """Have texts of that scope from now on."""
        if scope == self.scope:
            return
        self.decoder.truncate(0)  # before: whatever comes between, no text has two scopes
        self.scope = scope
        target = self.models.target
        if scope.scales != target.scales:
            target.scales = scope.scales
            self._choose_policy()

    def _choose_policy(self) -> None:
        """Have the draft policy of these scales: drafts fare otherwise under others."""
        is_own = self.decoder.draft_policy is self.own_policy
        learning = choose_draft_policy(
            self.models, self._drafting, self.decoder.proposers, self._num_threads
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
        """Set what is of one answer: on_batch, policy and prediction."""
        self.models.target.on_batch = on_batch
        if policy is not None:
            self._usual_policy = self.decoder.draft_policy
            policy.keeps_sizes = self._usual_policy.keeps_sizes
            self.decoder.draft_policy = policy
        for lookup in self._lookups:
            lookup.refer_to(reference)

    def use_no_memory(self) -> None:
        """Remember nothing, and propose nothing that was remembered."""
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
        """The policies' findings, to be saved; None where they learn nothing.

        Beside other answers they learn nothing: decodes then cost time for these, too.
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
        common = common_length(self.decoder.tokens, tokens) if scope == self.scope else 0
        return min(common, self.decoder.target.num_cached)

    def sizes(self) -> list[int]:
        """Bytes of each saved model's state; 0 if there is nothing to keep."""
        # Drafts that have not read all of the text, and would be believed to have. A head's
        # context knows where it begins.
        partial: list[object] = [
            proposer.model
            for proposer in self.decoder.proposers
            if isinstance(proposer, DraftModel)
            and proposer.kind is ProposerKind.DRAFT
            and proposer.begins_at > 0
        ]
        return [
            0 if model in partial else model.cache.state_bytes() for model in self.models.saved
        ]

    def copied(self) -> PooledCache | None:
        """The text and states; None if nothing is cached, or copying fails."""
        try:
            states = [
                model.cache.save_state() if size else None
                for model, size in zip(self.models.saved, self.sizes(), strict=True)
            ]
        except CacheError:
            return None  # then the text is decoded again when it comes back
        if not any(states):
            return None
        return PooledCache(self.decoder.tokens[:], states, scope=self.scope)

    def beginning(self, tokens: Sequence[int]) -> PooledCache | None:
        """A copy of what the text here begins alike, of target and head.

        Its answer may be in the midst of a step, and tokens that were drafted be cached.
        """
        try:
            state = self.models.target.cache.save_state()
        except CacheError:
            return None
        head = None if self.models.head is None else self.models.head.copied()
        common = common_length(self.decoder.tokens, tokens)
        others = [None] * (len(self.models.saved) - 1)
        return PooledCache(list(tokens[:common]), [state, *others], head, self.scope)

    def restore(self, kept: PooledCache) -> None:
        """Have that text from now on."""
        self.decoder.truncate(0)
        # Now, since whatever happens below, each cache holds a prefix of it.
        self.decoder.tokens = kept.tokens
        for model, state in zip(self.models.saved, kept.states, strict=True):
            if state is not None:
                try:
                    model.restore_state(state)
                except CacheError:
                    continue  # its cache is empty, and decodes what it lacks
        if self.decoder.target.num_cached > len(kept.tokens):
            self.decoder.truncate(len(kept.tokens))
        if kept.head is not None and self.models.head is not None:
            self.models.head.take_over(kept.head, self.decoder.target.num_cached)


def nobody() -> None:
    """The owner of a text that is nobody's."""


def open_lanes(
    models: Models, drafting: Drafting
) -> tuple[list[Lane], SharedVocabulary | None]:
    """A lane for each text that all contexts hold; the vocabulary that target and draft share.

    Raises PairError if their tokenizers differ.
    """
    shared = None
    if models.draft is not None and not drafting.is_off:
        shared = shared_vocabulary(models.target.vocabulary, models.draft.vocabulary)
    lanes: list[Lane] = []
    for number in range(models.num_sequences):
        own = models if number == 0 else models.sibling(number)
        clock = LaneClock()
        proposers, off = choose_proposers(own, drafting, shared)
        learning, threads = choose_policies(own, drafting, proposers, clock.was_alone)
        decoder = SpeculativeDecoder(
            own.target, proposers, learning.policy, threads, off, clock.now
        )
        lanes.append(Lane(own, decoder, clock, drafting, learning.profile))
    return lanes, shared
