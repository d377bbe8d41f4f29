"""A workaround: the SDK joins the parts of a long line again and again, for minutes.

mcp 2.3 appends each 64 kB of a server's stdout to the text before it, and searches the whole
text for lines. So its reader of text is replaced by one that yields whole lines. The workaround
can be removed once the SDK reads 50 MB on one line in seconds:
`test_a_huge_result_is_read_in_time` passes without it.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator

from anyio.abc import AnyByteReceiveStream
from mcp.client import stdio

MOST_LINE_BYTES = 64_000_000
_WITH_ID = 200  # the first bytes of a line, which name the request that it answers
_ID = re.compile(rb'"id"\s*:\s*(\d+)')
_TOO_LONG = -32050  # a code that implementations may use, and that the SDK does not


class WholeLines:
    """The text of a stream, one or more whole lines at a time. A line without end is left out.

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
        """A line that is too long is not kept: the request that it answers gets an error."""
        parts: list[bytes] = []
        num_bytes = 0
        async for data in self._stream:
            end = data.rfind(b"\n") + 1
            num_bytes += len(data)
            is_long = num_bytes > MOST_LINE_BYTES
            if end == 0 and is_long:
                parts = [b"".join(parts)[:_WITH_ID]]
            elif end == 0:
                parts.append(data)
            else:
                whole = b"".join([*parts, data[:end]])
                if is_long:
                    whole = _refusal(b"".join(parts)[:_WITH_ID])
                yield whole.decode(self._encoding, self._errors)
                parts = [data[end:]]
                num_bytes = len(data) - end


def _refusal(beginning: bytes) -> bytes:
    """The line in place of a line that is too long.

    Args:
        beginning: the first bytes of the long line.
    """
    request = _ID.search(beginning)
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
    """Let the SDK read servers by whole lines."""
    vars(stdio)["TextReceiveStream"] = WholeLines
