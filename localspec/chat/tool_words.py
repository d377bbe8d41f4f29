"""Describes tools and calls as text, for templates that do not show them.

It is done for templates whose form of calls is not known, too. llama.cpp and Ollama do the
same, so that no tool is dropped silently.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from localspec.chat.shown import joined_content
from localspec.chat.template import Message
from localspec.tools.call_form import CallForm
from localspec.tools.forms import IN_WORDS
from localspec.tools.tool import Tool, json_text

_EXAMPLE = ("name_of_the_tool", {"name_of_an_argument": "its value"})


def with_tools_in_words(
    messages: Sequence[Message],
    tools: Sequence[Tool],
    form: CallForm,
) -> list[Message]:
    """The messages with a description of the tools in the system message at the beginning.

    If the first message is none of the system, one is added before it.

    Args:
        messages: The messages.
        tools: The tools.
        form: The form in which the model has to write calls.
    """
    declarations = "\n".join(json_text(tool.declared()) for tool in tools)
    text = (
        f"You may call these tools, each given with the JSON schema of its arguments:\n"
        f"{declarations}\n\n"
        f"To call a tool, write exactly this, with the tool's name and its arguments:\n"
        f"{form.render([_EXAMPLE])}\n"
        "The result is in the next message. Call a tool only if the answer needs it."
    )
    description: Message = {"role": "system", "content": text}
    if not messages or messages[0]["role"] != "system":
        return [description, *messages]
    first, *others = messages
    described_first = {**first, **joined_content([first, description], "\n\n")}
    return [described_first, *others]


def with_calls_in_words(messages: Iterable[Message], form: CallForm) -> Iterator[Message]:
    """The messages, with the calls of an answer written into its text.

    Results become texts of the user if the form is IN_WORDS: other forms belong to templates
    that know the role of a tool.
    """
    for message in messages:
        if "tool_calls" in message:
            calls = []
            for call in message["tool_calls"]:
                function = call["function"]
                calls.append((function["name"], function["arguments"]))
            parts: list[Message] = [{"content": form.render(calls)}]
            if message["content"]:
                parts.insert(0, message)
            answer = dict(message)
            del answer["tool_calls"]
            yield {**answer, **joined_content(parts, "\n")}
        elif message["role"] == "tool" and form is IN_WORDS:
            before = {"content": "<tool_response>\n"}
            after = {"content": "\n</tool_response>"}
            yield {"role": "user", **joined_content([before, message, after], "")}
        else:
            yield message
