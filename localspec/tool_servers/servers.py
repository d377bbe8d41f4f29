"""Servers of tools, and their tools as a model is given them."""

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
    """What it calls itself."""

    tools: tuple[Tool, ...] = ()

    notes: tuple[str, ...] = ()
    """What is left out of its tools, and why."""

    error: LocalspecError | None = None
    """Why it has no tools."""

    stderr: Path | None = None
    """The file of what it writes to stderr."""


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

    Raises OptionError where the package `mcp` is missing, the file cannot be read, or an entry
    is wrong.
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

        A tool has its own name; where two servers have tools of one name, or the name is none
        for a model, it has the server's in front. Raises ToolServerError and OptionError where
        a server cannot be started.
        """
        for state in self.states():
            if state.error is not None:
                raise state.error
        return self.working_tools

    @property
    def working_tools(self) -> list[Tool]:
        """`tools` without those of servers that cannot be started."""
        found = [tool for state in self.states() for tool in state.tools]
        known = {each for tool in found for each in (_of(tool).tool, _of(tool).server)}
        for name in self._allowed_tools - known:
            if not any(state.error for state in self.states()):
                raise OptionError(
                    f"allowed_tools names {name!r:.80}, which is no tool of {self!r}",
                    did_you_mean(name, known),
                )
        counts = Counter(tool.name for tool in found)
        named = [_with_server(tool) if counts[tool.name] > 1 else tool for tool in found]
        return list(checked_tools(named))

    def states(self, *, only: str | None = None) -> list[ServerState]:
        """What is known of each server; those that are not switched off are started for it.

        Args:
            only: the name of a server; others are left out, and not started.
        """
        wanted = [name for name in self._entries if only in (None, name)]
        with self._lock:
            missing = [
                name for name in self.names if name in wanted and name not in self._states
            ]
            if missing:
                work = [self._state(self._entries[name]) for name in missing]
                for state in self._wait(self._submit(_gathered(work))):
                    self._states[state.name] = state
            for name, entry in self._entries.items():
                if entry.is_disabled:
                    self._states[name] = ServerState(name, entry.target, is_disabled=True)
            return [self._states[name] for name in wanted]

    def call_soon(
        self, server: str, tool: str, arguments: Mapping[str, Any]
    ) -> Future[ForeignResult]:
        """Begin a call. The future's `cancel` ends it, and the server hears of that.

        Args:
            server: its name.
            tool: the tool's name there.
            arguments: by name.
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
            work = [each.close() for each in self._connections.values()]
            ending = asyncio.run_coroutine_threadsafe(_gathered(work), loop)
            with contextlib.suppress(TimeoutError):
                ending.result(_CLOSE_S)
            loop.call_soon_threadsafe(loop.stop)
            self._connections.clear()
            self._states.clear()

    async def _call(
        self, server: str, tool: str, arguments: Mapping[str, Any]
    ) -> ForeignResult:
        found = await self._connection(server).call(tool, arguments)
        return await asyncio.to_thread(foreign_result, found)

    def _connection(self, name: str) -> Connection:
        from localspec.tool_servers.connection import Connection

        if name not in self._entries:
            raise OptionError(
                f"there is no MCP server {name!r:.80}", did_you_mean(name, self._entries)
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
        except LocalspecError as found:
            error = found
        else:
            if has_more:
                notes.append(f"it lists more than {len(listed)} tools; the rest is left out")
        tools = []
        for each in listed:
            tool = self._tool(entry, each, notes)
            if tool is not None:
                tools.append(tool)
        return ServerState(
            entry.name,
            entry.target,
            is_disabled=False,
            protocol=connection.protocol,
            version=connection.version,
            tools=tuple(tools),
            notes=tuple(notes),
            error=error,
            stderr=None if connection.log is None else connection.log.path,
        )

    def _tool(
        self, entry: ServerEntry, listed: Mapping[str, Any], notes: list[str]
    ) -> Tool | None:
        """The tool; None where it is left out, which a note says unless the user wanted it."""
        name = str(listed["name"])
        if self._allowed_tools and not self._allowed_tools & {name, entry.name}:
            return None
        hints = listed.get("annotations") or {}
        is_destructive = hints.get("destructiveHint") is True and not hints.get("readOnlyHint")
        function = _ServerFunction(self, entry, name, is_destructive=is_destructive)
        description = str(listed.get("description") or listed.get("title") or "")
        shown = re.sub(r"[^A-Za-z0-9_.:/-]", "_", name)
        tool = Tool(shown, description, listed.get("inputSchema") or {}, function=function)
        try:
            return checked_tools([tool])[0]
        except OptionError as error:
            notes.append(f"the tool {name!r:.80} is left out: {error}")
            return None

    def _submit(self, work: Coroutine[Any, Any, _Found]) -> Future[_Found]:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                thread = threading.Thread(
                    target=_run, args=(self._loop,), name="localspec-mcp", daemon=True
                )
                thread.start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _wait(self, future: Future[_Found]) -> _Found:
        """The result. Whatever ends the wait, as Ctrl-C does, ends the work."""
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
        self, servers: McpServers, entry: ServerEntry, tool: str, *, is_destructive: bool
    ) -> None:
        self.server = entry.name
        self.tool = tool
        self.is_destructive = is_destructive
        self._servers = servers
        self._entry = entry
        approved = {*entry.auto_approve, *_always_allowed(entry)}
        self.is_allowed = not is_destructive and bool(approved & {tool, "*"})

    def __call__(self, /, **arguments: object) -> ForeignResult:
        """The result of a call. Raises ToolServerError."""
        return self._servers.call(self.server, self.tool, arguments)

    def allow_always(self) -> None:
        """Keep that its calls are allowed, also in later conversations."""
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
    try:
        found = json.loads(allowed_file().read_text("utf-8"))
        return {str(key): [str(each) for each in tools] for key, tools in found.items()}
    except DAMAGES:
        return {}


def _fingerprint(entry: ServerEntry) -> str:
    """Another command under the same name is not allowed what this one is."""
    digest = hashlib.sha256(json.dumps([entry.target, str(entry.cwd)]).encode()).hexdigest()
    return f"{entry.name} {digest[:16]}"


def _of(tool: Tool) -> ForeignFunction:
    assert isinstance(tool.function, ForeignFunction)
    return tool.function


def _with_server(tool: Tool) -> Tool:
    prefix = re.sub(r"[^A-Za-z0-9_-]", "_", _of(tool).server)
    return Tool(
        f"{prefix}__{tool.name}", tool.description, tool.parameters, function=tool.function
    )


def _entries_of(
    source: str | os.PathLike[str] | Mapping[str, Any] | None,
) -> dict[str, ServerEntry]:
    if isinstance(source, Mapping):
        return servers_in("the given object", source)
    return read_servers(own_file() if source is None else Path(source))


async def _gathered(work: Sequence[Coroutine[Any, Any, _Found]]) -> list[_Found]:
    return list(await asyncio.gather(*work))


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()
