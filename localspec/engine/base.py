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

Result = TypeVar("Result")

# What to write instead of methods that other libraries have.
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
_WAIT_HINT = "Finish or close that answer first, or wait in line for it: queue=True."


class BaseEngine(Producer, ForeignNames, abc.ABC):
    """Answers and conversations: the base of `Engine` and `IsolatedEngine`.

    Options of an answer are an `AnswerOptions`, or its fields by keyword: sampling, seed, rule,
    max_tokens, stop, logprobs …; and the fields of `SamplingParams` as keywords of their own:
    temperature, top_k …

    An engine is closed at the end of its `with` block, or when the interpreter exits. Methods
    that begin with an underscore are for other packages of localspec.
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
    """What drafts and how much, as the arguments of `load` say."""
    shared_vocabulary: SharedVocabulary | None
    """The tokens that target and draft share; None without a draft."""
    exactness: Exactness
    """The sizes of the target's decodes whose rows are equal to the bit."""

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
        self._records: weakref.WeakSet[AnswerRecord] = weakref.WeakSet()  # of all its answers
        # Held while the records are changed or listed. Reentrant: a signal handler may take it
        # in the thread that holds it.
        self._records_lock = threading.RLock()
        self._is_ending = False

    def _close_at_exit(self) -> None:
        """Have the interpreter close the engine when it exits. Constructors call this last."""
        weakref.finalize(self, _end_at_exit, weakref.ref(self))

    def __repr__(self) -> str:
        content = f"{self.description!r}, context of {self.context_length} tokens"
        return f"<{type(self).__name__} {content}>"

    @property
    @abc.abstractmethod
    def parallel(self) -> int:
        """How many answers are produced at once, each read in a thread or task of its own."""

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
        """Whether the model's chat template takes tools, and localspec can parse the calls."""
        return takes_tools(self.chat_template) or takes_tools(self.tool_template)

    @functools.cached_property
    def has_think_switch(self) -> bool:
        """Whether the model's chat template can turn thoughts off, as think=False asks.

        Raises TemplateError if the template is missing or broken.
        """
        source = template_source(None, self.chat_template)
        return ChatTemplate(source, bos="", eos="").has_think_switch

    @property
    def sampling(self) -> SamplingParams:
        """The sampling of answers that give none; at first the preset's. May be set."""
        return self._sampling

    @sampling.setter
    def sampling(self, sampling: SamplingParams) -> None:
        if not isinstance(sampling, SamplingParams):
            raise OptionError(f"sampling is {sampling!r}", "Give a SamplingParams.")
        self._sampling = sampling

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """The target's LoRA adapters, with their scales in answers that give none."""
        return self._adapters

    @property
    def adapter_scales(self) -> tuple[float, ...]:
        """The scale of each adapter in answers that give none. May be set.

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
        """How many tokens of the running answers' texts are decoded, and how many there are.

        From any thread.
        """

    @abc.abstractmethod
    def memory(self) -> EngineMemory:
        """The memory that the engine takes. Raises ClosedError."""

    @abc.abstractmethod
    def remember(self, text: str | Sequence[int]) -> None:
        """Add a text, or token ids, from which answers that repeat it are drafted.

        Possible while an answer is produced.

        Raises OptionError.
        """

    @abc.abstractmethod
    def free_kept(self) -> None:
        """Free the copies of waiting conversations' caches.

        Raises BusyError while an answer is produced.
        """

    @abc.abstractmethod
    def _save_caches_of(self, owner: object, path: Path) -> bool:
        """Do as `save_caches`, for any owner of a text: a `Chat` or another object."""

    @abc.abstractmethod
    def _load_caches_of(self, owner: object, path: Path) -> bool:
        """Do as `load_caches`, for any owner of a text: a `Chat` or another object."""

    def _answer(self, record: AnswerRecord) -> Answer:
        """The answer of a record, planned but not started. All methods that ask call this.

        Raises OptionError for options that contradict each other, and ClosedError.
        """
        self._accept(record)
        return Answer(record, self)

    def _accept(self, record: AnswerRecord) -> None:
        """Plan a record, and add it to the engine's records. Raises as `_answer`."""
        record.plan = self._make_plan(record.options)
        with self._records_lock:
            self._records.add(record)  # so that `close` ends it

    def _make_plan(self, options: AnswerOptions) -> AnswerPlan:
        """The plan of an answer with these options. Raises OptionError, and ClosedError."""
        sampling = options.sampling_from(self.sampling)
        rule = rule_name(options.rule, is_greedy=sampling.is_greedy, seed=options.seed)
        adapters = self._adapters
        if options.adapter_scales is not None:
            adapters = with_scales(adapters, scales_of(options.adapter_scales))
        scales = tuple(adapter.scale for adapter in adapters)
        return AnswerPlan(sampling, rule, scales=scales)

    def _answers_at_work(self) -> list[AnswerRecord]:
        """The records of answers that are admitted and not over."""
        with self._records_lock:
            records = list(self._records)
        at_work = []
        for record in records:
            if State.ADMITTED <= record.state < State.OVER:
                at_work.append(record)
        return at_work

    def _join_line(self, record: AnswerRecord) -> None:
        """Take a place in line for an answer; `_produce_admitted` is called at its turn.

        An answer that is ending already, since it was cancelled, keeps no place.

        Raises BusyError if the answer would have to wait and its options do not allow that, and
        EngineError if it would wait for ever.
        """

        def check_may_wait(earlier: list[Place]) -> None:
            """Raise the error if the answer may not wait for these places."""
            if not record.options.queue:
                fault = "the engine is producing another answer"
                is_same = any(other.conversation is record.owner for other in earlier)
                if record.owner is not None and is_same:
                    fault = "the last question of this conversation is still being answered"
                raise BusyError(fault, _WAIT_HINT)
            # While the main thread waits here, it reads none of the earlier answers.
            if place.is_read_by_main and all(other.is_read_by_main for other in earlier):
                raise EngineError(
                    "this thread would wait for an answer that only it can read to the end",
                    "Finish or close that answer first, or read it in a thread of its own.",
                )

        place = record.place
        place.conversation = record.owner
        place.client = record.client
        place.on_admitted = functools.partial(self._on_admitted, record)
        self._line.join(place, check_may_wait)
        if record.state >= State.ENDING:
            self._line.leave(place)

    def _give_ending(self, record: AnswerRecord) -> None:
        """Give an answer's reader its ending, perhaps again: Ctrl-C may have lost the first."""
        assert record.ending is not None
        record.outbox.put(record.ending)

    def _on_admitted(self, record: AnswerRecord) -> None:
        """Produce an answer whose turn has come, unless it was ended before."""
        if record.try_advance(State.ASKED, State.ADMITTED):
            self._produce_admitted(record)

    @abc.abstractmethod
    def _produce_admitted(self, record: AnswerRecord) -> None:
        """Have an admitted answer produced. From any thread; it must not wait."""

    @abc.abstractmethod
    def _make_prompt(self, source: PromptSource) -> MadePrompt:
        """Make the prompt of a source, without an answer to it.

        Raises what the source raises.
        """

    @abc.abstractmethod
    def _prompt_text(self, source: MessagesSource, *, opens_answer: bool) -> str:
        """The text of a prompt by the model's chat template: see `PromptMaker.text`."""

    @abc.abstractmethod
    def _prepare_next_prompt(self, source: PromptSource, *, owner: object) -> None:
        """Decode, in idle time, the tokens with which the next prompt begins: `Chat.prepare`.

        Returns once they are decoded, an answer begins, or `cancel` is called.

        Args:
            source: Makes these tokens; no tokens if nothing is to be decoded.
            owner: The conversation.
        """

    def _measure(
        self,
        function: Callable[..., Result],
        *arguments: Any,
        **keywords: Any,
    ) -> Result:
        """Call a function that measures with an `Engine`. Returns its result.

        The function is called in the process that has the models. Raises what it raises.

        Args:
            function: Its first argument is the engine.
            arguments, keywords: Its further arguments. A `Watch` among them has the
                cancellation that the function obeys.
        """
        return function(self, *arguments, **keywords)

    @abc.abstractmethod
    def cancel(self) -> None:
        """End the running answers, and idle work, within one decode. From any thread.

        The answers keep the text so far. An answer that has not started is not affected: its
        own `Answer.cancel` ends it.
        """

    @abc.abstractmethod
    def _close(self) -> None:
        """Free the models once nothing uses them. Idempotent."""

    def close(self) -> None:
        """Free the models, and give `Llama` objects of the application back to it. Idempotent.

        From any thread. Running answers are cancelled first, whichever threads read them, and
        keep the text so far. Answers that wait in line get ClosedError. The end of the `with`
        block does the same.
        """
        self._is_ending = True
        if self._own_process.is_this():  # a fork has no thread that could end an answer
            with self._records_lock:
                records = list(self._records)
            # The answers in line end first: the end of a running answer would admit them.
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

        The engine keeps only its caches: the next call knows nothing of it. For a conversation
        see `chat`.

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
        source = MessagesSource(
            messages,
            chosen.tool_use(()),
            template,
            think,
            form=spec_of(chosen),
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
            special: Whether the names of control tokens in the text become these tokens.
        """
        if not isinstance(text, str):
            raise OptionError(f"the text is {text!r:.80}", "Give a str.")
        return self.vocabulary.tokenize(text, parse_special=special)

    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """The text of token ids; U+FFFD stands for bytes of an incomplete character.

        Args:
            special: Whether the names of control tokens are included.

        Raises:
            OptionError: For a bad id.
        """
        return self.vocabulary.detokenize(token_ids(tokens), special=special)

    def save_caches(self, chat: Chat, path: str | os.PathLike[str]) -> bool:
        """Save a conversation's caches to a file. Returns False if nothing of it is cached.

        Raises BusyError while an answer is produced, OSError if the file cannot be written,
        CacheError if `load_caches` would refuse it.
        """
        # Absolute, since the models may be in a process that was started in another folder.
        return self._save_caches_of(_checked_chat(chat), Path(path).absolute())

    def load_caches(self, chat: Chat, path: str | os.PathLike[str]) -> bool:
        """Load what `save_caches` saved.

        Returns False if the file is missing or damaged, or of other models: the conversation is
        then decoded again.

        Raises BusyError while an answer is produced, CacheError if the caches take more memory
        than `kept_bytes` of `load`, or `save_caches` would refuse the models.
        """
        return self._load_caches_of(_checked_chat(chat), Path(path).absolute())

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
        is missing or broken, or cannot turn thoughts off where think is False.

        Args:
            messages: An earlier conversation that it continues, in OpenAI's format: whole
                turns, as `chat.transcript` has them, after at most one system message.
            system: The system message, if it is not among the messages.
            template: A name of `template.BUILT_IN` or a Jinja source; by default the one in the
                target's file.
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
        """Whether an answer was cancelled. Raises ClosedError once the engine is closing."""
        self._require_not_ending()
        return cancellation.is_requested

    def _require_not_ending(self) -> None:
        """Raise ClosedError once the engine is closed, or being closed."""
        if self._is_ending:
            raise closed()


note_keywords("engine.chat(", ("messages", "system", "template", "think"))
FACTS = tuple(BaseEngine.__annotations__)  # the names of attributes that never change


def with_scales(
    adapters: Sequence[Adapter],
    scales: Mapping[int, float],
) -> tuple[Adapter, ...]:
    """The adapters with other scales.

    Args:
        adapters: The adapters.
        scales: The scale of each adapter, by the adapter's number from 0 on; without one it
            is 0.

    Raises:
        OptionError: For the number of an adapter that does not exist.
    """
    for number in scales:
        if not 0 <= number < len(adapters):
            existing = "none"
            if adapters:
                existing = f"numbers 0 to {len(adapters) - 1}"
            raise OptionError(
                f"a scale is given for adapter {number}; the adapters here are {existing}",
                "Give one for each adapter that the model was loaded with.",
            )
    scaled = []
    for number, adapter in enumerate(adapters):
        scale = scales.get(number, 0.0)
        scaled.append(replace(adapter, scale=scale))
    return tuple(scaled)


def _end_at_exit(engine_reference: weakref.ref[BaseEngine]) -> None:
    """Close an engine before modules and drivers are unloaded, if it still exists."""
    engine = engine_reference()
    if engine is not None:
        with contextlib.suppress(EngineError):
            engine.close()


def closed() -> ClosedError:
    """The error of every call of a closed engine."""
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
    """The checked messages of a question, after the system message if there is one.

    Args:
        question: A list of messages, or the text of one message.
        system: The system message; None for none, or if it is among the messages.

    Raises:
        OptionError: For bad messages, and for two system messages.
    """
    if isinstance(question, str):
        return [*system_messages(system), question_message(question)]
    return with_system(system, question)
