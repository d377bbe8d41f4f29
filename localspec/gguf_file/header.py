"""The header of a GGUF file, read with every length checked against the file's size.

libllama trusts a header more than a downloaded or damaged file deserves: an error that it
finds late can end the process. So the header is read here first. Of its arrays, only the tokens
and short arrays of numbers are kept; the other arrays of strings would be 300 000 strings more.
A header can be read before its file is downloaded: only the start of a `ByteSource` is
requested. docs/inside.md says why gguf's own reader is not used.
"""

from __future__ import annotations

import math
import mmap
import stat
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from localspec.errors import ModelFileError, ModelNotFoundError, did_you_mean

# None stands for an array that is not kept.
Value = int | float | bool | str | tuple[int | float | bool, ...] | None

_SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i",
    6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_STRING = 8
_ARRAY = 9
FLOAT32 = 6  # of a value
_MAX_ENTRIES = 1 << 20  # of metadata or tensors: far above any real file
_MAX_DIMENSIONS = 4
_MAX_KEPT = 512  # numbers in an array that is kept: one for each layer
_FIRST_READ = 8 << 20  # bytes; vocabularies of 150 000 tokens end before
_LAST_READ = 128 << 20
_BEGINNING = 1024  # bytes of a file that is not GGUF by which its kind is recognised
_MAX_NAMED = 5  # files in a hint
_TOKENS = "tokenizer.ggml.tokens"
_LENGTH = struct.Struct("<Q")  # of a string


