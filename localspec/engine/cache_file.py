"""The caches of a conversation on disk, so that it resumes without decoding it again.

One line of JSON says whose they are, then come the bytes that libllama gave. They go back into
libllama only for the very same model files and settings, and only if no byte has changed: a
cache that is not used costs a decode; a wrong one would give wrong answers.
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
_CHUNK_BYTES = 1 << 22  # that are hashed or written without a look at whether to go on


class Scope(NamedTuple):
    """Within what a cached text may be used for another: prompts of the same scope."""

    client: str = ""
    """Whose prompt it was, as `AnswerRecord` has it. Texts of other clients are as if they were
    not there, or how many tokens are cached would tell what they asked."""

    scales: tuple[float, ...] = ()
    """Those of the target's adapters, under which it was decoded."""


class PooledCache(NamedTuple):
    """A text, and what each model's cache held of it; None where nothing was cached."""

    tokens: list[int]
    states: list[CacheState | None]
    head: Any = None
    """What a head had, in a copy from another place."""

    scope: Scope = Scope()

    @property
    def num_bytes(self) -> int:
        """Memory that the states take."""
        return sum(state.num_bytes for state in self.states if state is not None)


class CacheHead(NamedTuple):
    """The first line of a file of caches."""

    owner: str
    """Whose text it is."""

    identities: list[str]
    """The identities of the models."""

    outline: PooledCache
    """The text, with states that lack their bytes."""

    sizes: list[int]
    """The sizes of these bytes, those of all states before those of their checkpoints."""

    sha256: list[str]
    """The hashes of these bytes, those of all states before those of their checkpoints."""

    begin: int
    """Where they begin in the file."""

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
    """Replace the file at once. identities: of the models, see `LlamaModel.identity`.

    The states are written where they lie, since they can be gigabytes. Raises OSError.

    Args:
        owner: See `CacheHead`.
        check: Called every few megabytes; what it raises ends the work, and leaves no file.
        durable: See `write_whole`.
    """
    entries = _entries(kept.states)
    parts = [b"" if entry is None else entry.data.data for entry in entries]
    head = {
        "format": _FORMAT,
        "version": _VERSION,
        "owner": owner,
        "identities": list(identities),
        "tokens": kept.tokens,
        "num_cached": [None if entry is None else entry.num_cached for entry in entries],
        "pictures": [() if entry is None else entry.pictures for entry in entries],
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
        return []  # as good as none
    if head is None:
        return []
    return head.identities


def read_head(path: Path) -> CacheHead | None:
    """Read the first line; None for another format or version.

    Raises one of `DAMAGES` if it is missing, or cannot be what it says.
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
    entries = [
        _outline(count, len(tokens), spans)
        for count, spans in zip(head["num_cached"], head["pictures"], strict=True)
    ]
    both = zip(entries[: len(identities)], entries[len(identities) :], strict=True)
    states = [state and state._replace(checkpoint=behind) for state, behind in both]
    outline = PooledCache(tokens, states)
    return CacheHead(str(head["owner"]), identities, outline, sizes, digests, begin)


def read_states(path: Path, head: CacheHead, numbers: Sequence[int | None]) -> PooledCache:
    """The text with the states of the models of these numbers in the file; None reads none.

    Raises ValueError if their bytes have changed, or one has none; OSError.
    """
    entries = _entries(head.outline.states)
    ends = list(accumulate(head.sizes, initial=head.begin))
    with open_regular(path) as file:

        def filled(index: int) -> CacheState | None:
            entry = entries[index]
            num_states = len(head.identities)
            if entry is None:
                return None
            file.seek(ends[index])
            data = file.read(head.sizes[index])
            if not data or _digest(data) != head.sha256[index]:
                raise ValueError("its bytes have changed")
            checkpoint = filled(index + num_states) if index < num_states else None
            return entry._replace(data=np.frombuffer(data, np.uint8), checkpoint=checkpoint)

        states = [None if number is None else filled(number) for number in numbers]
    return PooledCache(head.outline.tokens[:], states)


def read_caches(
    path: Path, identities: Sequence[str], make_room: Callable[[int], None]
) -> PooledCache | None:
    """The file's content; None if it is missing, damaged or of other models.

    Raises what it does.

    Args:
        make_room: Called with the bytes of the states before they are read.
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
            "%s cannot be used, so the conversation is decoded again: %s", path, error
        )
        return None


def _entries(states: Sequence[CacheState | None]) -> list[CacheState | None]:
    """The states, and behind them the checkpoint of each."""
    return [*states, *(None if state is None else state.checkpoint for state in states)]


def _outline(num_cached: Any, num_tokens: int, pictures: Any) -> CacheState | None:
    """A state without its bytes. Raises ValueError if it claims more tokens than there are.

    Args:
        pictures: The numbers of their spans.
    """
    if num_cached is None:
        return None
    if not 0 < int(num_cached) <= num_tokens:
        raise ValueError("it claims more tokens than it has")
    spans = checked_spans(pictures, int(num_cached))
    return CacheState(int(num_cached), np.empty(0, dtype=np.uint8), None, spans)


def _chunks(
    part: bytes | memoryview, check: Callable[[], None] = lambda: None
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
