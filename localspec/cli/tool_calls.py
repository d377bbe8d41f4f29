"""Calls of MCP servers' tools on the command line: each is shown, and the user is asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from localspec.cli.progress_line import waiting
from localspec.cli.screen import counted, error_lines, excerpt, note, printable, say
from localspec.tool_servers.servers import McpServers
from localspec.tools.foreign import ForeignFunction

if TYPE_CHECKING:
    from localspec.chat.tool_loop import RequestedCall
    from localspec.engine.base import BaseEngine
    from localspec.tools.tool import Tool

OWN_FILE = "own"  # the value of --mcp without a file
_SHOWN = 300  # characters of a result
_ANSWERS = {
    "o": "once",
    "c": "always in this conversation",
    "t": "always for this tool",
    "n": "no",
}
_ANSWERS_IF_DESTRUCTIVE = ("o", "n")  # the answers about a tool that may destroy something


class Toolbox:
    """The tools of a conversation, and which of them may be called without asking.

    Args:
        servers: the servers that have the tools.
        can_ask: whether a user at a terminal can be asked.
    """

    def __init__(self, servers: McpServers, *, can_ask: bool) -> None:
        self._servers = servers
        self._can_ask = can_ask
        self._allowed_here: set[tuple[str, str]] = set()  # (server, tool)
        self.tools: list[Tool] = []

    def open(self, engine: BaseEngine) -> None:
        """Start the servers, and note how much of the context their tools take.

        A server that cannot be started is named, and left out. Raises ContextError if the tools
        take more than their share of the context.
        """
        with waiting(lambda: "Starting the MCP servers …"):
            self.tools = self._servers.working_tools
        for state in self._servers.states():
            if state.error is not None:
                say(error_lines(state.error))
            for text in state.notes:
                note(f"{state.name}: {text}.")
        if not self.tools:
            note("There are no tools of MCP servers. See: localspec mcp list")
            return
        # Imported here, because it loads NumPy, which libllama has to come before.
        from localspec.chat.foreign_bounds import check_room, num_tokens_of

        check_room(engine, self.tools)
        num_tokens = num_tokens_of(engine, self.tools)
        note(
            f"{counted(len(self.tools), 'tool')} of MCP servers: {num_tokens:,} of "
            f"{engine.context_length:,} tokens."
        )
        functions = [foreign_of(tool) for tool in self.tools]
        allowed = [tool_title(function) for function in functions if function.is_allowed]
        if allowed:
            note(f"Called without asking, as you have allowed: {', '.join(allowed)}.")

    def forget_allowed(self) -> None:
        """Forget which tools the user has allowed for the conversation."""
        self._allowed_here.clear()

    def may_run(self, step: RequestedCall) -> bool:
        """Show a call, and return whether it may be made; the user is asked if necessary."""
        function = step.foreign
        assert function is not None
        name = tool_title(function)
        note(f"→ {name} {step.call.json}")
        key = (function.server, function.tool)
        was_allowed = function.is_allowed or key in self._allowed_here
        if was_allowed and not function.is_destructive:
            return True
        if not self._can_ask:
            note(
                f"{name} was not called: nobody can be asked here. The list autoApprove in the "
                "file of servers says what may be called."
            )
            return False
        answer = _ask_approval(function)
        if answer == "c":
            self._allowed_here.add(key)
        elif answer == "t":
            function.allow_always()
        return answer != "n"

    def run(self, step: RequestedCall) -> None:
        """Make a call, and show its result. Ctrl-C ends the call."""
        assert step.foreign is not None
        name = tool_title(step.foreign)
        with waiting(lambda: f"Calling {name} … Ctrl-C ends the call."):
            result = step.run()
        parts = []
        if result:
            parts.append(excerpt(result, _SHOWN))
        if step.pictures:
            parts.append(f"[{counted(len(step.pictures), 'image')}]")
        note(f"← {' '.join(parts)}")
        if step.note:
            note(step.note)


def configured_servers(source: str, only: Sequence[str]) -> McpServers:
    """The servers of the option --mcp, none of them started yet. Raises OptionError.

    Args:
        source: the path of a file of servers, or OWN_FILE.
        only: the names of tools and servers that are allowed; empty for all.
    """
    if source == OWN_FILE:
        return McpServers(allowed_tools=only)
    return McpServers(Path(source), allowed_tools=only)


def foreign_of(tool: Tool) -> ForeignFunction:
    """The function that calls a tool of an MCP server."""
    assert isinstance(tool.function, ForeignFunction)
    return tool.function


def tool_title(function: ForeignFunction) -> str:
    """The name of a tool as the user sees it: SERVER.TOOL."""
    return printable(f"{function.server}.{function.tool}")


def _ask_approval(function: ForeignFunction) -> str:
    """Ask whether a call may be made. Returns a letter of `_ANSWERS`.

    Ctrl-C and Ctrl-D raise KeyboardInterrupt, which ends the answer.
    """
    choices = tuple(_ANSWERS)
    warning = ""
    if function.is_destructive:
        choices = _ANSWERS_IF_DESTRUCTIVE
        warning = "It may destroy something. "
    words = ", ".join(f"[{letter}] {_ANSWERS[letter]}" for letter in choices)
    try:
        letter: str = click.prompt(
            f"{warning}Make this call? {words}",
            type=click.Choice(choices, case_sensitive=False),
            default="n",
            show_choices=False,
            err=True,
        )
    except click.Abort:
        raise KeyboardInterrupt from None
    return letter
