"""A connection to one MCP server, by the MCP SDK. Only this module imports `mcp`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
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

START_S = 60.0  # seconds until a server answers; npx, for example, may download it first
_LIST_S = 30.0  # seconds for all pages of the list of tools
MOST_LISTED = 256  # tools of a server that are listed
_MOST_PAGES = 64  # pages of the list of tools
_MOST_STARTS = 2  # how often a server is started, if it has ended without our closing it
_HTTP_CONNECT_S = 10.0
_LAST_LINES_S = 1.0  # seconds to wait for the last lines of stderr when a server has ended
_MOST_OF_ERROR = 500  # characters of a server's error

logger = logging.getLogger(__name__)

# These loggers write tracebacks of errors that localspec's errors and the server's log contain.
for _name in ("mcp", "client"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)
read_whole_lines()


class Connection:
    """A connection to a server. It is made, and the server started, when it is first used.

    All methods run on one event loop.

    Args:
        entry: the server's entry.
    """

    def __init__(self, entry: ServerEntry) -> None:
        self.entry = entry
        self.log: ServerLog | None = None
        """The log of its stderr; None if no program was started."""

        self.protocol = ""
        """The version of MCP of the connection; "" before it is connected."""

        self.version = ""
        """The server's name and version, as it states them; "" before it is connected."""

        self._client: Client | None = None  # None while it is not connected
        # Runs `_keep_open`: opens the connection, and closes it when `_close_requested` is set.
        self._connection_task: asyncio.Task[None] | None = None
        self._close_requested = asyncio.Event()
        self._start_lock = asyncio.Lock()
        self._num_starts = 0  # with those that failed
        self._num_failed_starts = 0
        self._was_closed_by_server = False  # whether a call has failed because of that

    async def list_tools(self) -> tuple[list[dict[str, Any]], bool]:
        """The server's tools in MCP's JSON, at most MOST_LISTED, and whether it has more.

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
        """Close the connection, and end the server if it was started. Idempotent."""
        self._close_requested.set()
        if self._connection_task is not None:
            await asyncio.wait([self._connection_task])

    async def _connected(self) -> Client:
        """The client of an open connection, which is opened first if necessary.

        Raises ToolServerError, OptionError.
        """
        async with self._start_lock:
            if self._client is not None and self._has_ended():
                self._client = None
                await self.close()
            if self._client is None:
                await self._start()
            assert self._client is not None
            return self._client

    def _has_ended(self) -> bool:
        """Whether the opened connection, or the server, has ended."""
        task = self._connection_task
        if task is None or task.done() or self._was_closed_by_server:
            return True
        return self.log is not None and self.log.ended.is_set()

    async def _start(self) -> None:
        """Start the server if it has a command, and open a connection.

        Raises ToolServerError if that fails or takes longer than START_S, or if the server was
        started _MOST_STARTS times already; OptionError as `_transport`.
        """
        if self._num_starts == _MOST_STARTS:
            if self._num_failed_starts == 0:
                what = "has ended twice"
            elif self._num_failed_starts == _MOST_STARTS:
                what = "has failed to start twice"
            else:
                what = "has ended once, has failed to start once,"
            raise ToolServerError(
                f"the MCP server {self.entry.name!r} {what} and is not started again"
                f"{self._quoted()}",
                self._hint(),
            )
        self._num_starts += 1
        self._was_closed_by_server = False
        self._close_requested = asyncio.Event()
        ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._connection_task = asyncio.create_task(self._keep_open(ready))
        try:
            with anyio.fail_after(START_S):
                self._client = await ready
        except BaseException as error:
            self._connection_task.cancel()
            await asyncio.wait([self._connection_task])
            self._num_failed_starts += 1
            if not isinstance(error, Exception) or isinstance(error, OptionError):
                raise
            raise await self._failure("could not be started", error) from error
        self.protocol = self._client.protocol_version
        info = self._client.server_info
        self.version = ""
        if info is not None:
            self.version = f"{info.name} {info.version}"

    async def _keep_open(self, ready: asyncio.Future[Client]) -> None:
        """Open the connection, and close it once `_close_requested` is set.

        One task has to do both, as the SDK requires.

        Args:
            ready: Gets the client of the open connection, or the error of opening it.
        """
        try:
            async with contextlib.AsyncExitStack() as exit_stack:
                transport = self._transport(exit_stack)
                client = Client(
                    transport,
                    client_info=Implementation(name="localspec", version=__version__),
                    message_handler=self._on_message,
                )
                await exit_stack.enter_async_context(client)
                if not ready.done():
                    ready.set_result(client)
                await self._close_requested.wait()
        except BaseException as error:
            if not ready.done():
                ready.set_exception(_innermost(error))
            elif not isinstance(error, Exception):  # a cancellation
                raise
            elif self._close_requested.is_set():
                logger.warning(
                    "the MCP server %r could not be closed properly: %s",
                    self.entry.name,
                    _in_words(_innermost(error)),
                )
            # Other errors end the connection, and its calls raise errors of their own.

    def _transport(self, exit_stack: contextlib.AsyncExitStack) -> Any:
        """The SDK's transport: over HTTP, or by the stdin and stdout of a new process.

        Raises OptionError if the command or the folder of the entry does not exist.

        Args:
            exit_stack: Gets what has to be closed after the transport.
        """
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
        # Not `Path.home`, which raises an error for a user without a home folder.
        folder = entry.cwd or Path(os.path.expanduser("~"))
        if not folder.is_dir():
            raise OptionError(
                f"the folder {str(folder)!r} of the MCP server {entry.name!r} is not there",
                "Correct cwd in the file of servers.",
            )
        self.log = ServerLog(entry.name)
        exit_stack.callback(self.log.pipe.close)
        command, *args = watched_command(program, entry.args)
        parameters = StdioServerParameters(
            command=command,
            args=args,
            env=dict(entry.env),
            cwd=folder,
            encoding_error_handler="replace",
        )
        return _with_pipe_closed(stdio_client(parameters, self.log.pipe), self.log)

    async def _on_message(self, message: object) -> None:
        """Add a line to the log if the server has written something else than a message.

        The SDK calls this with each message on stdout, or with the error of reading it.
        """
        if isinstance(message, Exception) and self.log is not None:
            self.log.note(f"what is on stdout is no message of MCP: {message!s:.300}")

    async def _failure(self, what: str, error: BaseException) -> ToolServerError:
        """The ToolServerError to raise for an error of the SDK.

        If the server has ended, this waits for the last lines of its stderr, which the error
        quotes.

        Args:
            what: What the server did not do, to follow its name.
            error: The error of the SDK.
        """
        if isinstance(error, MCPError) and error.code == CONNECTION_CLOSED:
            self._was_closed_by_server = True
            if self.log is not None:
                await asyncio.to_thread(self.log.ended.wait, _LAST_LINES_S)
        return self._server_error(what, error)

    def _server_error(self, what: str, error: BaseException) -> ToolServerError:
        """As `_failure`, without waiting."""
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
            reason = _in_words(error)
        return ToolServerError(
            f"the MCP server {name!r} {what}: {reason}{self._quoted()}",
            self._hint(),
        )

    def _quoted(self) -> str:
        """The last lines of the server's stderr, to end an error; "" if there are none."""
        if self.log is None or not self.log.last_lines:
            return ""
        return "; the last of its stderr: " + " | ".join(self.log.last_lines)

    def _hint(self) -> str:
        """The hint of an error: how to try the server, and where its stderr is."""
        hint = f"To try it alone: localspec mcp test {self.entry.name}"
        if self.log is None:
            return hint
        return f"Its stderr is in {self.log.path}. {hint}"


