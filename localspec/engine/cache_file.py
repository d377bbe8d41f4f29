"""The caches of a conversation in a file: it resumes without decoding its text again.

The first line, the header, is JSON, and says which models the caches belong to. The bytes that
libllama gave follow. They are loaded only for the very same model files and settings, and only
if no byte has changed. A cache that is not used costs a decode; a wrong one, a wrong answer.
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
_MAX_HEADER_BYTES = 64_000_000  # the ids of more tokens than any context holds
_CHUNK_BYTES = 1 << 22  # hashed or written between two checks for cancellation


class Scope(NamedTuple):
    """Who and what may reuse a cached text: only prompts of the same scope."""

    client: str = ""
    """The client that sent the prompt, as `AnswerRecord` has it. Texts of other clients are
    never used: the number of cached tokens would show what they asked."""

    scales: tuple[float, ...] = ()
    """The scales of the target's adapters under which the text was decoded."""


class PooledCache(NamedTuple):
    """A text, and the state of each model's cache after reading it."""

    tokens: list[int]

    states: list[CacheState | None]
    """The target's, then the draft's if there is one. None where nothing was cached."""

    head: Any = None
    """The data of the head (layers that draft) in a copy from another lane; else None."""

    scope: Scope = Scope()

    @property
    def num_bytes(self) -> int:
        """Memory that the states take."""
        return sum(state.num_bytes for state in self.states if state is not None)


class CacheHeader(NamedTuple):
    """The first line of a file: what the file holds, and where."""

    owner: str
    """The hash of the owner; empty if there is none."""

    identities: list[str]
    """The identities of the models, the target's first."""

    outline: PooledCache
    """The text, with states that lack their bytes."""

    sizes: list[int]
    """The bytes of each part of the file: first of each state, then of each checkpoint."""

    sha256: list[str]
    """The hash of each part, in the same order."""

    begin: int
    """Where the first part begins in the file."""

    @property
    def num_cached(self) -> int:
        """Tokens of the target's state; 0 without one."""
        target = self.outline.states[0]
        if target is None:
            return 0
        return target.num_cached


def write_caches(
    path: Path,
    text: PooledCache,
    identities: Sequence[str],
    *,
    owner: str = "",
    check: Callable[[], None] = lambda: None,
    durable: bool = True,
) -> None:
    """Write a text and its states to a file, which appears, or is replaced, at once and whole.

    The states are written without a copy, since they can be gigabytes.

    Args:
        path: The file.
        text: The text and its states.
        identities: The identities of the models: see `LlamaModel.identity`.
        owner: See `CacheHeader`.
        check: Called every few megabytes; what it raises ends the work, and leaves no file.
        durable: See `write_whole`.

    Raises:
        OSError: If the file cannot be written.
    """
    parts: list[bytes | memoryview] = []
    cached_counts: list[int | None] = []
    pictures: list[Sequence[Any]] = []
    for state in _with_checkpoints(text.states):
        if state is None:
            parts.append(b"")
            cached_counts.append(None)
            pictures.append(())
        else:
            parts.append(state.data.data)
            cached_counts.append(state.num_cached)
            pictures.append(state.pictures)
    header = {
        "format": _FORMAT,
        "version": _VERSION,
        "owner": owner,
        "identities": list(identities),
        "tokens": text.tokens,
        "num_cached": cached_counts,
        "pictures": pictures,
        "sizes": [len(part) for part in parts],
        "sha256": [_digest(part, check) for part in parts],
    }
    make_private_folder(path.parent)

    def content() -> Iterator[bytes | memoryview]:
        yield header_line(header)
        for part in parts:
            yield from _chunks(part, check)

    write_parts(path, content(), durable=durable)


def header_line(header: dict[str, Any]) -> bytes:
    """The first line of a file: the header with its checksum, as JSON."""
    with_checksum = header | {"check": _checksum(header)}
    return json.dumps(with_checksum).encode("ascii") + b"\n"


def _checksum(header: dict[str, Any]) -> str:
    """The SHA-256 of a header as JSON, in hexadecimal."""
    return hashlib.sha256(json.dumps(header).encode("ascii")).hexdigest()


def identities_in(path: Path) -> list[str]:
    """The identities of the models whose caches a file holds; none if it is damaged or gone."""
    try:
        header = read_cache_header(path)
    except DAMAGES:
        return []  # treated as a file without caches
    if header is None:
        return []
    return header.identities


