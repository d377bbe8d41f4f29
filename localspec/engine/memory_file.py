"""A memory of texts on disk: token ids by name, for models of one tokenizer.

They lie in the user's cache directory, which this user alone may read. A file is written whole
or not at all. One that is damaged is refused and stays as it is.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import sys
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock
from platformdirs import user_cache_path

from localspec.atomic_write import names_device, write_whole
from localspec.errors import DAMAGES, CacheError, OptionError, perhaps
from localspec.speculative.memory import MOST_REMEMBERED, RememberedPart, TextMemory
from localspec.speculative.ngram_index import GAP
from localspec.vocabulary import TokenTable

logger = logging.getLogger(__name__)

_FORMAT, _VERSION = "localspec-memory", 1
_ENDING = ".memory"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_TOKEN_BYTES = 4
_MOST_BYTES = 64 * MOST_REMEMBERED  # a part takes a few dozen bytes more than its tokens


class KeptMemory(NamedTuple):
    """A file of a memory. tokenizer: what its ids are of, in short."""

    name: str
    tokenizer: str
    path: Path


class MemoryFile:
    """The file of a memory, for a tokenizer. Raises OptionError for a bad name."""

    def __init__(self, name: str, vocabulary: TokenTable) -> None:
        self._tokenizer = _identity(vocabulary)
        self.path = _folder() / f"{_checked(name)}.{self._tokenizer[:12]}{_ENDING}"
        self._name = name
        self._seen = ""  # the checksum of the file as it was read or written last
        self._num_saved = 0  # tokens that the memory had been given by then

    def load(self, memory: TextMemory) -> None:
        """Remember what is in the file, if there is one. Raises CacheError if it is damaged."""
        found = self._read()
        if found is not None:
            self._seen, parts = found
            memory.restore(parts)
        self._num_saved = memory.num_added

    def save(self, memory: TextMemory, *, at_least: int) -> None:
        """Write it, unless fewer tokens than that are new.

        What another process wrote meanwhile is remembered as well. Where it cannot be written,
        that is logged, and the old file stays.
        """
        if memory.num_added - self._num_saved < at_least:
            return
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.parent.chmod(0o700)
            with FileLock(self.path.with_suffix(".lock"), mode=0o600):
                found = self._read()
                if found is not None and found[0] != self._seen:
                    memory.add([token for part in found[1] for token in (*part.tokens, GAP)])
                self._seen, parts = _as_bytes(memory.parts(), self._tokenizer)
                write_whole(self.path, *parts, durable=False)
        except (OSError, CacheError) as error:
            logger.warning(
                "the memory %r was not saved to %s: %s", self._name, self.path, error
            )
        self._num_saved = memory.num_added

    def _read(self) -> tuple[str, list[RememberedPart]] | None:
        try:
            with self.path.open("rb") as file:
                data = file.read(_MOST_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unreadable(str(error.strerror)) from error
        try:
            return _from_bytes(data, self._tokenizer)
        except DAMAGES as error:
            raise self._unreadable(f"it is damaged ({error})") from error

    def _unreadable(self, reason: str) -> CacheError:
        return CacheError(
            f"the memory {self._name!r} cannot be read from {self.path}: {reason}",
            f"Use another name, or delete it: localspec sessions forget {self._name}",
        )


def kept_memories() -> list[KeptMemory]:
    """The files of all memories, sorted by name."""
    found = []
    for path in sorted(_folder().glob(f"*{_ENDING}")):
        name, _, tokenizer = path.stem.partition(".")
        if _NAME.fullmatch(name):
            found.append(KeptMemory(name, tokenizer, path))
    return found


def num_tokens_in(path: Path) -> int | None:
    """How many tokens a memory's file has; None if it is damaged."""
    try:
        return sum(_lengths(_header(path.read_bytes())[0]))
    except DAMAGES:
        return None


def check_memories(names: Sequence[str]) -> None:
    """Raise OptionError if there is no memory of one of these names."""
    known = sorted({each.name for each in kept_memories()})
    for name in names:
        if name not in known:
            hint = f"{perhaps(name, known)}'localspec sessions memories' lists them."
            raise OptionError(f"there is no memory {name!r}", hint)


def forget_memories(names: Sequence[str]) -> int:
    """Delete the memories of these names, of all tokenizers; the bytes freed.

    Raises OptionError if one of them is not there, and then none is deleted; OSError.
    """
    check_memories(names)
    freed = 0
    for each in kept_memories():
        if each.name in names:
            freed += each.path.stat().st_size
            each.path.unlink(missing_ok=True)
            each.path.with_suffix(".lock").unlink(missing_ok=True)
    return freed


def _folder() -> Path:
    return user_cache_path("localspec", appauthor=False) / "memories"


def _checked(name: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or names_device(name):
        raise OptionError(
            f"{name!r} cannot be the name of a memory",
            "Use up to 64 letters of a to z, digits, - and _; begin with a letter or digit.",
        )
    return name


def _identity(vocabulary: TokenTable) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for entry in vocabulary.entries():
        digest.update(len(entry).to_bytes(4, "little"))
        digest.update(entry)
    return digest.hexdigest()


def _as_bytes(parts: Sequence[RememberedPart], tokenizer: str) -> tuple[str, list[bytes]]:
    """The checksum of the tokens, and the file: a line of JSON, then their ids."""
    tokens = array("i")
    for part in parts:
        tokens += part.tokens
    if sys.byteorder == "big":
        tokens.byteswap()
    data = tokens.tobytes()
    checksum = hashlib.sha256(data).hexdigest()
    header = {
        "format": _FORMAT,
        "version": _VERSION,
        "tokenizer": tokenizer,
        "sha256": checksum,
        "parts": [[part.used, len(part.tokens)] for part in parts],
    }
    return checksum, [json.dumps(header).encode(), b"\n", data]


def _header(data: bytes) -> tuple[dict[str, Any], bytes]:
    line, _, tokens = data.partition(b"\n")
    header = json.loads(line)
    if not isinstance(header, dict) or header["format"] != _FORMAT:
        raise ValueError("it is not a memory")
    if header["version"] != _VERSION:
        raise ValueError(f"its version is {header['version']!r}")
    return header, tokens


def _lengths(header: dict[str, Any]) -> Iterator[int]:
    for used, length in header["parts"]:
        if not (isinstance(used, int) and isinstance(length, int) and used >= 0 < length):
            raise ValueError("its parts are not what they should be")
        yield length


def _from_bytes(data: bytes, tokenizer: str) -> tuple[str, list[RememberedPart]]:
    header, ids = _header(data)
    lengths = list(_lengths(header))
    checksum = hashlib.sha256(ids).hexdigest()
    if header["sha256"] != checksum or len(ids) != _TOKEN_BYTES * sum(lengths):
        raise ValueError("its checksum differs")
    if header["tokenizer"] != tokenizer:
        raise ValueError("it is of another tokenizer")
    tokens = array("i")
    tokens.frombytes(ids)
    if sys.byteorder == "big":
        tokens.byteswap()
    parts, begin = [], 0
    for (used, _), length in zip(header["parts"], lengths, strict=True):
        parts.append(RememberedPart(used, tokens[begin : begin + length]))
        begin += length
    return checksum, parts
