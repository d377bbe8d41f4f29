"""MCP servers in OpenAI's Responses: which tools a request may call, and the items of calls.

An item is a part of a request's input or of a response's output: a message, a call of a tool,
the result of a call, a request for approval, or the client's answer to that.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localspec.chat.template import Message
from localspec.chat.tool_loop import REFUSED_CALL
from localspec.errors import LocalspecError
from localspec.server.fields import Fields
from localspec.server.question import declared_name
from localspec.server.refusal import RequestError
from localspec.tool_servers.servers import McpServers, ServerState
from localspec.tools.foreign import ForeignFunction, ForeignResult
from localspec.tools.tool import Tool, new_call_id

MCP_TYPE = "mcp"  # the type of an MCP server among the tools of a request
_NO_SERVERS = "Start the server with them: localspec serve --mcp FILE."
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")  # characters that no tool's name may have
_MOST_NAMES = 1024  # of tools, in a list


@dataclass(frozen=True, slots=True)
class McpCall:
    """A call of an MCP server's tool."""

    function: ForeignFunction

    json: str
    """The arguments, as JSON."""

    request_id: str | None = None
    """The id of the request for approval that the client granted; None if there was none."""

    def item(self, item_type: str, **more: Any) -> dict[str, Any]:
        """An item of the output for this call, with a new id.

        Args:
            item_type: the item's type: "mcp_call" or "mcp_approval_request".
            more: further fields of the item.
        """
        prefix = "mcpr_"
        if item_type == "mcp_call":
            prefix = "mcp_"
        return {
            "id": prefix + secrets.token_hex(24),
            "type": item_type,
            "server_label": self.function.server,
            "name": self.function.tool,
            "arguments": self.json,
            **more,
        }


class McpUse:
    """The tools of MCP servers that a request may call.

    Args:
        fields: the request.
        servers: the MCP servers that localspec was started with; None without any.

    Raises:
        RequestError: a field is wrong, or a server is unknown or does not work.
    """

    def __init__(self, fields: Fields, servers: McpServers | None) -> None:
        self._rules: dict[str, _Rules] = {}  # by the labels of the servers
        self.new_lists: list[dict[str, Any]] = []
        """An item with the tools of each server, for servers whose list the client lacks."""

        self.by_name: dict[str, Tool] = {}
        """The tools that may be called, by their names for the model."""

        function_names = {declared_name(tool) for tool in fields.objects("tools")}
        labels_of_lists = set()  # of the lists that the client has from an earlier response
        for item in _input_items(fields):
            if _has_type(item, "mcp_list_tools"):
                labels_of_lists.add(item.text("server_label"))
        for server in fields.objects("tools"):
            if not _has_type(server, MCP_TYPE):
                continue
            rules = _Rules(server)
            label = rules.label
            state = _server_state(server, label, servers)
            if label in self._rules:
                server.refuse("server_label", "Name each server once.")
            self._rules[label] = rules
            tools = [tool for tool in state.tools if rules.allows(_function(tool).tool)]
            if label not in labels_of_lists:
                self.new_lists.append(_list_item(label, tools))
            for tool in tools:
                name = tool.name
                if name in function_names or name in self.by_name:  # another tool has it
                    name = f"{_NOT_IN_NAMES.sub('_', label)}__{name}"
                self.by_name[name] = Tool(
                    name,
                    tool.description,
                    tool.parameters,
                    function=tool.function,
                )

    @property
    def declarations(self) -> list[dict[str, Any]]:
        """The tools that may be called, as functions among the tools of a request."""
        declarations = []
        for tool in self.by_name.values():
            declarations.append(
                {
                    "type": "function",
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": dict(tool.parameters),
                }
            )
        return declarations

    def needs_approval(self, name: str) -> bool:
        """Whether the client has to approve a call of a tool.

        Args:
            name: the tool's name for the model.
        """
        function = _function(self.by_name[name])
        return self._rules[function.server].needs_approval(function)

    def model_name(self, label: str | None, tool_name: str | None) -> str:
        """A tool's name for the model; its name on the server if it may not be called.

        Args:
            label: the server's label.
            tool_name: the tool's name on the server.
        """
        for name, tool in self.by_name.items():
            function = _function(tool)
            if function.server == label and function.tool == tool_name:
                return name
        return str(tool_name)

    def function(self, label: str | None, tool_name: str | None) -> ForeignFunction | None:
        """What calls a tool of a server; None if the tool may not be called.

        Args:
            label: the server's label.
            tool_name: the tool's name on the server.
        """
        for tool in self.by_name.values():
            function = _function(tool)
            if function.server == label and function.tool == tool_name:
                return function
        return None

    def call(self, name: str, arguments: str) -> McpCall:
        """The call that the model asks for.

        Args:
            name: the tool's name for the model.
            arguments: the arguments, as JSON.
        """
        return McpCall(_function(self.by_name[name]), arguments)


