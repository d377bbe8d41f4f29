"""`localspec mcp`: lists, tries, adds and removes MCP servers."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from localspec.cli.completers import complete_model
from localspec.cli.help import Group
from localspec.cli.json_output import json_option, write_json
from localspec.cli.progress_line import waiting
from localspec.cli.screen import counted, error_lines, excerpt, note, say
from localspec.cli.tool_calls import OWN_FILE, configured_servers, foreign_of
from localspec.errors import OptionError, did_you_mean
from localspec.tool_servers.configuration import (
    add_server,
    files_of_others,
    own_file,
    read_servers,
    remove_server,
)

if TYPE_CHECKING:
    from localspec.tool_servers.servers import McpServers, ServerState
    from localspec.tools.tool import Tool

_FOREIGN_COMMANDS = {
    **dict.fromkeys(("ls", "status"), "localspec mcp list"),
    **dict.fromkeys(("get", "show", "inspect"), "localspec mcp test NAME"),
    **dict.fromkeys(("rm", "delete"), "localspec mcp remove NAME"),
}
_CHARACTERS_PER_TOKEN = 4  # an estimate, for when no model is named
_EXCERPT = 70  # characters of a tool's description that are shown
_FILE = click.option(
    "--mcp",
    "source",
    metavar="FILE",
    default=OWN_FILE,
    help="A file with mcpServers. [default: localspec's own]",
)
_MODEL = click.option(
    "-m",
    "--model",
    shell_complete=complete_model,
    metavar="MODEL",
    help="Count the tokens that the tools take in this model's prompt. [default: an estimate]",
)


@click.group(cls=Group, foreign_commands=_FOREIGN_COMMANDS)
def mcp() -> None:
    """List, try, add and remove MCP servers, whose tools a model may call.

    'localspec chat --mcp' chats with their tools. Files of Claude Desktop, Cursor and LM Studio
    work as they are: --mcp FILE.

    \b
        localspec mcp add time -- uvx mcp-server-time
        localspec mcp add wiki --url https://example.org/mcp
        localspec mcp list
        localspec mcp test time
        localspec mcp remove time
    """


@mcp.command("list")
@_FILE
@_MODEL
@json_option("array with everything known")
def list_servers(*, source: str, model: str | None, as_json: bool) -> None:
    """Start all servers, and say which work, with how many tools."""
    if source == OWN_FILE and not own_file().exists():
        if as_json:
            write_json([])
            return
        note("There are no MCP servers yet: localspec mcp add NAME -- COMMAND")
        _note_other_programs()
        return
    with configured_servers(source, ()) as servers, _TokenCounter(model) as counter:
        with waiting(lambda: "Starting the MCP servers …"):
            states = servers.states()
        if as_json:
            write_json([_state_json(state, counter) for state in states])
            return
        for state in states:
            click.echo(_state_line(state, counter))
            if state.error is not None:
                say(error_lines(state.error))
    if source == OWN_FILE:
        _note_other_programs()


@mcp.command("test")
@click.argument("name")
@_FILE
@_MODEL
@json_option("object with everything known")
def try_server(
    *,
    name: str,
    source: str,
    model: str | None,
    as_json: bool,
) -> None:
    """Start a server, and list its tools. If it fails, show the end of its stderr."""
    with configured_servers(source, ()) as servers, _TokenCounter(model) as counter:
        state = _start_named_server(servers, name)
        if as_json:
            write_json(_state_json(state, counter))
        else:
            click.echo(_state_line(state, counter))
            for tool in state.tools:
                click.echo(f"  {tool.name}: {excerpt(tool.description, _EXCERPT)}")
            for text in state.notes:
                note(text)
            if state.stderr is not None:
                note(f"Its stderr is in {state.stderr}.")
        if state.error is not None:
            raise state.error  # quotes the last lines of stderr, if there are any


@mcp.command("add")
@click.argument("name")
@click.argument("command", nargs=-1, metavar="[-- COMMAND...]")
@click.option("--url", metavar="URL", help="The address of a server that runs already.")
@click.option(
    "--env",
    "variables",
    multiple=True,
    metavar="NAME=VALUE",
    help="A variable for the command. Repeatable.",
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="A header of each request to the URL. Repeatable.",
)
@click.option("--cwd", metavar="DIR", help="The folder in which the command starts.")
def add(
    *,
    name: str,
    command: tuple[str, ...],
    url: str | None,
    variables: tuple[str, ...],
    headers: tuple[str, ...],
    cwd: str | None,
) -> None:
    """Add a server to localspec's own file: a command, or an address."""
    values: dict[str, Any] = {}
    if command:
        values["command"] = command[0]
        values["args"] = list(command[1:])
    if url is not None:
        values["url"] = url
    if variables:
        values["env"] = _name_value_pairs("--env", variables)
    if headers:
        values["headers"] = _name_value_pairs("--header", headers)
    if cwd is not None:
        values["cwd"] = str(Path(cwd).absolute())
    add_server(own_file(), name, values)
    say(f"{name} added to {own_file()}. To try it: localspec mcp test {name}")


