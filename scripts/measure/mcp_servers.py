"""Calls tools of real MCP servers with localspec and with the SDK's own client, and compares.

    python scripts/measure/mcp_servers.py mcp.json calls.json

mcp.json has `mcpServers`; calls.json a list of [server, tool, arguments] in the order in which
they are made, by one client after the other; `--prepare COMMAND` is run before each of the two.
For entries with a `url`, `--serve COMMAND` runs a server over HTTP as long as calls are made.
A tool of a server without a call in the list is named. Contents are the same where what a model
gets is, but for texts that no two calls share, such as times: `--ignore PATTERN` leaves these
out.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import localspec
from localspec.tool_servers.result_content import foreign_result

_START_S = 60.0  # until a server listens


def parsed() -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("servers", type=Path)
    parser.add_argument("calls", type=Path)
    parser.add_argument("--prepare", default="true")
    parser.add_argument("--serve", action="append", default=[])
    parser.add_argument("--ignore", action="append", default=[])
    return parser.parse_args()


@contextlib.contextmanager
def serving(commands: Sequence[str], configured: dict[str, Any]) -> Iterator[None]:
    """Servers over HTTP, each of which listens at its entry's address before calls are made."""
    started = [
        subprocess.Popen(
            shlex.split(command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for command in commands
    ]
    try:
        for entry in configured["mcpServers"].values():
            if "url" in entry:
                _wait_for(entry["url"])
        yield
    finally:
        for process in started:
            process.terminate()
            process.wait()


def _wait_for(url: str) -> None:
    """Return once something listens at the address. Raises OSError where nothing does."""
    address = urlsplit(url)
    give_up = time.monotonic() + _START_S
    while True:
        try:
            socket.create_connection((address.hostname, address.port), 1).close()
            return
        except OSError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.1)


def ours(configured: dict[str, Any], calls: list[list[Any]]) -> tuple[list[str], set[str]]:
    """What localspec gives a model for each call, and the names of all tools."""
    found = []
    with localspec.McpServers(configured) as servers:
        names = {f"{t.function.server}.{t.function.tool}" for t in servers.tools}
        for server, tool, arguments in calls:
            try:
                result = servers.call(server, tool, arguments)
                found.append(json.dumps([result.text, result.pictures]))
            except localspec.LocalspecError as error:
                found.append(f"error: {error}")
    return found, names


async def theirs(configured: dict[str, Any], calls: list[list[Any]]) -> list[str]:
    """What the SDK's client gets for each call."""
    from mcp import Client, StdioServerParameters

    found = []
    for name, entry in configured["mcpServers"].items():
        target = entry.get("url")
        if target is None:
            values = {key: entry[key] for key in ("command", "args", "env") if key in entry}
            target = StdioServerParameters(cwd=Path.home(), **values)
        async with Client(target) as client:
            for number, (server, tool, arguments) in enumerate(calls):
                if server != name:
                    continue
                try:
                    result = await client.call_tool(tool, arguments)
                    dumped = result.model_dump(mode="json", by_alias=True, exclude_none=True)
                    given = foreign_result(dumped)
                    found.append((number, json.dumps([given.text, given.pictures])))
                    _check_whole(dumped, given.text)
                except Exception as error:
                    found.append((number, f"error: {error}"))
    return [text for _, text in sorted(found)]


def _check_whole(result: dict[str, Any], text: str) -> None:
    """Every text of the result is in what a model gets."""
    for block in result["content"]:
        assert block.get("text", "") in text


def main() -> None:
    """Call all, compare, and print a line for each call."""
    asked = parsed()
    configured = json.loads(asked.servers.read_text("utf-8"))
    calls = json.loads(asked.calls.read_text("utf-8"))
    with serving(asked.serve, configured):
        subprocess.run(asked.prepare, shell=True, check=True)
        our_results, names = ours(configured, calls)
        subprocess.run(asked.prepare, shell=True, check=True)
        their_results = asyncio.run(theirs(configured, calls))
    num_same = 0
    for call, one, other in zip(calls, our_results, their_results, strict=True):
        for pattern in asked.ignore:
            one = re.sub(pattern, "…", one)
            other = re.sub(pattern, "…", other)
        is_same = one == other and not one.startswith("error: ")
        num_same += is_same
        print(f"{'same     ' if is_same else 'DIFFERENT'} {call[0]}.{call[1]}  {one[:80]}")
        if not is_same:
            print(f"    ours:   {one[:300]}\n    theirs: {other[:300]}")
    missing = names - {f"{server}.{tool}" for server, tool, _ in calls}
    print(f"{num_same} of {len(calls)} the same; {len(names)} tools, without a call: {missing}")
    sys.exit(num_same != len(calls) or bool(missing))


if __name__ == "__main__":
    main()
