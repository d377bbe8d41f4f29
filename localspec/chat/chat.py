"""A conversation: messages → prompt tokens, and what happens when it grows long."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from localspec.chat.messages import answer_message
from localspec.chat.prompt_source import BeginningSource, ChatSource, ReadySource
from localspec.chat.template import ChatTemplate, Message, template_source
from localspec.chat.turns import (
    MAX_COUNT,
    ChatBackend,
    Turn,
    Unfinished,
    is_count,
    messages_of,
    pending_calls,
    question_message,
    require_no_calls,
    result_messages,
    system_messages,
    turns_of,
)
from localspec.errors import EngineError, OptionError
from localspec.keywords import ForeignNames, explained
from localspec.streaming.answer import Answer
from localspec.streaming.answer_options import AnswerKeywords, AnswerOptions, spec_of
from localspec.streaming.answer_text import WholeMessage
from localspec.streaming.record import AnswerRecord, MadePrompt, PromptSource
from localspec.streaming.reply import Reply
from localspec.tools.tool import Tool

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on

    from localspec.pictures.picture import PictureSource

# What to write instead of names that others have.
_INSTEAD = {
    **dict.fromkeys(("ask", "generate", "invoke", "prompt", "stream"), 'chat.send("Hi")'),
    "history": "chat.messages",
}


class Chat(ForeignNames):
    """Turns of a conversation over an engine. Made by `Engine.chat`.

    An answer that is stopped early stays in the conversation. So do the model's thoughts. The
    template decides which of them are in the next prompt; most leave out thoughts that led to
    no calls of tools.
    When the context is full, the oldest turns are forgotten: as few as possible so that the
    prompt takes at most half of it.
    """

    _instead = _INSTEAD

    def __init__(
        self,
        engine: ChatBackend,
        *,
        messages: Sequence[Mapping[str, object]] = (),
        system: str | None = None,
        template: str | None = None,
        think: bool = True,
    ) -> None:
        self._engine = engine
        self._system, self._turns = turns_of(messages, system)
        self._forgotten: list[Turn] = []
        source = template_source(template, engine.chat_template)
        ChatTemplate(
            source,
            bos="",
            eos="",
            think=think,
        )  # raises for a bad template
        self._template = template
        self._think = think
        self._num_asked = len(self._turns)
        self._revision = 0  # counts changes: an answer asked for before one is refused
        self._unfinished: Unfinished | None = None  # the last answer, if it was cut
        self._tools: tuple[Tool, ...] = ()  # of the last answer

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation as the model will see it next: role and content of each message.

        A message with pictures has them, and their positions, under "pictures".
        """
        return (*self._system, *messages_of(self._turns))

    @property
    def transcript(self) -> tuple[Message, ...]:
        """The whole conversation, including the turns that were forgotten.

        `Engine.chat` continues it, also from JSON unless there are pictures in it, which JSON
        cannot hold.
        """
        return (*self._system, *messages_of(self._forgotten + self._turns))

    @property
    def num_forgotten(self) -> int:
        """Turns that the model does not see any more, because the context was full."""
        return len(self._forgotten)

    @property
    def system(self) -> str | None:
        """The system message. Setting it counts for the next answer; None or "" removes it."""
        if not self._system:
            return None
        content: str = self._system[0]["content"]
        return content

    @system.setter
    def system(self, text: str | None) -> None:
        self._system = system_messages(text)
        self._revision += 1

    @property
    def num_asked(self) -> int:
        """The number of answers started so far. It selects the next answer's random numbers."""
        return self._num_asked

    @property
    def last_question(self) -> str:
        """The question of the last turn. Raises OptionError if there is no turn."""
        if not self._turns:
            raise OptionError("there is no question yet", "Ask a question first.")
        return str(self._turns[-1][0]["content"])

    @explained('Give the question first: chat.send("Hi").')
    def send(
        self,
        text: str,
        options: AnswerOptions | None = None,
        *,
        images: Sequence[PictureSource] = (),
        **keywords: Unpack[AnswerKeywords],
    ) -> Answer:
        """The answer to `text`, with options as for `Engine.generate`.

        The functions given as `tools` can be called by the model until other tools are given.
        They are not run here: see `run_tools` and `send_tool_results`. With queue=True the
        question waits for the answers to earlier questions, and follows them. The conversation
        changes only when the answer is read. Then ContextError is raised if the message alone
        does not fit the context, and the conversation stays as it was.

        Args:
            text: The question.
            options: The options; keywords replace single ones.
            images: Pictures of the question, see `Picture.read`; they stay in the conversation.
        """
        require_no_calls(self._turns)
        chosen = AnswerOptions.of(options, **keywords)
        asked = (question_message(text, images),)
        return self._engine._answer(ChatRecord(self, asked, self._turns, chosen))

    def send_tool_results(
        self,
        results: Mapping[str, object],
        options: AnswerOptions | None = None,
        **keywords: Unpack[AnswerKeywords],
    ) -> Answer:
        """The answer to the results of the tools that the last answer called.

        The new answer may call tools again. Options as for `send`.

        Args:
            results: A result for each id of that answer's `tool_calls`: a text, or a value that
                JSON can hold.
            options: The options; keywords replace single ones.

        Raises:
            OptionError: If the last answer called no tool, if one of its calls has no result,
                or if a result belongs to none of its calls.
        """
        result_turn = result_messages(self._turns, results)
        chosen = AnswerOptions.of(options, **keywords)
        asked = (*self._turns[-1], *result_turn)  # the results continue the last turn
        return self._engine._answer(ChatRecord(self, asked, self._turns[:-1], chosen))

    def _end_calls(self, results: Mapping[str, str]) -> None:
        """End the last turn if all results that its answer waits for are given.

        An empty answer follows the results, so that another question can be asked.

        Args:
            results: The results by the ids of the calls; other results are ignored.
        """
        pending: dict[str, str] = {}
        for call in pending_calls(self._turns):
            call_id = str(call["id"])
            if call_id not in results:
                return
            pending[call_id] = results[call_id]
        if not pending:
            return
        *earlier, last = self._turns
        messages = result_messages(self._turns, pending)
        turn = (*last, *messages, answer_message("", (), ""))
        vars(self).update(_turns=[*earlier, turn], _revision=self._revision + 1)

    def retry(
        self,
        options: AnswerOptions | None = None,
        **keywords: Unpack[AnswerKeywords],
    ) -> Answer:
        """Another answer to the last question, with the options of `send`.

        It has other random numbers, and replaces the old answer as soon as it says anything.
        Raises OptionError if there was no question.
        """
        return self.edit(self.last_question, options, **keywords)

    def edit(
        self,
        text: str,
        options: AnswerOptions | None = None,
        *,
        images: Sequence[PictureSource] = (),
        **keywords: Unpack[AnswerKeywords],
    ) -> Answer:
        """The answer to `text`, which replaces the last question and its answer, if any.

        They are replaced as soon as the new answer says anything. The old question's pictures
        stay, after `images`. Options as for `send`.
        """
        chosen = AnswerOptions.of(options, **keywords)
        old = None
        if self._turns:
            old = self._turns[-1][0]
        asked = (question_message(text, images, old=old),)
        return self._engine._answer(ChatRecord(self, asked, self._turns[:-1], chosen))

    @property
    def can_continue(self) -> bool:
        """Whether the last answer was cut, by max_tokens or a stop, and can be continued."""
        unfinished = self._unfinished
        return unfinished is not None and unfinished.revision == self._revision

    def continue_answer(
        self,
        options: AnswerOptions | None = None,
        **keywords: Unpack[AnswerKeywords],
    ) -> Answer:
        """The continuation of the last answer, which was cut, after its last token.

        With the same options, a seed included, the two parts are the answer that would have
        come without the cut. The cut may be anywhere: within a character, a mark, a stop string
        or a call. The returned answer has only the new text. Text shown at the cut that turns
        out to be the beginning of a mark or a stop string is removed from `messages`.

        No turn is forgotten for it. Raises OptionError if the answer was complete, was made
        elsewhere, or the conversation has changed; ContextError, when it is read, if there is
        no free context.
        """
        chosen = AnswerOptions.of(options, **keywords)
        if not self._turns:
            raise OptionError("there is no answer yet", "Ask a question first.")
        if self._unfinished is None or not self.can_continue:
            raise OptionError(
                "the last answer is complete, or can no longer be continued",
                "Ask the model for more instead.",
            )
        *turns, (*asked, _) = self._turns
        record = ChatRecord(self, tuple(asked), turns, chosen, self._unfinished)
        return self._engine._answer(record)

    def prompt_tokens(self, text: str, images: Sequence[PictureSource] = ()) -> list[int]:
        """The tokens that the model would read if it were asked `text` now, with pictures.

        The tokens of a picture are negative numbers.
        """
        asked = (question_message(text, images),)
        return self._engine._make_prompt(self._source(self._turns, asked)).prompt.tokens

    def _source(
        self,
        turns: Sequence[Turn],
        asked: Turn,
        options: AnswerOptions | None = None,
    ) -> ChatSource:
        """The source of a question's prompt, with the conversation as it is now."""
        chosen = options or AnswerOptions()
        return ChatSource(
            self._system,
            turns,
            asked,
            chosen.tool_use(self._tools),
            self._template,
            self._think,
            spec_of(chosen),
        )

    def prepare(self) -> None:
        """Use idle time, for example while a person types. Call it in a thread of its own.

        It decodes the part of the next prompt's beginning that is not cached: a new system
        message, turns that were resumed, an answer whose thoughts the next prompts leave out.
        Then it times a few decodes of sizes whose cost is still unknown. It ends within one
        decode when any answer starts or `Engine.cancel` is called, and changes no answer. While
        an answer is produced, or another chat prepares, it does nothing.

        Raises what reading an answer raises.
        """
        source = BeginningSource(self._source(self._turns, ()))
        self._engine._prepare(source, owner=self)

    def copy(self) -> Chat:
        """A copy of the conversation. Later changes of one do not change the other."""
        return copy.copy(self)

    def __repr__(self) -> str:
        num_turns = len(self._forgotten) + len(self._turns)
        if num_turns == 1:
            return "<Chat of 1 turn>"
        return f"<Chat of {num_turns} turns>"

    def clear(self) -> None:
        """Forget every turn; the system message stays."""
        self._turns = []
        self._forgotten = []
        self._revision += 1

    def undo(self) -> str:
        """Remove the last turn and return its question. Raises OptionError if there is none."""
        if not self._turns:
            raise OptionError("there is no turn to remove", "Ask something first.")
        question = self._turns[-1][0]
        self._turns = self._turns[:-1]
        self._revision += 1
        return str(question["content"])

    def replace(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        num_asked: int = 0,
        num_forgotten: int = 0,
    ) -> None:
        """Continue another conversation: an optional system message, then whole turns.

        With the counts of that conversation, the next answers see the same turns and have the
        same random numbers as there.

        Args:
            messages: The messages of the other conversation.
            num_asked: Its number of answers, if the messages are its transcript.
            num_forgotten: Its number of forgotten turns, if the messages are its transcript.

        Raises:
            OptionError: For other messages, or a bad count.
        """
        system, turns = turns_of(messages, None)
        for name, value in (("num_asked", num_asked), ("num_forgotten", num_forgotten)):
            if not is_count(value):
                raise OptionError(f"{name} is {value!r}", f"Give 0 to {MAX_COUNT}.")
        self._system = system
        self._revision += 1
        self._forgotten = turns[:num_forgotten]
        self._turns = turns[num_forgotten:]
        self._num_asked = max(self._num_asked, num_asked)


