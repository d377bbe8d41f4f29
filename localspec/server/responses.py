"""OpenAI's Responses. The server stores none: each request has the whole conversation."""

from __future__ import annotations

import copy
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from localspec.chat.foreign_bounds import check_room, fitting_text
from localspec.chat.messages import answer_message, checked_messages
from localspec.chat.template import NO_VARIABLES, Message
from localspec.chat.tool_loop import MOST_CALLS, TOO_MANY_CALLS
from localspec.isolated.isolated_engine import IsolatedEngine
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
    call_of,
    messages_of_call,
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
from localspec.tools.tool import CallPiece, Tool, ToolCall, choice_once_called

logger = logging.getLogger(__name__)

_LOGPROBS = "message.output_text.logprobs"  # in the field "include"
_Kind = Literal["message", "reasoning"]


@dataclass(frozen=True, slots=True)
class _ItemKind:
    """What all items of one kind have in common."""

    id_prefix: str

    delta: str
    """The name of its deltas."""

    fields: dict[str, Any]
    """The fields of the item when it starts."""

    part: dict[str, Any]
    """The fields of its content's part when that starts; none if it has no part."""


_KINDS = {
    "message": _ItemKind(
        "msg_",
        "output_text",
        {"role": "assistant", "content": []},
        {"text": "", "annotations": [], "logprobs": []},
    ),
    "reasoning": _ItemKind(
        "rs_",
        "reasoning_text",
        {"summary": [], "content": []},
        {"text": ""},
    ),
    "function_call": _ItemKind("fc_", "function_call_arguments", {"arguments": ""}, {}),
}
_WHOLE = ("name", "arguments", "text", "logprobs")  # fields of the event that ends an item
_ONLY_THOUGHT = {"role", "content", "reasoning_content"}


