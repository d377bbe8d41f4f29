"""The engine: it owns the models, answers, cancels and closes."""

from __future__ import annotations

import localspec.llama.loaded  # noqa: F401  libllama before NumPy

# isort: split

import contextlib
import functools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from localspec.chat.prompt_source import MessagesSource
from localspec.chat.turns import longer_context
from localspec.chat.workshop import PromptWorkshop, known_ids
from localspec.constraints.guidance import not_kept
from localspec.engine.answered_texts import AnsweredText, AnsweredTexts
from localspec.engine.base import BaseEngine, Found, closed
from localspec.engine.cache_file import Scope, read_caches, write_caches
from localspec.engine.cache_pool import CachePool
from localspec.engine.constraint_choice import Constrainer
from localspec.engine.inbox_thread import InboxThread
from localspec.engine.lane import Lane, Producing, open_lanes
from localspec.engine.open_models import CacheRoom, EngineMemory, Models
from localspec.engine.prefill import measure_fast, prepare
from localspec.engine.prompt_work import PromptWork, WatchedVision
from localspec.engine.proposer_choice import answer_policy
from localspec.engine.schedule import Schedule
from localspec.engine.worker import Worker
from localspec.errors import ContextError, EngineError, Interrupted, OptionError
from localspec.keywords import explained
from localspec.llama.quirks.spinning import computed_apart
from localspec.presets.presets import Adapter
from localspec.sampling.chain import Resolver
from localspec.sampling.params import SamplingParams
from localspec.speculative.lookup import LONGEST_MATCH, Lookup, TextMemory
from localspec.speculative.loop import Request, SpeculativeDecoder
from localspec.speculative.policy_api import (
    Drafting,
    DraftPolicy,
)
from localspec.speculative.randomness import Randomness, fresh_seed
from localspec.speculative.rules import make_rule
from localspec.streaming.answer_options import AnswerOptions, spec_of
from localspec.streaming.answer_run import AnswerRun
from localspec.streaming.answer_text import Prompt
from localspec.streaming.cancellation import CancelCheck, Cancellation, never
from localspec.streaming.record import (
    MOST_AHEAD,
    AnswerPlan,
    AnswerRecord,
    MadePrompt,
    PromptFacts,
    PromptSource,
    Reading,
    State,
)

if TYPE_CHECKING:
    from localspec.llama.model_vocabulary import LlamaVocabulary
    from localspec.llama.projector import PicturePart
    from localspec.pictures.picture import Vision


@dataclass(frozen=True, slots=True)
class _Work:
    """An answer that is ready to begin."""

    record: AnswerRecord
    facts: PromptFacts
    request: Request

    reference: list[int]
    """The tokens of the prediction, for the lookup to propose from."""

    parts: list[PicturePart]
    """The prompt's pictures. They stay in memory as long as this list has them."""


@dataclass(frozen=True, slots=True)
class _Running:
    """An answer that has a lane, until it is over."""

    run: AnswerRun

    text: AnsweredText | None
    """The answered text that it continues; None where a conversation owns the text."""