@mcp.command("remove")
@click.argument("name")
def remove(*, name: str) -> None:
    """Remove a server from localspec's own file."""
    remove_server(own_file(), name)
    say(f"{name} removed from {own_file()}")


class _TokenCounter:
    """Counts the tokens that the descriptions of tools take in a prompt.

    As a context manager it loads the model, and closes it at the end.

    Args:
        model: the name of the model whose tokens are counted; None for an estimate.
    """

    def __init__(self, model: str | None) -> None:
        self._model = model
        self._engine: Any = None

    def __enter__(self) -> _TokenCounter:
        """Load the model, if one is named."""
        if self._model is not None:
            # Imported here: without a model no engine is loaded.
            from localspec.engine.loading import load

            with waiting(lambda: "Loading the model …"):
                self._engine = load(self._model)
        return self

    def __exit__(self, *_: object) -> None:
        if self._engine is not None:
            self._engine.close()

    @property
    def is_exact(self) -> bool:
        """Whether a model's own tokens are counted."""
        return self._engine is not None

    def num_tokens(self, tools: Sequence[Tool]) -> int:
        """The number of tokens that these tools take, exact or estimated."""
        if self._engine is None:
            num_characters = sum(len(str(tool.declared())) for tool in tools)
            return num_characters // _CHARACTERS_PER_TOKEN
        from localspec.chat.foreign_bounds import num_tokens_of

        return num_tokens_of(self._engine, tools)


def _start_named_server(servers: McpServers, name: str) -> ServerState:
    """Start a server, and return its state. Raises OptionError if there is no such server."""
    with waiting(lambda: f"Starting {name} …"):
        states = {state.name: state for state in servers.states(only=name)}
    if name not in states:
        raise OptionError(f"there is no MCP server {name!r:.80}", did_you_mean(name, states))
    return states[name]


def _state_line(state: ServerState, counter: _TokenCounter) -> str:
    """A server in one line: whether it works, its tools in numbers, its command or address."""
    if state.is_disabled:
        return f"{state.name}: disabled ({state.target})"
    if state.error is not None:
        return f"{state.name}: does not work ({state.target})"
    size = f"{counter.num_tokens(state.tools):,} tokens"
    if not counter.is_exact:
        size = f"about {size}"
    parts = [f"MCP {state.protocol}", counted(len(state.tools), "tool"), size]
    allowed = [tool.name for tool in state.tools if foreign_of(tool).is_allowed]
    if allowed:
        parts.append(f"called without asking: {', '.join(allowed)}")
    return f"{state.name}: works, {', '.join(parts)} ({state.target})"


def _state_json(state: ServerState, counter: _TokenCounter) -> dict[str, Any]:
    """Everything known about a server, for --json; its error and hint as one text or None."""
    error = None
    if state.error is not None:
        error = f"{state.error} {state.error.hint}"
    return {
        "name": state.name,
        "target": state.target,
        "is_disabled": state.is_disabled,
        "protocol": state.protocol,
        "version": state.version,
        "tools": [tool.declared()["function"] for tool in state.tools],
        "tokens": counter.num_tokens(state.tools),
        "notes": state.notes,
        "error": error,
        "stderr": state.stderr,
    }


def _note_other_programs() -> None:
    """Note which other programs have MCP servers, and how to use them here."""
    for program, path in files_of_others().items():
        try:
            num_servers = len(read_servers(path))
        except OptionError as error:
            note(f"{program}: {error}")
            continue
        if num_servers:
            note(
                f"{program} has {counted(num_servers, 'server')}. To use them: "
                f"localspec chat --mcp {_quoted(path)}"
            )


def _quoted(path: Path) -> str:
    """The path as a word of a command that can be pasted into this system's shell."""
    if sys.platform == "win32":
        return f'"{path}"'  # no path has this quote there
    return shlex.quote(str(path))


def _name_value_pairs(flag: str, pairs: Sequence[str]) -> dict[str, str]:
    """The values of NAME=VALUE by their names. Raises OptionError, which names the flag."""
    values = {}
    for pair in pairs:
        name, equals_sign, value = pair.partition("=")
        if not name or not equals_sign:
            raise OptionError(f"{flag} is {pair!r:.80}", f"Write it as {flag} NAME=VALUE.")
        values[name] = value
    return values
