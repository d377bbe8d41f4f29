"""The loop around tools: a question, the calls that the model makes, and its answer to them."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from localspec.chat.chat import Chat
from localspec.chat.foreign_bounds import check_room, fitting_text
from localspec.chat.turns import result_text
from localspec.errors import OptionError, is_whole
from localspec.streaming.answer import Answer
from localspec.streaming.answer_options import AnswerKeywords, AnswerOptions
from localspec.streaming.reply import Reply
from localspec.tools.foreign import ForeignFunction, ForeignResult
from localspec.tools.tool import Tool, ToolCall, choice_once_called

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on

    from localspec.pictures.picture import PictureSource

logger = logging.getLogger(__name__)

MOST_CALLS = 20
_INTERRUPTED = "[The call was interrupted.]"
REFUSED_CALL = "[The user has refused this call.]"
TOO_MANY_CALLS = (
    "Error: too many calls. No more calls can be made. Answer the question in words, from the "
    "results so far."
)


class RequestedCall:
    """A call that a model has made. Run it or refuse it; a call without either is run.

        step.run()          await step          step.refuse()

    Exceptions of the function are not raised here: the model gets them as the result.

    Args:
        call: The call.
        function: Takes the call's arguments by name.
        chat: The conversation. The result has to fit its context.
    """

    def __init__(self, call: ToolCall, function: Callable[..., Any], chat: Chat) -> None:
        self.call = call
        self.result: str | None = None
        """The result that the model gets; None until it is known."""

        self.error: Exception | None = None
        """The exception of the function, if it failed."""

        self.note = ""
        """How the result was changed, in words: that it was cut, and where."""

        self.pictures: tuple[str, ...] = ()
        """Images in the result of an MCP server's tool, as data URLs."""

        self._function = function
        self._chat = chat

    def __repr__(self) -> str:
        return f"<RequestedCall of {self.call.name}, result {self.result!r:.80}>"

    @property
    def foreign(self) -> ForeignFunction | None:
        """The function if it is a tool of an MCP server, else None."""
        if isinstance(self._function, ForeignFunction):
            return self._function
        return None

    def run(self) -> str:
        """Run the call, unless it was run or refused. Returns the result as the model reads it.

        Raises OptionError for an async function.
        """
        if self.result is None:
            _require_not_async(self.call.name, self._function)
            with self._errors_as_result():
                self._take(self._function(**self.call.arguments))
        assert self.result is not None
        return self.result

    def refuse(self) -> None:
        """Do not run the call. Its result says that the user has refused it."""
        if self.result is None:
            self.result = REFUSED_CALL

    def __await__(self) -> Generator[Any, None, str]:
        return self._run_soon().__await__()

    async def _run_soon(self) -> str:
        """`run` on an event loop: a function that is not async runs in a thread."""
        if self.result is None:
            with self._errors_as_result():
                if inspect.iscoroutinefunction(self._function):
                    found = await self._function(**self.call.arguments)
                else:
                    found = await asyncio.to_thread(self._function, **self.call.arguments)
                self._take(found)
        assert self.result is not None
        return self.result

    @property
    def _sent(self) -> object:
        """The result as the conversation gets it."""
        if self.pictures:
            return ForeignResult(self.result or "", self.pictures)
        return self.result

    def _take(self, found: object) -> None:
        """Keep what the function returned as the result."""
        if isinstance(found, ForeignResult):
            self.result, self.note = fitting_text(self._chat._engine, found.text)
            self.pictures = found.pictures
        else:
            self.result = result_text(found)

    @contextlib.contextmanager
    def _errors_as_result(self) -> Iterator[None]:
        """Make an exception in the block the result."""
        try:
            yield
        except Exception as error:
            logger.info("the tool %s failed", self.call.name, exc_info=True)
            self.error = error
            self.result = f"Error: {type(error).__name__}: {error}"


def tool_steps(
    chat: Chat,
    question: str,
    options: AnswerOptions | None = None,
    *,
    most_calls: int = MOST_CALLS,
    images: Sequence[PictureSource] = (),
    **keywords: Unpack[AnswerKeywords],
) -> Generator[Answer | RequestedCall, None, None]:
    """Send a question, run the calls that the model makes, and give it the results until it
    answers: the steps of `run_tools`, for an application that shows them as they come.

    It yields each `Answer`, to be read, and then each call in it as a `RequestedCall`. The last
    step is the answer without calls. If you may leave it early, close it, for example with
    `contextlib.closing`: then the conversation has the results so far, with a note for each
    call without a result, and can continue.

    The arguments are those of `run_tools` without `ask`. Raises OptionError if a tool has no
    function.
    """
    chosen = AnswerOptions.of(options, **keywords)
    functions = functions_of(chat, chosen)
    if not is_whole(most_calls, 1):
        raise OptionError(f"most_calls is {most_calls!r}", "Choose 1 or more.")
    answer = chat.send(question, chosen, images=images)
    return steps_from(chat, answer, chosen, functions, most_calls)


