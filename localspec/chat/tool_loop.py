"""Runs the tools that a model calls: a question, the calls, their results, and the answer."""

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
from localspec.tools.functions import close_awaitable
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
    """A call that a model has made, to be run or refused.

        step.run()          await step          step.refuse()

    If an application does neither, `tool_steps` runs the call. An exception of the function is
    not raised here: the model gets it as the result.

    Args:
        call: The call.
        function: The tool's function, which is called with the arguments by name.
        chat: The conversation. The result of an MCP server's tool is cut to fit its context.
    """

    def __init__(self, call: ToolCall, function: Callable[..., Any], chat: Chat) -> None:
        self.call = call
        self.result: str | None = None
        """The result that the model gets; None until it is known."""

        self.error: Exception | None = None
        """The exception of the function, if it failed."""

        self.note = ""
        """A sentence that says where the result was cut; "" if it was not."""

        self.pictures: tuple[str, ...] = ()
        """Images in the result of an MCP server's tool, as data URLs."""

        self._function = function
        self._chat = chat

    def __repr__(self) -> str:
        return f"<RequestedCall of {self.call.name}, result {self.result!r:.80}>"

    @property
    def foreign(self) -> ForeignFunction | None:
        """The function if the tool is of an MCP server, else None."""
        if isinstance(self._function, ForeignFunction):
            return self._function
        return None

    def run(self) -> str:
        """Run the call, unless it was run or refused before.

        Returns the result as the model gets it: what the function returned, its error, or that
        the call was refused. Raises OptionError for an async function.
        """
        if self.result is None:
            _require_not_async(self.call.name, self._function)
            returned: object = None
            with self._errors_as_result():
                returned = self._function(**self.call.arguments)
                if not inspect.isawaitable(returned):
                    self._set_result(returned)
            if inspect.isawaitable(returned):
                close_awaitable(returned)
                raise _async_error(self.call.name)
        assert self.result is not None
        return self.result

    def refuse(self) -> None:
        """Make the result say that the user has refused the call, unless it was run before."""
        if self.result is None:
            self.result = REFUSED_CALL

    def __await__(self) -> Generator[Any, None, str]:
        return self._run_async().__await__()

    async def _run_async(self) -> str:
        """As `run`, on an event loop: a function that is not async runs in a thread.

        Not every async function looks like one: a decorator or an object may hide it. So what
        was returned is awaited, too.
        """
        if self.result is None:
            with self._errors_as_result():
                if inspect.iscoroutinefunction(self._function):
                    returned = self._function(**self.call.arguments)
                else:
                    returned = await asyncio.to_thread(
                        self._function,
                        **self.call.arguments,
                    )
                if inspect.isawaitable(returned):
                    returned = await returned
                self._set_result(returned)
        assert self.result is not None
        return self.result

    @property
    def _result_with_pictures(self) -> object:
        """The result as `Chat.send_tool_results` takes it."""
        if self.pictures:
            return ForeignResult(self.result or "", self.pictures)
        return self.result

    def _set_result(self, returned: object) -> None:
        """Set the result to what the function returned, in the form that the model gets.

        Raises OptionError for a value that JSON cannot hold.
        """
        if isinstance(returned, ForeignResult):
            self.result, self.note = fitting_text(self._chat._engine, returned.text)
            self.pictures = returned.pictures
        else:
            self.result = result_text(returned)

    @contextlib.contextmanager
    def _errors_as_result(self) -> Iterator[None]:
        """Catch an exception in the block, and set the result to its message."""
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
    """The steps of `run_tools` one by one, for an application that shows them as they come.

    Sends a question, runs the calls that the model makes, and sends it the results, until it
    answers without calls. Yields each `Answer`, which you read, and then each of its calls as a
    `RequestedCall`. The last step is the answer without calls.

    If you may stop before the last step, close the generator, for example with
    `contextlib.closing`. Then the conversation has the results so far, and a note for each call
    without a result, and can continue.

    The arguments are those of `run_tools` without `ask`. Raises OptionError if a tool has no
    function or an argument is wrong, ContextError if the tools of MCP servers take more than a
    quarter of the context.
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
    """The steps of `tool_steps`, from an answer on that was requested before.

    Args:
        chat: The conversation.
        answer: The first answer.
        chosen: The options of that answer.
        functions: The functions of its tools by name, from `functions_of`.
        most_calls: As for `run_tools`.
    """
    later_choice = choice_once_called(chosen.tool_choice)
    later_options = AnswerOptions.of(chosen, tool_choice=later_choice)
    requested: dict[str, RequestedCall] = {}  # all calls so far, by their ids
    num_decided = 0  # calls that were run or refused
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
                if num_decided == most_calls:
                    step.result = TOO_MANY_CALLS
                    later_options = AnswerOptions.of(later_options, tool_choice="none")
                else:
                    num_decided += 1
                    yield step
                    step.run()
            results = {step.call.id: step._result_with_pictures for step in steps}
            answer = chat.send_tool_results(results, later_options)
    finally:
        # If the steps were left early, the turn gets a result for each of its calls.
        answer.close()
        final_results: dict[str, object] = {}
        with contextlib.suppress(Exception):  # the answer's own: its reader has got it
            for call in answer.reply().tool_calls:
                final_results[call.id] = _INTERRUPTED
        for call_id, step in requested.items():
            final_results[call_id] = _INTERRUPTED
            if step.result is not None:  # "" is a result
                final_results[call_id] = step._result_with_pictures
        chat._end_calls(final_results)


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
    """Send a question, run the tools that the model calls, and send it their results.

    It repeats this until the model answers without calls, and returns that reply. The
    conversation has all messages. As the result of a call the model gets what the function
    returns, the error that it raises, a note that the arguments do not fit, or a refusal.

    Args:
        chat: The conversation.
        question: The text.
        options: The options of each answer. `tool_choice` counts for the first one; later the
            model chooses. The tools are functions, or `Tool`s with a function.
        ask: Called before each call, to decide whether it may be run. Without `ask` every call
            is run, except for tools that an MCP server marks as destructive.
        most_calls: The limit of calls that are run or refused, since small models may repeat a
            call without end. Further calls are not run, and the model has to answer without
            calls.
        images: As for `Chat.send`.
        keywords: As for `Chat.send`, for example tools=[…].

    Raises:
        OptionError: A tool has no function, its function is async, or an argument is wrong.
        ContextError: The tools of MCP servers take more than a quarter of the context.
    """
    chosen = AnswerOptions.of(options, **keywords)
    for name, function in functions_of(chat, chosen).items():
        _require_not_async(name, function)

    def is_allowed(step: RequestedCall) -> bool:
        if ask is None:
            return not _is_destructive(step)
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
            elif is_allowed(step):
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
            elif await _is_allowed(ask, step):
                await step
            else:
                step.refuse()
    return reply


async def _is_allowed(
    ask: Callable[[ToolCall], bool | Awaitable[bool]] | None,
    step: RequestedCall,
) -> bool:
    """What `ask` answers for a call; without `ask`, True unless its tool is destructive."""
    if ask is None:
        return not _is_destructive(step)
    decision = ask(step.call)
    if inspect.isawaitable(decision):
        return await decision
    return decision


def _is_destructive(step: RequestedCall) -> bool:
    """Whether an MCP server marks the called tool as destructive."""
    return step.foreign is not None and step.foreign.is_destructive


def functions_of(chat: Chat, chosen: AnswerOptions) -> dict[str, Callable[..., Any]]:
    """The functions of the tools that an answer with these options may call, by name.

    Raises OptionError if a tool has no function, ContextError if the tools of MCP servers take
    more than a quarter of the context.
    """
    if not isinstance(chat, Chat):
        raise OptionError(f"the chat is {chat!r:.80}", "Give one of an engine: engine.chat().")
    tools = chosen.tool_use(chat._tools).tools
    mcp_tools = [tool for tool in tools if isinstance(tool.function, ForeignFunction)]
    if mcp_tools:
        check_room(chat._engine, mcp_tools)
    return {tool.name: _function_of(tool) for tool in tools}


def _function_of(tool: Tool) -> Callable[..., Any]:
    """The function of a tool. Raises OptionError if it has none."""
    if tool.function is None:
        raise OptionError(
            f"the tool {tool.name} has no function to run",
            "Give the function itself, or a localspec.Tool with its function=. Or run the "
            "calls yourself: see Chat.send_tool_results.",
        )
    return tool.function


def _require_not_async(name: str, function: Callable[..., Any]) -> None:
    """Raise OptionError if the function of the tool of that name is async."""
    if inspect.iscoroutinefunction(function):
        raise _async_error(name)


def _async_error(name: str) -> OptionError:
    """The error if the function of the tool of that name is async."""
    return OptionError(
        f"the function of the tool {name} is async",
        "Use run_tools_async on an event loop; await the steps of tool_steps.",
    )
