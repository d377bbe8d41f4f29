"""MCP servers in OpenAI's Responses: which tools a request may call, and the items of calls."""

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
from localspec.server.refusal import RequestError
from localspec.tool_servers.servers import McpServers, ServerState
from localspec.tools.foreign import ForeignFunction, ForeignResult
from localspec.tools.tool import Tool

MCP_TYPE = "mcp"  # of a tool in a request
_NO_SERVERS = "Start the server with them: localspec serve --mcp FILE."
_IN_TEXT = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class McpCall:
    """A call of an MCP server's tool, as its items have it."""

    function: ForeignFunction

    json: str
    """The arguments, as JSON."""

    request_id: str | None = None
    """The id of the request for approval that the client has answered."""

    def item(self, kind: str, **more: Any) -> dict[str, Any]:
        """An item of the output that stands for the call.

        Args:
            kind: the item's type.
            more: further fields.
        """
        prefix = "mcpr_"
        if kind == "mcp_call":
            prefix = "mcp_"
        return {
            "id": prefix + secrets.token_hex(24),
            "type": kind,
            "server_label": self.function.server,
            "name": self.function.tool,
            "arguments": self.json,
            **more,
        }


class McpUse:
    """The tools of MCP servers that a request may call.

    Args:
        fields: the request.
        servers: the MCP servers that this server was started with; None without any.

    Raises:
        RequestError: a server is not there or does not work, or the request names an address.
    """

    def __init__(self, fields: Fields, servers: McpServers | None) -> None:
        self._rules: dict[str, _Rules] = {}
        self.listed: list[dict[str, Any]] = []
        """An item for each server, with its tools."""

        self.by_name: dict[str, Tool] = {}
        """The tools by the names that the model knows."""

        taken = {_name_of(tool) for tool in fields.objects("tools")}
        listed_before = set()
        for item in _items(fields):
            if _is(item, "mcp_list_tools"):
                listed_before.add(item.text("server_label"))
        for server in fields.objects("tools"):
            if not _is(server, MCP_TYPE):
                continue
            rules = _Rules(server)
            state = _state(server, rules.label, servers)
            if rules.label in self._rules:
                server.refuse("server_label", "Name each server once.")
            self._rules[rules.label] = rules
            tools = [tool for tool in state.tools if rules.allows(_function(tool).tool)]
            if rules.label not in listed_before:
                self.listed.append(_listing(rules.label, tools))
            for tool in tools:
                name = tool.name
                if name in taken or name in self.by_name:
                    name = f"{_IN_TEXT.sub('_', rules.label)}__{name}"
                self.by_name[name] = Tool(
                    name,
                    tool.description,
                    tool.parameters,
                    function=tool.function,
                )

    @property
    def declared(self) -> list[dict[str, Any]]:
        """The tools as a request declares functions."""
        declared = []
        for tool in self.by_name.values():
            declared.append(
                {
                    "type": "function",
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": dict(tool.parameters),
                }
            )
        return declared

    def needs_approval(self, name: str) -> bool:
        """Whether the client has to approve a call of the tool of that name."""
        function = _function(self.by_name[name])
        return self._rules[function.server].needs_approval(function)

    def shown_name(self, label: str | None, tool: str | None) -> str:
        """The name by which the model knows a tool of a server.

        The tool's own name if the request may not call it.
        """
        for name, known in self.by_name.items():
            function = _function(known)
            if function.server == label and function.tool == tool:
                return name
        return str(tool)

    def function(self, label: str | None, tool: str | None) -> ForeignFunction | None:
        """A tool of a server, if the request may call it."""
        known = self.by_name.get(self.shown_name(label, tool))
        if known is None:
            return None
        return _function(known)

    def call(self, name: str, arguments: str) -> McpCall:
        """A call that the model has made."""
        return McpCall(_function(self.by_name[name]), arguments)


class _Rules:
    """A request's rules for a server: which tools may be called, and with which approval."""

    def __init__(self, given: Fields) -> None:
        for name in ("server_url", "connector_id"):
            if name in given:
                given.refuse(
                    name,
                    "A request cannot name an address: the server would fetch what a stranger "
                    "asks for. Put it into the file of localspec serve --mcp, and give its "
                    "server_label.",
                )
        given.value("headers")
        given.value("authorization")
        given.value("server_description")
        self.label = given.text("server_label") or ""
        allowed = given.value("allowed_tools")
        if isinstance(allowed, Mapping):
            allowed = given.object("allowed_tools").texts("tool_names", 1024)
        elif allowed is not None:
            allowed = given.texts("allowed_tools", 1024)
        self._allowed = allowed
        self._always: Sequence[str] = ()
        self._never: Sequence[str] = ()
        self._word: str | None = None
        if isinstance(given.value("require_approval"), Mapping):
            names = given.object("require_approval")
            self._always = names.object("always").texts("tool_names", 1024) or ()
            self._never = names.object("never").texts("tool_names", 1024) or ()
        else:
            self._word = given.text("require_approval")
            if self._word not in (None, "always", "never"):
                given.refuse("require_approval", "Choose always or never, or name the tools.")

    def allows(self, tool: str) -> bool:
        """Whether a tool is among those that may be called."""
        return self._allowed is None or tool in self._allowed

    def needs_approval(self, function: ForeignFunction) -> bool:
        """Whether a call has to be approved; a call that may destroy something always has."""
        if function.is_destructive or self._word == "always" or function.tool in self._always:
            return True
        if self._word == "never" or function.tool in self._never:
            return False
        return not function.is_allowed


