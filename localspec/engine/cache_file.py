"""The caches of a conversation on disk, so that it resumes without decoding it again.

One line of JSON says whose they are, then come the bytes that libllama gave. They go back into
libllama only for the very same model files and settings, and only if no byte has changed: a
cache that is not used costs a decode; a wrong one would give wrong answers.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from localspec.atomic_write import write_whole
from localspec.engine.cache_pool import PooledCache
from localspec.llama.cache_state import CacheState

logger = logging.getLogger(__name__)

FORMAT, VERSION = "localspec-caches", 1
_MAX_HEAD = 64_000_000  # bytes: the ids of more tokens than any context holds


def write_caches(path: Path, kept: PooledCache, identities: Sequence[str]) -> None:
    """Replace the file at once. identities: of the models, see `LlamaModel.identity`.

    The states are written where they lie, since they can be gigabytes. Raises OSError.
    """
    parts = [b"" if state is None else state.data.data for state in kept.states]
    head = {
        "format": FORMAT,
        "version": VERSION,
        "identities": list(identities),
        "tokens": kept.tokens,
        "num_cached": [None if s is None else s.num_cached for s in kept.states],
        "sizes": [len(part) for part in parts],
        "sha256": _digest(parts),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(head).encode("ascii"), b"\n", *parts, durable=True)


def identities_in(path: Path) -> list[str]:
    """The identities of the models whose caches a file holds; none if it is damaged or gone."""
    try:
        with path.open("rb") as file:
            head = json.loads(file.readline(_MAX_HEAD))
        if (head["format"], head["version"]) == (FORMAT, VERSION):
            return [str(identity) for identity in head["identities"]]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        pass  # as good as none
    return []


def read_caches(
    path: Path, identities: Sequence[str], make_room: Callable[[int], None]
) -> PooledCache | None:
    """The file's content; None if it is missing, damaged or of other models.

    make_room: called with the bytes of the states before they are read. Raises what it does.
    """
    try:
        with path.open("rb") as file:
            head = json.loads(file.readline(_MAX_HEAD))
            if (head["format"], head["version"]) != (FORMAT, VERSION):
                return None
            if head["identities"] != list(identities):
                return None
            sizes = [int(size) for size in head["sizes"]]
            # Asked for more, a file's buffer would be as large as that at once.
            if min(sizes) < 0 or sum(sizes) != path.stat().st_size - file.tell():
                raise ValueError("it is not as long as it says")
            make_room(sum(sizes))
            parts = [file.read(size) for size in sizes]
        kept = _kept(head, parts)
        if len(kept.states) != len(identities) or not any(kept.states):
            raise ValueError("it is not of that many models")
        return kept
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, ArithmeticError, RecursionError) as error:
        logger.warning(
            "%s cannot be used, and the conversation is decoded again: %s", path, error
        )
        return None


def _kept(head: dict[str, Any], parts: list[bytes]) -> PooledCache:
    """Raises ValueError, TypeError or KeyError for what does not fit together."""
    if _digest(parts) != head["sha256"]:
        raise ValueError("its bytes have changed")
    tokens = [int(token) for token in head["tokens"]]
    states = [
        None if count is None else CacheState(int(count), np.frombuffer(part, dtype=np.uint8))
        for count, part in zip(head["num_cached"], parts, strict=True)
    ]
    if any(state is not None and not 0 < state.num_cached <= len(tokens) for state in states):
        raise ValueError("it claims more tokens than it has")
    return PooledCache(tokens, states)


def _digest(parts: Sequence[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
