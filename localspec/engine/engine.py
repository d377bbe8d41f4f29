"""Owns the models: answers, cancels, closes."""

from __future__ import annotations

import localspec.llama.loaded  # noqa: F401  libllama before NumPy

# isort: split

import contextlib
import functools
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from localspec.chat.turns import longer_context
from localspec.constraints.guidance import not_kept
from localspec.engine.base import BaseEngine, Found
from localspec.engine.cache_disk import CacheRoom
from localspec.engine.cache_file import read_caches, write_caches
from localspec.engine.constraint_choice import Constrainer
from localspec.engine.lane import Lane, open_lanes, pool_of
from localspec.engine.models import EngineMemory, Models
from localspec.engine.prefill import measure_fast, prepare
from localspec.engine.proposer_choice import answer_policy
from localspec.engine.worker import AnswerJob, Producing, Worker
from localspec.errors import (
    BusyError,
    ContextError,
    EngineError,
    Interrupted,
    OptionError,
)
from localspec.sampling.chain import Resolver
from localspec.sampling.constraint import Constraint
from localspec.sampling.params import SamplingParams
from localspec.speculative.lookup import LONGEST_MATCH, Lookup, TextMemory
from localspec.speculative.loop import Request, SpeculativeDecoder
from localspec.speculative.policy_api import (
    Drafting,
    DraftPolicy,
    FixedDraftPolicy,
    ProposerKind,
)
from localspec.speculative.proposers import Proposer
from localspec.speculative.randomness import Randomness, fresh_seed
from localspec.speculative.rules import make_rule
from localspec.streaming.access import LineSlot, busy, in_use
from localspec.streaming.answer_run import AnswerRun
from localspec.streaming.cancellation import CancelCheck, Cancellation, never
from localspec.streaming.exchange import Exchange
from localspec.streaming.options import AnswerOptions, spec_of
from localspec.streaming.prompt import Prompt
from localspec.streaming.reply import Piece

if TYPE_CHECKING:
    from localspec.llama.vocabulary import LlamaVocabulary
    from localspec.pictures.vision import Vision


