"""OpenAI's Responses. No response is stored: each request has the whole conversation.

The input and the output of the model are lists of items: a message, the thoughts before it, a
call of a tool, or the result of a call.
"""

from __future__ import annotations

import copy
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from localspec.chat.foreign_bounds import check_room, fitting_text
from localspec.chat.messages import answer_message, checked_messages
from localspec.chat.template import NO_VARIABLES, Message
from localspec.chat.tool_loop import MOST_CALLS, TOO_MANY_CALLS
from localspec.server.answering import Event, Finished, NewPiece, Service
from localspec.server.completions import logprob_object
from localspec.server.encoding import sse_event
from localspec.server.fields import Fields
from localspec.server.form import (
    Form,
    Handler,
    extra_fields,
    input_tokens_handler,
    usage_of,
    with_engine,
)
from localspec.server.mcp_calls import (
    MCP_TYPE,
    McpCall,
    McpUse,
    approved_calls,
    call_messages,
    make_call,
    messages_of_item,
    result_message,
)
from localspec.server.question import (
    Question,
    answer_form,
    answer_options,
    asked_logprobs,
    constraint_fields,
    flat_name,
    max_tokens,
    names_in_namespaces,
    openai_tools,
    template_variables,
)
from localspec.server.refusal import RequestError
from localspec.server.response_echo import RequestEcho
from localspec.streaming.reply import Piece, Reply
from localspec.tool_servers.servers import McpServers
from localspec.tools.foreign import ForeignFunction, ForeignResult
from localspec.tools.tool import CallPiece, ToolCall, choice_once_called

logger = logging.getLogger(__name__)

_LOGPROBS = "message.output_text.logprobs"  # in the field "include": it asks for them
_ItemName = Literal["message", "reasoning"]


@dataclass(frozen=True, slots=True)
class _ItemType:
    """What all items of the output of one type have in common."""

    id_prefix: str

    text_type: str
    """The type of the item's text, in the names of its events."""

    fields: dict[str, Any]
    """The item's own fields when it starts."""

    part: dict[str, Any]
    """The fields of the part with the item's text when it starts; {} for an item without
    parts."""


_ITEM_TYPES = {
    "message": _ItemType(
        "msg_",
        "output_text",
        {"role": "assistant", "content": []},
        {"text": "", "annotations": [], "logprobs": []},
    ),
    "reasoning": _ItemType(
        "rs_",
        "reasoning_text",
        {"summary": [], "content": []},
        {"text": ""},
    ),
    "function_call": _ItemType("fc_", "function_call_arguments", {"arguments": ""}, {}),
}
# The fields of an item, or of its part, that are repeated in the event that ends its text.
_FIELDS_OF_DONE = ("name", "arguments", "text", "logprobs")
# The fields of a message that has a thought and no calls.
_FIELDS_OF_THOUGHT = {"role", "content", "reasoning_content"}