def read_cache_header(path: Path) -> CacheHeader | None:
    """Read and check the first line of a file; None for another format or version.

    Raises one of `DAMAGES` if the file is missing, its first line is damaged, or its length is
    not the one that the first line states.
    """
    with open_regular(path) as file:
        values = json.loads(file.readline(_MAX_HEADER_BYTES))
        begin = file.tell()
    if (values["format"], values["version"]) != (_FORMAT, _VERSION):
        return None
    checksum = values.pop("check")
    if checksum != _checksum(values):
        raise ValueError("its first line has changed")
    identities = [str(identity) for identity in values["identities"]]
    tokens = [int(token) for token in values["tokens"]]
    sizes = [int(size) for size in values["sizes"]]
    digests = [str(digest) for digest in values["sha256"]]
    cached_counts = values["num_cached"]
    if min(sizes) < 0 or begin + sum(sizes) != path.stat().st_size:
        raise ValueError("it has another length than its first line states")
    num_parts = 2 * len(identities)  # a state and a checkpoint for each model
    if not len(cached_counts) == len(sizes) == len(digests) == num_parts:
        raise ValueError("the lists in its first line do not fit together")
    outlines = []  # of each state, then of each checkpoint
    for num_cached, spans in zip(cached_counts, values["pictures"], strict=True):
        outlines.append(_outline(num_cached, len(tokens), spans))
    states: list[CacheState | None] = []
    num_models = len(identities)
    for state, checkpoint in zip(outlines[:num_models], outlines[num_models:], strict=True):
        if state is not None:
            state = state._replace(checkpoint=checkpoint)
        states.append(state)
    outline = PooledCache(tokens, states)
    return CacheHeader(str(values["owner"]), identities, outline, sizes, digests, begin)


def read_states(path: Path, header: CacheHeader, numbers: Sequence[int | None]) -> PooledCache:
    """Read a file's text, with the states of some of its models.

    Args:
        path: The file.
        header: The file's header.
        numbers: For each state that is wanted, the model's number in the file. None gives None
            instead of a state.

    Raises:
        ValueError: If the bytes of a state have changed, or are missing.
        OSError: If the file cannot be read.
    """
    outlines = _with_checkpoints(header.outline.states)
    begins = list(accumulate(header.sizes, initial=header.begin))
    num_models = len(header.identities)
    states: list[CacheState | None] = []
    with open_regular(path) as file:

        def read_part(index: int) -> CacheState | None:
            """A state or checkpoint with its bytes; a state comes with its checkpoint."""
            outline = outlines[index]
            if outline is None:
                return None
            file.seek(begins[index])
            data = file.read(header.sizes[index])
            if not data or _digest(data) != header.sha256[index]:
                raise ValueError("its bytes have changed")
            checkpoint = None
            if index < num_models:  # a state: the checkpoints come after all states
                checkpoint = read_part(index + num_models)
            values = np.frombuffer(data, np.uint8)
            return outline._replace(data=values, checkpoint=checkpoint)

        for number in numbers:
            state = None
            if number is not None:
                state = read_part(number)
            states.append(state)
    return PooledCache(header.outline.tokens[:], states)


def read_caches(
    path: Path,
    identities: Sequence[str],
    make_room: Callable[[int], None],
) -> PooledCache | None:
    """Read a file's text with all states; None if it is missing, damaged or of other models.

    A warning in the log says what is damaged.

    Args:
        path: The file.
        identities: The identities of the models, the target's first.
        make_room: Called before the states are read, with their size in bytes. What it raises
            is raised here.
    """
    try:
        header = read_cache_header(path)
        if header is None or header.identities != list(identities):
            return None
        if not any(header.outline.states):
            raise ValueError("it is empty")
        make_room(sum(header.sizes))
        return read_states(path, header, range(len(identities)))
    except FileNotFoundError:
        return None
    except DAMAGES as error:
        logger.warning(
            "%s cannot be used, so the conversation is decoded again: %s",
            path,
            error,
        )
        return None


def _with_checkpoints(states: Sequence[CacheState | None]) -> list[CacheState | None]:
    """All states, then the checkpoint of each; None where there is none."""
    checkpoints = []
    for state in states:
        checkpoint = None
        if state is not None:
            checkpoint = state.checkpoint
        checkpoints.append(checkpoint)
    return [*states, *checkpoints]


def _outline(num_cached: Any, num_tokens: int, pictures: Any) -> CacheState | None:
    """A state without its bytes, from the values in a file's header.

    Args:
        num_cached: The tokens that the state covers. None, without a state, gives None.
        num_tokens: The tokens of the text.
        pictures: The numbers of the pictures' spans.

    Raises:
        ValueError: If the state covers no token, or more tokens than the text has.
    """
    if num_cached is None:
        return None
    count = int(num_cached)
    if not 0 < count <= num_tokens:
        raise ValueError("a cache covers no token, or more tokens than the text has")
    spans = checked_spans(pictures, count)
    no_bytes = np.empty(0, dtype=np.uint8)
    return CacheState(count, no_bytes, None, spans)


def _chunks(
    part: bytes | memoryview,
    check: Callable[[], None] = lambda: None,
) -> Iterator[memoryview]:
    """Slices of `_CHUNK_BYTES` bytes, without a copy. `check` is called before each."""
    view = memoryview(part)
    for begin in range(0, len(view), _CHUNK_BYTES):
        check()
        yield view[begin : begin + _CHUNK_BYTES]


def _digest(part: bytes | memoryview, check: Callable[[], None] = lambda: None) -> str:
    """The SHA-256 of some bytes, in hexadecimal. `check` is called every few megabytes."""
    digest = hashlib.sha256()
    for chunk in _chunks(part, check):
        digest.update(chunk)
    return digest.hexdigest()