class Engine(BaseEngine):
    """A target, what may draft for it, and texts in their caches. Made by `localspec.load`.

    From any thread, but `parallel` answers at a time: reading one more while as many are
    unfinished raises BusyError. sampling: what an answer uses by default. description: the
    pair, for people. room: for the caches of conversations that wait. memory: whether earlier
    texts propose; a name keeps them on disk.
    """

    def __init__(
        self,
        models: Models,
        drafting: Drafting,
        sampling: SamplingParams,
        description: str,
        room: CacheRoom,
        *,
        memory: bool,
    ) -> None:
        super().__init__(sampling)
        self.description = description
        self.drafting = drafting
        self._target = target = models.target
        self.context_length = target.context_length
        self.trained_context_length = target.trained_context_length
        self.chat_template, self.exactness = target.chat_template, target.exactness
        self._models = models
        self._resolver = Resolver(target.vocabulary)
        self._constrainer = Constrainer(target.vocabulary, target.vocab_size)
        self._lanes, self.shared_vocabulary, self._profile = open_lanes(models, drafting)
        self._access.num_answers = len(self._lanes)
        self._decoder = self._lanes[0].decoder  # of work that no answer may run beside
        proposers = [each for lane in self._lanes for each in lane.decoder.proposers]
        self._remembering = _Remembering(proposers, has_memory=memory)
        self._cache_pool = pool_of(self._lanes, room)
        chain = self._resolver.chain(sampling, 1)
        measure_fast(self._decoder, chain, time.perf_counter)
        self._save_profile()
        self._worker = Worker(len(self._lanes))
        weakref.finalize(self, self._worker.stop).atexit = False  # it is closed before

    @property
    def vocabulary(self) -> LlamaVocabulary:
        return self._target.vocabulary

    @property
    def vision(self) -> Vision | None:
        return self._target.vision

    @property
    def _reading_progress(self) -> tuple[int, int]:
        at_work = [lane.decoder for lane in self._lanes if not lane.is_free]
        decoders = at_work or [self._decoder]
        num_cached = sum(decoder.target.num_cached for decoder in decoders)
        return num_cached, sum(len(decoder.tokens) for decoder in decoders)

    @property
    def _draft_policy(self) -> DraftPolicy:
        """The policy of how many tokens a step proposes. May be set between two answers."""
        return self._decoder.draft_policy

    @_draft_policy.setter
    def _draft_policy(self, draft_policy: DraftPolicy) -> None:
        is_own = draft_policy is self._lanes[0].own_policy
        for lane in self._lanes:
            lane.decoder.draft_policy = lane.own_policy if is_own else draft_policy

    def _constraint(self, options: AnswerOptions, prompt: Prompt) -> Constraint | None:
        """The constraint of the answer to a prompt, if any. Raises ConstraintError."""
        self._require_open()
        return self._constrainer.constraint(options, prompt)

    @contextlib.contextmanager
    def exclusively(self) -> Iterator[SpeculativeDecoder]:
        """The loop below the answers, its text empty, while no answer may run.

        For checks and measurements: without the memory. Raises EngineError while an answer is
        produced.
        """
        with self._access.slot() as slot:
            self._take(slot, in_use)
            self._worker.call(lambda: self._cache_pool.switch_to(self._lanes[0], None, ()))
            self._decoder.truncate(0)
            with self._remembering.paused():
                try:
                    yield self._decoder
                finally:
                    self._decoder.truncate(0)

    def _check_options(self, options: AnswerOptions) -> None:
        self._require_open()
        answer_policy(options.drafting, self._decoder.proposers)

    def _pieces(self, slot: LineSlot, exchange: Exchange) -> Generator[Piece, None, None]:
        options, cancellation = exchange.options, exchange.cancellation
        is_cancelled = functools.partial(self._is_cancelled, cancellation)
        try:
            self._require_open()
            prompt = exchange.prompt(is_cancelled)
            _parts = self._models.show(prompt)  # at hand until the answer ends
            policy, kinds = answer_policy(options.drafting, self._decoder.proposers)
            request = self._request(prompt, exchange, kinds)
            reference = _reference_to(self, prompt, options)
            self._wait(slot, busy, waits=options.queue, is_cancelled=is_cancelled)
            self._models.require_unwritten()
        except Interrupted:
            exchange.abandon()
            return
        job, num_read = AnswerJob(), 0

        def end() -> list[Piece] | None:
            """End it behind what was read; what waited for tokens that do not come.

            In the worker, so that Ctrl-C cannot come between its parts.
            """
            run = exchange.run
            rest = None if run is None else run.cut(num_read)
            if exchange.result is None and run is not None and run.result is not None:
                exchange.result = run.result
                exchange.remember(*exchange.result)
            return rest

        try:
            exchange.begin()
            own = policy, reference
            self._worker.start(job, self._produced(job, exchange, prompt, request, own))
            for piece in job.pieces(self._worker):
                num_read += len(piece.token_ids)
                yield piece
                if cancellation.is_requested:
                    rest = self._worker.close(job, end)
                    if rest is not None:
                        yield from rest
                        break
        finally:
            if self._own_process.is_this():
                self._worker.close(job, end)

    def _produced(
        self,
        job: AnswerJob,
        exchange: Exchange,
        prompt: Prompt,
        request: Request,
        own: tuple[FixedDraftPolicy | None, Sequence[int]],
    ) -> Producing:
        """Produce an answer in a lane that is free, in the worker.

        own: its policy and its prediction, as `Lane.use` takes them.
        """
        num_tokens = len(prompt.tokens)
        free = [lane for lane in self._lanes if lane.is_free]
        lane = self._cache_pool.place_for(exchange.owner, prompt.tokens, free, prompt.client)
        lane.is_free, job.clock = False, lane.clock
        try:
            lane.begin()
            self._switch(lane, exchange.owner, prompt)
            lane.use(lambda done: job.tell(lambda: exchange.on_prompt(done, num_tokens)), *own)
            exchange.run = run = AnswerRun(
                decoder=lane.decoder,
                prompt=prompt,
                request=request,
                vocabulary=self.vocabulary,
                options=exchange.options,
                cancellation=exchange.cancellation,
                interrupt=lane.interrupt,
                not_kept=not_kept(spec_of(exchange.options)),
                exactness=self.exactness,
                waited=lambda: lane.clock.waited_s,
            )
            num_cached = run.start()
            job.tell(lambda: exchange.on_cached(num_cached, num_tokens))
            yield from run.pieces()
        finally:
            lane.use_usual()
            lane.is_free = True
            self._save_profile(lane)

    def _request(
        self,
        prompt: Prompt,
        exchange: Exchange,
        kinds: frozenset[ProposerKind] | None,
    ) -> Request:
        """The loop's request. Raises ContextError, and as `constraint` does."""
        options, sampling = exchange.options, exchange.sampling
        num_tokens = len(prompt.tokens)
        room = self.context_length - num_tokens
        if not prompt.tokens:
            raise OptionError("the prompt is empty", "Give at least one token.")
        if room < 1:
            raise ContextError(
                f"the prompt has {num_tokens} tokens; the context holds {self.context_length}",
                longer_context("Shorten it", self),
                num_tokens=num_tokens,
                context_length=self.context_length,
            )
        constraint = self._constraint(options, prompt)
        seed = fresh_seed() if options.seed is None else options.seed
        return Request(
            chain=self._resolver.chain(
                sampling, num_tokens - prompt.num_said, constraint, prompt.num_said
            ),
            rule=make_rule(
                exchange.rule,
                is_greedy=sampling.is_greedy,
                seed=options.seed,
                randomness=Randomness(seed, exchange.turn, prompt.num_said),
            ),
            max_tokens=min(room, options.max_tokens or room),
            is_end=self.vocabulary.is_end,
            kinds=kinds,
        )

    def _alone(self, function: Callable[[], Found]) -> Found:
        """A function's result, while no answer may run. Raises as `_wait`."""
        with self._access.slot() as slot:
            self._take(slot, in_use)
            return self._worker.call(function)

    def _save_caches_of(self, owner: object, path: Path) -> bool:
        def save() -> bool:
            kept = self._cache_pool.text_of(owner)
            if kept is not None:
                write_caches(path, kept, self._models.identities())
            return kept is not None

        return self._alone(save)

    def _load_caches_of(self, owner: object, path: Path) -> bool:
        def load() -> bool:
            kept = read_caches(path, self._models.identities(), self._cache_pool.make_room)
            if kept is not None:
                self._cache_pool.put(owner, kept)
            return kept is not None

        return self._alone(load)

    @property
    def num_decodes(self) -> int:
        """Decodes of the target so far, which shows whether it still works. From any thread."""
        return self._target.num_decodes

    def memory(self) -> EngineMemory:
        self._require_open()
        pool = self._cache_pool
        return EngineMemory(self._models.memory, pool.num_bytes, pool.budget_bytes)

    def remember(self, text: str | Sequence[int]) -> None:
        tokens = self.tokenize(text) if isinstance(text, str) else self._known_ids(text)
        self._alone(lambda: self._remembering.add(tokens))

    def free_kept(self) -> None:
        self._alone(self._cache_pool.clear)

    def _prepare(
        self, make_tokens: Callable[[CancelCheck], list[int]], *, owner: object
    ) -> None:
        def work(whole: list[int]) -> None:
            tokens, _parts = self._models.readable(whole)
            if tokens:
                lane = self._cache_pool.place_for(owner, whole, self._lanes)
                self._switch(lane, owner, Prompt(whole))
                chain = self._resolver.chain(self.sampling, len(tokens))
                with contextlib.suppress(Interrupted):
                    if lane.common_with(whole) <= len(tokens):  # else more is cached
                        prepare(lane.decoder, tokens, chain, time.perf_counter)
                self._save_profile(lane)

        def begin() -> None:
            # Now that no answer can change what they are.
            whole = make_tokens(lambda: self._target.is_interrupted)
            self._worker.call(lambda: work(whole))

        self._while_idle(begin)

    def _keep_on_disk(self) -> None:
        """Write the caches of conversations that the disk lacks, until an answer begins."""
        pool = self._cache_pool
        self._while_idle(
            lambda: self._worker.call(
                lambda: pool.put_all_aside(lambda: self._target.is_interrupted)
            )
        )

    def _while_idle(self, function: Callable[[], None]) -> None:
        """Call a function while no answer runs, if none does already.

        One that begins ends what it does, as `cancel` does.
        """
        idle = Cancellation()
        slot = self._access.slot(idle.request)
        with slot, contextlib.suppress(BusyError, Interrupted):
            self._take(slot, in_use)
            with idle.obeyed(self.cancel):
                try:
                    function()
                except BaseException:
                    self.cancel()  # Ctrl-C has ended the waiting, and not the work
                    raise

    def cancel(self) -> None:
        for lane in self._lanes:
            lane.interrupt()

    def _close(self) -> None:
        if not self._own_process.is_this():
            # Its copy of the lock may be taken, and no thread is there to give it back.
            self._free()
            return
        self._access.end_here()
        with self._access.slot() as slot:
            self._access.take(slot, in_use, waits=True)
            self._worker.stop()
            with contextlib.suppress(EngineError, MemoryError):  # of one that is closed
                self._begin_lanes()
                self._cache_pool.put_all_aside()
            self._free()

    def _free(self) -> None:
        self._cache_pool.clear()
        self._models.close()

    def _save_profile(self, lane: Lane | None = None) -> None:
        learned = (lane or self._lanes[0]).learned()
        if self._profile is not None and learned is not None:
            self._profile.save(learned)

    def __reduce__(self) -> NoReturn:
        raise EngineError(
            "an engine cannot be sent to another process",
            "Load it there, or use localspec.IsolatedEngine.",
        )

    def _wait(
        self,
        slot: LineSlot,
        refusal: Callable[[], BusyError],
        *,
        waits: bool = False,
        is_cancelled: CancelCheck = never,
    ) -> None:
        """Take a turn. Raises ClosedError, and what `Access.take` raises."""
        self._require_open()
        self._access.take(slot, refusal, waits=waits, is_cancelled=is_cancelled)
        self._require_not_ending()  # it may have been closed meanwhile

    def _take(self, slot: LineSlot, refusal: Callable[[], BusyError]) -> None:
        """Take a turn alone, and make all lanes ready for it. Raises as `_wait`."""
        self._wait(slot, refusal)
        self._worker.call(self._begin_lanes)

    def _begin_lanes(self) -> None:
        for lane in self._lanes:
            lane.begin()

    def _switch(self, lane: Lane, owner: object | None, prompt: Prompt) -> None:
        """Put the owner's text into a lane; nobody's, if the owner's runs in another."""
        others = [other for other in self._lanes if other is not lane]
        if any(not other.is_free and other.owner() is owner for other in others):
            owner = None
        self._cache_pool.switch_to(lane, owner, prompt.tokens, others, prompt.client)

    def _require_open(self) -> None:
        self._require_not_ending()
        # A fork has none of the threads.
        for model in self._models.all:
            model.require_open()