class ResponseForm(Form):
    """A request to /v1/responses, and its answer.

    Its events come in the order in which the parts of an item start and end. The last is
    response.completed, or response.incomplete where the answer was cut.
    """

    def __init__(self, fields: Fields, servers: McpServers | None = None) -> None:
        if fields.flag("background"):
            fields.refuse("background", "Leave it out: answers are given at once.")
        self._fields = fields
        self._servers = servers
        self._mcp = McpUse(fields, servers)
        self._approved = approved_calls(fields, self._mcp)
        self._num_calls_left = (
            fields.integer_between("max_tool_calls", 1, MOST_CALLS) or MOST_CALLS
        )
        options = answer_options(fields) | constraint_fields(fields)
        options |= openai_tools(_with_mcp_tools(fields, self._mcp))
        options |= answer_form(fields.object("text").object("format"))
        options["max_tokens"] = max_tokens(fields, "max_output_tokens")
        options["stop"] = fields.texts("stop")
        included = fields.texts("include") or ()
        options["logprobs"] = asked_logprobs(fields, is_asked=_LOGPROBS in included)
        self._messages = _input_messages(fields, self._mcp)
        self._options = options
        self.question = self._question(options)
        self._echo = RequestEcho(fields, self.question)
        self._id = f"resp_{secrets.token_hex(24)}"
        self._created = int(time.time())
        self._num_events = 0
        self._item: _Item | None = None  # the open item
        self._call: dict[str, Any] = {}  # the item of a call that is made now
        self._output: list[dict[str, Any]] = []
        self._logprobs: list[dict[str, Any]] = []  # of new text, not yet in an item
        self._spaces = names_in_namespaces(fields)

    def _question(self, options: Mapping[str, Any]) -> Question:
        inputs = []
        if self._messages:
            inputs.append(self._messages)
        return Question(
            self._fields,
            inputs,
            options,
            variables=_variables(self._fields),
        )

    async def before_answers(self, service: Service) -> AsyncGenerator[str, None]:
        """List the tools of MCP servers, and make the calls that the client has approved."""
        if self._mcp.by_name:
            tools = list(self._mcp.by_name.values())
            await with_engine(service, self.model, partial(_check_room, tools))
        for item in self._mcp.listed:
            yield self._whole_item(item, "mcp_list_tools")
        for call in self._approved:
            name = self._mcp.shown_name(call.function.server, call.function.tool)
            begun = self._opening_events()
            yield begun + self._start_call(call)
            result = await self._result_of(service, call)
            yield self._end_call(result)
            self._messages = [*self._messages, *messages_of_call(name, call, result)]
        if self._approved:
            self._messages = checked_messages(self._messages)
            self.question = self._question(self._options)

    async def after_answers(
        self,
        service: Service,
        finished: Sequence[Finished],
    ) -> AsyncGenerator[str, None]:
        """Make the calls of MCP servers' tools in the answer, unless they need approval.

        The answer to their results follows where there is no other call.
        """
        for answer in finished:
            if not self.question.streams:
                self._take(answer)
            reply = answer.reply
            ours = [call for call in reply.tool_calls if call.name in self._mcp.by_name]
            if not ours or reply.finish_reason != "tool_calls":
                return
            said = answer_message(reply.text, reply.tool_calls, reply.thoughts)
            results: list[Message] = []
            for made in ours:
                call = self._mcp.call(made.name, made.json)
                if self._mcp.needs_approval(made.name):
                    yield self._whole_item(call.item("mcp_approval_request"), None)
                    continue
                yield self._start_call(call)
                result = await self._result_of(service, call)
                yield self._end_call(result)
                results.append(result_message(made.id, made.name, result))
            if len(results) == len(reply.tool_calls):
                self._messages = checked_messages([*self._messages, said, *results])
                choice = choice_once_called(self._options.get("tool_choice"))
                if self._num_calls_left <= 0:
                    choice = "none"
                self._options = {**self._options, "tool_choice": choice}
                self.question = self._question(self._options)
                self.has_next_question = True

    async def _result_of(self, service: Service, call: McpCall) -> ForeignResult:
        """Make a call; the result is cut to the part of the context that it may take."""
        assert self._servers is not None
        if self._num_calls_left <= 0:
            return ForeignResult(TOO_MANY_CALLS, is_error=True)
        self._num_calls_left -= 1
        result = await service.run_call(call_of(self._servers, call))
        fit = partial(_fitting, result.text)
        text, note = await with_engine(service, self.model, fit)
        if note:
            logger.info("%s.%s: %s", call.function.server, call.function.tool, note)
        return result._replace(text=text)

    def _start_call(self, call: McpCall) -> str:
        """Start the item of a call that is made now."""
        more = {
            "output": None,
            "error": None,
            "status": "in_progress",
        }
        self._call = call.item("mcp_call", approval_request_id=call.request_id, **more)
        ended = self._end_item()
        index = len(self._output)
        where = {"output_index": index, "item_id": self._call["id"]}
        item = {**self._call, "arguments": ""}
        texts = [
            ended,
            self._event("response.output_item.added", output_index=index, item=item),
            self._event("response.mcp_call.in_progress", **where),
            self._event("response.mcp_call_arguments.delta", **where, delta=call.json),
            self._event("response.mcp_call_arguments.done", **where, arguments=call.json),
        ]
        return "".join(texts)

    def _end_call(self, result: ForeignResult) -> str:
        """End the item of the call that is made now, with its result. Returns the events."""
        if result.is_error:
            status = "failed"
            outcome = {"output": None, "error": result.text}
        else:
            status = "completed"
            outcome = {"output": result.text}
        item = {**self._call, **outcome, "status": status}
        index = len(self._output)
        self._output.append(item)
        where = {"output_index": index, "item_id": item["id"]}
        ended = self._event(f"response.mcp_call.{status}", **where)
        done = self._event("response.output_item.done", output_index=index, item=item)
        return ended + done

    def _whole_item(self, item: dict[str, Any], progress: str | None) -> str:
        """Add an item that is complete at once.

        Args:
            item: as clients get it.
            progress: the name of its events of progress; None if it has none.
        """
        text = self._opening_events()
        text += self._end_item()
        index = len(self._output)
        where = {"output_index": index, "item_id": item["id"]}
        text += self._event("response.output_item.added", output_index=index, item=item)
        if progress is not None:
            text += self._event(f"response.{progress}.in_progress", **where)
            text += self._event(f"response.{progress}.completed", **where)
        text += self._event("response.output_item.done", output_index=index, item=item)
        self._output.append(item)
        return text

    def _take(self, answer: Finished) -> None:
        """Add the items of an answer that is not streamed."""
        reply = answer.reply
        if reply.thoughts:
            self._add("reasoning", reply.thoughts)
        logprobs = reply.logprobs or ()
        said = logprobs[reply.num_thought_tokens :]
        self._logprobs = [logprob_object(token) for token in said]
        if reply.text:
            self._add("message", reply.text)
        for number, call in enumerate(reply.tool_calls):
            if call.name not in self._mcp.by_name:
                self._add(number, call.json, call)
        self.text_for(answer)

    def body(self, finished: Sequence[Finished]) -> Any:
        return self._response("completed", self._output, finished)

    def text_for(self, event: Event) -> str:
        begun = self._opening_events()
        if isinstance(event, NewPiece):
            return begun + self._say(event.piece)
        if isinstance(event, Finished):
            return begun + self._end_answer(event.reply)
        return begun or self._in_progress(event.field)

    def _end_answer(self, reply: Reply) -> str:
        """End the open item of an answer; an answer without text and calls gets one first."""
        started = ""
        has_message = self._item is not None and self._item.name != "reasoning"
        if not has_message and not reply.tool_calls:
            started = self._switch_to(_Item("message"))
        status = _status(reply)
        if self._item is not None and self._item.is_whole:
            status = "completed"
        return started + self._end_item(status)

    def end(self, finished: Sequence[Finished]) -> str:
        response = self._response("completed", self._output, finished)
        return self._opening_events() + self._event(
            f"response.{response['status']}",
            response=response,
        )

    def failure(self, error: RequestError) -> str:
        response = self._response("failed", self._output, [])
        response["error"] = {"code": _error_code(error), "message": error.sentence}
        return self._opening_events() + self._event("response.failed", response=response)

    def _opening_events(self) -> str:
        if self._num_events:
            return ""
        response = self._response("in_progress", [], [])
        return self._event("response.created", response=response) + self._in_progress({})

    def _in_progress(self, more: Mapping[str, Any]) -> str:
        response = self._response("in_progress", [], [])
        return self._event("response.in_progress", response=response, **more)

    def _say(self, piece: Piece) -> str:
        if piece.logprobs is not None and not piece.is_thought:
            self._logprobs.append(logprob_object(piece.logprobs))
        call = piece.call
        if call is not None:
            if call.name in self._mcp.by_name:
                return ""  # it gets an item once it is whole
            return self._add(
                call.number,
                call.json,
                call,
                is_whole=call.is_last,
            )
        if not piece.text:
            return ""
        if piece.is_thought:
            return self._add("reasoning", piece.text)
        return self._add("message", piece.text)

    def _add(
        self,
        name: _Kind | int,
        text: str,
        call: ToolCall | CallPiece | None = None,
        *,
        is_whole: bool = True,
    ) -> str:
        """Add text to the item of a name, which ends any other item.

        Args:
            name: see `_Item`.
            text: what is added.
            call: the call whose arguments the text is; None for other text.
            is_whole: whether this is the end of the call.
        """
        item = self._item
        switched = ""
        if item is None or item.name != name:
            item = self._new_item(name, call)
            switched = self._switch_to(item)
        item.is_whole = call is not None and is_whole
        if not text:
            return switched
        item.holder[item.text] += text
        more = {
            **self._position(item),
            "delta": text,
            **self._new_logprobs(item),
        }
        return switched + self._event(f"response.{item.delta}.delta", **more)

    def _new_item(self, name: _Kind | int, call: ToolCall | CallPiece | None) -> _Item:
        if call is None:
            return _Item(name)
        own = self._spaces.get(call.name, {"name": call.name})
        return _Item(name, {"call_id": call.id, **own})

    def _new_logprobs(self, item: _Item) -> dict[str, Any]:
        if item.name != "message":
            return {}
        taken = self._logprobs
        self._logprobs = []
        item.part["logprobs"] += taken
        return {"logprobs": taken}

    def _position(self, item: _Item) -> dict[str, Any]:
        """The fields of an event that say where its text is."""
        position = {"item_id": item.json["id"], "output_index": len(self._output)}
        if item.part:
            position["content_index"] = 0
        return position

    def _switch_to(self, item: _Item) -> str:
        """End any open item, and start this one."""
        ended = self._end_item()
        self._item = item
        index = len(self._output)
        added = self._event("response.output_item.added", output_index=index, item=item.json)
        return ended + added + self._parted("added", item)

    def _end_item(self, status: str = "completed") -> str:
        item = self._item
        self._item = None
        if item is None:
            return ""
        self._new_logprobs(item)
        fields = self._position(item)
        for name in _WHOLE:
            if name in item.holder:
                fields[name] = item.holder[name]
        index = len(self._output)
        whole = self._event(f"response.{item.delta}.done", **fields)
        done = whole + self._parted("done", item)
        item.json["status"] = status
        if item.part:
            item.json["content"] = [item.part]
        self._output.append(item.json)
        ended = self._event("response.output_item.done", output_index=index, item=item.json)
        return done + ended

    def _parted(self, what: str, item: _Item) -> str:
        """The event that the part of an item starts or ends, if it has one."""
        if not item.part:
            return ""
        kind = f"response.content_part.{what}"
        return self._event(kind, **self._position(item), part=item.part)

    def _event(self, kind: str, **fields: Any) -> str:
        number = self._num_events
        self._num_events += 1
        return sse_event(
            {
                "type": kind,
                "sequence_number": number,
                **fields,
            },
            kind,
        )

    def _response(
        self,
        status: str,
        output: Sequence[Mapping[str, Any]],
        finished: Sequence[Finished],
    ) -> dict[str, Any]:
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
    """The request with the tools of MCP servers among the functions."""
    if not use.by_name:
        return fields
    tools = [tool.values for tool in fields.objects("tools") if tool.value("type") != MCP_TYPE]
    tools += use.declared
    choice = fields.value("tool_choice")
    if isinstance(choice, Mapping) and choice.get("type") == MCP_TYPE:
        choice = _choice_of_functions(choice, use)
    fields.flag("parallel_tool_calls")
    return Fields(
        {
            **fields.values,
            "tools": tools,
            "tool_choice": choice,
        }
    )