class _Rules:
    """A request's rules for an MCP server: which tools may be called, and which need approval.

    Args:
        server: the server's object among the tools of the request.

    Raises:
        RequestError: a field is wrong.
    """

    def __init__(self, server: Fields) -> None:
        for name in ("server_url", "connector_id"):
            if name in server:
                server.refuse(
                    name,
                    "A request cannot name an address: the server would fetch what a stranger "
                    "asks for. Put it into the file of localspec serve --mcp, and give its "
                    "server_label.",
                )
        for name in ("headers", "authorization", "server_description"):
            server.value(name)  # read, so that the log does not mention it, but without effect
        self.label = server.text("server_label") or ""
        self._allowed: Sequence[str] | None = None  # None: all tools may be called
        if isinstance(server.value("allowed_tools"), Mapping):
            self._allowed = _tool_names(server.object("allowed_tools"))
        else:
            self._allowed = server.texts("allowed_tools", _MOST_NAMES)
        # The tools that always or never need approval; or the word, always or never, for all.
        self._always: Sequence[str] = ()
        self._never: Sequence[str] = ()
        self._approval_of_all: str | None = None
        if isinstance(server.value("require_approval"), Mapping):
            approvals = server.object("require_approval")
            self._always = _tool_names(approvals.object("always")) or ()
            self._never = _tool_names(approvals.object("never")) or ()
        else:
            self._approval_of_all = server.text("require_approval")
            if self._approval_of_all not in (None, "always", "never"):
                server.refuse("require_approval", "Choose always or never, or name the tools.")

    def allows(self, tool_name: str) -> bool:
        """Whether the tool of a name on the server may be called."""
        return self._allowed is None or tool_name in self._allowed

    def needs_approval(self, function: ForeignFunction) -> bool:
        """Whether the client has to approve a call of a tool.

        A call that may destroy something always needs approval. If the request does not say, a
        call needs it unless the user has allowed the tool before.
        """
        if function.is_destructive:
            return True
        if self._approval_of_all == "always" or function.tool in self._always:
            return True
        if self._approval_of_all == "never" or function.tool in self._never:
            return False
        return not function.is_allowed


def _tool_names(names: Fields) -> list[str] | None:
    """The names of tools in an object that lists some; None if it does not."""
    return names.texts("tool_names", _MOST_NAMES)


def approved_calls(fields: Fields, use: McpUse) -> list[McpCall]:
    """The calls that the client has approved, and that were not made in an earlier response.

    Args:
        fields: the request.
        use: the tools that the request may call; other calls are left out.
    """
    items = _input_items(fields)
    made_calls = [item for item in items if _has_type(item, "mcp_call")]
    made_request_ids = {item.text("approval_request_id") for item in made_calls}
    approvals = _approvals(items)
    calls = []
    for item in items:
        request_id = item.text("id")
        if not _has_type(item, "mcp_approval_request") or request_id in made_request_ids:
            continue
        function = use.function(item.text("server_label"), item.text("name"))
        if approvals.get(request_id) and function is not None:
            arguments = item.text("arguments") or "{}"
            calls.append(McpCall(function, arguments, request_id))
    return calls


def messages_of_item(items: Sequence[Fields], item: Fields, use: McpUse) -> list[Message]:
    """The messages that the model gets for an item about MCP: a call and its result.

    Returns [] for an item that is no call, and for a call that is not decided or not made yet.

    Args:
        items: all items of the input, among which are the client's approvals.
        item: one of them.
        use: the tools that the request may call.
    """
    if _has_type(item, "mcp_call"):
        output = item.text("output")
        error = item.value("error")
        if output is None and error is not None:
            if not isinstance(error, str):
                error = json.dumps(error)
            output = f"Error: {error}"
        return _messages_of_call_item(item, use, output or "")
    if _has_type(item, "mcp_approval_request"):
        is_approved = _approvals(items).get(item.text("id"))
        if is_approved is False:
            return _messages_of_call_item(item, use, REFUSED_CALL)
    return []


