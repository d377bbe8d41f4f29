"""What can be asked of an engine, wherever its models live."""

from __future__ import annotations

import abc
import contextlib
import operator
import threading
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from localspec.chat.chat import Chat
from localspec.chat.control_guard import Tokenizer
from localspec.chat.prompt import Prompt
from localspec.errors import ClosedError, EngineError, OptionError
from localspec.fork_guard import OwnProcess
from localspec.streaming.async_stream import AsyncStream, whole_reply
from localspec.streaming.cancellation import Unwanted
from localspec.streaming.stream import AnswerKeywords, AnswerOptions, Exchange, Reply, Stream

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack  # in typing from Python 3.11 on


class BaseEngine(abc.ABC):
    """Streams, whole answers, their asynchronous twins and conversations, all from `answer`.

    The base of `Engine` and `IsolatedEngine`. options: by keyword, the fields of
    `stream.AnswerOptions`: sampling, seed, verify, max_tokens, stop, logprobs; and those of
    `SamplingParams`, each by itself: temperature, top_k …

    Leaving its `with` block ends what is being answered, in any thread, and closes it; so
    does the interpreter's end.
    """

    def __init__(self) -> None:
        self._own_process = OwnProcess()
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()
        self._listing = threading.Lock()  # of those
        self._is_ending = False
        weakref.finalize(self, _end_at_exit, weakref.ref(self))

    @property
    @abc.abstractmethod
    def vocabulary(self) -> Tokenizer:
        """The target's tokens."""

    @property
    @abc.abstractmethod
    def context_length(self) -> int:
        """Tokens that prompt and answer may have together."""

    @property
    @abc.abstractmethod
    def chat_template(self) -> str | None:
        """The Jinja source in the target's file, if it has one."""

    @abc.abstractmethod
    def answer(
        self,
        prompt: Prompt,
        options: AnswerOptions,
        exchange: Exchange,
    ) -> Stream:
        """The stream behind `stream` and `Chat.stream`."""

    @abc.abstractmethod
    def prepare(self, make_tokens: Callable[[Unwanted], list[int]], *, owner: object) -> None:
        """What is behind `Chat.prepare`: decode the tokens that the next prompt begins with.

        make_tokens: gives them, none if there is nothing to do. What comes of it while an
        answer begins, or this is cancelled, is outdated and not used: what it is called with
        is true from then on, and it may raise Interrupted.
        """

    @abc.abstractmethod
    def cancel(self) -> None:
        """End the running answer within one decode. From any thread; it keeps what was said.

        Whichever runs, or idle work: without effect on a stream that has not begun, which its
        own `Stream.cancel` ends.
        """

    @abc.abstractmethod
    def _close(self) -> None:
        """Free the models. Idempotent. Raises BusyError while a stream is unfinished."""

    def close(self, *, cancel: bool = False) -> None:
        """Free the models, and give adopted ones back. Idempotent, from any thread.

        Raises BusyError while a stream is unfinished; with cancel, as at the end of a `with`
        block, those are ended first, whichever thread reads them, and keep what was said.
        """
        if cancel:
            self._is_ending = True
            if self._own_process.is_this():  # a fork has no thread that could end one
                with self._listing:
                    streams = list(self._streams)
                for stream in streams:
                    stream.end()
        self._close()

    def stream(self, prompt: str | Sequence[int], **options: Unpack[AnswerKeywords]) -> Stream:
        """Continue a raw prompt: text, in which special tokens count, or token ids.

        Raises ContextError if the prompt does not fit, OptionError for a bad value.
        """
        if isinstance(prompt, str):
            tokens = self.with_bos(self.vocabulary.tokenize(prompt, parse_special=True))
        else:
            tokens = _token_ids(prompt)
        return self.answer(Prompt(tokens), AnswerOptions.of(**options), Exchange())

    def generate(self, prompt: str | Sequence[int], **options: Unpack[AnswerKeywords]) -> Reply:
        """The whole answer of `stream`, with the same options."""
        stream = self.stream(prompt, **options)
        for _ in stream:
            pass
        return stream.reply

    def astream(
        self, prompt: str | Sequence[int], **options: Unpack[AnswerKeywords]
    ) -> AsyncStream:
        """`stream` for `async for`. A bad prompt is refused when it is read."""
        return AsyncStream(lambda _is_unwanted: self.stream(prompt, **options))

    async def agenerate(
        self, prompt: str | Sequence[int], **options: Unpack[AnswerKeywords]
    ) -> Reply:
        """`generate` without blocking the event loop."""
        return await whole_reply(self.astream(prompt, **options))

    def chat(
        self, *, system: str | None = None, template: str | None = None, think: bool = True
    ) -> Chat:
        """A conversation.

        template: a name of `template.BUILT_IN` or a Jinja source; by default the one in the
        target's file. think: False asks a reasoning model to answer at once. Raises
        TemplateError if there is no template, it is broken, or knows no such switch.
        """
        return Chat(self, system=system, template=template, think=think)

    def with_bos(self, tokens: list[int]) -> list[int]:
        """The tokens, begun as the model expects a text to begin."""
        vocabulary = self.vocabulary
        if vocabulary.add_bos and tokens[:1] != [vocabulary.bos]:
            return [vocabulary.bos, *tokens]
        return tokens

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # What went wrong in the block is what its owner has to hear of.
        masked = contextlib.nullcontext() if kind is None else contextlib.suppress(EngineError)
        with masked:
            self.close(cancel=True)

    def _listed(self, stream: Stream) -> Stream:
        """The stream, which from now on ends with the engine."""
        with self._listing:
            self._streams.add(stream)
        return stream

    def _require_not_ending(self) -> None:
        if self._is_ending:
            raise ClosedError("the engine is closed", "Load it again.")


def _end_at_exit(engine: weakref.ref[BaseEngine]) -> None:
    """Before modules and drivers go; an engine that was dropped has been freed already."""
    alive = engine()
    if alive is not None:
        with contextlib.suppress(EngineError):
            alive.close(cancel=True)


def _token_ids(prompt: Sequence[int]) -> list[int]:
    try:
        if isinstance(prompt, bytes):
            raise TypeError("bytes")
        return [operator.index(token) for token in prompt]
    except TypeError as error:
        raise OptionError(
            f"the prompt is neither text nor token ids: {error}", "Give a str or ints."
        ) from error
