"""The MCP servers of a configuration, and their tools in the form that a model gets."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import json
import logging
import os
import re
import threading
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from localspec.errors import (
    DAMAGES,
    LocalspecError,
    OptionError,
    ToolServerError,
    did_you_mean,
)
from localspec.system.atomic_write import write_whole
from localspec.tool_servers.configuration import (
    ServerEntry,
    own_file,
    read_servers,
    servers_in,
)
from localspec.tool_servers.result_content import foreign_result
from localspec.tools.foreign import ForeignFunction, ForeignResult
from localspec.tools.tool import Tool, checked_tools

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on

    from localspec.tool_servers.connection import Connection

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")
_POLL_S = 0.1  # a thread that waits longer at once does not notice Ctrl-C on Windows
_CLOSE_S = 10.0  # a server that does not end is killed long before


@dataclass(frozen=True, slots=True)
class ServerState:
    """A server of a configuration, and what it has said when its tools were listed."""

    name: str

    target: str
    """Its command with arguments, or its address."""

    is_disabled: bool
    """Whether the file switches it off."""

    protocol: str = ""
    """The version of MCP of the connection; "" if it was not connected."""

    version: str = ""
    """The name and version that it states; "" if it was not connected."""

    tools: tuple[Tool, ...] = ()
    """Its tools that are allowed and valid."""

    notes: tuple[str, ...] = ()
    """Sentences on tools that are left out although they are allowed, and why."""

    error: LocalspecError | None = None
    """Why its tools could not be listed; None if they were, or if it is switched off."""

    stderr: Path | None = None
    """The file with its stderr; None if no program was started."""


class McpServers:
    """The tools of MCP servers, for `run_tools`:

        with localspec.McpServers("mcp.json") as servers:
            localspec.run_tools(chat, "What is in notes.txt?", tools=servers.tools)

    A server starts when its tools are first needed. All servers end with the `with` block, or
    with this process. This class needs the extra `mcp`.

    Args:
        source: a file with `mcpServers`, as other programs have it, or its content; None for
            the user's own file, which `localspec mcp add` writes.
        allowed_tools: names of tools, or of servers for all their tools; other tools are left
            out. Empty for all tools.

    Raises:
        OptionError: the package `mcp` is missing, the file cannot be read, or an entry is
            wrong.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        *,
        allowed_tools: Sequence[str] = (),
    ) -> None:
        require_mcp()
        self._entries = _read_entries(source)
        self._allowed_tools = frozenset(allowed_tools)
        self._listings: dict[str, Future[ServerState]] = {}
        self._connections: dict[str, Connection] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        # Never held while a server starts: calls and `close` would wait for it.
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<McpServers {', '.join(self.names)}>"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the servers that are not switched off."""
        return tuple(name for name, entry in self._entries.items() if not entry.is_disabled)

    @property
    def tools(self) -> list[Tool]:
        """The tools of all servers. Servers that do not run are started.

        A tool has the name that the server gives it, with _ in place of characters that a tool
        of a model cannot have. If several servers have a tool of that name, the server's name
        and __ come before it. Raises ToolServerError or OptionError if a server cannot be
        started.
        """
        for state in self.states():
            if state.error is not None:
                raise state.error
        return self.working_tools

    @property
    def working_tools(self) -> list[Tool]:
        """As `tools`, without the tools of servers that cannot be started.

        Raises OptionError if `allowed_tools` has an unknown name and all servers run: one that
        does not might have a tool of that name.
        """
        states = self.states()
        tools: list[Tool] = []
        for state in states:
            tools += state.tools
        known_names: set[str] = set()
        for tool in tools:
            function = _function_of(tool)
            known_names |= {function.tool, function.server}
        unknown_names = self._allowed_tools - known_names
        if unknown_names and not any(state.error for state in states):
            name = next(iter(unknown_names))
            raise OptionError(
                f"allowed_tools names {name!r:.80}, which is no tool of {self!r}",
                did_you_mean(name, known_names),
            )
        counts = Counter(tool.name for tool in tools)
        for index, tool in enumerate(tools):
            if counts[tool.name] > 1:
                tools[index] = _with_server_name(tool)
        return list(checked_tools(tools))

    def states(self, *, only: str | None = None) -> list[ServerState]:
        """The state of each server. Servers are started for it, unless they are switched off.

        States are kept until `close`, also those with an error: else a server that hangs as it
        starts would take a minute each time.

        Raises ToolServerError if the servers are closed meanwhile.

        Args:
            only: the name of the server to ask; None for all servers.
        """
        entries = [entry for entry in self._entries.values() if only in (None, entry.name)]
        states: dict[str, ServerState] = {}
        listings = []
        with self._lock:  # so that `close` cancels all of these listings or none
            for entry in entries:
                if entry.is_disabled:
                    states[entry.name] = ServerState(entry.name, entry.target, is_disabled=True)
                else:
                    listings.append(self._listing(entry))
        for state in self._wait(listings):
            states[state.name] = state
        return [states[entry.name] for entry in entries]

    def call_soon(
        self,
        server: str,
        tool: str,
        arguments: Mapping[str, Any],
    ) -> Future[ForeignResult]:
        """Begin a call of a tool, and return the future of its result.

        `cancel` of the future ends the call, and notifies the server.

        Args:
            server: the server's name.
            tool: the tool's name on the server.
            arguments: the arguments by name.
        """
        return self._submit(self._call(server, tool, arguments))

    def call(self, server: str, tool: str, arguments: Mapping[str, Any]) -> ForeignResult:
        """Call a tool and wait for the result; arguments as for `call_soon`.

        Raises ToolServerError, OptionError.
        """
        (result,) = self._wait([self.call_soon(server, tool, arguments)])
        return result

    def close(self) -> None:
        """End the servers and their child processes. Idempotent.

        It does not wait for servers that are starting. What fails in it is no error, but a
        warning in the log.
        """
        with self._lock:
            if self._loop is None:
                return
            loop = self._loop
            self._loop = None
            for listing in self._listings.values():
                listing.cancel()
            closed = asyncio.run_coroutine_threadsafe(self._close_connections(), loop)
            if wait([closed], _CLOSE_S).not_done:
                logger.warning("MCP servers have not ended within %g s", _CLOSE_S)
            loop.call_soon_threadsafe(loop.stop)
            self._connections.clear()
            self._listings.clear()

    async def _close_connections(self) -> None:
        """Close all connections; on the event loop, whose other tasks add some."""
        closings = [connection.close() for connection in self._connections.values()]
        await asyncio.gather(*closings)

    async def _call(
        self,
        server: str,
        tool: str,
        arguments: Mapping[str, Any],
    ) -> ForeignResult:
        """As `call`, on the event loop."""
        result = await self._connection(server).call(tool, arguments)
        # In a thread, since converting a large result would stop all other calls.
        return await asyncio.to_thread(foreign_result, result)

    def _connection(self, name: str) -> Connection:
        """The connection to a server, not yet open if it is new.

        Raises OptionError for an unknown name.
        """
        from localspec.tool_servers.connection import Connection  # imports the extra `mcp`

        if name not in self._entries:
            raise OptionError(
                f"there is no MCP server {name!r:.80}",
                did_you_mean(name, self._entries),
            )
        if name not in self._connections:
            self._connections[name] = Connection(self._entries[name])
        return self._connections[name]

    def _listing(self, entry: ServerEntry) -> Future[ServerState]:
        """The future of a server's state, whose tools are listed now or were before.

        The caller holds the lock.
        """
        listing = self._listings.get(entry.name)
        if listing is None or listing.cancelled():  # by Ctrl-C in an earlier wait
            listing = self._submit(self._list_tools(entry))
            self._listings[entry.name] = listing
        return listing

    async def _list_tools(self, entry: ServerEntry) -> ServerState:
        """Start a server and list its tools. Returns its state, also after an error."""
        connection = self._connection(entry.name)
        error: LocalspecError | None = None
        declarations: list[dict[str, Any]] = []
        notes: list[str] = []
        try:
            declarations, has_more = await connection.list_tools()
        except LocalspecError as failure:
            error = failure
        else:
            if has_more:
                notes.append(
                    f"it lists more than {len(declarations)} tools; the rest is left out"
                )
        tools = []
        for declaration in declarations:
            tool = self._tool(entry, declaration, notes)
            if tool is not None:
                tools.append(tool)
        stderr = None
        if connection.log is not None:
            stderr = connection.log.path
        return ServerState(
            entry.name,
            entry.target,
            is_disabled=False,
            protocol=connection.protocol,
            version=connection.version,
            tools=tuple(tools),
            notes=tuple(notes),
            error=error,
            stderr=stderr,
        )

    def _tool(
        self,
        entry: ServerEntry,
        declaration: Mapping[str, Any],
        notes: list[str],
    ) -> Tool | None:
        """The tool that a server declares; None if it is not allowed, or not valid.

        Args:
            entry: the server's entry.
            declaration: the tool in MCP's JSON.
            notes: a sentence is appended if the tool is not valid.
        """
        name = str(declaration["name"])
        is_allowed = name in self._allowed_tools or entry.name in self._allowed_tools
        if self._allowed_tools and not is_allowed:
            return None
        hints = declaration.get("annotations") or {}
        is_destructive = hints.get("destructiveHint") is True and not hints.get("readOnlyHint")
        function = _ServerFunction(
            self,
            entry,
            name,
            is_destructive=is_destructive,
        )
        description = declaration.get("description") or declaration.get("title") or ""
        model_name = re.sub(r"[^A-Za-z0-9_.:/-]", "_", name)
        parameters = declaration.get("inputSchema") or {}
        tool = Tool(
            model_name,
            str(description),
            parameters,
            function=function,
        )
        try:
            (checked,) = checked_tools([tool])
            return checked
        except OptionError as error:
            notes.append(f"the tool {name!r:.80} is left out: {error}")
            return None

    def _submit(self, work: Coroutine[Any, Any, _Result]) -> Future[_Result]:
        """Run a coroutine on the event loop, whose thread is started if there is none.

        Returns the future of its result.
        """
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                thread = threading.Thread(
                    target=_run_loop,
                    args=(self._loop,),
                    name="localspec-mcp",
                    daemon=True,
                )
                thread.start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _wait(self, futures: Sequence[Future[_Result]]) -> list[_Result]:
        """Wait for the results of futures, and return them or raise the first error.

        If the wait is interrupted, as by Ctrl-C, the futures are cancelled. Raises
        ToolServerError if another thread cancels one, as `close` does.
        """
        try:
            # `wait` alone would wait for a cancelled one until its work has ended.
            while not all(future.done() for future in futures):
                wait(futures, _POLL_S)
            return [future.result() for future in futures]
        except CancelledError:
            raise ToolServerError(
                "the MCP servers were closed before one had answered",
                "Ask again while they are open.",
            ) from None
        finally:
            for future in futures:
                future.cancel()