class ChatRecord(AnswerRecord):
    """An answer, or the continuation of one, in the conversation at the time of the request.

    Args:
        chat: The conversation.
        asked: The turn without the answer: a question, or all messages up to the results of
            tools.
        turns: The turns before it.
        options: The options of the answer.
        unfinished: The answer that is continued, the last of the chat.
    """

    sends_prompt = True

    def __init__(
        self,
        chat: Chat,
        asked: Turn,
        turns: list[Turn],
        options: AnswerOptions,
        unfinished: Unfinished | None = None,
    ) -> None:
        super().__init__(options)
        self.owner: Chat = chat
        self._asked = asked
        self._is_new = turns is chat._turns
        self._unfinished = unfinished
        self._made: MadePrompt | None = None  # once it has begun
        self._see(turns)
        if unfinished is not None:
            self.turn = unfinished.turn

    def _see(self, turns: list[Turn]) -> None:
        """Note what is answered: the question after these turns, in the chat as it is now.

        The prompt itself is made later, by `_chat_source`.
        """
        chat = self.owner
        self.turn = chat._num_asked
        self._revision = chat._revision
        self._turns = turns
        # The last turn, if it gets another answer or goes on; none for a new question. The chat
        # keeps that turn until the new answer has come.
        self._replaced = chat._turns[len(turns) :]
        self._chat_source = chat._source(turns, self._asked, self.options)

    def source(self) -> PromptSource:
        """Raises OptionError where the answer before has called tools."""
        if self._unfinished is not None:
            return ReadySource(self._unfinished.prompt)
        turns = self.owner._turns
        if self.options.queue and self._is_new:  # it follows questions answered meanwhile
            require_no_calls(turns)
            self._see(turns)
        return self._chat_source

    def on_begin(self, made: MadePrompt) -> None:
        """Raises EngineError where the conversation has changed."""
        chat = self.owner
        if chat._revision != self._revision:
            raise EngineError(
                "the conversation has changed since this question, or another of its "
                "questions was answered first",
                "Ask again.",
            )
        self._made = made
        chat._revision += 1
        chat._num_asked = max(chat._num_asked, self.turn + 1)
        chat._tools = self._chat_source.use.tools
        # In one call: a signal handler may raise between two statements.
        forgotten = chat._forgotten + self._turns[: made.num_dropped_turns]
        vars(chat).update(_forgotten=forgotten, _turns=self._kept_turns(made) + self._replaced)

    def on_end(self, reply: Reply, message: WholeMessage | None) -> None:
        """Add the answer to the conversation."""
        chat = self.owner
        made = self._made
        if made is None or chat._revision != self._revision + 1:
            return  # the conversation has changed, for example was cleared
        prompt = made.prompt
        if message is not None:
            answer = answer_message(message.text, message.tool_calls, message.thoughts)
        else:
            before = self._replaced[0][-1]
            thoughts = before.get("reasoning_content", "") + reply.thoughts
            answer = answer_message(before["content"] + reply.text, (), thoughts)
            answer = {**before, **answer}
        is_kept = prompt.num_said or answer["content"] or reply.tool_calls
        if not is_kept and reply.finish_reason == "cancelled":
            return
        # A new revision: a question asked meanwhile was asked without this answer, and would
        # replace it.
        turns = [*self._kept_turns(made), (*self._asked, answer)]
        revision = chat._revision + 1
        vars(chat).update(_turns=turns, _revision=revision)
        if reply.finish_reason in ("length", "cancelled"):
            longer = prompt._replace(
                tokens=[*prompt.tokens, *reply.token_ids],
                num_said=prompt.num_said + len(reply.token_ids),
            )
            chat._unfinished = Unfinished(longer, self.turn, revision)

    def _kept_turns(self, made: MadePrompt) -> list[Turn]:
        """The earlier turns that are not forgotten."""
        return self._turns[made.num_dropped_turns :]
