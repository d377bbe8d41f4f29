"""Owns the models: answers, cancels, closes."""

from __future__ import annotations

import localspec.llama.loaded  # noqa: F401  libllama before NumPy

# isort: split

import contextlib
import functools
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from localspec.chat.turns import longer_context
from localspec.constraints.guidance import not_kept
from localspec.engine.base import BaseEngine, Found
from localspec.engine.cache_file import read_caches, write_caches
from localspec.engine.cache_pool import CachePool
from localspec.engine.constraint_choice import Constrainer
from localspec.engine.lane import Lane, open_lanes
from localspec.engine.models import CacheRoom, EngineMemory, Models
from localspec.engine.prefill import measure_fast, prepare
from localspec.engine.proposer_choice import answer_policy
from localspec.engine.worker import LaneWork, Producing, Worker
from localspec.errors import ContextError, EngineError, Interrupted, OptionError
from localspec.llama.quirks.spinning import computed_apart
from localspec.sampling.chain import Resolver
from localspec.sampling.params import SamplingParams
from localspec.speculative.lookup import LONGEST_MATCH, Lookup, TextMemory
from localspec.speculative.loop import Request, SpeculativeDecoder
from localspec.speculative.policy_api import (
    Drafting,
    DraftPolicy,
    ProposerKind,
)
from localspec.speculative.randomness import Randomness, fresh_seed
from localspec.speculative.rules import make_rule
from localspec.streaming.answer_run import AnswerRun
from localspec.streaming.answer_text import Prompt
from localspec.streaming.cancellation import CancelCheck, Cancellation
from localspec.streaming.exchange import MOST_AHEAD, Exchange
from localspec.streaming.options import AnswerOptions, spec_of