def _choice_of_functions(choice: Mapping[str, Any], use: McpUse) -> dict[str, Any]:
    """A choice of an MCP server, or of one of its tools, as a choice among functions."""
    label = choice.get("server_label")
    names = [choice.get("name")]
    if choice.get("name") is None:
        names = list(_tools_of_server(use, label))
    chosen = [{"type": "function", "name": use.shown_name(label, name)} for name in names]
    return {
        "type": "allowed_tools",
        "mode": "required",
        "tools": chosen,
    }


def _tools_of_server(use: McpUse, label: str | None) -> Iterator[str]:
    """The names of a server's tools that the request may call."""
    for tool in use.by_name.values():
        function = tool.function
        if isinstance(function, ForeignFunction) and function.server == label:
            yield function.tool


def _check_room(tools: Sequence[Tool], engine: IsolatedEngine) -> None:
    check_room(engine, tools)


def _fitting(text: str, engine: IsolatedEngine) -> tuple[str, str]:
    return fitting_text(engine, text)


def response_input_tokens(fields: Fields) -> Handler:
    """Answer a request to /v1/responses/input_tokens: the number of tokens in the prompt."""
    messages = _input_messages(fields, McpUse(Fields({}), None))
    return input_tokens_handler(fields, messages, openai_tools(fields), _variables(fields))