def call_messages(name: str, arguments: str, result: object) -> list[Message]:
    """A call of a tool, and its result, as messages.

    Args:
        name: the tool's name for the model.
        arguments: the arguments, as JSON.
        result: see `result_message`.
    """
    call_id = new_call_id()
    call = {"id": call_id, "function": {"name": name, "arguments": arguments}}
    call_message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [call],
    }
    return [call_message, result_message(call_id, name, result)]


def result_message(call_id: str, name: str, result: object) -> Message:
    """The result of a call as a message.

    Args:
        call_id: the call's id.
        name: the tool's name for the model.
        result: a text, or a `ForeignResult` with a text and pictures.
    """
    content: object = result
    if isinstance(result, ForeignResult):
        parts: list[dict[str, Any]] = [{"type": "text", "text": result.text}]
        for picture in result.pictures:
            parts.append({"type": "image_url", "image_url": {"url": picture}})
        content = parts
    return {
        "role": "tool",
        "content": content,
        "tool_call_id": call_id,
        "name": name,
    }


async def make_call(servers: McpServers, call: McpCall) -> ForeignResult:
    """Call a tool, and return its result; an error becomes a result, too.

    If this is cancelled, so is the call.
    """
    try:
        arguments = json.loads(call.json or "{}")
        future = servers.call_soon(call.function.server, call.function.tool, arguments)
        return await asyncio.wrap_future(future)
    except (LocalspecError, ValueError) as error:
        return ForeignResult(f"Error: {error}", is_error=True)


def _messages_of_call_item(item: Fields, use: McpUse, result: str) -> list[Message]:
    """The call in an item, and its result, as messages."""
    name = use.model_name(item.text("server_label"), item.text("name"))
    arguments = item.text("arguments") or "{}"
    return call_messages(name, arguments, result)


def _input_items(fields: Fields) -> list[Fields]:
    """The items of a request's input; none if it is a text."""
    if isinstance(fields.value("input"), list):
        return fields.objects("input")
    return []


def _approvals(items: Sequence[Fields]) -> dict[str | None, bool]:
    """Whether the client approves each call, by the id of the request for approval."""
    approvals = {}
    for item in items:
        if _has_type(item, "mcp_approval_response"):
            approvals[item.text("approval_request_id")] = item.flag("approve") is True
    return approvals


def _has_type(item: Fields, item_type: str) -> bool:
    return bool(item.value("type") == item_type)


def _server_state(server: Fields, label: str, servers: McpServers | None) -> ServerState:
    """The state of a working MCP server.

    Args:
        server: the server's object in the request, for errors.
        label: the server's label.
        servers: the MCP servers that localspec was started with; None without any.

    Raises:
        RequestError: there is no server of that label, or it does not work.
    """
    if servers is None:
        server.refuse("server_label", f"This server has no MCP servers. {_NO_SERVERS}")
    if label not in servers.names:
        names = ", ".join(servers.names) or "none"
        server.refuse("server_label", f"There are {names}.")
    (state,) = servers.states(only=label)
    error = state.error
    if error is not None:
        raise RequestError(
            str(error),
            error.hint,
            status=502,
            code="server_error",
        )
    return state


def _list_item(label: str, tools: Sequence[Tool]) -> dict[str, Any]:
    """An item of the output with the tools of a server that may be called."""
    return {
        "id": "mcpl_" + secrets.token_hex(24),
        "type": "mcp_list_tools",
        "server_label": label,
        "tools": [_listed_tool(tool) for tool in tools],
        "error": None,
    }


def _listed_tool(tool: Tool) -> dict[str, Any]:
    """A tool as the item that lists a server's tools has it."""
    function = _function(tool)
    return {
        "name": function.tool,
        "description": tool.description,
        "input_schema": dict(tool.parameters),
        "annotations": {"destructiveHint": function.is_destructive},
    }


def _function(tool: Tool) -> ForeignFunction:
    """What calls a tool of an MCP server."""
    assert isinstance(tool.function, ForeignFunction)
    return tool.function
