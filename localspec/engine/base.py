"""The interface of an engine, wherever its models are."""

from __future__ import annotations

import abc
import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from localspec.chat.call_forms import takes_tools
from localspec.chat.chat import Chat
from localspec.chat.prompt_source import MessagesSource, RawSource
from localspec.chat.template import ChatTemplate, Message, template_source
from localspec.chat.turns import question_message, system_messages, with_system
from localspec.chat.workshop import token_ids
from localspec.errors import BusyError, ClosedError, EngineError, OptionError
from localspec.keywords import ForeignNames, explained, known_keywords, note_keywords
from localspec.sampling.params import SamplingParams
from localspec.speculative.rules import rule_name
from localspec.streaming.answer import Answer, Producer
from localspec.streaming.answer_options import (
    AnswerKeywords,
    AnswerOptions,
    scales_of,
    spec_of,
)
from localspec.streaming.cancellation import Cancellation
from localspec.streaming.line import Line, Place
from localspec.streaming.record import AnswerPlan, AnswerRecord, MadePrompt, PromptSource, State
from localspec.system.fork_guard import OwnProcess
from localspec.vocabulary import Vocabulary

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack  # in typing from Python 3.11 on

    from localspec.engine.open_models import EngineMemory
    from localspec.exactness import Exactness
    from localspec.pictures.picture import Vision
    from localspec.presets.presets import Adapter
    from localspec.speculative.policy_api import Drafting
    from localspec.speculative.shared_vocabulary import SharedVocabulary

Found = TypeVar("Found")

# What to write instead of methods that others have.
_INSTEAD = {
    **dict.fromkeys(
        ("ask", "complete", "create_completion", "invoke", "prompt", "stream"),
        'engine.generate("Hi")',
    ),
    "create_chat_completion": "engine.generate(messages)",
    **dict.fromkeys(
        ("create_embedding", "embed", "encode"),
        'localspec.load_embedder("model.gguf")',
    ),
}
_WAIT = "Finish or close that answer first, or wait in line for it: queue=True."