class Engine(BaseEngine):
    """A target, what may draft for it, and texts in their caches. Made by `localspec.load`.

    It may be used from any thread. `parallel` answers run at a time; one more raises BusyError,
    or waits with queue=True.

    Args:
        models: Target, draft and head.
        drafting: What may draft, and how much.
        sampling: The default of answers.
        description: The pair, for people.
        room: Bounds for the caches of conversations that wait.
        memory: Whether earlier texts propose.
    """

    @explained('localspec.load("demo") makes an engine.')
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
        adapters = []
        for adapter in models.target.adapters:
            adapters.append(Adapter(str(adapter.path), adapter.scale))
        super().__init__(sampling, models.num_sequences, adapters)
        self.description = description
        self.device = ""  # set by `load`
        self.drafting = drafting
        self._target = target = models.target
        self.context_length = target.context_length
        self.trained_context_length = target.trained_context_length
        self.chat_template = target.chat_template
        self.exactness = target.exactness
        self.tool_template = target.tool_template
        self._models = models
        self._resolver = Resolver(target.vocabulary)
        self._constrainer = Constrainer(target.vocabulary, target.vocab_size)
        self._lanes, self.shared_vocabulary = open_lanes(models, drafting)
        self._decoder = self._lanes[0].decoder  # for work during which no answer may run
        has_lookup = any(isinstance(proposer, Lookup) for proposer in self._decoder.proposers)
        self._memory = TextMemory() if memory and has_lookup else None
        for lane in self._lanes:
            lane.memory = self._memory
        self._cache_pool = CachePool(self._lanes, room)
        chain = self._resolver.chain(sampling, 1)
        computed_apart(functools.partial(measure_fast, self._decoder, chain))
        self._save_profile()
        self._prompt_work = PromptWork()
        vision: Vision | None = None
        if target.vision is not None:
            vision = WatchedVision(target.vision, self._prompt_work)
        self._workshop = PromptWorkshop(
            target.vocabulary,
            target.chat_template,
            target.tool_template,
            vision,
            target.context_length,
            target.trained_context_length,
        )
        self._texts = AnsweredTexts()
        self._running: dict[AnswerRecord, _Running] = {}
        self._prompts = InboxThread("localspec-prompts")
        self._schedule = Schedule(len(self._lanes))
        self._worker = Worker(self._schedule, self._line)
        self._is_closed = False
        weakref.finalize(self, _stop, self._prompts, self._worker).atexit = False
        self._close_at_exit()

    @property
    def parallel(self) -> int:
        return len(self._lanes)

    @property
    def vocabulary(self) -> LlamaVocabulary:
        return self._target.vocabulary

    @property
    def vision(self) -> Vision | None:
        return self._target.vision

    @property
    def _reading_progress(self) -> tuple[int, int]:
        decoders = [lane.decoder for lane in self._lanes if not lane.is_free]
        if not decoders:
            decoders = [self._decoder]
        num_cached = sum(decoder.target.num_cached for decoder in decoders)
        num_tokens = sum(len(decoder.tokens) for decoder in decoders)
        return num_cached, num_tokens

    @property
    def _draft_policy(self) -> DraftPolicy:
        """The policy of how many tokens a step proposes. May be set between two answers."""
        return self._decoder.draft_policy

    @_draft_policy.setter
    def _draft_policy(self, draft_policy: DraftPolicy) -> None:
        is_own = draft_policy is self._lanes[0].own_policy
        for lane in self._lanes:
            lane.decoder.draft_policy = draft_policy
            if is_own:
                lane.decoder.draft_policy = lane.own_policy

    def exclusively(self, function: Callable[[SpeculativeDecoder], Found]) -> Found:
        """The function's result for the bare loop, whose text is empty.

        For checks and measurements: no answer runs meanwhile, and no earlier text proposes. The
        function is called in the thread that computes; Ctrl-C here ends its decode, as `cancel`
        does. Raises BusyError while an answer is produced, and what the function raises.
        """

        ended = Cancellation()

        def work() -> Found:
            self._begin_lanes()
            lane = self._lanes[0]
            self._cache_pool.switch_to(lane, None, (), self._own_scope)
            self._decoder.truncate(0)
            lane.use_no_memory()
            with ended.obeyed(self._interrupt):
                try:
                    return function(self._decoder)
                finally:
                    self._decoder.truncate(0)
                    lane.reset()

        try:
            return self._alone(work)
        except KeyboardInterrupt:
            ended.request()
            raise

    def _plan(self, options: AnswerOptions) -> AnswerPlan:
        self._require_open()
        policy, kinds = answer_policy(options.drafting, self._decoder.proposers)
        return replace(super()._plan(options), policy=policy, kinds=kinds)

    def _start(self, record: AnswerRecord) -> None:
        self._require_open()
        self._worker.note_asked()
        self._join(record)

    def _admitted(self, record: AnswerRecord) -> None:
        self._prompts.put(functools.partial(self._make, record))

    def _make(self, record: AnswerRecord) -> None:
        """Make prompt and grammar, then begin the answer. In the thread of prompts."""
        if record.state is not State.ADMITTED:
            return
        try:
            source = record.source()
            with self._prompt_work.making(record):
                work = self._work(record, source)
        except Interrupted:
            return  # it is being ended
        except Exception as error:
            record.outbox.put(closed() if self._is_ending else error)
        else:
            self._worker.put(functools.partial(self._start_producing, work))

    def _work(self, record: AnswerRecord, source: PromptSource) -> _Work:
        """Make an answer ready to begin: its prompt, pictures and constraint.

        Raises what refuses one of them, ClosedError if the engine was closed meanwhile, and
        Interrupted.
        """
        is_cancelled = functools.partial(self._is_cancelled, record.cancellation)
        made = source.make(self._workshop, is_cancelled)
        self._prompt_work.progress()
        self._require_open()
        prompt = made.prompt
        picture_parts = self._models.show(prompt)
        request = self._request(prompt, record)  # with the constraint
        self._models.require_unwritten()
        not_enforced = not_kept(spec_of(record.options))
        facts = PromptFacts(made, len(prompt.tokens), not_enforced, prompt.has_tool_words)
        reference = self._reference(prompt, record.options)
        return _Work(record, facts, request, reference, picture_parts)

    def _start_producing(self, work: _Work) -> None:
        """Give the answer a lane, and start it. In the worker."""
        record = work.record
        if record.state is not State.ADMITTED:
            return
        try:
            record.start_producing(work.facts)
            self._take_lane(work)
        except Exception as error:
            record.outbox.put(error)

    def _take_lane(self, work: _Work) -> None:
        """Choose a free lane for an answer, and begin to produce the answer there."""
        record = work.record
        made = work.facts.made
        tokens = made.prompt.tokens
        text = None  # the answered text that the prompt continues, if it is looked for
        owner = record.owner
        if record.finds_its_text:
            text = self._texts.text_for(tokens, _scope_of(record), made.num_stable)
            owner = text  # no conversation is known here, so the text stands for it
        lane = self._cache_pool.lane_for(owner, tokens, _scope_of(record))
        run = AnswerRun(record, made.prompt, work.request, lane)
        self._running[record] = _Running(run, text)
        self._schedule.start(lane, record, self._produced(lane, owner, work, run))

    def _produced(
        self,
        lane: Lane,
        owner: object | None,
        work: _Work,
        run: AnswerRun,
    ) -> Producing:
        """Run an answer in its lane.

        Yields its pieces, the progress of its prompt, and the decodes that it needs. The rows
        of each decode are sent to it.
        """
        record = work.record
        num_tokens = work.facts.num_tokens

        def report_reading(num_decoded: int) -> None:
            record.outbox.put(Reading(num_decoded, num_tokens))

        try:
            lane.make_ready()
            tokens = work.facts.made.prompt.tokens
            self._cache_pool.switch_to(lane, owner, tokens, _scope_of(record))
            lane.configure(report_reading, record.plan.policy, work.reference)
            yield Reading(run.start(), num_tokens, is_first=True)
            yield from run.pieces()
        finally:
            lane.reset()
            self._save_profile(lane)
            work.parts.clear()  # frees the pictures

    def _note_piece_read(self, record: AnswerRecord) -> None:
        num_unread = record.num_put_pieces - record.num_read_pieces
        if num_unread == MOST_AHEAD - 1:  # the answer may be paused
            self._look_again()

    def _look_again(self) -> None:
        """Have the worker resume answers whose readers have caught up."""
        self._worker.put(_nothing)

    def _end(self, record: AnswerRecord) -> None:
        if record.state is State.OVER:
            self._give_ending(record)
        else:
            self._worker.put(functools.partial(self._finish, record))

    def _finish(self, record: AnswerRecord) -> None:
        """End an answer after what was read of it. In the worker."""
        if record.state is State.OVER:
            self._give_ending(record)
            return
        if record.state < State.ENDING:
            record.advance(State.ENDING)
        self._schedule.remove(record)
        running = self._running.pop(record, None)
        ending = None
        try:
            if running is not None:
                ending = running.run.ending(record.num_read_tokens, record.num_read_pieces)
            record.conclude(ending)
        finally:
            if running is not None and running.text is not None:
                running.text.end(record.read_pieces)
            self._line.leave(record.place)
            record.advance(State.OVER)
            self._give_ending(record)

    def _may_wait(self) -> bool:
        return not self._worker.is_this_thread

    def _request(self, prompt: Prompt, record: AnswerRecord) -> Request:
        """The loop's request. Raises ContextError, and as `constraint` does."""
        options = record.options
        plan = record.plan
        num_tokens = len(prompt.tokens)
        room = self._room_after(num_tokens)
        cancellation = record.cancellation
        constraint = self._constrainer.constraint(
            options,
            prompt,
            lambda: cancellation.is_requested,
        )
        seed = options.seed
        if seed is None:
            seed = fresh_seed()
        randomness = Randomness(seed, record.turn, prompt.num_said)
        rule = make_rule(plan.rule, randomness)
        num_before = num_tokens - prompt.num_said
        chain = self._resolver.chain(plan.sampling, num_before, constraint, prompt.num_said)
        max_tokens = min(room, options.max_tokens or room)
        return Request(chain, rule, max_tokens, self.vocabulary.is_end, plan.kinds)

    def _room_after(self, num_tokens: int) -> int:
        """How many tokens an answer may have after a prompt of `num_tokens`: at least one.

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
        if options.prediction is None:
            return []
        prediction = self._tokens_of(options.prediction)
        if not prediction:
            return []
        # The prompt's end goes before it, so that the lookup finds the prediction's beginning.
        return [*prompt.tokens[-LONGEST_MATCH:], *prediction]

    def _tokens_of(self, text: str | Sequence[int]) -> list[int]:
        """The ids of a text, or the ids themselves. Raises OptionError for unknown ids."""
        if isinstance(text, str):
            return self.tokenize(text)
        return known_ids(text, self.vocabulary)

    def _alone(self, function: Callable[[], Found]) -> Found:
        """A function's result, called in the worker. Raises BusyError, and ClosedError."""
        self._require_open()
        return self._worker.when_idle(function)

    def _save_caches_of(self, owner: object, path: Path) -> bool:
        def save() -> bool:
            kept = self._cache_pool.text_of(owner)
            if kept is None:
                return False
            write_caches(path, kept, self._models.identities(kept.scope.scales))
            return True

        return self._alone(save)

    def _load_caches_of(self, owner: object, path: Path) -> bool:
        def load() -> bool:
            scope = self._own_scope
            identities = self._models.identities(scope.scales)
            kept = read_caches(path, identities, self._cache_pool.make_room)
            if kept is None:
                return False
            self._cache_pool.put(owner, kept._replace(scope=scope))
            return True

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
        tokens = self._tokens_of(text)
        memory = self._memory
        if memory is None:
            raise OptionError(
                "this engine has no memory",
                "Load it with memory=True, and with the proposer 'auto' or 'lookup'.",
            )
        self._require_open()
        # The worker adds it between two decodes, as it does the texts of answers.
        self._worker.call(lambda: memory.add(tokens))

    def free_kept(self) -> None:
        def free() -> None:
            self._cache_pool.clear()
            self._texts = AnsweredTexts()

        self._alone(free)

    def _make_prompt(self, source: PromptSource) -> MadePrompt:
        self._require_open()
        return self._prompts.call(lambda: self._make_prompt_here(source, never))

    def _prompt_text(self, source: MessagesSource, *, opens_answer: bool) -> str:
        self._require_open()

        def text() -> str:
            with self._prompt_work.making(None):
                return source.text(self._workshop, opens_answer=opens_answer)

        return self._prompts.call(text)

    def _make_prompt_here(self, source: PromptSource, is_cancelled: CancelCheck) -> MadePrompt:
        """The prompt of a source. In the thread of prompts."""
        with self._prompt_work.making(None):
            return source.make(self._workshop, is_cancelled)

    def _prepare(self, source: PromptSource, *, owner: object) -> None:
        before = self._worker.num_asked
        if self._line.num_places:
            return

        def is_cancelled() -> bool:
            return self._worker.num_asked != before

        with contextlib.suppress(Interrupted):
            made = self._prompts.call(lambda: self._make_prompt_here(source, is_cancelled))
            self._read_ahead(made.prompt.tokens, owner, before)

    def _read_ahead(self, whole: list[int], owner: object, num_asked: int) -> None:
        """Read a text in idle time, unless more is asked for than at that time.

        Args:
            whole: The tokens.
            owner: The conversation.
            num_asked: The worker's `num_asked` at that time.
        """

        def work() -> None:
            tokens, _parts = self._models.readable(whole)
            if not tokens:
                return
            scope = self._own_scope
            lane = self._cache_pool.lane_for(owner, whole, scope)
            self._cache_pool.switch_to(lane, owner, whole, scope)
            if lane.common_with(whole, scope) <= len(tokens):  # else more is cached already
                chain = self._resolver.chain(self.sampling, len(tokens))
                prepare(lane.decoder, tokens, chain)
            self._save_profile(lane)

        self._while_idle(work, num_asked)

    def _keep_on_disk(self) -> None:
        """Write the caches that the disk lacks, in idle time, until the next request."""

        def is_cancelled() -> bool:
            return self._target.is_interrupted  # a request interrupts all models

        work = functools.partial(self._cache_pool.save_all, is_cancelled)
        self._while_idle(work, self._worker.num_asked)

    def _while_idle(self, function: Callable[[], None], num_asked: int) -> None:
        """Call a function in the worker while no answer runs.

        Every later request ends its work, as `cancel` does.

        Args:
            function: Does the work.
            num_asked: The worker's `num_asked` from which on a request is a later one.
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
        """End the idle work now, also idle work that has not begun."""
        self._worker.note_asked()
        self._interrupt()

    def cancel(self) -> None:
        self._end_idle_work()
        for record in self._answers_at_work():
            record.cancellation.request()
            self._end(record)

    def _close(self) -> None:
        def free() -> None:
            with contextlib.suppress(EngineError, MemoryError):  # an application closed a model
                self._begin_lanes()
                self._cache_pool.save_all()
            self._free()

        if not self._own_process.is_this():
            self._free()  # a fork has no worker that could do it
        elif not self._is_closed:
            self._worker.call(free)
            self._is_closed = True
            _stop(self._prompts, self._worker)

    def _free(self) -> None:
        self._cache_pool.clear()
        self._models.close()

    def _save_profile(self, lane: Lane | None = None) -> None:
        if lane is None:
            lane = self._lanes[0]
        learned = lane.learned()
        if lane.profile is not None and learned is not None:
            lane.profile.save(learned)

    def __reduce__(self) -> NoReturn:
        raise EngineError(
            "an engine cannot be sent to another process",
            "Load it there, or use localspec.IsolatedEngine.",
        )

    @property
    def _own_scope(self) -> Scope:
        """The scope of texts under the default scales of the adapters."""
        return Scope(scales=self.adapter_scales)

    def _begin_lanes(self) -> None:
        for lane in self._lanes:
            lane.make_ready()

    def _require_open(self) -> None:
        self._require_not_ending()
        # A fork has none of the threads.
        for model in self._models.all:
            model.require_open()


def _scope_of(record: AnswerRecord) -> Scope:
    """The scope of an answer's text."""
    return Scope(record.client, record.plan.scales)


def _stop(prompts: InboxThread, worker: Worker) -> None:
    """End both threads, without waiting for a prompt in the making, which may take long."""
    prompts.end()
    worker.stop()


def _nothing() -> None:
    """Do nothing."""
