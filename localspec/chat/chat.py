"""A conversation: messages → prompt tokens, and what happens when it grows long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

from localspec.chat.backend import ChatBackend
from localspec.chat.prompt import Prompt, PromptMaker
from localspec.chat.room import Asked, Room
from localspec.chat.template import Message, template_source
from localspec.chat.tool_messages import call_message
from localspec.chat.turns import (
    Turn,
    messages_of,
    question_message,
    require_no_calls,
    result_messages,
    system_messages,
    turns_of,
)
from localspec.errors import EngineError, OptionError
from localspec.streaming.answer_text import Said
from localspec.streaming.async_stream import AsyncStream, awhole_reply
from localspec.streaming.cancellation import Unwanted, never
from localspec.streaming.options import AnswerKeywords, AnswerOptions
from localspec.streaming.stream import Exchange, Reply, Stream, whole_reply
from localspec.tools.tool import Tool, ToolUse

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on

MAX_COUNT = 2**31 - 1  # of turns


class Unfinished(NamedTuple):
    """An answer that was cut: a prompt with all its tokens.

    turn: whose random numbers it has. revision: which it made of the conversation.
    """

    prompt: Prompt
    turn: int
    revision: int


# Questions that have nothing in common, and may merge with what a template puts before them.
_PROBES = ("a", "\n1")


class Chat:
    """Turns of a conversation over an engine. Made by `Engine.chat`.

    What was said stays when an answer is stopped early; what was thought before is dropped,
    unless it led to calls of tools.
    When the context is full the fewest whole oldest turns are forgotten without which the
    prompt takes no more than half of it; likewise where a chat template copes with no more.
    """

    def __init__(
        self,
        engine: ChatBackend,
        *,
        system: str | None = None,
        template: str | None = None,
        think: bool = True,
    ) -> None:
        self._engine = engine
        self._system = system_messages(system)
        self._turns: list[Turn] = []
        self._forgotten: list[Turn] = []
        source = template_source(template, engine.chat_template)
        self._room = Room(engine, PromptMaker(engine.vocabulary, source, think=think))
        self._num_asked = 0
        self._revision = 0  # counts changes, which outdate what was asked for before
        self._unfinished: Unfinished | None = None  # the last answer, if it was
        self._tools: tuple[Tool, ...] = ()  # that the last answer was told of

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation as the model will see it next: role and content of each message."""
        return (*self._system, *messages_of(self._turns))

    @property
    def transcript(self) -> tuple[Message, ...]:
        """The conversation from its begin, with the turns that were forgotten."""
        return (*self._system, *messages_of(self._forgotten + self._turns))

    @property
    def num_forgotten(self) -> int:
        """Turns that the model does not see any more, because the context was full."""
        return len(self._forgotten)

    @property
    def system(self) -> str | None:
        """The system message. Setting it counts for the next answer; None or "" is none."""
        return self._system[0]["content"] if self._system else None

    @system.setter
    def system(self, text: str | None) -> None:
        self._system = system_messages(text)
        self._revision += 1

    @property
    def num_asked(self) -> int:
        """How many answers were begun. The next one has the random numbers of this turn."""
        return self._num_asked

    @property
    def last_question(self) -> str:
        """Of the last turn. Raises OptionError if there is none."""
        if not self._turns:
            raise OptionError("there is no question yet", "Ask one.")
        return str(self._turns[-1][0]["content"])

    def stream(self, text: str, **options: Unpack[AnswerKeywords]) -> Stream:
        """The answer to `text`, piece by piece. Options as for `Engine.stream`.

        tools: that the model may call from now on, until others are given; see `tool_results`.
        The conversation changes only when the answer is read: a stream that is never begun
        leaves no trace. Raises ContextError if the message alone does not fit the context;
        the conversation then goes on as if it had not been asked.
        """
        return self.answer(text, AnswerOptions.of(**options))

    def answer(self, text: str, options: AnswerOptions) -> Stream:
        """`stream`, with the options as one object."""
        require_no_calls(self._turns)
        return self._ask((question_message(text),), self._turns, options)

    def retry(self, **options: Unpack[AnswerKeywords]) -> Stream:
        """Another answer to the last question, with the options of `stream`.

        It is a turn of its own, with other random numbers, and takes the old answer's place
        as soon as it says anything. Raises OptionError if there was no question.
        """
        return self.answer_again(AnswerOptions.of(**options))

    def answer_again(self, options: AnswerOptions) -> Stream:
        """`retry`, with the options as one object."""
        return self.answer_instead(self.last_question, options)

    def answer_instead(self, text: str, options: AnswerOptions) -> Stream:
        """The answer to `text`, in place of the last question and its answer if there are any.

        It takes their place as soon as it says anything. Raises what `stream` raises.
        """
        return self._ask((question_message(text),), self._turns[:-1], options)

    @property
    def can_go_on(self) -> bool:
        """Whether the last answer was cut, by max_tokens or a stop, and `go_on` has more."""
        unfinished = self._unfinished
        return unfinished is not None and unfinished.revision == self._revision

    def go_on(self, **options: Unpack[AnswerKeywords]) -> Stream:
        """More of the last answer, which was cut: from its last token on, with these options.

        It becomes the answer that would have come in one, with the same options: wherever it
        was cut, also in the midst of a character, a mark, a stop string or a call, and with a
        seed. The stream has what is new. What was shown at the cut, and turns out to be the
        begin of a mark or a stop string, is no longer part of the answer in `messages`.

        Nothing is forgotten to make room. Raises OptionError if the answer came to its own
        end, was made elsewhere, or the conversation has changed; ContextError where there is
        no room.
        """
        return self.answer_on(AnswerOptions.of(**options))

    def answer_on(self, options: AnswerOptions) -> Stream:
        """`go_on`, with the options as one object."""
        if self._unfinished is None or not self.can_go_on:
            raise OptionError(
                "there is no answer here that was cut", "Ask the model to go on instead."
            )
        return self._exchange(self._unfinished, self._turns[-1], self._turns[:-1], 0, options)

    def _ask(
        self,
        begun: Turn,
        turns: list[Turn],
        options: AnswerOptions,
        is_unwanted: Unwanted = never,
    ) -> Stream:
        """The answer to a turn without it, after `turns`, which are all or all but the last."""
        use = options.tool_use(self._tools)
        prompt, num_leaving = self._make_room(begun, turns, use, is_unwanted)
        begun = (*begun, call_message("", (), ""))
        asked = Unfinished(prompt, self._num_asked, self._revision)
        return self._exchange(asked, begun, turns, num_leaving, options)

    def _exchange(
        self,
        unfinished: Unfinished,
        begun: Turn,
        turns: list[Turn],
        num_leaving: int,
        options: AnswerOptions,
    ) -> Stream:
        """The answer to a prompt, or its rest, as a part of the conversation.

        begun: its turn, with what is there of it. num_leaving: oldest turns that are forgotten.
        """
        prompt, turn, revision = unfinished
        tools = options.tool_use(self._tools).tools
        kept, replaced = turns[num_leaving:], self._turns[len(turns) :]

        def begin() -> None:
            if revision != self._revision:
                raise EngineError(
                    "the conversation has changed, or another answer of it came first",
                    "Ask again.",
                )
            self._revision += 1
            self._num_asked = max(self._num_asked, turn + 1)
            self._tools = tools
            # Both at once: an exception of a signal handler may come between two lines.
            forgotten = self._forgotten + turns[:num_leaving]
            vars(self).update(_forgotten=forgotten, _turns=kept + replaced)

        def remember(reply: Reply, said: Said | None) -> None:
            if self._revision != revision + 1:
                return  # it was cleared, say, while the answer came
            *asked, answer = begun
            if said is None:
                answer = {**answer, "content": answer["content"] + reply.text}
            else:
                answer = call_message(said.text, said.tool_calls, said.thoughts)
            is_kept = prompt.num_said or answer["content"] or reply.tool_calls
            if is_kept or reply.finish_reason != "cancelled":
                self._turns = [*kept, (*asked, answer)]
                if reply.finish_reason != "stop":
                    longer = prompt._replace(
                        tokens=[*prompt.tokens, *reply.token_ids],
                        num_said=prompt.num_said + len(reply.token_ids),
                    )
                    self._unfinished = Unfinished(longer, turn, self._revision)

        return self._engine.answer(prompt, options, Exchange(turn, self, begin, remember))

    def send(self, text: str, **options: Unpack[AnswerKeywords]) -> Reply:
        """The whole answer to `text`, with the options of `stream`."""
        return whole_reply(self.stream(text, **options))

    def astream(self, text: str, **options: Unpack[AnswerKeywords]) -> AsyncStream:
        """`stream` for `async for`. A message too long is refused when it is read."""

        def ask(is_unwanted: Unwanted) -> Stream:
            require_no_calls(self._turns)
            begun = (question_message(text),)
            return self._ask(begun, self._turns, AnswerOptions.of(**options), is_unwanted)

        return AsyncStream(ask)

    async def asend(self, text: str, **options: Unpack[AnswerKeywords]) -> Reply:
        """`send` without blocking the event loop."""
        return await awhole_reply(self.astream(text, **options))

    def tool_results(
        self, results: Mapping[str, object], **options: Unpack[AnswerKeywords]
    ) -> Reply:
        """The answer to what came of the calls that the last one asked for.

        results: a text, or what JSON can hold, for each of its `tool_calls`, by their ids. It
        may call tools again. Options as for `stream`. Raises OptionError if a result is
        missing or of no call, and what `stream` raises.
        """
        return whole_reply(self.stream_tool_results(results, **options))

    def stream_tool_results(
        self, results: Mapping[str, object], **options: Unpack[AnswerKeywords]
    ) -> Stream:
        """`tool_results`, piece by piece."""
        return self._ask_on(results, AnswerOptions.of(**options), never)

    def astream_tool_results(
        self, results: Mapping[str, object], **options: Unpack[AnswerKeywords]
    ) -> AsyncStream:
        """`stream_tool_results` for `async for`. What is refused is so when it is read."""
        return AsyncStream(
            lambda is_unwanted: self._ask_on(results, AnswerOptions.of(**options), is_unwanted)
        )

    async def atool_results(
        self, results: Mapping[str, object], **options: Unpack[AnswerKeywords]
    ) -> Reply:
        """`tool_results` without blocking the event loop."""
        return await awhole_reply(self.astream_tool_results(results, **options))

    def _ask_on(
        self, results: Mapping[str, object], options: AnswerOptions, is_unwanted: Unwanted
    ) -> Stream:
        found = result_messages(self._turns, results)
        begun = (*self._turns[-1], *found)
        return self._ask(begun, self._turns[:-1], options, is_unwanted)

    def prompt_tokens(self, text: str) -> list[int]:
        """What the model would read if it were asked `text` now."""
        begun, use = (question_message(text),), ToolUse(self._tools)
        return self._make_room(begun, self._turns, use, never)[0].tokens

    def prepare(self) -> None:
        """Use idle time, as while a person types: call it in a thread of its own.

        What the next prompt will begin with and the caches lack is decoded: a new system
        message, turns that were resumed, an answer whose thoughts are left out from now on.
        Then a few decodes are timed of sizes whose cost is unknown yet, until none is. It ends
        within one decode when any answer begins, or `Engine.cancel` is called, and changes
        nothing that is said. While an answer is produced, or another chat prepares, it does
        nothing.

        Raises what `stream` raises.
        """
        self._engine.prepare(self._beginning, owner=self)

    def _beginning(self, is_unwanted: Unwanted) -> list[int]:
        """What the next prompt begins with, whatever is asked. Raises Interrupted."""
        first, second = map(question_message, _PROBES)
        turns, use = self._turns, ToolUse(self._tools)
        prompt, num_leaving = self._make_room((first,), turns, use, is_unwanted)
        asked = Asked(self._system, (second,), use)
        other = self._room.prompt(asked, turns[num_leaving:], is_unwanted)
        pairs = zip(prompt.tokens, other.tokens, strict=False)
        return [one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]

    def clear(self) -> None:
        """Forget every turn; the system message stays."""
        self._turns, self._forgotten = [], []
        self._revision += 1

    def undo(self) -> str:
        """Take the last turn back; its question. Raises OptionError if there is none."""
        if not self._turns:
            raise OptionError("there is no turn to take back", "Ask something first.")
        question = self._turns[-1][0]
        self._turns = self._turns[:-1]
        self._revision += 1
        return str(question["content"])

    def replace(
        self, messages: Sequence[Message], *, num_asked: int = 0, num_forgotten: int = 0
    ) -> None:
        """Go on from another conversation: perhaps a system message, then whole turns.

        num_asked, num_forgotten: that conversation's, so that its answers to come see the
        turns and have the random numbers that they would have had; messages are then its
        transcript. Raises OptionError if the messages are no such sequence, or a count none.
        """
        if not (
            isinstance(messages, Sequence)
            and all(isinstance(message, Mapping) for message in messages)
        ):
            raise OptionError(f"the messages are {messages!r:.80}", "Give a list of dicts.")
        has_system = bool(messages) and messages[0].get("role") == "system"
        if has_system and not isinstance(messages[0].get("content"), str):
            raise OptionError("a message has no text as its content", "Give a str.")
        turns = turns_of(messages[1:] if has_system else messages)
        for name, value in (("num_asked", num_asked), ("num_forgotten", num_forgotten)):
            if not is_count(value):
                raise OptionError(f"{name} is {value!r}", f"Give 0 to {MAX_COUNT}.")
        self.system = messages[0]["content"] if has_system else None
        self._forgotten, self._turns = turns[:num_forgotten], turns[num_forgotten:]
        self._num_asked = max(self._num_asked, num_asked)

    def _make_room(
        self, begun: Turn, turns: list[Turn], use: ToolUse, is_unwanted: Unwanted
    ) -> tuple[Prompt, int]:
        """See `Room.make`."""
        return self._room.make(Asked(self._system, begun, use), turns, is_unwanted)


def is_count(value: object) -> TypeGuard[int]:
    """Whether it can be a number of turns: 0 to MAX_COUNT."""
    return isinstance(value, int) and 0 <= value <= MAX_COUNT
