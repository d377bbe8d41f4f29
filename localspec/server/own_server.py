"""Proves to the user's other programs that the server at a port is the user's own.

Any program of any user can listen at a port and say that it is localspec. So a server that
needs no API key writes a random key into a file that only its user can read. A program that
looks for the server reads the key, and sends the server a random text (a nonce). The server
answers with a digest of the nonce that only the key can make (HMAC). The key is never sent.

The digest covers the port, too: else a stranger at another port could send the nonce on to the
real server, and return its answer. On Windows a file has no mode; there the key is in the
user's profile, which other users cannot read.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import logging
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

from localspec.system.atomic_write import make_private_folder, read_regular, write_whole

HOST = "127.0.0.1"  # the address of every server with a key in a file
PROOF_PATH = "/localspec/proof"  # of the request for the digest of a nonce
# A line of the log that the user's other programs search for.
MODELS_ENDED = "the process that runs the models ended"
_NUM_BYTES = 32  # of a key and of a nonce
_HEX = re.compile(f"[0-9a-f]{{{2 * _NUM_BYTES}}}")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerKey:
    """The key of the server at a port of this machine, which only its user can read."""

    port: int
    secret: str = field(repr=False)
    """The key as hex digits."""

    def proof(self, nonce: str) -> str:
        """The digest of a nonce and the port, as hex digits: HMAC-SHA-256 with this key."""
        message = f"localspec at {HOST}:{self.port}\n{nonce}"
        key = bytes.fromhex(self.secret)
        return hmac.new(key, message.encode(), hashlib.sha256).hexdigest()


def new_nonce() -> str:
    """A random text for one request for a proof."""
    return secrets.token_hex(_NUM_BYTES)


def is_nonce(text: str) -> bool:
    """Whether a text has the form of a nonce."""
    return _HEX.fullmatch(text) is not None


@contextlib.contextmanager
def announced(port: int) -> Iterator[ServerKey]:
    """Give a new key for the server at a port, and keep it in a file until the context is left.

    If the file cannot be written, a warning is logged: then programs cannot find the server.
    """
    key = ServerKey(port, secrets.token_hex(_NUM_BYTES))
    path = key_file(port)
    content = json.dumps({"port": port, "key": key.secret})
    try:
        make_private_folder(path.parent)
        write_whole(path, content.encode(), durable=False)
    except OSError as error:
        logger.warning(
            "localspec claude, codex and opencode will not use this server: %s",
            error,
        )
    try:
        yield key
    finally:
        if read_key(port) == key:  # else the file is a later server's at this port
            with contextlib.suppress(OSError):
                path.unlink()


def read_key(port: int) -> ServerKey | None:
    """The key of this user's server at a port; None if there is no file with a valid key.

    The server may have ended: a server that is killed leaves its file.
    """
    path = key_file(port)
    try:
        content = json.loads(read_regular(path))
        if content["port"] != port or not _HEX.fullmatch(content["key"]):
            return None
        return ServerKey(port, content["key"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def key_file(port: int) -> Path:
    """The path of the file with the key of this user's server at a port."""
    folder = platformdirs.user_state_path("localspec", appauthor=False) / "servers"
    return folder / f"{port}.json"