def _variables(fields: Fields) -> dict[str, Any]:
    return template_variables(fields, effort=fields.object("reasoning").text("effort"))


def _input_messages(fields: Fields, use: McpUse) -> list[Message]:
    """The conversation; an empty one loads the model. Raises RequestError, OptionError."""
    for name in ("previous_response_id", "conversation", "prompt"):
        if name in fields:
            fields.refuse(name, "Send the whole conversation as input.")
    given = fields.value("input")
    messages: list[Message] = []
    if given is None:
        fields.refuse("input", "Give a string, or the conversation as a list.")
    if isinstance(given, str):
        if given:
            messages.append({"role": "user", "content": given})
    else:
        items = fields.objects("input")
        for item in items:
            _add_item(messages, item)
            messages += messages_of_item(items, item, use)
    instructions = fields.text("instructions")
    if instructions and messages:
        messages = [{"role": "system", "content": instructions}, *messages]
    kept = [message for message in messages if not _is_thought_alone(message)]
    if kept:
        return checked_messages(kept)
    return []


def _is_thought_alone(message: Message) -> bool:
    """Whether a message is a thought that led to no call and no text: it is left out."""
    return message["content"] is None and message.keys() == _ONLY_THOUGHT


def _add_item(messages: list[Message], item: Fields) -> None:
    """Add an item to the messages; a call becomes part of the answer before it."""
    kind = item.text("type") or "message"
    if kind == "message":
        said = {"role": item.value("role"), "content": item.value("content")}
        if said["role"] == "assistant" and messages and messages[-1].keys() == _ONLY_THOUGHT:
            thought = messages.pop()
            said = {**thought, **said}
        messages.append(said)
    elif kind == "reasoning":
        parts = item.objects("content") or item.objects("summary")
        texts = [part.text("text") or "" for part in parts]
        messages.append(
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "\n".join(texts),
            }
        )
    elif kind == "function_call":
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": None})
        answer = messages.pop()
        calls = answer.get("tool_calls", ())
        messages.append({**answer, "tool_calls": [*calls, _function_call(item)]})
    elif kind == "function_call_output":
        call_id = item.text("call_id")
        messages.append(
            {
                "role": "tool",
                "content": item.value("output"),
                "tool_call_id": call_id,
            }
        )
    elif not kind.startswith("mcp_"):
        logger.debug("an item of type %.80r is ignored", kind)