class ResponseForm(Form):
    """A request to /v1/responses, and its response.

    The methods that return a str return events of the stream. Those that change the output are
    called for a response that is not streamed, too; then the events are dropped.

    If the model calls tools of MCP servers, they are called, and the model answers their
    results. All answers are items of the same response.
    """

    def __init__(self, fields: Fields, servers: McpServers | None = None) -> None:
        if fields.flag("background"):
            fields.refuse("background", "Leave it out: answers are given at once.")
        self._fields = fields
        self._servers = servers
        self._mcp = McpUse(fields, servers)
        self._approved_calls = approved_calls(fields, self._mcp)
        most_calls = fields.integer_between("max_tool_calls", 1, MOST_CALLS)
        self._num_calls_left = most_calls or MOST_CALLS
        options = answer_options(fields) | constraint_fields(fields)
        options |= openai_tools(_with_mcp_tools(fields, self._mcp))
        options |= answer_form(fields.object("text").object("format"))
        options["max_tokens"] = max_tokens(fields, "max_output_tokens")
        options["stop"] = fields.texts("stop")
        include = fields.texts("include") or ()
        options["logprobs"] = asked_logprobs(fields, is_asked=_LOGPROBS in include)
        self._messages = _input_messages(fields, self._mcp)
        self._options = options
        self.question = self._make_question()
        self._echo = RequestEcho(fields, self.question)
        self._id = f"resp_{secrets.token_hex(24)}"
        self._created = int(time.time())
        self._num_events = 0
        self._item: _Item | None = None  # the item that has started and not ended
        self._call: dict[str, Any] = {}  # the item of the MCP call that is made now
        self._output: list[dict[str, Any]] = []  # the items that have ended
        self._logprobs: list[dict[str, Any]] = []  # of new text that is in no item yet
        self._namespaces = names_in_namespaces(fields)

    def _make_question(self) -> Question:
        """The question with the messages and the options until now."""
        inputs = []
        if self._messages:
            inputs.append(self._messages)
        return Question(
            self._fields,
            inputs,
            self._options,
            variables=_variables(self._fields),
        )

    async def before_answers(self, service: Service) -> AsyncGenerator[str, None]:
        """List the tools of MCP servers, and make the calls that the client has approved.

        Raises ContextError if the tools take too much of the context.
        """
        tools = list(self._mcp.by_name.values())
        if tools:
            await with_engine(service, self.model, partial(check_room, tools=tools))
        for item in self._mcp.new_lists:
            yield self._add_whole_item(item, "mcp_list_tools")
        for call in self._approved_calls:
            opening = self._opening_events()
            yield opening + self._start_call(call)
            result = await self._make_call(service, call)
            yield self._end_call(result)
            name = self._mcp.model_name(call.function.server, call.function.tool)
            self._messages = [*self._messages, *call_messages(name, call.json, result)]
        if self._approved_calls:
            self._messages = checked_messages(self._messages)
            self.question = self._make_question()

    async def after_answers(
        self,
        service: Service,
        finished: Sequence[Finished],
    ) -> AsyncGenerator[str, None]:
        """Make the calls of MCP servers' tools in the answer, or ask the client for approval.

        If all calls of the answer were made, the next question has their results. First the
        answer is added to the output, unless it was streamed.
        """
        for answer in finished:
            if not self.question.streams:
                self._add_answer(answer)
            reply = answer.reply
            mcp_calls = [call for call in reply.tool_calls if call.name in self._mcp.by_name]
            if not mcp_calls or reply.finish_reason != "tool_calls":
                return
            results: list[Message] = []
            for tool_call in mcp_calls:
                call = self._mcp.call(tool_call.name, tool_call.json)
                if self._mcp.needs_approval(tool_call.name):
                    request = call.item("mcp_approval_request")
                    yield self._add_whole_item(request, None)
                    continue
                yield self._start_call(call)
                result = await self._make_call(service, call)
                yield self._end_call(result)
                results.append(result_message(tool_call.id, tool_call.name, result))
            if len(results) == len(reply.tool_calls):
                calling = answer_message(reply.text, reply.tool_calls, reply.thoughts)
                self._messages = checked_messages([*self._messages, calling, *results])
                choice = choice_once_called(self._options.get("tool_choice"))
                if self._num_calls_left <= 0:
                    choice = "none"
                self._options = {**self._options, "tool_choice": choice}
                self.question = self._make_question()
                self.has_next_question = True

    async def _make_call(self, service: Service, call: McpCall) -> ForeignResult:
        """Make a call, and return its result, cut to the part of the context that it may take.

        If the request has made too many calls, the result is an error, and no call is made.
        """
        assert self._servers is not None
        if self._num_calls_left <= 0:
            return ForeignResult(TOO_MANY_CALLS, is_error=True)
        self._num_calls_left -= 1
        result = await service.run_call(make_call(self._servers, call))
        cut = partial(fitting_text, text=result.text)
        text, note = await with_engine(service, self.model, cut)
        if note:
            logger.info("%s.%s: %s", call.function.server, call.function.tool, note)
        return result._replace(text=text)

    def _start_call(self, call: McpCall) -> str:
        """End any open item, and start the item of an MCP call."""
        events = self._end_item()
        self._call = call.item(
            "mcp_call",
            approval_request_id=call.request_id,
            output=None,
            error=None,
            status="in_progress",
        )
        events += self._item_event("added", {**self._call, "arguments": ""})
        position = self._position(self._call)
        events += self._event("response.mcp_call.in_progress", **position)
        events += self._event("response.mcp_call_arguments.delta", **position, delta=call.json)
        done = {**position, "arguments": call.json}
        events += self._event("response.mcp_call_arguments.done", **done)
        return events

    def _end_call(self, result: ForeignResult) -> str:
        """End the item of the MCP call that is made now, with its result."""
        if result.is_error:
            status = "failed"
            outcome = {"output": None, "error": result.text}
        else:
            status = "completed"
            outcome = {"output": result.text}
        item = {**self._call, **outcome, "status": status}
        events = self._event(f"response.mcp_call.{status}", **self._position(item))
        events += self._item_event("done", item)
        self._output.append(item)
        return events

    def _add_whole_item(self, item: dict[str, Any], progress_name: str | None) -> str:
        """End any open item, and add an item that is complete at once.

        Args:
            item: the item as clients get it.
            progress_name: the name of the events that tell its progress; None for no such
                events.
        """
        events = self._opening_events()
        events += self._end_item()
        events += self._item_event("added", item)
        if progress_name is not None:
            position = self._position(item)
            events += self._event(f"response.{progress_name}.in_progress", **position)
            events += self._event(f"response.{progress_name}.completed", **position)
        events += self._item_event("done", item)
        self._output.append(item)
        return events

    def _add_answer(self, answer: Finished) -> None:
        """Add the items of a whole answer to the output, but no MCP calls: these come later."""
        reply = answer.reply
        if reply.thoughts:
            self._add_text("reasoning", reply.thoughts)
        logprobs = reply.logprobs or ()
        text_logprobs = logprobs[reply.num_thought_tokens :]
        self._logprobs = [logprob_object(token) for token in text_logprobs]
        if reply.text:
            self._add_text("message", reply.text)
        for index, call in enumerate(reply.tool_calls):
            if call.name not in self._mcp.by_name:
                self._add_text(index, call.json, call)  # its item is named by the index
        self._end_answer(reply)

    def body(self, finished: Sequence[Finished]) -> Any:
        """The whole response, to be written as JSON."""
        return self._response("completed", self._output, finished)

    def text_for(self, event: Event) -> str:
        """The events of the stream for something that happened while an answer is made."""
        opening = self._opening_events()
        if isinstance(event, NewPiece):
            return opening + self._add_piece(event.piece)
        if isinstance(event, Finished):
            return opening + self._end_answer(event.reply)
        return opening or self._in_progress_event(event.field)

    def _end_answer(self, reply: Reply) -> str:
        """End the open item of an answer.

        An answer that has neither text nor calls gets an empty message.
        """
        started = ""
        is_without_text = self._item is None or self._item.name == "reasoning"
        if is_without_text and not reply.tool_calls:
            started = self._switch_to(_Item("message"))
        status = "completed"
        is_whole_call = self._item is not None and self._item.is_whole_call
        if reply.finish_reason == "length" and not is_whole_call:
            status = "incomplete"
        events = started + self._end_item(status)
        # Those of calls of MCP servers' tools go into no item, nor into the next answer's.
        self._logprobs = []
        return events

    def end(self, finished: Sequence[Finished]) -> str:
        """The last event of the stream, with the whole response."""
        response = self._response("completed", self._output, finished)
        opening = self._opening_events()
        return opening + self._event(f"response.{response['status']}", response=response)

    def failure(self, error: RequestError) -> str:
        """The last event of the stream after an error."""
        response = self._response("failed", self._output, [])
        response["error"] = {"code": _error_code(error), "message": error.sentence}
        opening = self._opening_events()
        return opening + self._event("response.failed", response=response)

    def _opening_events(self) -> str:
        """The first events of the stream; "" if they are sent already."""
        if self._num_events > 0:
            return ""
        response = self._response("in_progress", [], [])
        created = self._event("response.created", response=response)
        return created + self._in_progress_event({})

    def _in_progress_event(self, more: Mapping[str, Any]) -> str:
        """The event that the response is under way.

        Args:
            more: further fields of the event.
        """
        response = self._response("in_progress", [], [])
        return self._event("response.in_progress", response=response, **more)

    def _add_piece(self, piece: Piece) -> str:
        """Add a piece of an answer to the output."""
        if piece.logprobs is not None and not piece.is_thought:
            self._logprobs.append(logprob_object(piece.logprobs))
        call = piece.call
        if call is not None:
            if call.name in self._mcp.by_name:
                return ""  # `after_answers` adds an item for it
            return self._add_text(
                call.number,
                call.json,
                call,
                is_last=call.is_last,
            )
        if not piece.text:
            return ""
        if piece.is_thought:
            return self._add_text("reasoning", piece.text)
        return self._add_text("message", piece.text)

    def _add_text(
        self,
        name: _ItemName | int,
        text: str,
        call: ToolCall | CallPiece | None = None,
        *,
        is_last: bool = True,
    ) -> str:
        """Add text to the open item; if that has another name, end it, and start a new item.

        Args:
            name: the name of the text's item, see `_Item`.
            text: the text, which may be "".
            call: the call whose arguments the text is; None for other text.
            is_last: whether the arguments of the call end with this text.
        """
        item = self._item
        started = ""
        if item is None or item.name != name:
            item = self._new_item(name, call)
            started = self._switch_to(item)
        item.is_whole_call = call is not None and is_last
        if not text:
            return started
        item.text_holder[item.text_field] += text
        delta = {
            **self._text_position(item),
            "delta": text,
            **self._move_logprobs(item),
        }
        return started + self._event(f"response.{item.text_type}.delta", **delta)

    def _new_item(self, name: _ItemName | int, call: ToolCall | CallPiece | None) -> _Item:
        """A new item, which is not in the output yet; see `_add_text` for the arguments."""
        if call is None:
            return _Item(name)
        function = self._namespaces.get(call.name, {"name": call.name})
        return _Item(name, {"call_id": call.id, **function})

    def _move_logprobs(self, item: _Item) -> dict[str, Any]:
        """Add the new log-probabilities to a message, and return them as a field of its event.

        Returns {} for any other item.
        """
        if item.name != "message":
            return {}
        logprobs = self._logprobs
        self._logprobs = []
        item.part["logprobs"] += logprobs
        return {"logprobs": logprobs}

    def _position(self, item: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of an event that say to which item it belongs, before the item ends."""
        return {"item_id": item["id"], "output_index": len(self._output)}

    def _text_position(self, item: _Item) -> dict[str, Any]:
        """The fields of an event that say to which item, and to which part, a text belongs."""
        position = self._position(item.json)
        if item.part:
            position["content_index"] = 0
        return position

    def _switch_to(self, item: _Item) -> str:
        """End any open item, and start this one."""
        events = self._end_item()
        self._item = item
        events += self._item_event("added", item.json)
        return events + self._part_event("added", item)

    def _end_item(self, status: str = "completed") -> str:
        """End the open item, and add it to the output. Returns "" if there is none.

        Args:
            status: the status of the item.
        """
        item = self._item
        self._item = None
        if item is None:
            return ""
        self._move_logprobs(item)
        fields = self._text_position(item)
        for name in _FIELDS_OF_DONE:
            if name in item.text_holder:
                fields[name] = item.text_holder[name]
        events = self._event(f"response.{item.text_type}.done", **fields)
        events += self._part_event("done", item)
        item.json["status"] = status
        if item.part:
            item.json["content"] = [item.part]
        events += self._item_event("done", item.json)
        self._output.append(item.json)
        return events

    def _item_event(self, change: Literal["added", "done"], item: Mapping[str, Any]) -> str:
        """The event that an item starts or ends, before it is added to the output."""
        index = len(self._output)
        return self._event(f"response.output_item.{change}", output_index=index, item=item)

    def _part_event(self, change: Literal["added", "done"], item: _Item) -> str:
        """The event that the part of an item starts or ends; "" if the item has no part."""
        if not item.part:
            return ""
        event_type = f"response.content_part.{change}"
        return self._event(event_type, **self._text_position(item), part=item.part)

    def _event(self, event_type: str, **fields: Any) -> str:
        """The next event of the stream, with its number."""
        number = self._num_events
        self._num_events += 1
        return sse_event(
            {
                "type": event_type,
                "sequence_number": number,
                **fields,
            },
            event_type,
        )

    def _response(
        self,
        status: str,
        output: Sequence[Mapping[str, Any]],
        finished: Sequence[Finished],
    ) -> dict[str, Any]:
        """The object of the response.

        Args:
            status: the status. For "completed" it becomes "incomplete" if an answer was cut.
            output: the items of the output until now.
            finished: the answers that are complete.
        """
        is_cut = any(answer.reply.finish_reason == "length" for answer in finished)
        is_over = status == "completed"
        response: dict[str, Any] = {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "completed_at": None,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.model.name,
            "output": list(output),
            "usage": None,
            **self._echo.with_sampling(self.model.sampling),
        }
        if is_over:
            response["usage"] = _usage(finished, self.question)
        if is_cut:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        if is_over and is_cut:
            response["status"] = "incomplete"
        elif is_over:
            response["completed_at"] = int(time.time())
        if finished:
            response |= extra_fields(finished[-1].reply)
        return response


def _with_mcp_tools(fields: Fields, use: McpUse) -> Fields:
    """The request with the tools of MCP servers among the functions that the model may call.

    A choice of an MCP server becomes a choice of its tools.
    """
    if not use.by_name:
        return fields
    tools: list[Mapping[str, Any]] = []
    for tool in fields.objects("tools"):
        if tool.value("type") != MCP_TYPE:
            tools.append(tool.values)
    tools += use.declarations
    choice = fields.value("tool_choice")
    if isinstance(choice, Mapping) and choice.get("type") == MCP_TYPE:
        choice = _choice_of_functions(fields, choice, use)
    elif isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        choice = _with_mcp_functions(fields, choice, use)
    fields.flag("parallel_tool_calls")  # so that it counts as read: only the copy is read
    return Fields(
        {
            **fields.values,
            "tools": tools,
            "tool_choice": choice,
        }
    )


def _choice_of_functions(
    fields: Fields, choice: Mapping[str, Any], use: McpUse
) -> dict[str, Any]:
    """A choice of an MCP server, or of one of its tools, as a choice among functions.

    The model has to call one of them. Raises RequestError if the request has no such tool.
    """
    label = choice.get("server_label")
    tool_name = choice.get("name")
    functions = []
    for model_name, tool in use.by_name.items():
        function = tool.function
        if not isinstance(function, ForeignFunction) or function.server != label:
            continue
        if tool_name in (None, function.tool):
            functions.append({"type": "function", "name": model_name})
    if not functions:
        fields.refuse("tool_choice", "The request's tools of MCP servers have no such tool.")
    return {
        "type": "allowed_tools",
        "mode": "required",
        "tools": functions,
    }


def _with_mcp_functions(
    fields: Fields, choice: Mapping[str, Any], use: McpUse
) -> Mapping[str, Any]:
    """A choice of the type "allowed_tools", with functions in place of MCP servers.

    A choice that is malformed is returned as it is. Raises RequestError as
    `_choice_of_functions`.
    """
    # Chat Completions has the list in an object within the choice, Responses in the choice.
    holder = choice.get("allowed_tools", choice)
    if not isinstance(holder, Mapping) or not isinstance(holder.get("tools"), list):
        return choice
    tools: list[object] = []
    for tool in holder["tools"]:
        if isinstance(tool, Mapping) and tool.get("type") == MCP_TYPE:
            tools += _choice_of_functions(fields, tool, use)["tools"]
        else:
            tools.append(tool)
    return {"type": "allowed_tools", **holder, "tools": tools}


def response_input_tokens(fields: Fields) -> Handler:
    """The handler of a request to /v1/responses/input_tokens.

    Its response is the number of tokens in the prompt.
    """
    messages = _input_messages(fields, McpUse(Fields({}), None))
    return input_tokens_handler(fields, messages, openai_tools(fields), _variables(fields))


def _variables(fields: Fields) -> dict[str, Any]:
    """The variables of the chat template. Raises RequestError."""
    return template_variables(fields, effort=fields.object("reasoning").text("effort"))


def _input_messages(fields: Fields, use: McpUse) -> list[Message]:
    """The conversation in a request, as messages; [] if the input is empty.

    A thought is left out if neither text nor a call follows it.

    Args:
        fields: the request.
        use: the tools of MCP servers that the request may call.

    Raises:
        RequestError: a field is wrong.
        OptionError: a message is wrong.
    """
    for name in ("previous_response_id", "conversation", "prompt"):
        if name in fields:
            fields.refuse(name, "Send the whole conversation as input.")
    conversation = fields.value("input")
    messages: list[Message] = []
    if conversation is None:
        fields.refuse("input", "Give a string, or the conversation as a list.")
    if isinstance(conversation, str):
        if conversation:
            messages.append({"role": "user", "content": conversation})
    else:
        items = fields.objects("input")
        for item in items:
            _add_item(messages, item)
            messages += messages_of_item(items, item, use)
    instructions = fields.text("instructions")
    if instructions and messages:
        messages = [{"role": "system", "content": instructions}, *messages]
    messages = [message for message in messages if not _is_only_thought(message)]
    if messages:
        return checked_messages(messages)
    return []


def _is_only_thought(message: Message) -> bool:
    """Whether a message is a thought that neither text nor a call followed."""
    return message["content"] is None and message.keys() == _FIELDS_OF_THOUGHT


def _add_item(messages: list[Message], item: Fields) -> None:
    """Add an item of the input to the messages.

    A thought, the text after it and the calls after that become one message. An item of an
    unknown type is ignored, but a reference to an item is refused: without the model's own
    answers the conversation would be another one. Raises RequestError.
    """
    item_type = item.text("type") or "message"
    if item_type == "message":
        message = {"role": item.value("role"), "content": item.value("content")}
        is_answer = message["role"] == "assistant"
        if is_answer and messages and _is_only_thought(messages[-1]):
            thought = messages.pop()
            message = {**thought, **message}
        messages.append(message)
    elif item_type == "reasoning":
        parts = item.objects("content") or item.objects("summary")
        texts = [part.text("text") or "" for part in parts]
        messages.append(
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "\n".join(texts),
            }
        )
    elif item_type == "function_call":
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": None})
        answer = messages.pop()
        calls = answer.get("tool_calls", ())
        messages.append({**answer, "tool_calls": [*calls, _function_call(item)]})
    elif item_type == "function_call_output":
        call_id = item.text("call_id")
        messages.append(
            {
                "role": "tool",
                "content": item.value("output"),
                "tool_call_id": call_id,
            }
        )
    elif item_type == "item_reference":
        item.refuse(
            "type",
            "Responses are not stored: send the item itself. Clients do so if their option "
            "store is false.",
        )
    elif not item_type.startswith("mcp_"):  # `messages_of_item` reads these
        logger.debug("an item of type %.80r is ignored", item_type)


def _function_call(item: Fields) -> dict[str, Any]:
    """The call in an item of the input, as messages have it."""
    name = flat_name(item.text("name"), item.text("namespace"))
    function = {"name": name, "arguments": item.value("arguments")}
    return {"id": item.text("call_id"), "function": function}


class _Item:
    """An item of the output that gets its text in pieces: a message, thoughts, or a call.

    Args:
        name: the item's type; for a call, its index among the calls of the answer.
        call_fields: the fields of a call with its id, name and namespace; {} for other items.
    """

    def __init__(
        self,
        name: _ItemName | int,
        call_fields: Mapping[str, Any] = NO_VARIABLES,
    ) -> None:
        type_name = "function_call"
        if not isinstance(name, int):
            type_name = name
        item_type = copy.deepcopy(_ITEM_TYPES[type_name])
        self.name = name

        self.is_whole_call = False
        """Whether the item is a call whose arguments are complete."""

        self.text_type = item_type.text_type
        """The type of its text, in the names of its events."""

        self.json: dict[str, Any] = {
            "id": item_type.id_prefix + secrets.token_hex(24),
            "type": type_name,
            "status": "in_progress",
            **call_fields,
            **item_type.fields,
        }
        """The item as clients get it."""

        self.part: dict[str, Any] = {}
        """The part with the item's text; {} for a call."""

        self.text_holder = self.json
        """The object that has the item's text: the part, or the item itself."""

        self.text_field = "arguments"
        """The name of the text's field in `text_holder`."""

        if item_type.part:
            self.part = {"type": item_type.text_type, **item_type.part}
            self.text_holder = self.part
            self.text_field = "text"


def _error_code(error: RequestError) -> str:
    """The code of an error within a response, which has other codes than an HTTP error.

    OpenAI's list of them lacks context_length_exceeded, but agents look for it.
    """
    if error.status >= 500:
        return "server_error"
    if error.code == "context_length_exceeded":
        return error.code
    return "invalid_prompt"


def _usage(finished: Sequence[Finished], question: Question) -> dict[str, Any]:
    """The numbers of tokens in all answers, in the fields of Responses."""
    usage = usage_of(finished, question)
    num_thought_tokens = usage["completion_tokens_details"]["reasoning_tokens"]
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": usage["prompt_tokens_details"],
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": num_thought_tokens},
        "total_tokens": usage["total_tokens"],
    }
