"""MCP servers on the page for browsers: lists their tools, and makes calls of them."""

from __future__ import annotations

from functools import partial
from typing import Any

from localspec.chat.foreign_bounds import fitting_text
from localspec.server.answering import Service
from localspec.server.fields import Fields
from localspec.server.form import Handler, in_thread, with_engine
from localspec.server.mcp_calls import McpCall, make_call
from localspec.server.refusal import RequestError
from localspec.tool_servers.servers import McpServers
from localspec.tools.foreign import ForeignFunction
from localspec.tools.tool import Tool

_APPROVALS = ("once", "always")


def mcp_tools(fields: Fields) -> Handler:
    """The handler of a request for the tools of all MCP servers.

    Its response also has the errors of the servers that do not work.
    """
    del fields

    async def respond(service: Service) -> dict[str, Any]:
        if service.tool_servers is None:
            return {"tools": [], "errors": []}
        return await in_thread(partial(_tools_and_errors, service.tool_servers))

    return respond


def mcp_call(fields: Fields) -> Handler:
    """The handler of a request for a call of a tool.

    Its response has the text of the result, cut to the part of the model's context that it may
    take, with a note if it was cut, and the pictures as data URLs.

    Args:
        fields: the request: "name", the tool's name in the list of tools; "arguments", as JSON;
            "model", the model that reads the result; "approved": "once" or "always" if the user
            has approved the call. "always" allows later calls, too, if the tool cannot destroy
            anything.
    """
    name = fields.text("name") or ""
    arguments = fields.text("arguments") or "{}"
    model = fields.text("model")
    approved = fields.text("approved")
    if approved is not None and approved not in _APPROVALS:
        fields.refuse("approved", "Choose once or always.")

    async def respond(service: Service) -> dict[str, Any]:
        servers = service.tool_servers
        if servers is None:
            raise RequestError("this server has no MCP servers", "Start it with --mcp FILE.")
        reading_model = service.models.named(model)  # before the call: it may be refused
        tools = await in_thread(lambda: servers.working_tools)
        function = _function_named(tools, name)
        if approved is None and not function.is_allowed:
            raise RequestError(
                f"the call of {name!r:.80} is not approved",
                "Ask a person.",
                status=403,
            )
        if approved == "always" and not function.is_destructive:
            await in_thread(function.allow_always)
        call = McpCall(function, arguments)
        result = await service.run_call(make_call(servers, call))
        cut = partial(fitting_text, text=result.text)
        text, note = await with_engine(service, reading_model, cut)
        return {
            "text": text,
            "note": note,
            "pictures": result.pictures,
            "is_error": result.is_error,
        }

    return respond


def _tools_and_errors(servers: McpServers) -> dict[str, Any]:
    """The tools of the servers that work, and the errors of the others."""
    errors = []
    for state in servers.states():
        if state.error is not None:
            errors.append(f"{state.error}. {state.error.hint}")
    tools = [_listed_tool(tool) for tool in servers.working_tools]
    return {"tools": tools, "errors": errors}


def _listed_tool(tool: Tool) -> dict[str, Any]:
    """A tool as the page gets it."""
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


def _function_named(tools: list[Tool], name: str) -> ForeignFunction:
    """What calls the tool of a name. Raises RequestError if there is no such tool."""
    for tool in tools:
        if tool.name == name and isinstance(tool.function, ForeignFunction):
            return tool.function
    raise RequestError(f"there is no tool {name!r:.80} of an MCP server", param="name")
