"""Calls of tools and what came of them, as text: for models whose templates know no tools."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def messages_as_text(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Messages as `checked_messages` returns them, each with a role and a text alone."""
    return [_as_text(message) for message in messages]


def _as_text(message: Mapping[str, Any]) -> dict[str, str]:
    text = str(message["content"])
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{text}\n</tool_response>"}
    calls = [_call_as_text(call["function"]) for call in message.get("tool_calls", ())]
    texts = [text, *calls] if text else calls
    return {"role": str(message["role"]), "content": "\n".join(texts)}


def _call_as_text(function: Mapping[str, Any]) -> str:
    arguments = function["arguments"]
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return f"<tool_call>\n{function['name']}({written})\n</tool_call>"