class BaseEngine(Producer, ForeignNames, abc.ABC):
    """Answers and conversations: the base of `Engine` and `IsolatedEngine`.

    Options of an answer are an `AnswerOptions`, or its fields by keyword: sampling, seed, rule,
    max_tokens, stop, logprobs …; and the fields of `SamplingParams` as keywords of their own:
    temperature, top_k …

    Leaving its `with` block closes it; so does the interpreter's end. Methods that begin with
    an underscore are for other packages of localspec.
    """

    _instead = _INSTEAD

    description: str
    """The pair, for people."""
    device: str
    """Where the target computes, and what was measured of other devices, for people."""
    context_length: int
    """Tokens that a prompt and its answer may have together."""
    trained_context_length: int
    """The longest context, in tokens, that the target was trained for."""
    chat_template: str | None
    """The Jinja source in the target's file, if it has one."""
    tool_template: str | None
    """The file's second template, tool_use, for questions with tools; None without one."""
    drafting: Drafting
    """What drafts and how much, as `load` was asked."""
    shared_vocabulary: SharedVocabulary | None
    """The tokens that target and draft share; None without a draft."""
    exactness: Exactness
    """Sizes of the target's decodes that equal single decodes to the bit."""

    def __init__(
        self,
        sampling: SamplingParams,
        parallel: int,
        adapters: Sequence[Adapter],
    ) -> None:
        self._sampling = sampling
        self._adapters = tuple(adapters)
        self._line = Line(lambda _: parallel)
        self._own_process = OwnProcess()
        self._records: weakref.WeakSet[AnswerRecord] = weakref.WeakSet()  # of its answers
        # Held while the records are changed or listed. A signal handler may need it again in
        # the thread that holds it.
        self._listing = threading.RLock()
        self._is_ending = False

    def _close_at_exit(self) -> None:
        """Close the engine at the interpreter's end. Called last, once the engine is whole."""
        weakref.finalize(self, _end_at_exit, weakref.ref(self))

    def __repr__(self) -> str:
        what = f"{self.description!r}, context of {self.context_length} tokens"
        return f"<{type(self).__name__} {what}>"

    @property
    @abc.abstractmethod
    def parallel(self) -> int:
        """Answers that it produces at once, each read in a thread or task of its own."""

    @property
    @abc.abstractmethod
    def vocabulary(self) -> Vocabulary:
        """The target's tokens."""

    @property
    def vision(self) -> Vision | None:
        """The projector, which reads pictures; None if loaded without mmproj."""
        return None

    @property
    def takes_tools(self) -> bool:
        """Whether the model's own chat template has tools, and calls of them are understood."""
        return takes_tools(self.chat_template) or takes_tools(self.tool_template)

    @functools.cached_property
    def has_think_switch(self) -> bool:
        """Whether the model's own chat template can be asked for no thoughts: think=False.

        Raises TemplateError if the template is missing or broken.
        """
        source = template_source(None, self.chat_template)
        return ChatTemplate(source, bos="", eos="").has_think_switch

    @property
    def sampling(self) -> SamplingParams:
        """The default of answers; at first the preset's. May be set."""
        return self._sampling

    @sampling.setter
    def sampling(self, sampling: SamplingParams) -> None:
        if not isinstance(sampling, SamplingParams):
            raise OptionError(f"sampling is {sampling!r}", "Give a SamplingParams.")
        self._sampling = sampling

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """The target's LoRA adapters, with the scales that answers have by default."""
        return self._adapters

    @property
    def adapter_scales(self) -> tuple[float, ...]:
        """The scale of each adapter in answers that say nothing of it. May be set.

        Answers under other scales share neither a decode nor a cached text.
        """
        return tuple(adapter.scale for adapter in self._adapters)

    @adapter_scales.setter
    def adapter_scales(self, scales: Sequence[float]) -> None:
        self._set_adapters(with_scales(self._adapters, scales_of(scales)))

    def _set_adapters(self, adapters: tuple[Adapter, ...]) -> None:
        """Use these adapters, with their scales, from now on."""
        self._adapters = adapters

    @property
    @abc.abstractmethod
    def _reading_progress(self) -> tuple[int, int]:
        """How many tokens of the text are decoded, and how many there are. From any thread."""

    @abc.abstractmethod
    def memory(self) -> EngineMemory:
        """The memory that the engine takes. Raises ClosedError."""

    @abc.abstractmethod
    def remember(self, text: str | Sequence[int]) -> None:
        """Let a text, or token ids, draft answers that repeat it. Possible during an answer.

        Raises OptionError.
        """

    @abc.abstractmethod
    def free_kept(self) -> None:
        """Free the copies of waiting conversations' caches. Raises BusyError in an answer."""

    @abc.abstractmethod
    def _save_caches_of(self, owner: object, path: Path) -> bool:
        """`save_caches`, for any owner of a text."""

    @abc.abstractmethod
    def _load_caches_of(self, owner: object, path: Path) -> bool:
        """`load_caches`, for any owner of a text."""

    def _answer(self, record: AnswerRecord) -> Answer:
        """The answer of a record. Every method that asks for an answer ends here.

        Raises OptionError for options that do not go together.
        """
        self._accept(record)
        return Answer(record, self)

    def _accept(self, record: AnswerRecord) -> None:
        """Plan and list a record, so that it can be started. Raises as `_answer`."""
        record.plan = self._plan(record.options)
        with self._listing:
            self._records.add(record)  # which ends with the engine

    def _plan(self, options: AnswerOptions) -> AnswerPlan:
        """What an answer is to do. Raises OptionError, and ClosedError."""
        sampling = options.sampling_from(self.sampling)
        rule = rule_name(options.rule, is_greedy=sampling.is_greedy, seed=options.seed)
        adapters = self._adapters
        if options.adapter_scales is not None:
            adapters = with_scales(adapters, scales_of(options.adapter_scales))
        scales = tuple(adapter.scale for adapter in adapters)
        return AnswerPlan(sampling, rule, scales=scales)

    def _answers_at_work(self) -> list[AnswerRecord]:
        """The answers that are admitted and not over."""
        with self._listing:
            records = list(self._records)
        at_work = []
        for record in records:
            if State.ADMITTED <= record.state < State.OVER:
                at_work.append(record)
        return at_work

    def _join(self, record: AnswerRecord) -> None:
        """Take a place in line for an answer; `_admitted` is called when its turn comes.

        An answer that is cancelled at the same time may have ended already: it keeps no place.

        Raises BusyError where it is not to wait, and EngineError where it would wait for ever.
        """

        def may_wait(before: list[Place]) -> None:
            if not record.options.queue:
                is_same = any(other.conversation is record.owner for other in before)
                what = "the engine is producing another answer"
                if record.owner is not None and is_same:
                    what = "the last question of this conversation is still being answered"
                raise BusyError(what, _WAIT)
            if place.is_read_by_main and all(other.is_read_by_main for other in before):
                raise EngineError(
                    "this thread would wait for an answer that only it can read to the end",
                    "Finish or close that answer first, or read it in a thread of its own.",
                )

        place = record.place
        place.conversation = record.owner
        place.client = record.client
        place.on_admitted = functools.partial(self._on_admitted, record)
        self._line.join(place, may_wait)
        if record.state >= State.ENDING:
            self._line.leave(place)

    def _give_ending(self, record: AnswerRecord) -> None:
        """Give an answer's reader its ending. Repeatable: Ctrl-C may have lost the first."""
        assert record.ending is not None
        record.outbox.put(record.ending)

    def _on_admitted(self, record: AnswerRecord) -> None:
        if record.try_advance(State.ASKED, State.ADMITTED):
            self._admitted(record)

    @abc.abstractmethod
    def _admitted(self, record: AnswerRecord) -> None:
        """Produce an answer whose turn has come. From any thread; it must not wait."""

    @abc.abstractmethod
    def _make_prompt(self, source: PromptSource) -> MadePrompt:
        """Make the prompt of a source, for callers that want no answer.

        Raises what the source raises.
        """

    @abc.abstractmethod
    def _prompt_text(self, source: MessagesSource, *, opens_answer: bool) -> str:
        """The text of a prompt by the model's own template: see `PromptMaker.text`."""

    @abc.abstractmethod
    def _prepare(self, source: PromptSource, *, owner: object) -> None:
        """Decode the tokens that the next prompt begins with, for `Chat.prepare`.

        The work ends as soon as an answer begins, or it is cancelled.

        Args:
            source: Gives these tokens; none if there is nothing to do.
            owner: The conversation.
        """

    def _measure(
        self,
        function: Callable[..., Found],
        *arguments: Any,
        **keywords: Any,
    ) -> Found:
        """Call a function with the `Engine` that has the models; returns its result.

        The engine may be in another process. Raises what the function raises.

        Args:
            arguments, keywords: The function's arguments after the engine. A `Watch` among them
                has the cancellation that the function obeys.
        """
        return function(self, *arguments, **keywords)

    @abc.abstractmethod
    def cancel(self) -> None:
        """End the running answers, or idle work, within one decode. From any thread.

        They keep what was said. An answer that has not started is not affected: its own
        `Answer.cancel` ends it.
        """

    @abc.abstractmethod
    def _close(self) -> None:
        """Free the models once nothing uses them. Idempotent."""

    def close(self) -> None:
        """Free the models, and give adopted ones back. Idempotent, from any thread.

        A running answer is cancelled first, whichever thread reads it, and keeps what was said.
        Answers that wait in line get ClosedError. Leaving the `with` block does the same.
        """
        self._is_ending = True
        if self._own_process.is_this():  # a fork has no thread that could end an answer
            with self._listing:
                records = list(self._records)
            # First the answers in line, or the next one would be admitted.
            records.sort(key=lambda record: record.state > State.ASKED)
            for record in records:
                if record.state is State.NEW:
                    record.cancellation.request()
                    continue
                if record.state is State.ASKED:
                    record.outbox.put(closed())
                else:
                    record.cancellation.request()
                self._end(record)
        self._close()

    @explained('Give the question first: engine.generate("Hi"), engine.generate(messages).')
    def generate(
        self,
        question: str | Sequence[Mapping[str, object]],
        options: AnswerOptions | None = None,
        *,
        system: str | None = None,
        template: str | None = None,
        think: bool = True,
        **keywords: Unpack[AnswerKeywords],
    ) -> Answer:
        """The answer to a question, or to a list of messages, by the model's chat template.

        The engine keeps nothing of it but caches; for a conversation see `chat`.

        Raises OptionError for bad options or messages. When the answer is read: TemplateError
        if the template refuses the messages or would leave some out, and ContextError if they
        do not fit: no message is ever dropped.

        Args:
            question: A text, or messages in OpenAI's format, each with a role and a content:
                text, None, or parts (text, pictures); calls of tools and their results, too.
                The roles and their order are those that the chat template takes; if it refuses
                several messages in a row of one role, they are joined. If the last message is
                the assistant's, the answer continues it.
            system, template, think: Values as for `chat`.
            options, keywords: See `AnswerOptions`.
        """
        chosen = AnswerOptions.of(options, **keywords)
        messages = question_messages(question, system)
        use = chosen.tool_use(())
        form = spec_of(chosen)
        source = MessagesSource(
            messages,
            use,
            template,
            think,
            form=form,
        )
        return self._answer(AnswerRecord(chosen, source))

    def generate_raw(
        self,
        prompt: str | Sequence[int],
        options: AnswerOptions | None = None,
        **keywords: Unpack[AnswerKeywords],
    ) -> Answer:
        """The continuation of a raw prompt, without a chat template.

        Raises OptionError for a bad value; when it is read, ContextError if the prompt does not
        fit.

        Args:
            prompt: A text, in which special tokens count, or token ids.
            options, keywords: See `AnswerOptions`.
        """
        chosen = AnswerOptions.of(options, **keywords)
        if chosen.tools:
            raise OptionError(
                "tools are given with a raw prompt",
                "Tools need messages: see generate and chat.",
            )
        if not isinstance(prompt, str):
            prompt = token_ids(prompt)
        return self._answer(AnswerRecord(chosen, RawSource(prompt)))

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids of a text, without the token that begins every text.

        Args:
            special: Whether the texts of control tokens in it name these.
        """
        if not isinstance(text, str):
            raise OptionError(f"the text is {text!r:.80}", "Give a str.")
        return self.vocabulary.tokenize(text, parse_special=special)

    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """The text of token ids; U+FFFD stands for bytes of an incomplete character.

        Args:
            special: Whether the texts of control tokens are included.

        Raises:
            OptionError: For a bad id.
        """
        return self.vocabulary.detokenize(token_ids(tokens), special=special)

    def save_caches(self, chat: Chat, path: str | os.PathLike[str]) -> bool:
        """Save a conversation's caches to disk; False if they hold nothing of it.

        Raises BusyError while an answer is produced, OSError if the file cannot be written,
        CacheError if `load_caches` would refuse it.
        """
        return self._save_caches_of(_checked_chat(chat), Path(path))

    def load_caches(self, chat: Chat, path: str | os.PathLike[str]) -> bool:
        """Load what `save_caches` saved; False if it does not fit, and is decoded again.

        Raises BusyError while an answer is produced, CacheError if the caches take more memory
        than was granted, or `save_caches` would refuse the models.
        """
        return self._load_caches_of(_checked_chat(chat), Path(path))

    @known_keywords
    @explained(
        'engine.chat() begins a conversation: engine.chat().send("Hi"). To ask once: '
        'engine.generate("Hi").'
    )
    def chat(
        self,
        *,
        messages: Sequence[Mapping[str, object]] = (),
        system: str | None = None,
        template: str | None = None,
        think: bool = True,
    ) -> Chat:
        """A conversation.

        Raises OptionError for messages that are no whole turns; TemplateError if the template
        is missing, broken, or has no such switch.

        Args:
            messages: An earlier conversation that it continues, in OpenAI's format: whole
                turns, as `chat.transcript` has them, after at most one system message.
            system: The system message, if that is not among them.
            template: A name of `template.BUILT_IN` or a Jinja source (the one in the target's
                file).
            think: False asks a reasoning model to answer at once.
        """
        self._own_process.require("the engine")
        self._require_not_ending()
        return Chat(
            self,
            messages=messages,
            system=system,
            template=template,
            think=think,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        if kind is None:
            self.close()
            return
        # The block's own error must reach the caller.
        with contextlib.suppress(EngineError):
            self.close()

    def _is_cancelled(self, cancellation: Cancellation) -> bool:
        """A `CancelCheck` of an answer. Raises ClosedError once this is being closed."""
        self._require_not_ending()
        return cancellation.is_requested

    def _require_not_ending(self) -> None:
        if self._is_ending:
            raise closed()


note_keywords("engine.chat(", ("messages", "system", "template", "think"))
FACTS = tuple(BaseEngine.__annotations__)  # attributes that never change


def with_scales(
    adapters: Sequence[Adapter],
    scales: Mapping[int, float],
) -> tuple[Adapter, ...]:
    """The adapters with these scales, by their numbers from 0; 0 where none is given.

    Raises OptionError for the number of an adapter that is not there.
    """
    for number in scales:
        if not 0 <= number < len(adapters):
            there = "none"
            if adapters:
                there = f"numbers 0 to {len(adapters) - 1}"
            raise OptionError(
                f"a scale is given for adapter {number}; the adapters here are {there}",
                "Give one for each adapter that the model was loaded with.",
            )
    scaled = []
    for number, adapter in enumerate(adapters):
        scale = scales.get(number, 0.0)
        scaled.append(replace(adapter, scale=scale))
    return tuple(scaled)


def _end_at_exit(engine: weakref.ref[BaseEngine]) -> None:
    """Close an engine before modules and drivers go; a dropped engine is freed already."""
    alive = engine()
    if alive is not None:
        with contextlib.suppress(EngineError):
            alive.close()


def closed() -> ClosedError:
    """The error of everything that is asked of a closed engine."""
    return ClosedError("the engine is closed", "Load it again.")


def _checked_chat(chat: object) -> Chat:
    """The chat. Raises OptionError for anything else."""
    if not isinstance(chat, Chat):
        raise OptionError(f"the chat is {chat!r}", "Give one of this engine's chats.")
    return chat


def question_messages(
    question: str | Sequence[Mapping[str, object]],
    system: str | None,
) -> list[Message]:
    """Checked messages: a list's, or one for a text; after the system message, if any.

    Raises OptionError for bad messages, and for two system messages.
    """
    if isinstance(question, str):
        return [*system_messages(system), question_message(question)]
    return with_system(system, question)
