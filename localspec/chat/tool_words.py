"""Tools in words, for templates that show none, or whose form of calls is not known.

llama.cpp and Ollama do likewise: no tool is dropped in silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from localspec.chat.shown import joined
from localspec.chat.template import Message
from localspec.tools.call_form import CallForm
from localspec.tools.forms import IN_WORDS
from localspec.tools.tool import Tool, json_text

_EXAMPLE = ("name_of_the_tool", {"name_of_an_argument": "its value"})


def with_tools_in_words(
    messages: Sequence[Message], tools: Sequence[Tool], form: CallForm
) -> list[Message]:
    """The messages with a description of the tools in front, as the system's."""
    declared = "\n".join(json_text(tool.declared()) for tool in tools)
    text = (
        f"You may call these tools, each given with the JSON schema of its arguments:\n"
        f"{declared}\n\n"
        f"To call a tool, write exactly this, with the tool's name and its arguments:\n"
        f"{form.render([_EXAMPLE])}\n"
        "The result is in the next message. Call a tool only if the answer needs it."
    )
    described: Message = {"role": "system", "content": text}
    if messages and messages[0]["role"] == "system":
        first = messages[0]
        return [{**first, **joined([first, described], "\n\n")}, *messages[1:]]
    return [described, *messages]


def with_calls_in_words(messages: Iterable[Message], form: CallForm) -> Iterator[Message]:
    """The messages with the calls of answers as these answers' text.

    Results become the user's text where the template need not know the role of a tool.
    """
    for message in messages:
        if "tool_calls" in message:
            calls = [_named(call["function"]) for call in message["tool_calls"]]
            parts = [message] if message["content"] else []
            written = {"content": form.render(calls)}
            bare = {key: each for key, each in message.items() if key != "tool_calls"}
            yield {**bare, **joined([*parts, written], "\n")}
        elif message["role"] == "tool" and form is IN_WORDS:
            before = {"content": "<tool_response>\n"}
            behind = {"content": "\n</tool_response>"}
            yield {"role": "user", **joined([before, message, behind], "")}
        else:
            yield message


def _named(function: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    return function["name"], function["arguments"]
