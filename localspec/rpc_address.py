"""Addresses of llama.cpp's RPC servers, as users write them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from localspec.errors import OptionError

_MOST_SERVERS = 16  # GGML_RPC_MAX_SERVERS
_LARGEST_PORT = 65535
# libllama splits at the first colon, and only supports IPv4.
_ADDRESS = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?:([0-9]{1,5})")


def checked_addresses(addresses: object) -> tuple[str, ...]:
    """The addresses of RPC servers, each "host:port".

    Raises OptionError if they are a str or no sequence, if one is invalid or repeated, or if
    there are too many.
    """
    if isinstance(addresses, str) or not isinstance(addresses, Sequence):
        raise OptionError(f"rpc is {addresses!r}", 'Give a list: ["workshop-pc:50052"].')
    for address in addresses:
        if not _is_address(address):
            raise OptionError(
                f"{address!r} is not the address of an RPC server",
                "Give HOST:PORT, the host as a name or an IPv4 address: workshop-pc:50052.",
            )
    if len(set(addresses)) < len(addresses):
        raise OptionError("an RPC server is named twice", "Name each once.")
    if len(addresses) > _MOST_SERVERS:
        raise OptionError(
            f"{len(addresses)} RPC servers are named",
            f"llama.cpp takes at most {_MOST_SERVERS}.",
        )
    return tuple(addresses)


def _is_address(address: object) -> bool:
    """Whether a value is a str of a host, a colon and a port."""
    if not isinstance(address, str):
        return False
    match = _ADDRESS.fullmatch(address)
    if match is None:
        return False
    port = int(match[2])
    return 1 <= port <= _LARGEST_PORT
