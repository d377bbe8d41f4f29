"""MCP servers, and their tools as a model gets them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.util
import json
import logging
import os
import re
import threading
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from localspec.errors import DAMAGES, LocalspecError, OptionError, did_you_mean
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

_Found = TypeVar("_Found")
_POLL_S = 0.1  # so that a thread that waits hears of Ctrl-C, on Windows too
_CLOSE_S = 10.0  # a server that does not end is killed long before


@dataclass(frozen=True, slots=True)
class ServerState:
    """What is known of a server."""

    name: str

    target: str
    """Its command or address."""

    is_disabled: bool
    """Whether the file switches it off."""

    protocol: str = ""
    """The version of MCP that it speaks, once it is connected."""

    version: str = ""
    """The name and version that it gives itself."""

    tools: tuple[Tool, ...] = ()
    """Its tools."""

    notes: tuple[str, ...] = ()
    """The tools that are left out, and why."""

    error: LocalspecError | None = None
    """Why it has no tools."""

    stderr: Path | None = None
    """The file with its stderr; None if it was not started."""


class McpServers:
    """The tools of MCP servers, for `run_tools`:

        with localspec.McpServers("mcp.json") as servers:
            localspec.run_tools(chat, "What is in notes.txt?", tools=servers.tools)

    A server starts when its tools are first needed. All of them end with the `with` block, and
    with this process. It needs the extra `mcp`.

    Args:
        source: a file with `mcpServers`, as other programs have it, or such an object; None
            for the user's own file, which `localspec mcp add` writes.
        allowed_tools: names of tools or servers; others are left out. Empty for all.

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
        self._entries = _entries_of(source)
        self._allowed_tools = frozenset(allowed_tools)
        self._states: dict[str, ServerState] = {}
        self._connections: dict[str, Connection] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
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
        """The tools of all servers, which are started for it.

        A tool has its own name, with _ for characters that a model's tool cannot have. If two
        servers have a tool of that name, the server's name comes before it. Raises
        ToolServerError and OptionError if a server cannot be started.
        """
        for state in self.states():
            if state.error is not None:
                raise state.error
        return self.working_tools

    @property
    def working_tools(self) -> list[Tool]:
        """`tools` without those of servers that cannot be started."""
        states = self.states()
        tools: list[Tool] = []
        for state in states:
            tools += state.tools
        known: set[str] = set()
        for tool in tools:
            known |= {_of(tool).tool, _of(tool).server}
        unknown = self._allowed_tools - known
        if unknown and not any(state.error for state in states):
            name = next(iter(unknown))
            raise OptionError(
                f"allowed_tools names {name!r:.80}, which is no tool of {self!r}",
                did_you_mean(name, known),
            )
        counts = Counter(tool.name for tool in tools)
        for index, tool in enumerate(tools):
            if counts[tool.name] > 1:
                tools[index] = _with_server(tool)
        return list(checked_tools(tools))

    def states(self, *, only: str | None = None) -> list[ServerState]:
        """The state of each server. The servers that are not switched off are started for it.

        Args:
            only: the name of a server; others are left out, and not started.
        """
        wanted = [name for name in self._entries if only in (None, name)]
        with self._lock:
            work = []
            for name in wanted:
                entry = self._entries[name]
                if entry.is_disabled:
                    self._states[name] = ServerState(name, entry.target, is_disabled=True)
                elif name not in self._states:
                    work.append(self._state(entry))
            if work:
                for state in self._wait(self._submit(_gathered(work))):
                    self._states[state.name] = state
            return [self._states[name] for name in wanted]

    def call_soon(
        self,
        server: str,
        tool: str,
        arguments: Mapping[str, Any],
    ) -> Future[ForeignResult]:
        """Begin a call. The future's `cancel` ends it, and notifies the server.

        Args:
            server: the server's name.
            tool: the tool's name on the server.
            arguments: the arguments by name.
        """
        return self._submit(self._call(server, tool, arguments))

    def call(self, server: str, tool: str, arguments: Mapping[str, Any]) -> ForeignResult:
        """The result of a call. Raises ToolServerError, OptionError."""
        return self._wait(self.call_soon(server, tool, arguments))

    def close(self) -> None:
        """End the servers and their children. Idempotent."""
        with self._lock:
            if self._loop is None:
                return
            loop = self._loop
            self._loop = None
            work = [connection.close() for connection in self._connections.values()]
            ending = asyncio.run_coroutine_threadsafe(_gathered(work), loop)
            with contextlib.suppress(TimeoutError):
                ending.result(_CLOSE_S)
            loop.call_soon_threadsafe(loop.stop)
            self._connections.clear()
            self._states.clear()

    async def _call(
        self,
        server: str,
        tool: str,
        arguments: Mapping[str, Any],
    ) -> ForeignResult:
        result = await self._connection(server).call(tool, arguments)
        return await asyncio.to_thread(foreign_result, result)

    def _connection(self, name: str) -> Connection:
        from localspec.tool_servers.connection import Connection

        if name not in self._entries:
            raise OptionError(
                f"there is no MCP server {name!r:.80}",
                did_you_mean(name, self._entries),
            )
        if name not in self._connections:
            self._connections[name] = Connection(self._entries[name])
        return self._connections[name]

    async def _state(self, entry: ServerEntry) -> ServerState:
        connection = self._connection(entry.name)
        error: LocalspecError | None = None
        listed: list[dict[str, Any]] = []
        notes: list[str] = []
        try:
            listed, has_more = await connection.list_tools()
        except LocalspecError as failure:
            error = failure
        else:
            if has_more:
                notes.append(f"it lists more than {len(listed)} tools; the rest is left out")
        tools = []
        for declared in listed:
            tool = self._tool(entry, declared, notes)
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
        declared: Mapping[str, Any],
        notes: list[str],
    ) -> Tool | None:
        """A tool; None if it is left out.

        Args:
            entry: the server's entry.
            declared: the tool in MCP's JSON.
            notes: gets a note if the tool is wrong.
        """
        name = str(declared["name"])
        is_allowed = name in self._allowed_tools or entry.name in self._allowed_tools
        if self._allowed_tools and not is_allowed:
            return None
        hints = declared.get("annotations") or {}
        is_destructive = hints.get("destructiveHint") is True and not hints.get("readOnlyHint")
        function = _ServerFunction(
            self,
            entry,
            name,
            is_destructive=is_destructive,
        )
        description = declared.get("description") or declared.get("title") or ""
        shown = re.sub(r"[^A-Za-z0-9_.:/-]", "_", name)
        parameters = declared.get("inputSchema") or {}
        tool = Tool(
            shown,
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

    def _submit(self, work: Coroutine[Any, Any, _Found]) -> Future[_Found]:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                thread = threading.Thread(
                    target=_run,
                    args=(self._loop,),
                    name="localspec-mcp",
                    daemon=True,
                )
                thread.start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _wait(self, future: Future[_Found]) -> _Found:
        """The result. If the wait is interrupted, as by Ctrl-C, the work ends, too."""
        try:
            while not future.done():
                with contextlib.suppress(TimeoutError):
                    future.exception(_POLL_S)
            return future.result()
        finally:
            future.cancel()


class _ServerFunction(ForeignFunction):
    """Calls a tool of a server, as `run_tools` calls functions."""

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
        approved = [*entry.auto_approve, *_always_allowed(entry)]
        is_approved = tool in approved or "*" in approved
        self.is_allowed = is_approved and not is_destructive

    def __call__(self, /, **arguments: object) -> ForeignResult:
        """The result of a call. Raises ToolServerError."""
        return self._servers.call(self.server, self.tool, arguments)

    def allow_always(self) -> None:
        """Allow its calls from now on, also in later conversations."""
        super().allow_always()
        _allow(self._entry, self.tool)


def require_mcp() -> None:
    """Raise OptionError if the MCP SDK is not installed."""
    if importlib.util.find_spec("mcp") is None:
        raise OptionError(
            "MCP servers need the package mcp, which is not installed",
            "Install it: pip install 'localspec[mcp]'",
        )


def allowed_file() -> Path:
    """The file of tools that the user has allowed for good."""
    return own_file().with_name("mcp-allowed.json")


def _allow(entry: ServerEntry, tool: str) -> None:
    path = allowed_file()
    kept = _kept_allowed()
    tools = kept.setdefault(_fingerprint(entry), [])
    if tool not in tools:
        tools.append(tool)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(kept, indent=2).encode(), durable=False)