def approved_calls(fields: Fields, use: McpUse) -> list[McpCall]:
    """The calls that the input approves and that have not been made yet."""
    items = _items(fields)
    made = {item.text("approval_request_id") for item in items if _is(item, "mcp_call")}
    answers = _answers(items)
    calls = []
    for item in items:
        request_id = item.text("id")
        if not _is(item, "mcp_approval_request") or request_id in made:
            continue
        function = use.function(item.text("server_label"), item.text("name"))
        if answers.get(request_id) and function is not None:
            calls.append(McpCall(function, item.text("arguments") or "{}", request_id))
    return calls


def messages_of_item(items: Sequence[Fields], item: Fields, use: McpUse) -> list[Message]:
    """The messages that an item about MCP stands for: a call and its result."""
    if _is(item, "mcp_call"):
        output = item.text("output")
        error = item.value("error")
        if output is None and error is not None:
            if not isinstance(error, str):
                error = json.dumps(error)
            output = f"Error: {error}"
        return _call_and_result(item, use, output or "")
    if _is(item, "mcp_approval_request") and _answers(items).get(item.text("id")) is False:
        return _call_and_result(item, use, REFUSED_CALL)
    return []


def messages_of_call(name: str, call: McpCall, result: object) -> list[Message]:
    """A call that was approved, and its result, as messages."""
    call_id = secrets.token_hex(5)[:9]
    return [_calling(call_id, name, call.json), result_message(call_id, name, result)]


def result_message(call_id: str, name: str, result: object) -> Message:
    """A result as a message: a text, or a text with pictures."""
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


async def call_of(servers: McpServers, call: McpCall) -> ForeignResult:
    """The result of a call; an error is a result, too. Cancelling it ends the call."""
    try:
        arguments = json.loads(call.json or "{}")
        future = servers.call_soon(call.function.server, call.function.tool, arguments)
        return await asyncio.wrap_future(future)
    except (LocalspecError, ValueError) as error:
        return ForeignResult(f"Error: {error}", is_error=True)


def _call_and_result(item: Fields, use: McpUse, output: str) -> list[Message]:
    call_id = secrets.token_hex(5)[:9]
    name = use.shown_name(item.text("server_label"), item.text("name"))
    calling = _calling(call_id, name, item.text("arguments") or "{}")
    return [calling, result_message(call_id, name, output)]


def _calling(call_id: str, name: str, arguments: str) -> Message:
    call = {"id": call_id, "function": {"name": name, "arguments": arguments}}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [call],
    }


def _items(fields: Fields) -> list[Fields]:
    if isinstance(fields.value("input"), list):
        return fields.objects("input")
    return []


def _answers(items: Sequence[Fields]) -> dict[str | None, bool]:
    """The client's answers to requests for approval, by the requests' ids."""
    answers = {}
    for item in items:
        if _is(item, "mcp_approval_response"):
            answers[item.text("approval_request_id")] = item.flag("approve") is True
    return answers


def _is(item: Fields, kind: str) -> bool:
    return bool(item.value("type") == kind)


def _name_of(tool: Fields) -> object:
    if "function" in tool:
        return tool.object("function").value("name")
    return tool.value("name")


def _state(given: Fields, label: str, servers: McpServers | None) -> ServerState:
    if servers is None:
        given.refuse("server_label", f"This server has no MCP servers. {_NO_SERVERS}")
    if label not in servers.names:
        names = ", ".join(servers.names) or "none"
        given.refuse("server_label", f"There are {names}.")
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


def _listing(label: str, tools: Sequence[Tool]) -> dict[str, Any]:
    return {
        "id": "mcpl_" + secrets.token_hex(24),
        "type": "mcp_list_tools",
        "server_label": label,
        "tools": [_described(tool) for tool in tools],
        "error": None,
    }


def _described(tool: Tool) -> dict[str, Any]:
    """A tool as an item lists it."""
    function = _function(tool)
    return {
        "name": function.tool,
        "description": tool.description,
        "input_schema": dict(tool.parameters),
        "annotations": {"destructiveHint": function.is_destructive},
    }


def _function(tool: Tool) -> ForeignFunction:
    assert isinstance(tool.function, ForeignFunction)
    return tool.function