class _Remembering:
    """The memory of the lookups among an engine's proposers, if there are any."""

    def __init__(self, proposers: Sequence[Proposer], *, has_memory: bool) -> None:
        self._lookups = [each for each in proposers if isinstance(each, Lookup)]
        self._memory = TextMemory() if self._lookups and has_memory else None
        self._use(self._memory)

    def _use(self, memory: TextMemory | None) -> None:
        for lookup in self._lookups:
            lookup.memory = memory

    def add(self, tokens: Sequence[int]) -> None:
        """Remember a text. Raises OptionError where there is no memory."""
        if self._memory is None:
            raise OptionError(
                "this engine has no memory",
                "Load it with memory=True, and with the proposer 'auto' or 'lookup'.",
            )
        self._memory.add(tokens)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """In the block nothing is remembered, and nothing that was is proposed."""
        self._use(None)
        try:
            yield
        finally:
            self._use(self._memory)


def _reference_to(engine: BaseEngine, prompt: Prompt, options: AnswerOptions) -> list[int]:
    """The tokens of the prediction, for the lookup to propose from; none without one."""
    if options.prediction is None:
        return []
    if isinstance(options.prediction, str):
        prediction = engine.tokenize(options.prediction)
    else:
        prediction = engine._known_ids(options.prediction)
    # After the end of the prompt, so that the lookup finds its beginning.
    return [*prompt.tokens[-LONGEST_MATCH:], *prediction] if prediction else []