class ByteSource(Protocol):
    """The bytes of a file, wherever it is."""

    name: str
    """The name for messages."""

    size_bytes: int

    def read(self, offset: int, size: int) -> bytes:
        """Read `size` bytes from an offset on, all of them within the file."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """An array of weights."""

    name: str
    kind: int
    """ggml's number of its type."""

    shape: tuple[int, ...]
    """The shape as in the file, the length of a row first."""

    offset: int
    """The place in its file where it starts, in bytes."""

    size_bytes: int
    """Bytes in the file, with the few bytes of padding."""


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a GGUF file."""

    path: Path
    size_bytes: int
    tensors: Sequence[Tensor]
    metadata: Mapping[str, Value]
    """Scalars, strings and short arrays of numbers."""

    data_start: int
    """The place in the file where the tensors start, in bytes."""

    tokens: Sequence[bytes] = ()
    """The vocabulary, if any."""

    parts: Sequence[Header] = ()
    """The headers of all files of a model that was checked (`gguf_file.check`): one, unless it
    is split."""

    kinds: Mapping[str, int] = field(default_factory=dict)
    """GGUF's number of each value's type, by the keys of the metadata."""

    @property
    def weights_bytes(self) -> int:
        """Bytes of the weights, in all parts of a split model."""
        return sum(tensor.size_bytes for tensor in self.tensors)

    @property
    def num_weights(self) -> int:
        """Weights in all parts of a split model.

        There may be more weights than parameters: a file may store embeddings and output layer
        separately although they are the same in the model, and no entry says so.
        """
        return sum(math.prod(tensor.shape) for tensor in self.tensors)

    @property
    def size_label(self) -> str:
        """The number of parameters as the maker rounds it: 1.5B, 8x7B, or "" if not stated."""
        return str(self.metadata.get("general.size_label", ""))

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    def by_name(self) -> dict[str, Tensor]:
        """The tensors by their names."""
        return {tensor.name: tensor for tensor in self.tensors}

    def number(self, key: str) -> int:
        """A whole number of the metadata, 0 if there is none."""
        value = self.metadata.get(key)
        if isinstance(value, int):
            return value
        return 0


def read_header(path: Path) -> Header:
    """The header of the GGUF file at `path`.

    Raises ModelFileError if there is no such file, it is not a GGUF file, or its header points
    outside of it, as after a download that was cut short.
    """
    try:
        info = path.stat()
        if stat.S_ISDIR(info.st_mode):
            raise ModelFileError(f"{path} is a directory", _files_in(path))
        # Before it is opened, which would wait for the other end of a pipe.
        if not stat.S_ISREG(info.st_mode):
            raise ModelFileError(
                f"{path} is a pipe or a device, not a file",
                "Name a .gguf file on disk.",
            )
        with path.open("rb") as file:
            if info.st_size == 0:  # cannot be mapped
                raise ModelFileError(f"{path} is empty", "Download it again.")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _HeaderReader(path, data, info.st_size).header()
    except (FileNotFoundError, NotADirectoryError):
        hint = _files_in(path.parent, path.name)
        raise ModelNotFoundError(f"{path} does not exist", hint) from None
    except OSError as error:
        raise ModelFileError(
            f"{path} cannot be read: {error.strerror}",
            "Check the path and its permissions.",
        ) from error
    except ValueError as error:  # a NUL character
        raise ModelFileError(f"{str(path)!r} is not a path: {error}", "Check it.") from None


def raw_entries(path: Path) -> dict[str, bytes]:
    """The metadata of a file that `read_header` has read: key, type and value of each entry."""
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        return _HeaderReader(path, data, len(data)).raw_entries()


def read_source_header(source: ByteSource) -> Header:
    """The header of a file on another machine; its path is the source's name.

    Raises ModelFileError as `read_header` does, and whatever the source raises.
    """
    data = b""
    wanted = _FIRST_READ
    while True:
        data += source.read(len(data), min(wanted, source.size_bytes) - len(data))
        try:
            return _HeaderReader(Path(source.name), data, source.size_bytes).header()
        except _PrefixTooShortError as error:
            wanted *= 4
            if wanted > _LAST_READ:
                raise ModelFileError(
                    f"the header of {source.name} is longer than {len(data)} bytes",
                    "localspec cannot read this as a model file.",
                ) from error


class _PrefixTooShortError(Exception):
    """The header continues after the bytes that were read."""


class _HeaderReader:
    """Reads a header, and never beyond the bytes that it has.

    Args:
        data: The whole file, or its start.
        size_bytes: The size of the whole file.
    """

    def __init__(self, path: Path, data: mmap.mmap | bytes, size_bytes: int) -> None:
        self._path = path
        self._data = data
        self._size = size_bytes
        self._at = 4
        self._tokens: Sequence[bytes] = ()

    def raw_entries(self) -> dict[str, bytes]:
        """The metadata as in the file, by key: key, type and value of each entry."""
        _, num_entries = self._counts()
        entries: dict[str, bytes] = {}
        for _ in range(num_entries):
            begin = self._at
            key = self._string()
            kind = self._scalar("<I")
            self._value(key, kind)
            entries[key] = self._data[begin : self._at]
        return entries

    def _counts(self) -> tuple[int, int]:
        """Read the numbers of tensors and of entries. The entries follow."""
        if self._data[:4] != b"GGUF":
            raise _not_gguf(self._path, self._data[:_BEGINNING])
        version = self._scalar("<I")
        if version not in (2, 3):
            raise ModelFileError(
                f"{self._path} has GGUF version {version}; 2 and 3 can be read",
                "Convert it again with a current llama.cpp.",
            )
        num_tensors = self._scalar("<Q")
        num_entries = self._scalar("<Q")
        if max(num_tensors, num_entries) > _MAX_ENTRIES:
            raise self._damaged(f"it claims {num_tensors} tensors and {num_entries} entries")
        return num_tensors, num_entries

    def header(self) -> Header:
        """Read the whole header."""
        num_tensors, num_entries = self._counts()
        metadata: dict[str, Value] = {}
        kinds: dict[str, int] = {}
        for _ in range(num_entries):
            key = self._string()
            kinds[key] = self._scalar("<I")
            metadata[key] = self._value(key, kinds[key])
        described = [self._tensor() for _ in range(num_tensors)]
        offsets = [tensor.offset for tensor in described]
        last_offset = max(offsets, default=0)
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 8 or alignment & (alignment - 1):
            raise self._damaged(f"its alignment is {alignment}")
        data_start = -(-self._at // alignment) * alignment
        # libllama checks the length of the last tensor; here it must at least start.
        if num_tensors and data_start + last_offset >= self._size:
            raise self._damaged(
                f"its tensors reach beyond {data_start + last_offset} bytes, "
                f"the file has {self._size}"
            )
        return Header(
            path=self._path,
            size_bytes=self._size,
            tensors=_placed(described, data_start, self._size),
            metadata=metadata,
            data_start=data_start,
            tokens=self._tokens,
            kinds=kinds,
        )

    def _damaged(self, what: str) -> ModelFileError:
        return ModelFileError(
            f"{self._path} is damaged or was cut short: {what}",
            "Download it again.",
        )

    def _skip(self, num_bytes: int) -> int:
        """Move on by num_bytes; returns the position before."""
        begin = self._at
        self._at = self._at + num_bytes
        if self._at > self._size:
            raise self._damaged(f"its header ends after {self._size} bytes")
        if self._at > len(self._data):
            raise _PrefixTooShortError
        return begin

    def _scalar(self, kind: str) -> int:
        begin = self._skip(struct.calcsize(kind))
        value: int = struct.unpack_from(kind, self._data, begin)[0]
        return value

    def _string(self) -> str:
        length = self._scalar("<Q")
        begin = self._skip(length)
        return self._data[begin : begin + length].decode("utf-8", errors="replace")

    def _value(self, key: str, kind: int) -> Value:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._scalar(self._format(kind))
        kind = self._scalar("<I")
        count = self._scalar("<Q")
        if kind != _STRING:
            return self._numbers(self._format(kind), count)
        self._read_strings(count, are_tokens=key == _TOKENS)
        return None

    def _format(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise self._damaged(f"it has a value of unknown type {kind}")
        return _SCALARS[kind]

    def _numbers(self, kind: str, count: int) -> Value:
        begin = self._skip(count * struct.calcsize(kind))
        if count > _MAX_KEPT:
            return None
        return struct.unpack_from(f"<{count}{kind[1]}", self._data, begin)

    def _read_strings(self, count: int, *, are_tokens: bool) -> None:
        """Skip strings, or take them as the tokens."""
        if count * 8 > self._size:
            raise self._damaged(f"it claims an array of {count} strings")
        # The hot loop of the check: 300 000 strings in a large vocabulary.
        at = self._at
        data = self._data
        length_at = _LENGTH.unpack_from
        tokens: list[bytes] = []
        try:
            for _ in range(count):
                begin = at + 8
                at = begin + length_at(data, at)[0]
                if are_tokens:
                    tokens.append(data[begin:at])
        except (struct.error, OverflowError):
            at = max(at, len(data) + 1)
        self._at = at
        self._skip(0)
        self._tokens = self._tokens or tokens

    def _tensor(self) -> Tensor:
        """The next tensor, without its size; its offset counts from the end of the header."""
        name = self._string()
        num_dimensions = self._scalar("<I")
        if num_dimensions > _MAX_DIMENSIONS:
            raise self._damaged(f"a tensor has {num_dimensions} dimensions")
        shape = tuple(self._scalar("<Q") for _ in range(num_dimensions))
        kind = self._scalar("<I")
        offset = self._scalar("<Q")
        return Tensor(name, kind, shape or (1,), offset, 0)  # ggml has no empty shape


def _placed(described: list[Tensor], start: int, end: int) -> tuple[Tensor, ...]:
    """The tensors with offset and size: each reaches to the next one, or to the file's end.

    A table of types would have to know the newest type.
    """
    offsets = sorted({tensor.offset for tensor in described})
    sizes = {}
    for offset, following in pairwise([*offsets, end - start]):
        sizes[offset] = following - offset
    tensors = []
    for tensor in described:
        size = sizes[tensor.offset]
        tensors.append(replace(tensor, offset=start + tensor.offset, size_bytes=size))
    return tuple(tensors)


def _not_gguf(path: Path, start: bytes) -> ModelFileError:
    """An error that says what the file is instead, if downloads leave such files."""
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith(b"version https://git-lfs"):
        return ModelFileError(
            f"{path} is a Git LFS pointer of {len(start)} bytes, not the model it stands for",
            "Fetch the model itself: git lfs pull, or download the file from the hub.",
        )
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return ModelFileError(
            f"{path} is a web page, not a model",
            "The address was that of a page: on the hub, a file's address has /resolve/ in "
            "place of /blob/.",
        )
    return ModelFileError(
        f"{path} is not a GGUF file (it does not begin with 'GGUF')",
        "Choose a .gguf model file; other formats have to be converted first.",
    )


def _files_in(folder: Path, wanted: str = "") -> str:
    """A hint: the names that are like the wanted one, and some models of the folder."""
    names = sorted(path.name for path in folder.glob("*.gguf"))
    listed = ", ".join(names[:_MAX_NAMED]) or "no .gguf file"
    return f"{did_you_mean(wanted, names)}{folder} holds {listed}."