class _ServerFunction(ForeignFunction):
    """The function of an MCP server's tool, which `run_tools` calls.

    The user is not asked before a call if the configuration or the user has approved the tool,
    and the server does not mark it as destructive (`is_allowed`).
    """

    def __init__(
        self,
        servers: McpServers,
        entry: ServerEntry,
        tool: str,
        *,
        is_destructive: bool,
    ) -> None:
        self.server = entry.name
        self.tool = tool
        self.is_destructive = is_destructive
        self._servers = servers
        self._entry = entry
        approved = [*entry.auto_approve, *_allowed_tools_of(entry)]
        is_approved = tool in approved or "*" in approved
        self.is_allowed = is_approved and not is_destructive

    def __call__(self, /, **arguments: object) -> ForeignResult:
        """Call the tool, with arguments by name. Raises ToolServerError."""
        return self._servers.call(self.server, self.tool, arguments)

    def allow_always(self) -> None:
        """Allow calls of a tool that is not destructive, also in later processes."""
        super().allow_always()
        _store_allowed(self._entry, self.tool)


def require_mcp() -> None:
    """Raise OptionError if the MCP SDK is not installed."""
    if importlib.util.find_spec("mcp") is None:
        raise OptionError(
            "MCP servers need the package mcp, which is not installed",
            "Install it: pip install 'localspec[mcp]'",
        )


