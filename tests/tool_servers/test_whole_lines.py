"""Lines from a server's stdout: joined from what each read brings, and bounded in length."""

from __future__ import annotations

import asyncio
import json

import pytest

pytest.importorskip("mcp", reason="the MCP SDK is not installed")

from localspec.tool_servers import whole_lines
from localspec.tool_servers.whole_lines import MOST_LINE_BYTES, WholeLines

READ_BYTES = 1 << 20


def texts_of(*reads: bytes) -> list[str]:
    """The texts that come of a stream whose reads bring these bytes."""

    async def stream():
        for data in reads:
            yield data

    async def collect():
        return [text async for text in WholeLines(stream(), "utf-8", "strict")]

    return asyncio.run(collect())


def test_lines_are_joined_and_come_whole():
    assert texts_of(b"on", b"e\ntw", b"o\nthree\nfo", b"ur") == ["one\n", "two\nthree\n"]


def test_a_whole_line_after_one_that_is_too_long_is_kept():
    long_line = b'{"id": 7, "result": "' + b"x" * MOST_LINE_BYTES + b'"}'
    reads = [long_line[at : at + READ_BYTES] for at in range(0, len(long_line), READ_BYTES)]
    [text, last] = texts_of(*reads[:-1], reads[-1] + b'\n{"id": 8}\n', b"last\n")
    error, kept = map(json.loads, text.splitlines())
    assert error["id"] == 7
    assert "more than 64 MB" in error["error"]["message"]
    assert kept == {"id": 8}
    assert last == "last\n"


@pytest.mark.parametrize("size", [7, 5000])
@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc": "2.0", "id": 7, "result": {"rows": [%s], "last": {"id": 8}}}\n',
        b'{"result": {"rows": [{"id": 8}, %s]}, "jsonrpc": "2.0", "id": 7}\n',
    ],
    ids=["id first", "id last"],
)
def test_the_error_is_for_the_request_that_is_answered(monkeypatch, line, size):
    """Servers in TypeScript write the id after the result, which may have ids of its own."""
    monkeypatch.setattr(whole_lines, "MOST_LINE_BYTES", 1000)
    whole = line % (b"9, " * 1000 + b"9")
    [text] = texts_of(*(whole[at : at + size] for at in range(0, len(whole), size)))
    assert json.loads(text)["id"] == 7
