"""How much of a context the tools of other programs may take, and what they return."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.chat.messages import checked_messages
from localspec.chat.prompt_source import MessagesSource
from localspec.chat.turns import ChatBackend
from localspec.errors import ContextError
from localspec.tools.foreign import ForeignFunction
from localspec.tools.tool import Tool, ToolUse

_PART_OF_TOOLS = 4  # tools may take a quarter of the context
_PART_OF_RESULT = 8  # a result may take an eighth
_CHARACTERS_PER_TOKEN = 16  # more than in any text
_NUM_NAMED = 5  # of the largest tools


def num_tokens_of(engine: ChatBackend, tools: Sequence[Tool]) -> int:
    """How many tokens of a prompt the tools take, as the model's template writes them."""
    return _num_prompt_tokens(engine, tools) - _num_prompt_tokens(engine, ())


def check_room(engine: ChatBackend, tools: Sequence[Tool]) -> None:
    """Raise ContextError where the tools take more than a quarter of the context."""
    most = engine.context_length // _PART_OF_TOOLS
    try:
        number = num_tokens_of(engine, tools)
        taken = f"{number:,} tokens"
    except ContextError:
        number = engine.context_length
        taken = f"more than {number:,} tokens"
    if number <= most:
        return
    largest = sorted(tools, key=_length, reverse=True)[:_NUM_NAMED]
    named = ", ".join(tool.name for tool in largest)
    raise ContextError(
        f"the {len(tools)} tools of {_servers_of(tools)} take {taken}, more than a quarter of "
        f"the context ({most:,})",
        "Name those that are needed: allowed_tools=[…], or choose a longer context: "
        f"context_length=…. The largest are {named}.",
    )


def fitting_text(engine: ChatBackend, text: str) -> tuple[str, str]:
    """A result, cut to an eighth of the context, and a note that says so; "" if it is whole."""
    most = engine.context_length // _PART_OF_RESULT
    head = text[: most * _CHARACTERS_PER_TOKEN]
    tokens = engine.tokenize(head)
    if len(tokens) <= most and len(head) == len(text):
        return text, ""
    num_kept = len(engine.detokenize(tokens[:most]))
    kept = head[:num_kept]
    note = (
        f"cut to its first {len(kept):,} of {len(text):,} characters, an eighth of the context"
    )
    return f"{kept}\n[The result was {note}.]", f"The result was {note}."


def _num_prompt_tokens(engine: ChatBackend, tools: Sequence[Tool]) -> int:
    """The length of a short question's prompt with these tools."""
    messages = checked_messages([{"role": "user", "content": "?"}])
    source = MessagesSource(messages, ToolUse(tuple(tools)))
    return len(engine._make_prompt(source).prompt.tokens)


def _length(tool: Tool) -> int:
    return len(str(tool.declared()))


def _servers_of(tools: Sequence[Tool]) -> str:
    """The names of the servers that have the tools."""
    servers = set()
    for tool in tools:
        if isinstance(tool.function, ForeignFunction):
            servers.add(tool.function.server)
    return ", ".join(sorted(servers))
