"""A workaround for the MCP SDK, which takes minutes to read a long line from a server.

mcp 2.3 appends each 64 kB of a server's stdout to the text before it, and searches the whole
text for lines each time. Here its reader of text is replaced by one that yields whole lines.
The workaround can be removed once the SDK reads 50 MB on one line in seconds: then
`test_a_huge_result_is_read_in_time` passes without it.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator

from anyio.abc import AnyByteReceiveStream
from mcp.client import stdio

MOST_LINE_BYTES = 64_000_000
# The first and the last bytes of a line. One or the other have the id of the request that it
# answers: servers in Python write the id before the result, servers in TypeScript after it.
_END_BYTES = 200
_ID = re.compile(rb'"id"\s*:\s*(\d+)')
_LAST_ID = re.compile(rb'"id"\s*:\s*(\d+)\s*}\s*$')
_TOO_LONG = -32050  # an error code of JSON-RPC that the SDK does not use itself


class WholeLines:
    """Yields the text of a stream, one or more whole lines at a time.

    A last line without a line end is left out.

    Args:
        stream: the stream of bytes.
        encoding: the encoding of the text.
        errors: how bytes that are no text are handled, as for `bytes.decode`.
    """

    def __init__(self, stream: AnyByteReceiveStream, encoding: str, errors: str) -> None:
        self._stream = stream
        self._encoding = encoding
        self._errors = errors

    async def __aiter__(self) -> AsyncIterator[str]:
        """Yield the lines. An error in JSON-RPC replaces a line above MOST_LINE_BYTES."""
        line_parts: list[bytes] = []  # the line so far; of a long line only both ends
        line_bytes = 0
        async for data in self._stream:
            first_end = data.find(b"\n") + 1  # 0 if no line ends in the data
            line_bytes += first_end or len(data)
            is_too_long = line_bytes > MOST_LINE_BYTES
            if first_end == 0 and is_too_long:
                line = b"".join([*line_parts, data])
                line_parts = [line[:_END_BYTES], line[-_END_BYTES:]]
            elif first_end == 0:
                line_parts.append(data)
            else:
                first_line = b"".join([*line_parts, data[:first_end]])
                if is_too_long:
                    first_line = _error_line(
                        first_line[:_END_BYTES],
                        first_line[-_END_BYTES:],
                    )
                lines_end = data.rfind(b"\n") + 1
                lines = first_line + data[first_end:lines_end]
                yield lines.decode(self._encoding, self._errors)
                line_parts = [data[lines_end:]]
                line_bytes = len(data) - lines_end


def _error_line(line_head: bytes, line_tail: bytes) -> bytes:
    """The line in place of one that is too long: an error for the request that it answers.

    Args:
        line_head: the first bytes of the long line.
        line_tail: its last bytes. If neither has the id of a request, the line is empty.
    """
    before_result, _, _ = line_head.partition(b'"result"')  # the result may have ids of its own
    request = _LAST_ID.search(line_tail) or _ID.search(before_result)
    if request is None:
        return b"\n"
    size = MOST_LINE_BYTES // 1_000_000
    error = {"code": _TOO_LONG, "message": f"the result has more than {size} MB"}
    answer = {
        "jsonrpc": "2.0",
        "id": int(request[1]),
        "error": error,
    }
    return json.dumps(answer).encode() + b"\n"


def read_whole_lines() -> None:
    """Make the SDK read servers by `WholeLines`."""
    vars(stdio)["TextReceiveStream"] = WholeLines
