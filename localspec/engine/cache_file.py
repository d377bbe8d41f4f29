"""The caches of a conversation on disk, so that it resumes without decoding it again.

One line of JSON says which models the caches belong to; the bytes that libllama gave follow.
They go back into libllama only for the very same model files and settings, and only if no byte
has changed: a cache that is not used costs a decode; a wrong one would give wrong answers.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from localspec.errors import DAMAGES
from localspec.llama.cache_state import CacheState, checked_spans
from localspec.system.atomic_write import make_private_folder, open_regular, write_parts

logger = logging.getLogger(__name__)

_FORMAT = "localspec-caches"
_VERSION = 3
_MAX_HEAD = 64_000_000  # bytes: the ids of more tokens than any context holds
_CHUNK_BYTES = 1 << 22  # hashed or written between two checks for cancellation


class Scope(NamedTuple):
    """The bounds of reuse: a cached text serves only prompts of the same scope."""

    client: str = ""
    """The client that sent the prompt, as `AnswerRecord` has it. Texts of other clients are
    never used: the number of cached tokens would show what they asked."""

    scales: tuple[float, ...] = ()
    """The scales of the target's adapters under which the text was decoded."""


class PooledCache(NamedTuple):
    """A text, and what each model's cache held of it; None where nothing was cached."""

    tokens: list[int]
    states: list[CacheState | None]
    head: Any = None
    """The head's own data, in a copy from another lane."""

    scope: Scope = Scope()

    @property
    def num_bytes(self) -> int:
        """Memory that the states take."""
        return sum(state.num_bytes for state in self.states if state is not None)


class CacheHead(NamedTuple):
    """The first line of a file of caches."""

    owner: str
    """The hash of the owner; empty if there is none."""

    identities: list[str]
    """The identities of the models."""

    outline: PooledCache
    """The text, with states that lack their bytes."""

    sizes: list[int]
    """The sizes of these bytes: first all states, then their checkpoints."""

    sha256: list[str]
    """The hashes of these bytes, in the same order."""

    begin: int
    """Where these bytes begin in the file."""

    @property
    def num_cached(self) -> int:
        """Tokens of the target's state; 0 without one."""
        target = self.outline.states[0]
        if target is None:
            return 0
        return target.num_cached


def write_caches(
    path: Path,
    kept: PooledCache,
    identities: Sequence[str],
    *,
    owner: str = "",
    check: Callable[[], None] = lambda: None,
    durable: bool = True,
) -> None:
    """Replace the file at once.

    The states are written without a copy, since they can be gigabytes.

    Args:
        identities: The identities of the models: see `LlamaModel.identity`.
        owner: See `CacheHead`.
        check: Called every few megabytes; what it raises ends the work, and leaves no file.
        durable: See `write_whole`.

    Raises:
        OSError: If the file cannot be written.
    """
    parts: list[bytes | memoryview] = []
    counts: list[int | None] = []
    pictures: list[Sequence[Any]] = []
    for entry in _entries(kept.states):
        if entry is None:
            parts.append(b"")
            counts.append(None)
            pictures.append(())
        else:
            parts.append(entry.data.data)
            counts.append(entry.num_cached)
            pictures.append(entry.pictures)
    head = {
        "format": _FORMAT,
        "version": _VERSION,
        "owner": owner,
        "identities": list(identities),
        "tokens": kept.tokens,
        "num_cached": counts,
        "pictures": pictures,
        "sizes": [len(part) for part in parts],
        "sha256": [_digest(part, check) for part in parts],
    }
    make_private_folder(path.parent)

    def content() -> Iterator[bytes | memoryview]:
        yield head_line(head)
        for part in parts:
            yield from _chunks(part, check)

    write_parts(path, content(), durable=durable)


def head_line(head: dict[str, Any]) -> bytes:
    """The first line of a file, with a checksum of itself."""
    return json.dumps(head | {"check": _check_of(head)}).encode("ascii") + b"\n"


def _check_of(head: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(head).encode("ascii")).hexdigest()


def identities_in(path: Path) -> list[str]:
    """The identities of the models whose caches a file holds; none if it is damaged or gone."""
    try:
        head = read_head(path)
    except DAMAGES:
        return []  # treated as a file without caches
    if head is None:
        return []
    return head.identities