@contextlib.asynccontextmanager
async def _with_pipe_closed(transport: Any, log: ServerLog) -> AsyncGenerator[Any, None]:
    """The transport. Once it is started, this process closes its end of the log's pipe.

    Then only the server can write to the pipe, and the log ends when the server ends.
    """
    async with transport as streams:
        log.pipe.close()
        yield streams


@contextlib.asynccontextmanager
async def _http_transport(url: str, headers: Mapping[str, str]) -> AsyncGenerator[Any, None]:
    """The SDK's transport to an address, with headers for each request."""
    timeout = httpx2.Timeout(_HTTP_CONNECT_S, read=None)  # a call has its own time limit
    async with (
        httpx2.AsyncClient(headers=dict(headers), timeout=timeout) as client,
        streamable_http_client(url, http_client=client) as streams,
    ):
        yield streams


def _in_words(error: BaseException) -> str:
    """The message of an error, shortened; its type if it has none."""
    return f"{error!s:.{_MOST_OF_ERROR}}" or type(error).__name__


def _innermost(error: BaseException) -> BaseException:
    """The first error in nested exception groups; an error without a group as it is."""
    while True:
        inner_errors = getattr(error, "exceptions", None)
        if not isinstance(inner_errors, tuple) or not inner_errors:
            return error
        error = inner_errors[0]
