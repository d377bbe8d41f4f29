"""MCP servers on the page for browsers: their tools, and calls that a person has allowed."""

from __future__ import annotations

from functools import partial
from typing import Any

from localspec.chat.foreign_bounds import fitting_text
from localspec.server.answering import Service
from localspec.server.fields import Fields
from localspec.server.form import Handler, in_thread, with_engine
from localspec.server.mcp_calls import McpCall, call_of
from localspec.server.refusal import RequestError
from localspec.tool_servers.servers import McpServers
from localspec.tools.foreign import ForeignFunction
from localspec.tools.tool import Tool

_APPROVALS = ("once", "always")


def mcp_tools(fields: Fields) -> Handler:
    """The tools of all MCP servers, and the errors of servers without tools."""
    del fields

    async def result(service: Service) -> dict[str, Any]:
        if service.tool_servers is None:
            return {"tools": [], "errors": []}
        return await in_thread(partial(_listed, service.tool_servers))

    return result


def mcp_call(fields: Fields) -> Handler:
    """A call of a tool. The answer has its text, cut to the part of a context that it may take,
    and its pictures as data URLs.

    Args:
        fields: name, as in the list; arguments, a JSON text; model, which reads the result;
            approved, "once" or "always", as a person has answered.
    """
    name = fields.text("name") or ""
    arguments = fields.text("arguments") or "{}"
    model = fields.text("model")
    approved = fields.text("approved")
    if approved is not None and approved not in _APPROVALS:
        fields.refuse("approved", "Choose once or always.")

    async def result(service: Service) -> dict[str, Any]:
        servers = service.tool_servers
        if servers is None:
            raise RequestError("this server has no MCP servers", "Start it with --mcp FILE.")
        tools = await in_thread(lambda: servers.working_tools)
        function = _named(tools, name)
        if approved is None and not function.is_allowed:
            raise RequestError(
                f"the call of {name!r:.80} is not approved",
                "Ask a person.",
                status=403,
            )
        if approved == "always" and not function.is_destructive:
            await in_thread(function.allow_always)
        called = await service.run_call(call_of(servers, McpCall(function, arguments)))
        fit = partial(_fitting, called.text)
        text, note = await with_engine(service, service.models.named(model), fit)
        return {
            "text": text,
            "note": note,
            "pictures": called.pictures,
            "is_error": called.is_error,
        }

    return result


def _fitting(text: str, engine: Any) -> tuple[str, str]:
    return fitting_text(engine, text)


def _listed(servers: McpServers) -> dict[str, Any]:
    errors = []
    for state in servers.states():
        if state.error is not None:
            errors.append(f"{state.error}. {state.error.hint}")
    return {"tools": [_tool_json(tool) for tool in servers.working_tools], "errors": errors}


def _tool_json(tool: Tool) -> dict[str, Any]:
    function = tool.function
    assert isinstance(function, ForeignFunction)
    return {
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
        "server": function.server,
        "tool": function.tool,
        "is_destructive": function.is_destructive,
        "is_allowed": function.is_allowed,
    }


def _named(tools: list[Tool], name: str) -> ForeignFunction:
    for tool in tools:
        if tool.name == name and isinstance(tool.function, ForeignFunction):
            return tool.function
    raise RequestError(f"there is no tool {name!r:.80} of an MCP server", param="name")
