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
from localspec.engine.base import BaseEngine, Result, closed, with_scales
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
from localspec.streaming.answer_options import AnswerOptions, scales_of, spec_of
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
class _PreparedAnswer:
    """An answer whose prompt and constraint are made. It only lacks a lane."""

    record: AnswerRecord
    facts: PromptFacts
    request: Request

    reference: list[int]
    """The tokens of the prediction, for the lookup to propose from; none without one."""

    picture_parts: list[PicturePart]
    """The prompt's pictures. They stay in memory as long as this list has them."""


@dataclass(frozen=True, slots=True)
class _Running:
    """An answer that has a lane, until it is over."""

    run: AnswerRun

    text: AnsweredText | None
    """The text that the answer belongs to; None where a conversation owns the text."""


class Engine(BaseEngine):
    """A target, what may draft for it, and texts in their caches. Made by `localspec.load`.

    It may be used from any thread. `parallel` answers run at a time; one more raises BusyError,
    or waits with queue=True.

    Args:
        models: Target, draft and head.
        drafting: What may draft, and how much.
        sampling: The settings of answers that give none.
        description: The pair, for people.
        room: Limits for the caches of conversations that wait.
        memory: Whether tokens of earlier texts are proposed.
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
        self._memory: TextMemory | None = None
        if memory and has_lookup:
            self._memory = TextMemory()
        for lane in self._lanes:
            lane.memory = self._memory
        self._cache_pool = CachePool(self._lanes, room)
        chain = self._resolver.chain(sampling, 1)  # for a text of one token, which is measured
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
        self._answered_texts = AnsweredTexts()
        self._running: dict[AnswerRecord, _Running] = {}
        self._prompt_thread = InboxThread("localspec-prompts")
        self._schedule = Schedule(len(self._lanes))
        self._worker = Worker(self._schedule, self._line)
        self._is_closed = False
        # Not at the interpreter's exit: there `close` ends them.
        weakref.finalize(self, _end_threads, self._prompt_thread, self._worker).atexit = False
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
        """Says how many tokens a step proposes, in the first lane. May be set between answers.

        Setting it sets all lanes. If it is set to the default policy of the first lane, every
        lane gets its own default policy.
        """
        return self._decoder.draft_policy

    @_draft_policy.setter
    def _draft_policy(self, draft_policy: DraftPolicy) -> None:
        is_default = draft_policy is self._lanes[0].default_policy
        for lane in self._lanes:
            if is_default:
                lane.decoder.draft_policy = lane.default_policy
            else:
                lane.decoder.draft_policy = draft_policy

    def exclusively(
        self,
        function: Callable[[SpeculativeDecoder], Result],
        *,
        scales: Sequence[float] | None = None,
    ) -> Result:
        """Call a function with the bare loop, whose text is empty. Returns its result.

        For checks and measurements: no answer runs meanwhile, and nothing is proposed from
        earlier texts. The function is called in the worker's thread. Ctrl-C in the caller's
        thread interrupts it, as `cancel` does.

        Args:
            function: The function.
            scales: The scales of the target's adapters meanwhile; None for the default ones.

        Raises:
            BusyError: While an answer is produced.
            OptionError: For scales of adapters that do not exist.
            Exception: What the function raises.
        """

        cancellation = Cancellation()

        def work() -> Result:
            self._make_lanes_ready()
            lane = self._lanes[0]
            scope = self._default_scope
            if scales is not None:
                scaled = with_scales(self._adapters, scales_of(scales))
                scope = Scope(scales=tuple(adapter.scale for adapter in scaled))
            self._cache_pool.switch_to(lane, None, (), scope)
            self._decoder.truncate(0)
            lane.use_no_memory()
            with cancellation.obeyed(self._interrupt):
                try:
                    return function(self._decoder)
                finally:
                    self._decoder.truncate(0)
                    lane.reset()

        try:
            return self._call_when_idle(work)
        except KeyboardInterrupt:
            cancellation.request()
            raise

    def _make_plan(self, options: AnswerOptions) -> AnswerPlan:
        self._require_open()
        policy, kinds = answer_policy(options.drafting, self._decoder.proposers)
        return replace(super()._make_plan(options), policy=policy, kinds=kinds)

    def _start(self, record: AnswerRecord) -> None:
        self._require_open()
        self._worker.note_request()
        self._join_line(record)

    def _produce_admitted(self, record: AnswerRecord) -> None:
        self._prompt_thread.put(functools.partial(self._prepare_answer, record))

    def _prepare_answer(self, record: AnswerRecord) -> None:
        """Make an answer's prompt and constraint; the worker then starts the answer.

        Called in the thread of prompts. An error is put into the record's outbox.
        """
        if record.state is not State.ADMITTED:
            return
        try:
            source = record.source()
            with self._prompt_work.making(record):
                prepared = self._make_prepared_answer(record, source)
        except Interrupted:
            return  # the answer was cancelled
        except Exception as error:
            if self._is_ending:
                record.outbox.put(closed())
            else:
                record.outbox.put(error)
        else:
            self._worker.put(functools.partial(self._start_producing, prepared))

    def _make_prepared_answer(
        self, record: AnswerRecord, source: PromptSource
    ) -> _PreparedAnswer:
        """Make an answer's prompt, pictures and constraint.

        Raises the error of whatever cannot be made, ModelFileError if a model's file was
        written to, ClosedError once the engine is closing, and Interrupted if the answer was
        cancelled.
        """
        is_cancelled = functools.partial(self._is_cancelled, record.cancellation)
        made = source.make(self._workshop, is_cancelled)
        self._prompt_work.progress()
        self._require_open()
        prompt = made.prompt
        picture_parts = self._models.show(prompt)
        request = self._loop_request(prompt, record)  # with the constraint
        self._models.require_unwritten()
        not_enforced = not_kept(spec_of(record.options))
        facts = PromptFacts(made, len(prompt.tokens), not_enforced, prompt.has_tool_words)
        reference = self._reference_tokens(prompt, record.options)
        return _PreparedAnswer(record, facts, request, reference, picture_parts)

    def _start_producing(self, prepared: _PreparedAnswer) -> None:
        """Give an answer a lane, and start it, unless it was ended. Called in the worker.

        An error is put into the record's outbox.
        """
        record = prepared.record
        if record.state is not State.ADMITTED:
            return
        try:
            record.start_producing(prepared.facts)
            self._take_lane(prepared)
        except Exception as error:
            record.outbox.put(error)

    def _take_lane(self, prepared: _PreparedAnswer) -> None:
        """Choose a free lane for an answer, and begin to produce the answer there."""
        record = prepared.record
        made = prepared.facts.made
        tokens = made.prompt.tokens
        scope = _scope_of(record)
        text = None
        owner = record.owner
        if record.finds_its_text:
            text = self._answered_texts.text_for(tokens, scope, made.num_stable)
            owner = text  # in place of the conversation, which is not known here
        lane = self._cache_pool.lane_for(owner, tokens, scope)
        run = AnswerRun(record, made.prompt, prepared.request, lane)
        self._running[record] = _Running(run, text)
        self._schedule.start(lane, record, self._produce(lane, owner, prepared, run))

    def _produce(
        self,
        lane: Lane,
        owner: object | None,
        prepared: _PreparedAnswer,
        run: AnswerRun,
    ) -> Producing:
        """Run an answer in its lane: a generator, as `Producing` describes it.

        Args:
            lane: The lane.
            owner: The owner of the lane's text from now on; None if nobody owns it.
            prepared: The answer's prompt and request.
            run: Runs the answer.
        """
        record = prepared.record
        num_tokens = prepared.facts.num_tokens

        def report_reading(num_in_cache: int) -> None:
            record.outbox.put(Reading(num_in_cache, num_tokens))

        try:
            lane.make_ready()
            tokens = prepared.facts.made.prompt.tokens
            self._cache_pool.switch_to(lane, owner, tokens, _scope_of(record))
            lane.configure(report_reading, record.plan.policy, prepared.reference)
            num_cached = run.start()
            yield Reading(num_cached, num_tokens, is_first=True)
            yield from run.pieces()
        finally:
            lane.reset()
            self._save_profile(lane)
            prepared.picture_parts.clear()  # frees the pictures

    def _note_piece_read(self, record: AnswerRecord) -> None:
        num_unread = record.num_put_pieces - record.num_read_pieces
        if num_unread == MOST_AHEAD - 1:  # with one piece more, the answer was paused
            self._resume_paused()

    def _resume_paused(self) -> None:
        """Wake the worker: it then resumes answers whose readers have caught up."""
        self._worker.put(_do_nothing)

    def _end(self, record: AnswerRecord) -> None:
        if record.state is State.OVER:
            self._give_ending(record)
        else:
            self._worker.put(functools.partial(self._finish, record))

    def _finish(self, record: AnswerRecord) -> None:
        """End an answer after the pieces that were read. Called in the worker.

        The lane and the place in line become free, and the reader gets the ending.
        """
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

    def _loop_request(self, prompt: Prompt, record: AnswerRecord) -> Request:
        """The request to the loop for an answer to a prompt: its samplers, rule and limits.

        Raises ContextError, OptionError, and what `Constrainer.constraint` raises.
        """
        options = record.options
        plan = record.plan
        num_tokens = len(prompt.tokens)
        most_tokens = self._most_answer_tokens(num_tokens)
        cancellation = record.cancellation
        constraint = self._constrainer.constraint(
            options,
            prompt,
            lambda: cancellation.is_requested,
        )
        seed = options.seed
        if seed is None:
            seed = fresh_seed()
        randomness = Randomness(seed, record.turn_number, prompt.num_said)
        rule = make_rule(plan.rule, randomness)
        num_before = num_tokens - prompt.num_said  # without the beginning of the answer
        chain = self._resolver.chain(plan.sampling, num_before, constraint, prompt.num_said)
        if options.max_tokens is not None:
            most_tokens = min(most_tokens, options.max_tokens)
        return Request(chain, rule, most_tokens, self.vocabulary.is_end, plan.kinds)

    def _most_answer_tokens(self, num_tokens: int) -> int:
        """The most tokens that an answer may have after a prompt of `num_tokens`: 1 or more.

        Raises:
            OptionError: If the prompt has no token.
            ContextError: If the prompt leaves no room in the context.
        """
        most_tokens = self.context_length - num_tokens
        if num_tokens == 0:
            raise OptionError("the prompt is empty", "Give at least one token.")
        if most_tokens < 1:
            raise ContextError(
                f"the prompt has {num_tokens} tokens; the context holds {self.context_length}",
                longer_context("Shorten it", self),
                num_tokens=num_tokens,
                context_length=self.context_length,
            )
        return most_tokens

    def _reference_tokens(self, prompt: Prompt, options: AnswerOptions) -> list[int]:
        """The tokens from which the lookup proposes; none if the options have no prediction."""
        if options.prediction is None:
            return []
        prediction = self._tokens_of(options.prediction)
        if not prediction:
            return []
        # The lookup proposes what follows a match: the prompt's end matches at the beginning of
        # the answer, and the prediction follows it.
        return [*prompt.tokens[-LONGEST_MATCH:], *prediction]

    def _tokens_of(self, text: str | Sequence[int]) -> list[int]:
        """The ids of a text, or the ids themselves. Raises OptionError for unknown ids."""
        if isinstance(text, str):
            return self.tokenize(text)
        return known_ids(text, self.vocabulary)

    def _call_when_idle(self, function: Callable[[], Result]) -> Result:
        """Call a function in the worker while no answer runs. Returns its result.

        Raises BusyError if an answer runs or waits, and ClosedError.
        """
        self._require_open()
        return self._worker.when_idle(function)

    def _save_caches_of(self, owner: object, path: Path) -> bool:
        def save() -> bool:
            text = self._cache_pool.text_of(owner)
            if text is None:
                return False
            write_caches(path, text, self._models.identities(text.scope.scales))
            return True

        return self._call_when_idle(save)

    def _load_caches_of(self, owner: object, path: Path) -> bool:
        def load() -> bool:
            scope = self._default_scope
            identities = self._models.identities(scope.scales)
            make_room = functools.partial(self._cache_pool.make_room, owner=owner)
            text = read_caches(path, identities, make_room)
            if text is None:
                return False
            self._cache_pool.put(owner, text._replace(scope=scope))
            return True

        return self._call_when_idle(load)

    @property
    def num_decodes(self) -> int:
        """How many decodes the target has made so far. From any thread."""
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
        # In the worker, between two decodes: the loop uses the memory there.
        self._worker.call(lambda: memory.add(tokens))

    def free_kept(self) -> None:
        def free() -> None:
            self._cache_pool.clear()
            self._answered_texts = AnsweredTexts()

        self._call_when_idle(free)

    def _make_prompt(self, source: PromptSource) -> MadePrompt:
        self._require_open()
        return self._prompt_thread.call(lambda: self._make_prompt_in_thread(source, never))

    def _prompt_text(self, source: MessagesSource, *, opens_answer: bool) -> str:
        self._require_open()

        def text() -> str:
            with self._prompt_work.making(None):
                return source.text(self._workshop, opens_answer=opens_answer)

        return self._prompt_thread.call(text)

    def _make_prompt_in_thread(
        self,
        source: PromptSource,
        is_cancelled: CancelCheck,
    ) -> MadePrompt:
        """Make the prompt of a source. Called in the thread of prompts."""
        with self._prompt_work.making(None):
            return source.make(self._workshop, is_cancelled)

    def _prepare_next_prompt(self, source: PromptSource, *, owner: object) -> None:
        num_requests = self._worker.num_requests
        if self._line.num_places:
            return

        def is_cancelled() -> bool:
            return self._worker.num_requests != num_requests

        with contextlib.suppress(Interrupted):
            made = self._prompt_thread.call(
                lambda: self._make_prompt_in_thread(source, is_cancelled)
            )
            self._prefill_when_idle(made.prompt.tokens, owner, num_requests)

    def _prefill_when_idle(self, tokens: list[int], owner: object, num_requests: int) -> None:
        """Decode a conversation's text in idle time, as far as its pictures are loaded.

        Args:
            tokens: The text.
            owner: The conversation.
            num_requests: See `_while_idle`.
        """

        def work() -> None:
            readable, _parts = self._models.readable(tokens)  # `_parts` keeps pictures loaded
            if not readable:
                return
            scope = self._default_scope
            lane = self._cache_pool.lane_for(owner, tokens, scope)
            self._cache_pool.switch_to(lane, owner, tokens, scope)
            if lane.common_with(tokens, scope) <= len(readable):  # else more is cached already
                chain = self._resolver.chain(self.sampling, len(readable))
                prepare(lane.decoder, readable, chain)
            self._save_profile(lane)

        self._while_idle(work, num_requests)

    def _keep_on_disk(self) -> None:
        """Write the caches that the disk lacks, in idle time, until the next request."""

        def is_cancelled() -> bool:
            return self._target.is_interrupted  # a request interrupts all models

        work = functools.partial(self._cache_pool.save_all, is_cancelled)
        self._while_idle(work, self._worker.num_requests)

    def _while_idle(self, function: Callable[[], None], num_requests: int) -> None:
        """Call a function in the worker while no answer runs.

        If there is a new request, the function is interrupted, or not called at all.

        Args:
            function: Does the work.
            num_requests: The worker's `num_requests` so far: a request after these is new.
        """

        def may_begin() -> bool:
            self._require_open()
            self._make_lanes_ready()
            return self._worker.num_requests == num_requests

        self._require_open()
        with contextlib.suppress(Interrupted):
            self._worker.use_idle_time(function, self._interrupt, may_begin)

    def _interrupt(self) -> None:
        """Interrupt the decodes of all lanes. From any thread."""
        for lane in self._lanes:
            lane.interrupt()

    def _end_idle_work(self) -> None:
        """End idle work now; idle work that was asked for does not begin."""
        self._worker.note_request()
        self._interrupt()

    def cancel(self) -> None:
        self._end_idle_work()
        for record in self._answers_at_work():
            record.cancellation.request()
            self._end(record)

    def _close(self) -> None:
        def save_and_free() -> None:
            # An application may have closed a model, and copies may not fit into the memory.
            with contextlib.suppress(EngineError, MemoryError):
                self._make_lanes_ready()
                self._cache_pool.save_all()
            self._free()

        if not self._own_process.is_this():
            self._free()  # a fork has no worker that could do it
        elif not self._is_closed:
            self._worker.call(save_and_free)
            self._is_closed = True
            _end_threads(self._prompt_thread, self._worker)

    def _free(self) -> None:
        self._cache_pool.clear()
        self._models.close()

    def _save_profile(self, lane: Lane | None = None) -> None:
        """Save what a lane's policies have learned, if anything. lane: None for the first."""
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
    def _default_scope(self) -> Scope:
        """The scope of texts under the default scales of the adapters."""
        return Scope(scales=self.adapter_scales)

    def _make_lanes_ready(self) -> None:
        """Prepare models and loops of all lanes for work."""
        for lane in self._lanes:
            lane.make_ready()

    def _require_open(self) -> None:
        """Raise ClosedError if the engine or a model is closed, and ForkedError in a fork."""
        self._require_not_ending()
        # In a fork, which has none of the threads, these raise ForkedError.
        for model in self._models.all:
            model.require_open()


def _scope_of(record: AnswerRecord) -> Scope:
    """The scope of an answer's text."""
    return Scope(record.client, record.plan.scales)


def _end_threads(prompts: InboxThread, worker: Worker) -> None:
    """End both threads. Waits for the worker, but not for a prompt, which may take long."""
    prompts.end()
    worker.stop()


def _do_nothing() -> None:
    """Do nothing."""