def read_head(path: Path) -> CacheHead | None:
    """Read the first line; None for another format or version.

    Raises one of `DAMAGES` if the file is missing, or contradicts its first line.
    """
    with open_regular(path) as file:
        head = json.loads(file.readline(_MAX_HEAD))
        begin = file.tell()
    if (head["format"], head["version"]) != (_FORMAT, _VERSION):
        return None
    if head.pop("check") != _check_of(head):
        raise ValueError("its first line has changed")
    identities = [str(identity) for identity in head["identities"]]
    tokens = [int(token) for token in head["tokens"]]
    sizes = [int(size) for size in head["sizes"]]
    digests = [str(digest) for digest in head["sha256"]]
    if min(sizes) < 0 or begin + sum(sizes) != path.stat().st_size:
        raise ValueError("it has another length than its first line states")
    if not len(head["num_cached"]) == len(sizes) == len(digests) == 2 * len(identities):
        raise ValueError("it is for another number of models than its first line states")
    entries = []
    for count, spans in zip(head["num_cached"], head["pictures"], strict=True):
        entries.append(_outline(count, len(tokens), spans))
    states: list[CacheState | None] = []
    checkpoints = entries[len(identities) :]
    for state, checkpoint in zip(entries, checkpoints, strict=False):
        if state is not None:
            state = state._replace(checkpoint=checkpoint)
        states.append(state)
    outline = PooledCache(tokens, states)
    return CacheHead(str(head["owner"]), identities, outline, sizes, digests, begin)


def read_states(path: Path, head: CacheHead, numbers: Sequence[int | None]) -> PooledCache:
    """The text with the states of some of the file's models.

    Args:
        numbers: The models' numbers in the file. None gives None instead of a state.

    Raises:
        ValueError: If the bytes of a state have changed, or there are none.
        OSError: If the file cannot be read.
    """
    entries = _entries(head.outline.states)
    begins = list(accumulate(head.sizes, initial=head.begin))
    num_states = len(head.identities)
    states: list[CacheState | None] = []
    with open_regular(path) as file:

        def filled(index: int) -> CacheState | None:
            """The entry with its bytes; a state also gets its checkpoint."""
            entry = entries[index]
            if entry is None:
                return None
            file.seek(begins[index])
            data = file.read(head.sizes[index])
            if not data or _digest(data) != head.sha256[index]:
                raise ValueError("its bytes have changed")
            checkpoint = None
            if index < num_states:  # a state: the checkpoints come after all states
                checkpoint = filled(index + num_states)
            values = np.frombuffer(data, np.uint8)
            return entry._replace(data=values, checkpoint=checkpoint)

        for number in numbers:
            if number is None:
                states.append(None)
            else:
                states.append(filled(number))
    return PooledCache(head.outline.tokens[:], states)


def read_caches(
    path: Path,
    identities: Sequence[str],
    make_room: Callable[[int], None],
) -> PooledCache | None:
    """The file's content; None if it is missing, damaged or of other models.

    Args:
        make_room: Called with the bytes of the states before they are read. What it raises is
            raised here.
    """
    try:
        head = read_head(path)
        if head is None or head.identities != list(identities):
            return None
        if not any(head.outline.states):
            raise ValueError("it is empty")
        make_room(sum(head.sizes))
        return read_states(path, head, range(len(identities)))
    except FileNotFoundError:
        return None
    except DAMAGES as error:
        logger.warning(
            "%s cannot be used, so the conversation is decoded again: %s",
            path,
            error,
        )
        return None


def _entries(states: Sequence[CacheState | None]) -> list[CacheState | None]:
    """All states, then the checkpoint of each state."""
    checkpoints = []
    for state in states:
        checkpoint = None
        if state is not None:
            checkpoint = state.checkpoint
        checkpoints.append(checkpoint)
    return [*states, *checkpoints]


def _outline(num_cached: Any, num_tokens: int, pictures: Any) -> CacheState | None:
    """A state without its bytes. Raises ValueError if it claims more tokens than there are.

    Args:
        pictures: The numbers of the pictures' spans.
    """
    if num_cached is None:
        return None
    count = int(num_cached)
    if not 0 < count <= num_tokens:
        raise ValueError("it claims more tokens than it has")
    spans = checked_spans(pictures, count)
    no_bytes = np.empty(0, dtype=np.uint8)
    return CacheState(count, no_bytes, None, spans)


def _chunks(
    part: bytes | memoryview,
    check: Callable[[], None] = lambda: None,
) -> Iterator[memoryview]:
    view = memoryview(part)
    for begin in range(0, len(view), _CHUNK_BYTES):
        check()
        yield view[begin : begin + _CHUNK_BYTES]


def _digest(part: bytes | memoryview, check: Callable[[], None] = lambda: None) -> str:
    digest = hashlib.sha256()
    for chunk in _chunks(part, check):
        digest.update(chunk)
    return digest.hexdigest()
