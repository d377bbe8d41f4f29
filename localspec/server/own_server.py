"""Shows the user's other programs that the server at a port is this user's.

Any program of any user can listen at a port and say that it is localspec. So a server that
needs no API key writes a random key into a file that only this user can read. A program that
looks for the server reads the key, and sends the server a text that is used once (a nonce). The
server answers with a digest of that text, which takes the key to compute (HMAC). The key itself
is never sent.

The digest is of the port, too, since a stranger at another port could pass the nonce on to the
real server. On Windows a file has no mode; the key lies in the user's profile, which other
users cannot read.
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

HOST = "127.0.0.1"  # the address of every server with such a file
PROOF_PATH = "/localspec/proof"
# A line of the log, for which the user's other programs look.
MODELS_ENDED = "the process that runs the models ended"
_NUM_BYTES = 32  # of a key and of a nonce
_HEX = re.compile(f"[0-9a-f]{{{2 * _NUM_BYTES}}}")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerKey:
    """The secret of the server at a port of this machine, which its user alone can read."""

    port: int
    secret: str = field(repr=False)
    """The secret as hex digits."""

    def proof(self, nonce: str) -> str:
        """The digest of a nonce, which takes the key to compute."""
        said = f"localspec at {HOST}:{self.port}\n{nonce}"
        key = bytes.fromhex(self.secret)
        return hmac.new(key, said.encode(), hashlib.sha256).hexdigest()


def new_nonce() -> str:
    """A random text that no server has seen before."""
    return secrets.token_hex(_NUM_BYTES)


def is_nonce(text: str) -> bool:
    """Whether the text can be a nonce."""
    return _HEX.fullmatch(text) is not None


@contextlib.contextmanager
def announced(port: int) -> Iterator[ServerKey]:
    """Keep a new key of the server at that port in its file, until the context is left.

    If the file cannot be written, a warning is logged: programs do not find the server then.
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
        if read_key(port) == key:  # else a later server has the port
            with contextlib.suppress(OSError):
                path.unlink()


def read_key(port: int) -> ServerKey | None:
    """The key of this user's server at that port; None where no file has one.

    The file may be one that a server left when it was killed.
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
    """The file of the key of this user's server at that port."""
    folder = platformdirs.user_state_path("localspec", appauthor=False) / "servers"
    return folder / f"{port}.json"
