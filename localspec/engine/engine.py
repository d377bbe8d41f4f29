"""Owns the models: streams answers, cancels, closes."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from localspec.chat.prompt import Prompt
from localspec.chat.room import longer_context
from localspec.engine.access import Access, busy, still_answering
from localspec.engine.base import BaseEngine
from localspec.engine.cache_file import read_caches, write_caches
from localspec.engine.cache_pool import CachePool
from localspec.engine.constraint_choice import Constrainer
from localspec.engine.memory import EngineMemory
from localspec.engine.models import Models
from localspec.engine.prefill import prepare
from localspec.engine.proposer_choice import answer_policy, choose_policies, choose_proposers
from localspec.errors import (
    CacheError,
    ContextError,
    EngineError,
    Interrupted,
    OptionError,
)
from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.policy.threads import AdaptiveThreads
from localspec.sampling.constraint import Constraint
from localspec.sampling.params import SamplingParams
from localspec.sampling.resolver import Resolver
from localspec.speculative.lookup import LONGEST_MATCH, Lookup
from localspec.speculative.loop import Request, SpeculativeDecoder
from localspec.speculative.policy_api import Drafting, DraftPolicy
from localspec.speculative.randomness import Randomness, fresh_seed
from localspec.speculative.rules import make_rule
from localspec.streaming.answer_text import Said
from localspec.streaming.cancellation import Unwanted
from localspec.streaming.options import AnswerOptions
from localspec.streaming.stream import AnswerRun, Exchange, Reply, Stream

if TYPE_CHECKING:
    from localspec.llama.vocabulary import Vocabulary


class Engine(BaseEngine):
    """A target, what may draft for it, and one text in their caches. Made by `localspec.load`.

    From any thread, but one answer at a time: a second stream that starts while another is
    unfinished raises EngineError. sampling: what an answer
    uses by default. description: the pair, for people. kept_bytes: memory for the caches of
    conversations that wait.
    """

    def __init__(
        self,
        models: Models,
        drafting: Drafting,
        sampling: SamplingParams,
        description: str,
        kept_bytes: int,
    ) -> None:
        super().__init__(sampling)
        self._description = description
        self.drafting = drafting
        self._target = target = models.target
        self.trained_context_length = target.trained_context_length
        self._models = models
        self._resolver = Resolver(target.vocabulary)
        self._constrainer = Constrainer(target.vocabulary, target.vocab_size)
        self.shared_vocabulary, proposers, off = choose_proposers(models, drafting)
        policies, self._profile = choose_policies(models, drafting, proposers)
        self._decoder = SpeculativeDecoder(target, proposers, *policies, off, time.perf_counter)
        self._cache_pool = CachePool(self._decoder, models.saved, kept_bytes)
        # Nothing of an engine refers back to it: so it is freed when it is dropped.
        self._access = Access(functools.partial(_interrupt, models))

    @property
    def description(self) -> str:
        """The pair, for people."""
        return self._description

    @property
    def vocabulary(self) -> Vocabulary:
        """The target's tokens."""
        return self._target.vocabulary

    @property
    def context_length(self) -> int:
        """Tokens that prompt and answer may have together."""
        return self._target.context_length

    @property
    def reading(self) -> tuple[int, int]:
        """See `BaseEngine.reading`."""
        return self._target.num_cached, len(self._decoder.tokens)

    @property
    def chat_template(self) -> str | None:
        """The Jinja source in the target's file, if it has one."""
        return self._target.chat_template

    @property
    def draft_policy(self) -> DraftPolicy:
        """The policy of how many tokens a step proposes. May be set between two answers."""
        return self._decoder.draft_policy

    @draft_policy.setter
    def draft_policy(self, draft_policy: DraftPolicy) -> None:
        self._decoder.draft_policy = draft_policy

    def constraint(self, options: AnswerOptions, prompt: Prompt) -> Constraint | None:
        """What the answer to a prompt is to fit, in front of it; for checks and measurements.

        Raises ConstraintError for what cannot be kept to.
        """
        self._require_open()
        return self._constrainer.constraint(options, prompt)

    @contextlib.contextmanager
    def exclusively(self) -> Iterator[SpeculativeDecoder]:
        """The loop below the streams, its text empty, while no stream may run.

        For checks and measurements. Raises EngineError while an answer is produced.
        """
        with self._held():
            self._cache_pool.switch_to(None, ())
            self._decoder.truncate(0)
            try:
                yield self._decoder
            finally:
                self._decoder.truncate(0)

    def answer(
        self,
        prompt: Prompt,
        options: AnswerOptions,
        exchange: Exchange,
    ) -> Stream:
        """See `BaseEngine.answer`."""
        room = self.context_length - len(prompt.tokens)
        if not prompt.tokens:
            raise OptionError("the prompt is empty", "Give a token or more to go on from.")
        if room < 1:
            raise ContextError(
                f"the prompt has {len(prompt.tokens)} tokens; "
                f"the context holds {self.context_length}",
                longer_context("Shorten it", self),
            )
        params = options.sampling_from(self.sampling)
        seed = fresh_seed() if options.seed is None else options.seed
        policy, kinds = answer_policy(options.drafting, self._decoder.proposers)
        constraint = self.constraint(options, prompt)
        request = Request(
            chain=self._resolver.chain(
                params, len(prompt.tokens) - prompt.num_said, constraint, prompt.num_said
            ),
            rule=make_rule(
                options.verify,
                is_greedy=params.is_greedy,
                seed=options.seed,
                randomness=Randomness(seed, exchange.turn, prompt.num_said),
            ),
            max_tokens=min(room, options.max_tokens or room),
            is_end=self.vocabulary.is_end,
            kinds=kinds,
        )
        answer = AnswerRun(
            decoder=self._decoder,
            prompt_tokens=prompt.tokens,
            thoughts=prompt.thoughts,
            request=request,
            vocabulary=self.vocabulary,
            options=options,
            lease=_Lease(self, exchange, self._plan(prompt, options, policy)),
            num_said=prompt.num_said,
            calls=prompt.calls,
        )
        return self._listed(Stream(answer))

    def _plan(
        self, prompt: Prompt, options: AnswerOptions, policy: DraftPolicy | None
    ) -> _Plan:
        prediction: list[int] = []
        if isinstance(options.prediction, str):
            prediction = self.vocabulary.tokenize(options.prediction, parse_special=False)
        elif options.prediction is not None:
            prediction = self._known_ids(options.prediction)
        reference: list[int] = []
        if prediction:
            # What the prompt ends with comes before it, so that its begin is found.
            reference = [*prompt.tokens[-LONGEST_MATCH:], *prediction]
        return _Plan(options.on_prompt, prompt.tokens, policy, reference)

    def save_caches_of(self, owner: object, path: Path) -> bool:
        """See `BaseEngine.save_caches_of`."""
        with self._held():
            kept = self._cache_pool.text_of(owner)
            if kept is not None:
                write_caches(path, kept, self._identities())
            return kept is not None

    def load_caches_of(self, owner: object, path: Path) -> bool:
        """See `BaseEngine.load_caches_of`."""
        with self._held():
            kept = read_caches(path, self._identities(), self._cache_pool.make_room)
            if kept is not None:
                self._cache_pool.put(owner, kept)
            return kept is not None

    @property
    def num_decodes(self) -> int:
        """Of the target, so far: whether something goes on. From any thread."""
        return self._target.num_decodes

    def memory(self) -> EngineMemory:
        """See `BaseEngine.memory`."""
        self._require_open()
        pool = self._cache_pool
        return EngineMemory(self._models.memory, pool.num_bytes, pool.budget_bytes)

    def free_kept(self) -> None:
        """See `BaseEngine.free_kept`."""
        with self._held():
            self._cache_pool.clear()

    def prepare(self, make_tokens: Callable[[Unwanted], list[int]], *, owner: object) -> None:
        """See `BaseEngine.prepare`."""
        self._require_open()
        with self._access.for_idle_work() as has_access:
            if not has_access:
                return
            self._begin()
            # Now that no answer can change what they are.
            tokens: list[int] = []
            with contextlib.suppress(Interrupted):
                tokens = make_tokens(lambda: self._target.is_interrupted)
            if not tokens:
                return
            self._cache_pool.switch_to(owner, tokens)
            chain = self._resolver.chain(self.sampling, len(tokens))
            with contextlib.suppress(Interrupted):
                prepare(self._decoder, tokens, chain, time.perf_counter)
            self._save_profile()

    def cancel(self) -> None:
        """See `BaseEngine.cancel`."""
        _interrupt(self._models)

    def _close(self) -> None:
        """See `BaseEngine._close`."""
        if not self._own_process.is_this():
            # Its copy of the lock may be taken, and no thread is there to give it back.
            self._free()
            return
        if not self._access.take():
            raise still_answering()
        try:
            self._free()
        finally:
            self._access.release()

    def _free(self) -> None:
        self._cache_pool.clear()
        for model in reversed(self._models.all):  # a head before its target
            model.close()

    def _save_profile(self) -> None:
        policy, threads = self._decoder.draft_policy, self._decoder.thread_policy
        if self._profile is not None and isinstance(policy, AdaptiveDraftPolicy):
            learned = policy.as_dict()
            if isinstance(threads, AdaptiveThreads):
                learned["threads"] = threads.as_dict()
            self._profile.save(learned)

    def __reduce__(self) -> NoReturn:
        raise EngineError(
            "an engine cannot be sent to another process",
            "Load it there, or use localspec.IsolatedEngine.",
        )

    def _identities(self) -> list[str]:
        """Of the models. Raises CacheError if it is not known what one of them is."""
        identities = []
        for model in self._models.saved:
            if model.identity is None:
                raise CacheError(
                    f"the file of {model.name} is gone, or has changed while it was loaded, so "
                    "that its caches cannot be told from another model's",
                    "Load it again from a file that stays as it is.",
                )
            identities.append(model.identity)
        return identities

    def _acquire(self) -> None:
        self._require_open()
        if not self._access.take():
            raise busy()
        try:
            self._begin()
        except BaseException:
            self._access.release()
            raise

    def _begin(self) -> None:
        for model in self._models.all:
            model.begin()

    def _require_open(self) -> None:
        self._require_not_ending()
        # Before the lock, which a fork may have copied as it was: taken.
        for model in self._models.all:
            model.require_open()

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        self._acquire()
        try:
            yield
        finally:
            self._access.release()


