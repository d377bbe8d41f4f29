"""A conversation over an engine: its turns, the answers to them, and retries and edits."""

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

# What to write instead of names that other libraries use for a chat's attributes.
_INSTEAD = {
    **dict.fromkeys(("ask", "generate", "invoke", "prompt", "stream"), 'chat.send("Hi")'),
    "history": "chat.messages",
}


class Chat(ForeignNames):
    """A conversation over an engine. Made by `Engine.chat`.

    A turn is a question and its answer. An answer that is stopped early stays in the
    conversation, and so do the model's thoughts. The template decides which thoughts are in the
    next prompt; most templates leave out thoughts that led to no calls of tools.
    When the context is full, the oldest turns are forgotten: as few as possible so that the
    prompt takes at most half of the context.
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
        )  # raises TemplateError for a bad template
        self._template = template
        self._think = think
        self._num_asked = len(self._turns)
        # Counts changes of the conversation. An answer that was requested before a change is
        # refused.
        self._revision = 0
        self._unfinished: Unfinished | None = None  # the last answer that was cut
        self._tools: tuple[Tool, ...] = ()  # the tools of the last answer

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages of the next prompt, with role and content, without forgotten turns.

        A message with pictures has them, and their positions, under "pictures".
        """
        return (*self._system, *messages_of(self._turns))

    @property
    def transcript(self) -> tuple[Message, ...]:
        """The messages of the whole conversation, including the turns that were forgotten.

        `Engine.chat` accepts it and continues the conversation. A transcript without pictures
        can be stored as JSON; JSON cannot hold pictures.
        """
        return (*self._system, *messages_of(self._forgotten + self._turns))

    @property
    def num_forgotten(self) -> int:
        """The number of oldest turns left out of prompts, because the context was full."""
        return len(self._forgotten)

    @property
    def system(self) -> str | None:
        """The text of the system message; None if there is none.

        A new text takes effect with the next answer. None or "" removes the message.
        """
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
        """The number of answers started so far. A continuation is no new answer.

        At first it is the number of turns given. The next answer's random numbers depend on the
        seed and on this number.
        """
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
        """The answer to the question `text`, with options as for `Engine.generate`.

        The model can call the functions given as `tools` in this answer, and in later answers
        until other tools are given. They are not run here: see `run_tools` and
        `send_tool_results`. With queue=True the question waits for the answers to earlier
        questions, and follows them in the conversation. The conversation changes only when the
        answer is read. Reading raises ContextError if the message alone does not fit the
        context, and then the conversation stays as it was.

        Args:
            text: The question.
            options: The options; keywords replace single ones.
            images: Pictures of the question, see `Picture.read`; they stay in the conversation.

        Raises:
            OptionError: If the last answer waits for results of tools, or an argument is wrong.
        """
        require_no_calls(self._turns)
        chosen = AnswerOptions.of(options, **keywords)
        turn_start = (question_message(text, images),)
        return self._engine._answer(ChatRecord(self, turn_start, self._turns, chosen))

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
        tool_messages = result_messages(self._turns, results)
        chosen = AnswerOptions.of(options, **keywords)
        *earlier_turns, last_turn = self._turns
        turn_start = (*last_turn, *tool_messages)  # the results continue the last turn
        return self._engine._answer(ChatRecord(self, turn_start, earlier_turns, chosen))

    def _end_calls(self, results: Mapping[str, object]) -> None:
        """End a turn whose last answer called tools: add the results and an empty answer.

        Then another question can be asked. Nothing changes if the last answer called no tool,
        or if a call has no result in `results`.

        Args:
            results: Results by the ids of calls; those of other calls are ignored.
        """
        results_of_turn: dict[str, object] = {}
        for call in pending_calls(self._turns):
            call_id = str(call["id"])
            if call_id not in results:
                return
            results_of_turn[call_id] = results[call_id]
        if not results_of_turn:
            return
        *earlier_turns, last_turn = self._turns
        tool_messages = result_messages(self._turns, results_of_turn)
        ended_turn = (*last_turn, *tool_messages, answer_message("", (), ""))
        # In one call: a signal handler may raise between two statements.
        vars(self).update(_turns=[*earlier_turns, ended_turn], _revision=self._revision + 1)

    def retry(
        self,
        options: AnswerOptions | None = None,
        **keywords: Unpack[AnswerKeywords],
    ) -> Answer:
        """Another answer to the last question, with options as for `send`.

        Its random numbers differ from the old answer's. It replaces the old answer once its
        first text is there. Raises OptionError if there is no question.
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
        """The answer to the question `text`, which replaces the last turn, if there is one.

        The old question and its answer are replaced once the first text of the new answer is
        there. The old question's pictures stay, after `images`. Options as for `send`.
        """
        chosen = AnswerOptions.of(options, **keywords)
        old_question = None
        if self._turns:
            old_question = self._turns[-1][0]
        turn_start = (question_message(text, images, old=old_question),)
        return self._engine._answer(ChatRecord(self, turn_start, self._turns[:-1], chosen))

    @property
    def can_continue(self) -> bool:
        """Whether the last answer was cut by max_tokens or cancelled, and can be continued."""
        unfinished = self._unfinished
        return unfinished is not None and unfinished.revision == self._revision

    def continue_answer(
        self,
        options: AnswerOptions | None = None,
        **keywords: Unpack[AnswerKeywords],
    ) -> Answer:
        """Continue the last answer, which was cut, after its last token.

        The returned answer has only the new text. With the same options and seed, both parts
        together are the answer that would have come without the cut. The cut may be anywhere:
        within a character, a mark, a stop string or a call. Text before the cut that turns out
        to be the beginning of a mark or a stop string is removed from `messages`.

        No turn is forgotten to make room for the continuation.

        Raises:
            OptionError: If there is no answer, if it was complete or was not made by this chat,
                or if the conversation has changed since.
            ContextError: When the returned answer is read, if the context is full.
        """
        chosen = AnswerOptions.of(options, **keywords)
        if not self._turns:
            raise OptionError("there is no answer yet", "Ask a question first.")
        if self._unfinished is None or not self.can_continue:
            raise OptionError(
                "the last answer is complete, or can no longer be continued",
                "Ask the model for more instead.",
            )
        *earlier_turns, last_turn = self._turns
        turn_start = last_turn[:-1]
        record = ChatRecord(self, turn_start, earlier_turns, chosen, self._unfinished)
        return self._engine._answer(record)

    def prompt_tokens(self, text: str, images: Sequence[PictureSource] = ()) -> list[int]:
        """The tokens of the prompt if the question `text`, with pictures, were sent now.

        Each picture takes several tokens, which are negative numbers.
        """
        turn_start = (question_message(text, images),)
        made = self._engine._make_prompt(self._source(self._turns, turn_start))
        return made.prompt.tokens

    def _source(
        self,
        turns: Sequence[Turn],
        turn_start: Turn,
        options: AnswerOptions | None = None,
    ) -> ChatSource:
        """The source from which an answer's prompt is made.

        Args:
            turns: The turns before the answer's turn.
            turn_start: The messages of the answer's turn, without the answer.
            options: The answer's options; None for the defaults.
        """
        chosen = options or AnswerOptions()
        return ChatSource(
            self._system,
            turns,
            turn_start,
            chosen.tool_use(self._tools),
            self._template,
            self._think,
            spec_of(chosen),
        )

    def prepare(self) -> None:
        """Decode the beginning of the next prompt ahead, for example while a person types.

        Call it in a thread of its own: it returns when the work is done. It decodes the part of
        the next prompt that is known before the question and is not cached: a new system
        message, turns that were resumed, an answer whose thoughts the next prompts leave out.
        Then it times a few decodes of sizes whose cost is still unknown. It changes no answer.
        It ends within one decode when any answer starts or `Engine.cancel` is called. While an
        answer is produced, or another chat prepares, it does nothing.

        Raises what reading an answer raises.
        """
        source = BeginningSource(self._source(self._turns, ()))
        self._engine._prepare_next_prompt(source, owner=self)

    def copy(self) -> Chat:
        """An independent copy of the conversation, over the same engine."""
        return copy.copy(self)

    def __repr__(self) -> str:
        num_turns = len(self._forgotten) + len(self._turns)
        if num_turns == 1:
            return "<Chat of 1 turn>"
        return f"<Chat of {num_turns} turns>"

    def clear(self) -> None:
        """Remove all turns; the system message stays."""
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
        """Replace the system message and all turns by those of another conversation.

        With the counts of that conversation, the next answers see the same turns as there. They
        have the same random numbers, unless this chat has started more answers.

        Args:
            messages: The messages of the other conversation: a system message, if it has one,
                then whole turns.
            num_asked: Its `num_asked`, if the messages are its transcript.
            num_forgotten: Its `num_forgotten`, if the messages are its transcript.

        Raises:
            OptionError: If the messages are not whole turns, or a count is out of range.
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
    """The record of an answer in a chat, or of the continuation of one.

    It remembers the conversation at the time of the request, and changes the chat when the
    answer begins and ends.

    Args:
        chat: The conversation.
        turn_start: The messages of the answer's turn before the answer: a question, or the
            messages from the question to the results of tools.
        turns: The turns before it.
        options: The options of the answer.
        unfinished: The chat's last answer, if this answer continues it.
    """

    sends_prompt = True

    def __init__(
        self,
        chat: Chat,
        turn_start: Turn,
        turns: list[Turn],
        options: AnswerOptions,
        unfinished: Unfinished | None = None,
    ) -> None:
        super().__init__(options)
        self.owner: Chat = chat
        self._turn_start = turn_start
        # Only a new question gets the chat's own list; other requests get fewer turns.
        self._is_new_question = turns is chat._turns
        self._unfinished = unfinished
        self._made_prompt: MadePrompt | None = None  # None until the answer has begun
        self._follow(turns)
        if unfinished is not None:
            # The same number, so that the same stream of random numbers continues.
            self.turn_number = unfinished.turn_number

    def _follow(self, turns: list[Turn]) -> None:
        """Set the turns that the answer's turn follows, and the chat's state at this moment.

        The prompt itself is made later, from `_chat_source`.
        """
        chat = self.owner
        self.turn_number = chat._num_asked
        self._revision = chat._revision
        self._turns = turns
        # The last turn, if this answer replaces or continues it; empty for a new question. The
        # chat keeps that turn until the new answer ends.
        self._replaced_turns = chat._turns[len(turns) :]
        self._chat_source = chat._source(turns, self._turn_start, self.options)

    def source(self) -> PromptSource:
        """The source of the answer's prompt; a continuation has its prompt already.

        A new question with queue=True follows the turns that the chat has now. Raises
        OptionError if the last of them waits for the results of tools.
        """
        if self._unfinished is not None:
            return ReadySource(self._unfinished.prompt)
        turns = self.owner._turns
        if self.options.queue and self._is_new_question:
            require_no_calls(turns)
            self._follow(turns)
        return self._chat_source

    def on_begin(self, made: MadePrompt) -> None:
        """Note in the chat that the answer begins. Forget the turns left out of its prompt.

        Raises EngineError if the conversation has changed since the request.
        """
        chat = self.owner
        if chat._revision != self._revision:
            raise EngineError(
                "the conversation has changed since this question, or another of its "
                "questions was answered first",
                "Ask again.",
            )
        self._made_prompt = made
        chat._revision += 1
        chat._num_asked = max(chat._num_asked, self.turn_number + 1)
        chat._tools = self._chat_source.use.tools
        forgotten = chat._forgotten + self._turns[: made.num_dropped_turns]
        turns = self._kept_turns(made) + self._replaced_turns
        # In one call: a signal handler may raise between two statements.
        vars(chat).update(_forgotten=forgotten, _turns=turns)

    def on_end(self, reply: Reply, message: WholeMessage | None) -> None:
        """Add the answer to the chat, unless the conversation has changed since it began.

        Nothing is done if the answer has not begun. A cancelled answer without text and calls
        is not added. An answer that was cut is noted in the chat, so that it can be continued.

        Args:
            reply: The reply; of a continuation only the new part.
            message: The whole answer, with the part that it continues; None if that part was
                lost with a process.
        """
        chat = self.owner
        made = self._made_prompt
        if made is None or chat._revision != self._revision + 1:
            return
        prompt = made.prompt
        if message is not None:
            answer = answer_message(message.text, message.tool_calls, message.thoughts)
        else:
            answer = self._continued_answer(reply)
        # An answer that continues another (`num_said`) has content already.
        has_content = prompt.num_said or answer["content"] or reply.tool_calls
        if not has_content and reply.finish_reason == "cancelled":
            return
        # A question asked during this answer does not follow it. The revision changes, so that
        # the answer to such a question cannot replace this turn.
        turns = [*self._kept_turns(made), (*self._turn_start, answer)]
        revision = chat._revision + 1
        vars(chat).update(_turns=turns, _revision=revision)
        was_cut = reply.finish_reason in ("length", "cancelled")
        if was_cut:
            prompt_with_answer = prompt._replace(
                tokens=[*prompt.tokens, *reply.token_ids],
                num_said=prompt.num_said + len(reply.token_ids),
            )
            chat._unfinished = Unfinished(prompt_with_answer, self.turn_number, revision)

    def _continued_answer(self, reply: Reply) -> Message:
        """The message of the chat's last answer with the reply's text and thoughts added."""
        last_turn = self._replaced_turns[0]
        earlier_part = last_turn[-1]
        text = earlier_part["content"] + reply.text
        thoughts = earlier_part.get("reasoning_content", "") + reply.thoughts
        return {**earlier_part, **answer_message(text, (), thoughts)}

    def _kept_turns(self, made: MadePrompt) -> list[Turn]:
        """The turns before the answer's turn that are in its prompt."""
        return self._turns[made.num_dropped_turns :]
