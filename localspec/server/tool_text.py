"""Calls of tools and what came of them, as text: models here are asked in text."""

from __future__ import annotations

import json
from typing import Any


def call_as_text(name: object, arguments: Any) -> str:
    """A call that an assistant made. arguments: JSON, as a text or as it is."""
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return f"<tool_call>\n{name}({written})\n</tool_call>"


def result_as_text(text: str) -> str:
    """What a tool returned, in a message of the user's."""
    return f"<tool_response>\n{text}\n</tool_response>"
