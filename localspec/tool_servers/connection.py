"""A connection to one server, by the MCP SDK: the only importer of `mcp`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import anyio
import httpx2
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.types import CONNECTION_CLOSED, REQUEST_TIMEOUT, Implementation

from localspec._version import __version__
from localspec.errors import OptionError, ToolServerError
from localspec.tool_servers.configuration import ServerEntry
from localspec.tool_servers.keeper import program_of, watched_command
from localspec.tool_servers.server_log import ServerLog
from localspec.tool_servers.whole_lines import read_whole_lines

START_S = 60.0  # a server may have to be downloaded first, as by npx
_LIST_S = 30.0  # for all pages of the list of tools
MOST_LISTED = 256  # of a server
_MOST_PAGES = 64  # of the list of tools
_MOST_STARTS = 2  # of a server that ends without being asked to
_HTTP_CONNECT_S = 10.0
_LAST_WORDS_S = 1.0  # for the last lines of a server's stderr, when it ends
_MOST_OF_ERROR = 500  # characters of a server's error

# These log tracebacks of errors that our own errors and the server's own log have, too.
for _name in ("mcp", "client"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)
read_whole_lines()


class Connection:
    """A connection to a server, which is started or asked when it is first needed.

    All methods run on one event loop.

    Args:
        entry: the server's entry.
    """

    def __init__(self, entry: ServerEntry) -> None:
        self.entry = entry
        self.log: ServerLog | None = None
        """The log of its stderr; None if it was not started."""

        self.protocol = ""
        """The version of MCP that is spoken, once it is connected."""

        self.version = ""
        """The server's name and version, once it is connected."""

        self._client: Client | None = None
        self._living: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._starting = asyncio.Lock()
        self._num_starts = 0
        self._is_lost = False  # whether a call has found that the connection is closed

    async def list_tools(self) -> tuple[list[dict[str, Any]], bool]:
        """The tools in MCP's JSON, and whether there are more than are listed.

        Raises ToolServerError, OptionError.
        """
        client = await self._connected()
        tools: list[dict[str, Any]] = []
        cursor = None
        try:
            with anyio.fail_after(_LIST_S):
                for _ in range(_MOST_PAGES):
                    page = await client.list_tools(cursor=cursor, cache_mode="bypass")
                    for tool in page.tools:
                        tools.append(
                            tool.model_dump(
                                mode="json",
                                by_alias=True,
                                exclude_none=True,
                            )
                        )
                    cursor = page.next_cursor
                    if cursor is None or len(tools) > MOST_LISTED:
                        break
        except Exception as error:
            raise await self._failure("gave no list of its tools", error) from error
        has_more = cursor is not None or len(tools) > MOST_LISTED
        return tools[:MOST_LISTED], has_more

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The result of a call in MCP's JSON. Raises ToolServerError, OptionError."""
        client = await self._connected()
        try:
            result = await client.call_tool(
                tool,
                dict(arguments),
                read_timeout_seconds=self.entry.timeout_s,
            )
        except Exception as error:
            raise await self._failure(f"did not answer the call of {tool}", error) from error
        return result.model_dump(
            mode="json",
            by_alias=True,
            exclude_none=True,
        )

    async def close(self) -> None:
        """End the connection, and the server if it was started. Idempotent."""
        self._closing.set()
        if self._living is not None:
            await asyncio.wait([self._living])

    async def _connected(self) -> Client:
        """The client of a running server; the server is started if it does not run."""
        async with self._starting:
            if self._client is not None and self._has_ended():
                await self._end_client()
            if self._client is None:
                await self._start()
            assert self._client is not None
            return self._client

    def _has_ended(self) -> bool:
        if self._living is None or self._living.done() or self._is_lost:
            return True
        return self.log is not None and self.log.ended.is_set()

    async def _end_client(self) -> None:
        self._client = None
        await self.close()

    async def _start(self) -> None:
        if self._num_starts == _MOST_STARTS:
            raise ToolServerError(
                f"the MCP server {self.entry.name!r} has ended twice and is not started again"
                f"{self._quoted()}",
                self._hint(),
            )
        self._num_starts += 1
        self._is_lost = False
        self._closing = asyncio.Event()
        ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._living = asyncio.create_task(self._live(ready))
        try:
            with anyio.fail_after(START_S):
                self._client = await ready
        except BaseException as error:
            self._living.cancel()
            await asyncio.wait([self._living])
            if not isinstance(error, Exception) or isinstance(error, OptionError):
                raise
            raise await self._failure("could not be started", error) from error
        self.protocol = self._client.protocol_version
        info = self._client.server_info
        self.version = ""
        if info is not None:
            self.version = f"{info.name} {info.version}"

    async def _live(self, ready: asyncio.Future[Client]) -> None:
        """Hold the connection until it is to be closed. One task opens and closes it."""
        try:
            async with contextlib.AsyncExitStack() as until_closed:
                transport = self._transport(until_closed)
                client = Client(
                    transport,
                    client_info=Implementation(name="localspec", version=__version__),
                    message_handler=self._on_message,
                )
                await until_closed.enter_async_context(client)
                if not ready.done():
                    ready.set_result(client)
                await self._closing.wait()
        except BaseException as error:
            if not ready.done():
                ready.set_exception(_innermost(error))
            elif not isinstance(error, Exception):
                raise

    def _transport(self, until_closed: contextlib.AsyncExitStack) -> Any:
        entry = self.entry
        if entry.url is not None:
            return _http_transport(entry.url, entry.headers)
        assert entry.command is not None
        program = program_of(entry.command, entry.env)
        if program is None:
            raise OptionError(
                f"the command {entry.command!r} of the MCP server {entry.name!r} is not found",
                "Install it, or give its whole path.",
            )
        folder = entry.cwd or Path.home()
        if not folder.is_dir():
            raise OptionError(
                f"the folder {str(folder)!r} of the MCP server {entry.name!r} is not there",
                "Correct cwd in the file of servers.",
            )
        self.log = ServerLog(entry.name)
        until_closed.callback(self.log.pipe.close)
        command, *args = watched_command(program, entry.args)
        parameters = StdioServerParameters(
            command=command,
            args=args,
            env=dict(entry.env),
            cwd=folder,
            encoding_error_handler="replace",
        )
        return _handing_over(stdio_client(parameters, self.log.pipe), self.log)

    async def _on_message(self, message: object) -> None:
        if isinstance(message, Exception) and self.log is not None:
            self.log.note(f"what is on stdout is no message of MCP: {message!s:.300}")

    async def _failure(self, what: str, error: BaseException) -> ToolServerError:
        """The error in words. If the server has ended, its last lines are read before."""
        if isinstance(error, MCPError) and error.code == CONNECTION_CLOSED:
            self._is_lost = True
            if self.log is not None:
                await asyncio.to_thread(self.log.ended.wait, _LAST_WORDS_S)
        return self._error(what, error)

    def _error(self, what: str, error: BaseException) -> ToolServerError:
        name = self.entry.name
        if isinstance(error, MCPError) and error.code == REQUEST_TIMEOUT:
            hint = 'Give it longer: "timeout": seconds, in its entry of the file.'
            return ToolServerError(
                f"the MCP server {name!r} {what} within {self.entry.timeout_s:g} s",
                hint,
            )
        if isinstance(error, TimeoutError):
            return ToolServerError(
                f"the MCP server {name!r} {what}: it said nothing in time{self._quoted()}",
                self._hint(),
            )
        if isinstance(error, MCPError) and error.code == CONNECTION_CLOSED:
            reason = "it has ended, or closed the connection"
        else:
            reason = f"{error!s:.{_MOST_OF_ERROR}}" or type(error).__name__
        return ToolServerError(
            f"the MCP server {name!r} {what}: {reason}{self._quoted()}",
            self._hint(),
        )

    def _quoted(self) -> str:
        if self.log is None or not self.log.last_lines:
            return ""
        return "; the last of its stderr: " + " | ".join(self.log.last_lines)

    def _hint(self) -> str:
        hint = f"To try it alone: localspec mcp test {self.entry.name}"
        if self.log is None:
            return hint
        return f"Its stderr is in {self.log.path}. {hint}"


@contextlib.asynccontextmanager
async def _handing_over(transport: Any, log: ServerLog) -> AsyncGenerator[Any, None]:
    """The transport. Once it is started, our copy of the pipe is closed: the server has one."""
    async with transport as streams:
        log.pipe.close()
        yield streams


@contextlib.asynccontextmanager
async def _http_transport(url: str, headers: Mapping[str, str]) -> AsyncGenerator[Any, None]:
    timeout = httpx2.Timeout(_HTTP_CONNECT_S, read=None)  # a call has its own time limit
    async with (
        httpx2.AsyncClient(headers=dict(headers), timeout=timeout) as client,
        streamable_http_client(url, http_client=client) as streams,
    ):
        yield streams


def _innermost(error: BaseException) -> BaseException:
    """The error itself, without the groups that tasks have put around it."""
    while isinstance(getattr(error, "exceptions", None), tuple) and error.exceptions:  # type: ignore[attr-defined]
        error = error.exceptions[0]  # type: ignore[attr-defined]
    return error