def _always_allowed(entry: ServerEntry) -> list[str]:
    return _kept_allowed().get(_fingerprint(entry), [])


def _kept_allowed() -> dict[str, list[str]]:
    allowed: dict[str, list[str]] = {}
    try:
        content = json.loads(allowed_file().read_text("utf-8"))
        for fingerprint, tools in content.items():
            allowed[str(fingerprint)] = [str(tool) for tool in tools]
    except DAMAGES:
        return {}
    return allowed


def _fingerprint(entry: ServerEntry) -> str:
    """The key of a server in the file. Another command under the same name has another key."""
    command = json.dumps([entry.target, str(entry.cwd)])
    digest = hashlib.sha256(command.encode()).hexdigest()
    return f"{entry.name} {digest[:16]}"


def _of(tool: Tool) -> ForeignFunction:
    assert isinstance(tool.function, ForeignFunction)
    return tool.function


def _with_server(tool: Tool) -> Tool:
    prefix = re.sub(r"[^A-Za-z0-9_-]", "_", _of(tool).server)
    name = f"{prefix}__{tool.name}"
    return Tool(
        name,
        tool.description,
        tool.parameters,
        function=tool.function,
    )


def _entries_of(
    source: str | os.PathLike[str] | Mapping[str, Any] | None,
) -> dict[str, ServerEntry]:
    if isinstance(source, Mapping):
        return servers_in("the given object", source)
    if source is None:
        return read_servers(own_file())
    return read_servers(Path(source))


async def _gathered(work: Sequence[Coroutine[Any, Any, _Found]]) -> list[_Found]:
    return list(await asyncio.gather(*work))


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()
