"""An MCP server in plain Python, whose one tool returns a text of so many characters."""

from __future__ import annotations

import json
import sys

_INFO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "plain", "version": "1"},
}
_TOOL = {
    "name": "huge",
    "inputSchema": {"type": "object", "properties": {"size": {"type": "integer"}}},
}


def answer(asked: dict) -> dict:
    """What is answered to a request; an error for a method that is unknown."""
    if asked["method"] == "initialize":
        return {"result": _INFO}
    if asked["method"] == "tools/list":
        return {"result": {"tools": [_TOOL]}}
    if asked["method"] == "tools/call":
        text = "x" * asked["params"]["arguments"]["size"]
        return {"result": {"content": [{"type": "text", "text": text}]}}
    return {"error": {"code": -32601, "message": "no such method"}}


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        said = {"jsonrpc": "2.0", "id": request["id"], **answer(request)}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