def steps_from(
    chat: Chat,
    answer: Answer,
    chosen: AnswerOptions,
    functions: Mapping[str, Callable[..., Any]],
    most_calls: int = MOST_CALLS,
) -> Generator[Answer | RequestedCall, None, None]:
    """The steps of `tool_steps`, starting from an answer that the caller has requested.

    Args:
        chat: The conversation.
        answer: The first answer.
        chosen: The options of that answer.
        functions: The functions of its tools by name, from `functions_of`.
        most_calls: As for `run_tools`.
    """
    following = AnswerOptions.of(chosen, tool_choice=choice_once_called(chosen.tool_choice))
    requested: dict[str, RequestedCall] = {}  # by the ids of all calls so far
    num_run = 0
    try:
        while True:
            yield answer
            reply = answer.reply()
            if not reply.tool_calls or reply.finish_reason == "cancelled":
                return
            steps = []
            for call in reply.tool_calls:
                step = RequestedCall(call, functions[call.name], chat)
                steps.append(step)
                requested[call.id] = step
            for step in steps:
                if num_run == most_calls:
                    step.result = TOO_MANY_CALLS
                    following = AnswerOptions.of(following, tool_choice="none")
                else:
                    num_run += 1
                    yield step
                    step.run()
            results = {step.call.id: step._sent for step in steps}
            answer = chat.send_tool_results(results, following)
    finally:
        answer.close()
        ended: dict[str, str] = {}
        with contextlib.suppress(Exception):  # it failed, and its reader got the error
            for call in answer.reply().tool_calls:
                ended[call.id] = _INTERRUPTED
        for call_id, step in requested.items():
            ended[call_id] = step.result or _INTERRUPTED
        chat._end_calls(ended)


def run_tools(
    chat: Chat,
    question: str,
    options: AnswerOptions | None = None,
    *,
    ask: Callable[[ToolCall], bool] | None = None,
    most_calls: int = MOST_CALLS,
    images: Sequence[PictureSource] = (),
    **keywords: Unpack[AnswerKeywords],
) -> Reply:
    """Send a question, run the calls that the model makes, and give it the results until it
    answers. Returns the last reply; the conversation has all messages.

    The result of a call, as the model gets it, is what the function returns, the error that it
    raises, a note that the arguments do not fit, or a refusal.

    Args:
        chat: The conversation.
        question: The text.
        options: The options of each answer. `tool_choice` counts for the first one; later the
            model chooses. The tools are functions, or `Tool`s with a function.
        ask: Decides before each call whether it may be run. Without it every call is run,
            except for tools that an MCP server marks as destructive.
        most_calls: The number of calls that are run or refused, since small models may repeat a
            call without end. The next call is not run, and the model has to answer without
            calls.
        images: As for `Chat.send`.
        keywords: As for `Chat.send`, for example tools=[…].

    Raises:
        OptionError: A tool has no function, or its function is async.
    """
    chosen = AnswerOptions.of(options, **keywords)
    for name, function in functions_of(chat, chosen).items():
        _require_not_async(name, function)

    def may_run(step: RequestedCall) -> bool:
        if ask is None:
            return _may_run_unasked(step)
        return ask(step.call)

    steps = tool_steps(
        chat,
        question,
        chosen,
        most_calls=most_calls,
        images=images,
    )
    with contextlib.closing(steps):
        for step in steps:
            if isinstance(step, Answer):
                reply = step.reply()
            elif may_run(step):
                step.run()
            else:
                step.refuse()
    return reply


async def run_tools_async(
    chat: Chat,
    question: str,
    options: AnswerOptions | None = None,
    *,
    ask: Callable[[ToolCall], bool | Awaitable[bool]] | None = None,
    most_calls: int = MOST_CALLS,
    images: Sequence[PictureSource] = (),
    **keywords: Unpack[AnswerKeywords],
) -> Reply:
    """`run_tools` on an event loop.

    Functions may be async; other functions run in threads. `ask` may be async, too; it is
    always called on the event loop.
    """
    steps = tool_steps(
        chat,
        question,
        options,
        most_calls=most_calls,
        images=images,
        **keywords,
    )
    with contextlib.closing(steps):
        for step in steps:
            if isinstance(step, Answer):
                reply = await step
            elif await _may_run(ask, step):
                await step
            else:
                step.refuse()
    return reply


async def _may_run(
    ask: Callable[[ToolCall], bool | Awaitable[bool]] | None,
    step: RequestedCall,
) -> bool:
    """Whether a call may be run, by `ask` if it is given."""
    if ask is None:
        return _may_run_unasked(step)
    found = ask(step.call)
    if inspect.isawaitable(found):
        return await found
    return found


def _may_run_unasked(step: RequestedCall) -> bool:
    """Whether a call is run without asking: unless it may destroy something."""
    return step.foreign is None or not step.foreign.is_destructive


def functions_of(chat: Chat, chosen: AnswerOptions) -> dict[str, Callable[..., Any]]:
    """The functions of the tools, by name.

    Raises OptionError if a tool has no function, ContextError if the tools of MCP servers take
    too much of the context.
    """
    if not isinstance(chat, Chat):
        raise OptionError(f"the chat is {chat!r:.80}", "Give one of an engine: engine.chat().")
    tools = chosen.tool_use(chat._tools).tools
    foreign = [tool for tool in tools if isinstance(tool.function, ForeignFunction)]
    if foreign:
        check_room(chat._engine, foreign)
    return {tool.name: _function_of(tool) for tool in tools}


def _function_of(tool: Tool) -> Callable[..., Any]:
    if tool.function is None:
        raise OptionError(
            f"the tool {tool.name} has no function to run",
            "Give the function itself, or a localspec.Tool with its function=. Or run the "
            "calls yourself: see Chat.send_tool_results.",
        )
    return tool.function


def _require_not_async(name: str, function: Callable[..., Any]) -> None:
    if inspect.iscoroutinefunction(function):
        raise OptionError(
            f"the function of the tool {name} is async",
            "Use run_tools_async on an event loop; await the steps of tool_steps.",
        )