class _Plan(NamedTuple):
    """What of the engine is an answer's own while it is produced.

    policy: of drafting, if not the usual one. reference: see `Lookup.refer_to`.
    """

    on_prompt: Callable[[int, int], None] | None
    prompt_tokens: list[int]
    policy: DraftPolicy | None
    reference: list[int]


class _Lease:
    """See `stream.Lease`."""

    def __init__(self, engine: Engine, exchange: Exchange, plan: _Plan) -> None:
        self._engine = engine
        self._exchange = exchange
        self._plan = plan
        self._usual_policy: DraftPolicy | None = None

    def take(self) -> None:
        self._engine._acquire()

    def begin(self) -> None:
        self._exchange.begin()
        self._engine._cache_pool.switch_to(self._exchange.owner, self._plan.prompt_tokens)
        if self._plan.on_prompt is not None:
            self._engine._target.on_batch = self._report
        decoder = self._engine._decoder
        if self._plan.policy is not None:
            self._usual_policy = decoder.draft_policy
            decoder.draft_policy = self._plan.policy
        if self._plan.reference:
            self._refer_to(self._plan.reference)

    def interrupt(self) -> None:
        self._engine.cancel()

    def _report(self, num_cached: int) -> None:
        assert self._plan.on_prompt is not None
        self._plan.on_prompt(num_cached, len(self._plan.prompt_tokens))

    def _refer_to(self, reference: list[int]) -> None:
        for proposer in self._engine._decoder.proposers:
            if isinstance(proposer, Lookup):
                proposer.refer_to(reference)

    def give_back(self, result: tuple[Reply, Said] | None) -> None:
        self._engine._target.on_batch = None
        if self._usual_policy is not None:
            self._engine._decoder.draft_policy = self._usual_policy
        if self._plan.reference:
            self._refer_to([])
        self._engine._access.release()
        if result is not None:
            self._engine._save_profile()
            self._exchange.remember(*result)


def _interrupt(models: Models) -> None:
    for model in models.all:
        model.interrupt()