def _function_call(item: Fields) -> dict[str, Any]:
    """A call, as messages have it."""
    name = flat_name(item.text("name"), item.text("namespace"))
    function = {"name": name, "arguments": item.value("arguments")}
    return {"id": item.text("call_id"), "function": function}


class _Item:
    """An item of the output: a message, the thoughts before it, or a call of a tool.

    Args:
        name: its kind, or the number of the call.
        called: the id, name and namespace of a call.
    """

    def __init__(self, name: _Kind | int, called: Mapping[str, Any] = NO_VARIABLES) -> None:
        type_name = "function_call" if isinstance(name, int) else name
        kind = copy.deepcopy(_KINDS[type_name])
        self.name = name

        self.is_whole = False
        """Whether it is a call whose arguments are complete."""

        self.delta = kind.delta
        """The name of its deltas."""

        self.json: dict[str, Any] = {
            "id": kind.id_prefix + secrets.token_hex(24),
            "type": type_name,
            "status": "in_progress",
            **called,
            **kind.fields,
        }
        """The item as clients get it."""

        self.part: dict[str, Any] = {}
        """The part of its content; empty for a call."""

        self.holder = self.json
        """The object that has its text."""

        self.text = "arguments"
        """The name of the text in `holder`."""

        if kind.part:
            self.part = {"type": kind.delta, **kind.part}
            self.holder = self.part
            self.text = "text"


def _status(reply: Reply) -> str:
    if reply.finish_reason == "length":
        return "incomplete"
    return "completed"


def _error_code(error: RequestError) -> str:
    """The code of an error within a response, where OpenAI has other codes than elsewhere.

    Agents look for context_length_exceeded, which is no code of its schema.
    """
    if error.status >= 500:
        return "server_error"
    if error.code == "context_length_exceeded":
        return error.code
    return "invalid_prompt"


def _usage(finished: Sequence[Finished], question: Question) -> dict[str, Any]:
    usage = usage_of(finished, question)
    thought = usage["completion_tokens_details"]["reasoning_tokens"]
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": usage["prompt_tokens_details"],
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": usage["total_tokens"],
    }
