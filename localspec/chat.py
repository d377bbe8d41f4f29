"""A conversation: messages → prompt tokens, and what happens when it grows long."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from localspec.async_stream import AsyncStream, whole_reply
from localspec.control_guard import ControlGuard, Tokenizer
from localspec.errors import ContextError, EngineError, TemplateError
from localspec.stream import AnswerKeywords, AnswerOptions, Reply, Stream
from localspec.template import BUILT_IN, ChatTemplate, Message

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on

MIN_ANSWER_TOKENS = 64  # older turns leave rather than squeeze the answer below this


class Answerer(Protocol):
    """The engine, as far as a conversation knows it."""

    @property
    def vocabulary(self) -> Tokenizer: ...

    @property
    def context_length(self) -> int: ...

    @property
    def chat_template(self) -> str | None: ...

    def with_bos(self, tokens: list[int]) -> list[int]: ...

    def answer(
        self,
        prompt_tokens: list[int],
        options: AnswerOptions,
        *,
        turn: int,
        owner: object | None,
        on_begin: Callable[[], None],
        on_end: Callable[[Reply], None],
    ) -> Stream: ...

    def cancel(self) -> None: ...


class Chat:
    """Turns of a conversation over an engine. Made by `Engine.chat`.

    What was said stays when an answer is stopped early. When the context is full whole
    oldest turns are forgotten, down to about half of it; num_forgotten counts them.
    """

    def __init__(
        self, engine: Answerer, *, system: str | None = None, template: str | None = None
    ) -> None:
        self._engine = engine
        self._system: list[Message] = [{"role": "system", "content": system}] if system else []
        self._turns: list[tuple[Message, Message]] = []
        vocabulary = engine.vocabulary
        self._template = ChatTemplate(
            _template_source(template, engine.chat_template),
            bos=vocabulary.text(vocabulary.bos),
            eos=vocabulary.text(vocabulary.eos),
        )
        self._guard = ControlGuard(vocabulary)
        self._num_asked = 0
        self.num_forgotten = 0

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation as the model will see it next: role and content of each message."""
        return (*self._system, *(message for turn in self._turns for message in turn))

    def stream(self, text: str, **options: Unpack[AnswerKeywords]) -> Stream:
        """The answer to `text`, piece by piece. Options as for `Engine.stream`.

        The conversation changes only when the answer is read: a stream that is never begun
        leaves no trace. Raises ContextError if the message alone does not fit the context.
        """
        question: Message = {"role": "user", "content": text}
        prompt_tokens, num_leaving = self._make_room(question)
        turn = self._num_asked

        def begin() -> None:
            if turn != self._num_asked:
                raise EngineError(
                    "another answer of this conversation came first", "Ask again."
                )
            self._num_asked += 1
            self.num_forgotten += num_leaving
            del self._turns[:num_leaving]

        def remember(reply: Reply) -> None:
            if reply.text or reply.finish_reason != "cancelled":
                self._turns.append((question, {"role": "assistant", "content": reply.text}))

        return self._engine.answer(
            prompt_tokens,
            AnswerOptions(**options),
            turn=turn,
            owner=self,
            on_begin=begin,
            on_end=remember,
        )

    def send(self, text: str, **options: Unpack[AnswerKeywords]) -> Reply:
        """The whole answer to `text`, with the options of `stream`."""
        stream = self.stream(text, **options)
        for _ in stream:
            pass
        return stream.reply

    def astream(self, text: str, **options: Unpack[AnswerKeywords]) -> AsyncStream:
        """`stream` for `async for`. A message too long is refused when it is read."""
        return AsyncStream(lambda: self.stream(text, **options), self._engine.cancel)

    async def asend(self, text: str, **options: Unpack[AnswerKeywords]) -> Reply:
        """`send` without blocking the event loop."""
        return await whole_reply(self.astream(text, **options))

    def prompt_tokens(self, text: str) -> list[int]:
        """What the model would read if it were asked `text` now."""
        return self._make_room({"role": "user", "content": text})[0]

    def clear(self) -> None:
        """Forget every turn; the system message stays."""
        self._turns.clear()
        self._num_asked += 1  # an answer that was asked for before has lost its context

    def _make_room(self, question: Message) -> tuple[list[int], int]:
        """Prompt tokens for the next answer, and how many oldest turns leave for it."""
        capacity = self._engine.context_length
        needed = min(MIN_ANSWER_TOKENS, capacity // 4)
        prompt_tokens = self._prompt_tokens(question, 0)
        if len(prompt_tokens) + needed <= capacity:
            return prompt_tokens, 0
        # Down to half, so that the kept turns are not decoded anew at every question.
        num_leaving = 0
        while num_leaving < len(self._turns) and len(prompt_tokens) > capacity // 2:
            num_leaving += 1
            prompt_tokens = self._prompt_tokens(question, num_leaving)
        if len(prompt_tokens) >= capacity:
            raise ContextError(
                f"the message makes a prompt of {len(prompt_tokens)} tokens; "
                f"the context holds {capacity}",
                "Shorten it, or load the model with a larger context (--ctx).",
            )
        return prompt_tokens, num_leaving

    def _prompt_tokens(self, question: Message, num_leaving: int) -> list[int]:
        self._check_length(question)
        kept = [message for turn in self._turns[num_leaving:] for message in turn]
        messages = [*self._system, *kept, question]
        hidden = self._guard.hide([message["content"] for message in messages])
        prompt = self._template.render(
            [
                {"role": message["role"], "content": content}
                for message, content in zip(messages, hidden.contents, strict=True)
            ]
        )
        return self._engine.with_bos(self._guard.tokenize(prompt, hidden))

    def _check_length(self, question: Message) -> None:
        """Refuse what cannot fit however it is tokenised, before that takes its time."""
        capacity = self._engine.context_length
        longest = self._engine.vocabulary.max_text_bytes(capacity)
        length = sum(
            len(each["content"].encode(errors="replace")) for each in (*self._system, question)
        )
        if length > longest:
            raise ContextError(
                f"the message has {length} bytes; the {capacity} tokens of the context "
                f"cannot hold more than {longest}",
                "Shorten it, or load the model with a larger context (--ctx).",
            )


def _template_source(chosen: str | None, own: str | None) -> str:
    if chosen is not None:
        return BUILT_IN.get(chosen, chosen)
    if own is None:
        raise TemplateError(
            "the model file has no chat template",
            f"Name one with --chat-template: {', '.join(BUILT_IN)}, or a Jinja file.",
        )
    return own