def allowed_file() -> Path:
    """The path of the file with the tools that the user has allowed for all conversations."""
    return own_file().with_name("mcp-allowed.json")


def _store_allowed(entry: ServerEntry, tool: str) -> None:
    """Add a tool of a server to the file of allowed tools. Raises OSError."""
    path = allowed_file()
    allowed = _read_allowed()
    tools = allowed.setdefault(_fingerprint(entry), [])
    if tool not in tools:
        tools.append(tool)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = json.dumps(allowed, indent=2)
    write_whole(path, content.encode(), durable=False)


def _allowed_tools_of(entry: ServerEntry) -> list[str]:
    """The tools of a server that the user has allowed for all conversations."""
    return _read_allowed().get(_fingerprint(entry), [])


def _read_allowed() -> dict[str, list[str]]:
    """The allowed tools by the fingerprints of their servers.

    {} if the file does not exist or is damaged.
    """
    allowed: dict[str, list[str]] = {}
    try:
        content = json.loads(allowed_file().read_text("utf-8"))
        for fingerprint, tools in content.items():
            allowed[str(fingerprint)] = [str(tool) for tool in tools]
    except DAMAGES:
        return {}
    return allowed


def _fingerprint(entry: ServerEntry) -> str:
    """The key of a server in the file of allowed tools: its name, and a hash.

    The hash is of its command or address, and of its folder, so that a permission does not
    count for another server under the same name.
    """
    identity = json.dumps([entry.target, str(entry.cwd)])
    digest = hashlib.sha256(identity.encode()).hexdigest()
    return f"{entry.name} {digest[:16]}"


def _function_of(tool: Tool) -> ForeignFunction:
    """The function of an MCP server's tool."""
    assert isinstance(tool.function, ForeignFunction)
    return tool.function


def _with_server_name(tool: Tool) -> Tool:
    """The tool with the name of its server before its own name."""
    server_name = _function_of(tool).server
    prefix = re.sub(r"[^A-Za-z0-9_-]", "_", server_name)
    return Tool(
        f"{prefix}__{tool.name}",
        tool.description,
        tool.parameters,
        function=tool.function,
    )


def _read_entries(
    source: str | os.PathLike[str] | Mapping[str, Any] | None,
) -> dict[str, ServerEntry]:
    """The servers by their names; `source` as for `McpServers`. Raises OptionError."""
    if isinstance(source, Mapping):
        return servers_in("the given object", source)
    if source is None:
        return read_servers(own_file())
    return read_servers(Path(source))


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Run an event loop until it is stopped, and then close it: the work of its thread."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()
