"""Calls of MCP servers' tools on the command line: each is shown, and asked about."""

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
_LEFT = ("o", "n")  # of them, for a tool that may destroy something


class Toolbox:
    """The tools of a conversation, and which of them may be called without a question.

    Args:
        servers: whose tools they are.
        can_ask: whether a person is at the terminal.
    """

    def __init__(self, servers: McpServers, *, can_ask: bool) -> None:
        self._servers = servers
        self._can_ask = can_ask
        self._allowed_here: set[tuple[str, str]] = set()  # servers and tools
        self.tools: list[Tool] = []

    def open(self, engine: BaseEngine) -> None:
        """Start the servers, and say what their tools take of the context.

        A server that cannot be started is said, and left out. Raises ContextError where the
        tools take more than their share.
        """
        with waiting(lambda: "Starting the MCP servers …"):
            self.tools = self._servers.working_tools
        for state in self._servers.states():
            if state.error is not None:
                say(error_lines(state.error))
            for each in state.notes:
                note(f"{state.name}: {each}.")
        if not self.tools:
            note("There are no tools of MCP servers. See: localspec mcp list")
            return
        # Imported here, because it loads NumPy, which libllama has to come before.
        from localspec.chat.foreign_bounds import check_room, num_tokens_of

        check_room(engine, self.tools)
        number = num_tokens_of(engine, self.tools)
        note(
            f"{counted(len(self.tools), 'tool')} of MCP servers: {number:,} of "
            f"{engine.context_length:,} tokens."
        )
        allowed = [tool_title(each) for each in map(foreign_of, self.tools) if each.is_allowed]
        if allowed:
            note(f"Called without asking, as you have allowed: {', '.join(allowed)}.")

    def forget(self) -> None:
        """Another conversation begins."""
        self._allowed_here.clear()

    def may_run(self, step: RequestedCall) -> bool:
        """Show a call, and ask whether it may be made unless that is known."""
        function = step.foreign
        assert function is not None
        name = tool_title(function)
        note(f"→ {name} {step.call.json}")
        key = (function.server, function.tool)
        is_known = function.is_allowed or key in self._allowed_here
        if is_known and not function.is_destructive:
            return True
        if not self._can_ask:
            note(
                f"{name} was not called: nobody can be asked here. What may be called is "
                "autoApprove in the file of servers."
            )
            return False
        answer = _ask_approval(function)
        if answer == "c":
            self._allowed_here.add(key)
        elif answer == "t":
            function.allow_always()
        return answer != "n"

    def run(self, step: RequestedCall) -> None:
        """Make a call, and show what came of it. Ctrl-C ends the call."""
        assert step.foreign is not None
        name = tool_title(step.foreign)
        with waiting(lambda: f"Calling {name} … Ctrl-C ends the call."):
            result = step.run()
        note(f"← {excerpt(result, _SHOWN)}")
        if step.note:
            note(step.note)


def opened_servers(source: str, only: Sequence[str]) -> McpServers:
    """The servers of the option --mcp. Raises OptionError."""
    path = None if source == OWN_FILE else Path(source)
    return McpServers(path, allowed_tools=only)


def foreign_of(tool: Tool) -> ForeignFunction:
    """The function of a server's tool."""
    assert isinstance(tool.function, ForeignFunction)
    return tool.function


def tool_title(function: ForeignFunction) -> str:
    """A tool as people see it."""
    return printable(f"{function.server}.{function.tool}")


def _ask_approval(function: ForeignFunction) -> str:
    """The letter that a person answers with. Ctrl-C and Ctrl-D end the answer instead."""
    choices = _LEFT if function.is_destructive else tuple(_ANSWERS)
    words = ", ".join(f"[{letter}] {_ANSWERS[letter]}" for letter in choices)
    warning = "It may destroy something. " if function.is_destructive else ""
    try:
        found: str = click.prompt(
            f"{warning}Make this call? {words}",
            type=click.Choice(choices, case_sensitive=False),
            default="n",
            show_choices=False,
            err=True,
        )
    except click.Abort:
        raise KeyboardInterrupt from None
    return found
