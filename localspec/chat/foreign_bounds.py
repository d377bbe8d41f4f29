"""Limits on the part of a context that tools of MCP servers, and their results, may take."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.chat.messages import checked_messages
from localspec.chat.prompt_source import MessagesSource
from localspec.chat.turns import ChatBackend
from localspec.errors import ContextError
from localspec.tools.foreign import ForeignFunction
from localspec.tools.tool import Tool, ToolUse

_PART_OF_TOOLS = 4  # all tools together may take a quarter of the context
_PART_OF_RESULT = 8  # a result may take an eighth of the context
# More than in usual texts, and more than in any: some tokens are 128 spaces
_CHARACTERS_PER_TOKEN = (16, 128)
_NUM_NAMED = 5  # how many of the largest tools an error names


def num_tokens_of(engine: ChatBackend, tools: Sequence[Tool]) -> int:
    """The tokens that the tools add to a prompt, as the model's template writes them."""
    return _num_prompt_tokens(engine, tools) - _num_prompt_tokens(engine, ())


def check_room(engine: ChatBackend, tools: Sequence[Tool]) -> None:
    """Raise ContextError if the tools take more than a quarter of the context."""
    most_tokens = engine.context_length // _PART_OF_TOOLS
    try:
        num_tokens = num_tokens_of(engine, tools)
        shown_size = f"{num_tokens:,} tokens"
    except ContextError:  # the prompt with the tools does not even fit the context
        num_tokens = engine.context_length
        shown_size = f"more than {num_tokens:,} tokens"
    if num_tokens <= most_tokens:
        return
    largest = sorted(tools, key=_declared_length, reverse=True)[:_NUM_NAMED]
    names = ", ".join(tool.name for tool in largest)
    raise ContextError(
        f"the {len(tools)} tools of {_servers_of(tools)} take {shown_size}, more than a "
        f"quarter of the context ({most_tokens:,})",
        "Name those that are needed: allowed_tools=[…], or choose a longer context: "
        f"context_length=…. The largest are {names}.",
    )


def fitting_text(engine: ChatBackend, text: str) -> tuple[str, str]:
    """Cut the result of a call to an eighth of the context.

    Returns the text, which ends with a note if it was cut, and the note, which is "" if it was
    not cut.
    """
    most_tokens = engine.context_length // _PART_OF_RESULT
    # To tokenize all of a huge text takes long, so a beginning is tried that rarely fits, and
    # then one that never does.
    for characters_per_token in _CHARACTERS_PER_TOKEN:
        head = text[: most_tokens * characters_per_token]
        tokens = engine.tokenize(head)
        if len(tokens) > most_tokens or len(head) == len(text):
            break
    if len(tokens) <= most_tokens and len(head) == len(text):
        return text, ""
    num_kept = len(engine.detokenize(tokens[:most_tokens]))
    kept = head[:num_kept]
    note = (
        f"The result was cut to its first {len(kept):,} of {len(text):,} characters, an eighth "
        "of the context."
    )
    return f"{kept}\n[{note}]", note


def _num_prompt_tokens(engine: ChatBackend, tools: Sequence[Tool]) -> int:
    """The length of a short question's prompt with these tools."""
    messages = checked_messages([{"role": "user", "content": "?"}])
    source = MessagesSource(messages, ToolUse(tuple(tools)))
    return len(engine._make_prompt(source).prompt.tokens)


def _declared_length(tool: Tool) -> int:
    return len(str(tool.declared()))


def _servers_of(tools: Sequence[Tool]) -> str:
    """The names of the MCP servers that have the tools, for an error."""
    servers = set()
    for tool in tools:
        if isinstance(tool.function, ForeignFunction):
            servers.add(tool.function.server)
    return ", ".join(sorted(servers))