if TYPE_CHECKING:
    from localspec.llama.vocabulary import LlamaVocabulary
    from localspec.pictures.picture import Vision


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
        self.tool_template = target.tool_template
        self._models = models
        self._resolver = Resolver(target.vocabulary)
        self._constrainer = Constrainer(target.vocabulary, target.vocab_size)
        self._lanes, self.shared_vocabulary, self._profile = open_lanes(models, drafting)
        self._decoder = self._lanes[0].decoder  # of work that no answer may run beside
        has_lookup = any(isinstance(each, Lookup) for each in self._decoder.proposers)
        self._memory = TextMemory() if memory and has_lookup else None
        for lane in self._lanes:
            lane.memory = self._memory
        self._cache_pool = CachePool(self._lanes, room)
        computed_apart(lambda: measure_fast(self._decoder, self._resolver.chain(sampling, 1)))
        self._save_profile()
        self._worker = Worker(len(self._lanes))
        self._is_closed = False
        weakref.finalize(self, self._worker.stop).atexit = False  # it is closed before
        self._close_at_exit()

    @property
    def parallel(self) -> int:
        return self._worker.num_lanes

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

    def exclusively(self, function: Callable[[SpeculativeDecoder], Found]) -> Found:
        """A function's result for the loop below the answers, its text empty.

        For checks and measurements: without the memory, and while no answer may run. It is
        called in the thread that computes; Ctrl-C here ends its decode, as `cancel` does.
        Raises BusyError while an answer is produced, and what the function raises.
        """

        ended = Cancellation()

        def work() -> Found:
            self._begin_lanes()
            lane = self._lanes[0]
            self._cache_pool.switch_to(lane, None, ())
            self._decoder.truncate(0)
            lane.use_no_memory()
            with ended.obeyed(self._interrupt):
                try:
                    return function(self._decoder)
                finally:
                    self._decoder.truncate(0)
                    lane.use_usual()

        try:
            return self._alone(work)
        except KeyboardInterrupt:
            ended.request()
            raise

    def _check_options(self, options: AnswerOptions) -> None:
        self._require_open()
        answer_policy(options.drafting, self._decoder.proposers)

    def _start(self, exchange: Exchange) -> None:
        self._require_open()

        def go_on() -> None:
            is_cancelled = functools.partial(self._is_cancelled, exchange.cancellation)
            try:
                self._produce(exchange, exchange.prompt(is_cancelled))
            except Interrupted:
                pass  # it is being ended
            except Exception:
                self._require_not_ending()  # else that is why
                raise

        self._worker.ask(exchange, go_on)

    def _read_on(self, exchange: Exchange) -> None:
        if exchange.num_told - exchange.num_taken == MOST_AHEAD - 1:  # it may be paused
            self._worker.wake()

    def _end(self, exchange: Exchange) -> None:
        if exchange.is_over:
            exchange.outbox.put([])  # Ctrl-C may have lost it
        else:
            self._worker.end(exchange)

    def _may_wait(self) -> bool:
        return not self._worker.is_this_thread

    def _produce(self, exchange: Exchange, prompt: Prompt) -> None:
        """Have an answer produced that is admitted. Raises what refuses its prompt."""
        self._require_open()
        parts = self._models.show(prompt)  # at hand until the answer ends
        policy, kinds = answer_policy(exchange.options.drafting, self._decoder.proposers)
        request = self._request(prompt, exchange, kinds)
        reference = self._reference(prompt, exchange.options)
        num_tokens, put = len(prompt.tokens), exchange.outbox.put
        self._models.require_unwritten()

        def produced(lane: Lane) -> Producing:
            try:
                lane.begin()
                self._cache_pool.switch_to(lane, exchange.owner, prompt.tokens, prompt.client)
                lane.use(
                    lambda done: put(lambda: exchange.on_prompt(done, num_tokens)),
                    policy,
                    reference,
                )
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
                    waited=lambda: lane.work.waited_s,
                )
                num_cached = run.start()
                put(lambda: exchange.on_cached(num_cached, num_tokens))
                yield from run.pieces()
            finally:
                lane.use_usual()
                self._save_profile(lane)
                parts.clear()

        def begin() -> LaneWork:
            lane = self._cache_pool.lane_for(exchange.owner, prompt.tokens, prompt.client)
            lane.work.exchange, lane.work.producing = exchange, produced(lane)
            return lane.work

        self._worker.start(exchange, begin)

    def _request(
        self,
        prompt: Prompt,
        exchange: Exchange,
        kinds: frozenset[ProposerKind] | None,
    ) -> Request:
        """The loop's request. Raises ContextError, and as `constraint` does."""
        options, sampling = exchange.options, exchange.sampling
        num_tokens = len(prompt.tokens)
        room = self.room_behind(num_tokens)
        cancellation = exchange.cancellation
        constraint = self._constrainer.constraint(
            options, prompt, lambda: cancellation.is_requested
        )
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

    def room_behind(self, num_tokens: int) -> int:
        """How many tokens the answer to a prompt of so many may have, at least one.

        Raises:
            OptionError: For a prompt without a token.
            ContextError: For one that leaves no room.
        """
        room = self.context_length - num_tokens
        if num_tokens == 0:
            raise OptionError("the prompt is empty", "Give at least one token.")
        if room < 1:
            raise ContextError(
                f"the prompt has {num_tokens} tokens; the context holds {self.context_length}",
                longer_context("Shorten it", self),
                num_tokens=num_tokens,
                context_length=self.context_length,
            )
        return room

    def _reference(self, prompt: Prompt, options: AnswerOptions) -> list[int]:
        """The tokens of the prediction, for the lookup to propose from; none without one."""
        given = options.prediction
        if given is None:
            return []
        prediction = self.tokenize(given) if isinstance(given, str) else self._known_ids(given)
        # After the end of the prompt, so that the lookup finds its beginning.
        return [*prompt.tokens[-LONGEST_MATCH:], *prediction] if prediction else []

    def _alone(self, function: Callable[[], Found]) -> Found:
        """A function's result, called in the worker. Raises BusyError, and ClosedError."""
        self._require_open()
        return self._worker.alone(function)

    def _save_caches_of(self, owner: object, path: Path) -> bool:
        def save() -> bool:
            if (kept := self._cache_pool.text_of(owner)) is not None:
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
        return self._target.handle.num_decodes

    def memory(self) -> EngineMemory:
        self._require_open()
        pool = self._cache_pool
        return EngineMemory(self._models.memory, pool.num_bytes, pool.budget_bytes)

    def remember(self, text: str | Sequence[int]) -> None:
        tokens = self.tokenize(text) if isinstance(text, str) else self._known_ids(text)
        memory = self._memory
        if memory is None:
            raise OptionError(
                "this engine has no memory",
                "Load it with memory=True, and with the proposer 'auto' or 'lookup'.",
            )
        self._require_open()
        # Between two decodes, as the texts of other answers are added.
        self._worker.call(lambda: memory.add(tokens))

    def free_kept(self) -> None:
        self._alone(self._cache_pool.clear)

    def _prepare(
        self, make_tokens: Callable[[CancelCheck], list[int]], *, owner: object
    ) -> None:
        before = self._worker.num_asked
        if not self._worker.is_busy:
            with contextlib.suppress(Interrupted):
                whole = make_tokens(lambda: self._worker.num_asked != before)
                self._read_ahead(whole, owner, before)

    def _read_ahead(self, whole: list[int], owner: object, num_asked: int) -> None:
        """Read a text in idle time, unless more is asked for than was then."""

        def work() -> None:
            tokens, _parts = self._models.readable(whole)
            if tokens:
                lane = self._cache_pool.lane_for(owner, whole)
                self._cache_pool.switch_to(lane, owner, whole)
                chain = self._resolver.chain(self.sampling, len(tokens))
                if lane.common_with(whole) <= len(tokens):  # else more is cached
                    prepare(lane.decoder, tokens, chain)
                self._save_profile(lane)

        self._while_idle(work, num_asked)

    def _keep_on_disk(self) -> None:
        """Write the caches of conversations that the disk lacks, until an answer begins."""
        self._while_idle(
            lambda: self._cache_pool.put_all_aside(lambda: self._target.is_interrupted),
            self._worker.num_asked,
        )

    def _while_idle(self, function: Callable[[], None], num_asked: int) -> None:
        """Call a function in the worker while no answer runs, if none does already.

        Whatever is asked, once so much was, ends what it does, as `cancel` does.
        """

        def begins() -> bool:
            self._require_open()
            self._begin_lanes()
            return self._worker.num_asked == num_asked

        self._require_open()
        with contextlib.suppress(Interrupted):
            self._worker.use_idle_time(function, self._interrupt, begins)

    def _interrupt(self) -> None:
        for lane in self._lanes:
            lane.interrupt()

    def _end_idle_work(self) -> None:
        """End it now, and what has been asked for and not begun."""
        self._worker.num_asked += 1
        self._interrupt()

    def cancel(self) -> None:
        self._end_idle_work()
        for exchange in tuple(self._worker.admitted):
            exchange.cancellation.request()
            self._end(exchange)

    def _close(self) -> None:
        def free() -> None:
            with contextlib.suppress(EngineError, MemoryError):  # of one that is closed
                self._begin_lanes()
                self._cache_pool.put_all_aside()
            self._free()

        if not self._own_process.is_this():
            self._free()  # no thread is there to do it
        elif not self._is_closed:
            self._worker.call(free)
            self._is_closed = True
            self._worker.stop()

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

    def _begin_lanes(self) -> None:
        for lane in self._lanes:
            lane.begin()

    def _require_open(self) -> None:
        self._require_not_ending()
        # A fork has none of the threads.
        for model in self._models.all:
            model.require_open()
