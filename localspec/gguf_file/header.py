"""The header of a GGUF file, read with every length checked against the file's size.

libllama checks a header too little: an error in a damaged file that it notices late can end the
process. So the header is read here first. Of its arrays, only the tokens and short arrays of
numbers are kept; other arrays may have 300 000 strings. A header can be read before its file is
downloaded: then only the start of a `ByteSource` is requested. docs/inside.md says why the
package gguf's own reader is not used.
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

# A value of the metadata; None for an array that is not kept.
Value = int | float | bool | str | tuple[int | float | bool, ...] | None

# GGUF's numbers for the types of values; those of one number with `struct`'s format.
_NUMBER_FORMATS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i",
    6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
FLOAT32 = 6
_STRING = 8
_ARRAY = 9
_MAX_ENTRIES = 1 << 20  # of metadata or tensors: far above any real file
_MAX_DIMENSIONS = 4
_MAX_KEPT = 512  # numbers in an array that is kept: enough for one for each layer
_MAGIC = b"GGUF"  # begins every file
_FIRST_READ_BYTES = 8 << 20  # holds the header with a vocabulary of 150 000 tokens
_MAX_READ_BYTES = 128 << 20
_START_BYTES = 1024  # of a file that is not GGUF: enough to recognise what it is
_MAX_LISTED_FILES = 5  # in a hint
_TOKENS_KEY = "tokenizer.ggml.tokens"
_LENGTH = struct.Struct("<Q")  # of a string
_DEFAULT_ALIGNMENT = 32  # bytes, if the file states none
_MIN_ALIGNMENT = 8


class ByteSource(Protocol):
    """The bytes of a file that need not be on this machine."""

    name: str
    """The file's name for messages."""

    size_bytes: int

    def read(self, offset: int, size: int) -> bytes:
        """The `size` bytes at an offset; all of them have to be within the file."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """An array of weights."""

    name: str
    kind: int
    """ggml's number for its type, as in `gguf_file.tensor_types`."""

    shape: tuple[int, ...]
    """The shape as in the file: the length of a row comes first."""

    offset: int
    """Bytes from the start of its file to the tensor."""

    size_bytes: int
    """Bytes in the file, with a few bytes of padding."""


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a GGUF file."""

    path: Path
    size_bytes: int
    tensors: Sequence[Tensor]
    metadata: Mapping[str, Value]
    """Scalars, strings and short arrays of numbers."""

    data_start: int
    """Bytes from the start of the file to its tensors."""

    tokens: Sequence[bytes] = ()
    """The texts of the vocabulary in the order of their ids; empty without a vocabulary."""

    parts: Sequence[Header] = ()
    """The headers of all files of a model, which `gguf_file.check` sets: one header, unless the
    model is split."""

    kinds: Mapping[str, int] = field(default_factory=dict)
    """GGUF's number for the type of each value, by the keys of the metadata."""

    @property
    def weights_bytes(self) -> int:
        """Bytes of the weights, in all parts of a split model."""
        return sum(tensor.size_bytes for tensor in self.tensors)

    @property
    def num_weights(self) -> int:
        """The number of weights in all parts of a split model.

        There may be more weights than parameters: a file may store embeddings and output layer
        separately although they are the same in the model, and no entry says so.
        """
        return sum(math.prod(tensor.shape) for tensor in self.tensors)

    @property
    def size_label(self) -> str:
        """The number of parameters as the maker rounds it, such as 1.5B; "" if not stated."""
        return str(self.metadata.get("general.size_label", ""))

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    def by_name(self) -> dict[str, Tensor]:
        """The tensors by their names."""
        return {tensor.name: tensor for tensor in self.tensors}

    def number(self, key: str) -> int:
        """The metadata's value of the key if it is a whole number, else 0."""
        value = self.metadata.get(key)
        if isinstance(value, int):
            return value
        return 0


def read_header(path: Path) -> Header:
    """The header of the GGUF file at `path`.

    Raises ModelFileError if there is no such file, it is not a GGUF file, or its header names
    bytes beyond the file's end, as after a download that was cut short.
    """
    try:
        info = path.stat()
        if stat.S_ISDIR(info.st_mode):
            raise ModelFileError(f"{path} is a directory", _files_in(path))
        # Checked before opening, since that would wait for the other end of a pipe.
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
    """The metadata of a GGUF file by key, each entry with its bytes as in the file.

    An entry is the key, the number of the value's type, and the value. The file has to be one
    that `read_header` has read.
    """
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        return _HeaderReader(path, data, len(data)).raw_entries()


def read_source_header(source: ByteSource) -> Header:
    """The header of a GGUF file that a source gives; `Header.path` is the source's name.

    Reads the start of the file, four times as much at each try until the header ends in it.
    Raises ModelFileError as `read_header` does, and the errors of the source.
    """
    data = b""
    num_wanted = _FIRST_READ_BYTES
    while True:
        num_wanted_in_file = min(num_wanted, source.size_bytes)
        data += source.read(len(data), num_wanted_in_file - len(data))
        try:
            return _HeaderReader(Path(source.name), data, source.size_bytes).header()
        except _StartTooShortError as error:
            num_wanted *= 4
            if num_wanted > _MAX_READ_BYTES:
                raise ModelFileError(
                    f"the header of {source.name} is longer than {len(data)} bytes",
                    "localspec cannot read this as a model file.",
                ) from error


class _StartTooShortError(Exception):
    """The header continues after the bytes that were read."""


class _HeaderReader:
    """Reads a header from front to back, and never beyond the bytes of `data`.

    Methods that read begin at the current position and move it to the end of what they read.
    They raise ModelFileError for a damaged file, and _StartTooShortError if `data` ends there
    and the file does not.

    Args:
        path: The path for the header and for errors.
        data: The whole file, or its start.
        size_bytes: The size of the whole file.
    """

    def __init__(self, path: Path, data: mmap.mmap | bytes, size_bytes: int) -> None:
        self._path = path
        self._data = data
        self._size = size_bytes
        self._position = len(_MAGIC)
        self._tokens: Sequence[bytes] = ()

    def raw_entries(self) -> dict[str, bytes]:
        """The metadata by key, each entry with its bytes as in the file."""
        _, num_entries = self._read_counts()
        entries: dict[str, bytes] = {}
        for _ in range(num_entries):
            begin = self._position
            key = self._read_string()
            kind = self._read_number("<I")
            self._read_value(key, kind)
            entries[key] = self._data[begin : self._position]
        return entries

    def header(self) -> Header:
        """The whole header."""
        num_tensors, num_entries = self._read_counts()
        metadata: dict[str, Value] = {}
        kinds: dict[str, int] = {}
        for _ in range(num_entries):
            key = self._read_string()
            kinds[key] = self._read_number("<I")
            metadata[key] = self._read_value(key, kinds[key])
        tensors = [self._read_tensor() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or not _is_valid_alignment(alignment):
            raise self._damaged_error(f"its alignment is {alignment}")
        padding = -self._position % alignment
        data_start = self._position + padding
        if tensors:
            # libllama checks that the last tensor ends in the file; here it has to begin there.
            last_begin = data_start + max(tensor.offset for tensor in tensors)
            if last_begin >= self._size:
                raise self._damaged_error(
                    f"its tensors reach beyond {last_begin} bytes, the file has {self._size}"
                )
        return Header(
            path=self._path,
            size_bytes=self._size,
            tensors=_with_places(tensors, data_start, self._size),
            metadata=metadata,
            data_start=data_start,
            tokens=self._tokens,
            kinds=kinds,
        )

    def _read_counts(self) -> tuple[int, int]:
        """Check the file's first bytes and its version, and read how much follows.

        Returns the number of tensors, and the number of entries of the metadata.
        """
        if self._data[: len(_MAGIC)] != _MAGIC:
            raise _not_gguf_error(self._path, self._data[:_START_BYTES])
        version = self._read_number("<I")
        if version not in (2, 3):
            raise ModelFileError(
                f"{self._path} has GGUF version {version}; 2 and 3 can be read",
                "Convert it again with a current llama.cpp.",
            )
        num_tensors = self._read_number("<Q")
        num_entries = self._read_number("<Q")
        if max(num_tensors, num_entries) > _MAX_ENTRIES:
            raise self._damaged_error(
                f"it claims {num_tensors} tensors and {num_entries} entries"
            )
        return num_tensors, num_entries

    def _damaged_error(self, what: str) -> ModelFileError:
        return ModelFileError(
            f"{self._path} is damaged or was cut short: {what}",
            "Download it again.",
        )

    def _skip(self, num_bytes: int) -> int:
        """Move the position by a number of bytes, and return where it was before."""
        begin = self._position
        end = begin + num_bytes
        if end > self._size:
            raise self._damaged_error(f"its header ends after {self._size} bytes")
        if end > len(self._data):
            raise _StartTooShortError
        self._position = end
        return begin

    def _read_number(self, number_format: str) -> int:
        """The next number, in a format of `struct`. It may be a float or a bool, too."""
        begin = self._skip(struct.calcsize(number_format))
        number: int = struct.unpack_from(number_format, self._data, begin)[0]
        return number

    def _read_string(self) -> str:
        """The next string, whose length in bytes comes before it."""
        length = self._read_number("<Q")
        begin = self._skip(length)
        return self._data[begin : begin + length].decode("utf-8", errors="replace")

    def _read_value(self, key: str, kind: int) -> Value:
        """The next value, of a type that GGUF numbers; None for an array that is not kept."""
        if kind == _STRING:
            return self._read_string()
        if kind != _ARRAY:
            return self._read_number(self._number_format(kind))
        item_kind = self._read_number("<I")
        count = self._read_number("<Q")
        if item_kind != _STRING:
            return self._read_numbers(self._number_format(item_kind), count)
        self._read_strings(count, are_tokens=key == _TOKENS_KEY)
        return None

    def _number_format(self, kind: int) -> str:
        """`struct`'s format for a type of number. Raises ModelFileError for an unknown type."""
        if kind not in _NUMBER_FORMATS:
            raise self._damaged_error(f"it has a value of unknown type {kind}")
        return _NUMBER_FORMATS[kind]

    def _read_numbers(self, number_format: str, count: int) -> Value:
        """The next `count` numbers; None if they are too many to be kept."""
        begin = self._skip(count * struct.calcsize(number_format))
        if count > _MAX_KEPT:
            return None
        letter = number_format.removeprefix("<")
        return struct.unpack_from(f"<{count}{letter}", self._data, begin)

    def _read_strings(self, count: int, *, are_tokens: bool) -> None:
        """Skip the next `count` strings, and keep them as the vocabulary if they are tokens."""
        if count * _LENGTH.size > self._size:
            raise self._damaged_error(f"it claims an array of {count} strings")
        # A large vocabulary has 300 000 strings: the loop calls no method of this class.
        position = self._position
        data = self._data
        unpack_length = _LENGTH.unpack_from
        tokens: list[bytes] = []
        try:
            for _ in range(count):
                begin = position + 8  # bytes of the string's length
                position = begin + unpack_length(data, position)[0]
                if are_tokens:
                    tokens.append(data[begin:position])
        except (struct.error, OverflowError):  # a length lies beyond the end of the data
            position = max(position, len(data) + 1)
        self._skip(position - self._position)  # raises beyond the end
        if not self._tokens:
            self._tokens = tokens

    def _read_tensor(self) -> Tensor:
        """The next tensor, with the size 0, and its offset from the start of all tensors."""
        name = self._read_string()
        num_dimensions = self._read_number("<I")
        if num_dimensions > _MAX_DIMENSIONS:
            raise self._damaged_error(f"a tensor has {num_dimensions} dimensions")
        shape = tuple(self._read_number("<Q") for _ in range(num_dimensions))
        if not shape:
            shape = (1,)  # ggml has no empty shape
        kind = self._read_number("<I")
        offset = self._read_number("<Q")
        return Tensor(name, kind, shape, offset, size_bytes=0)


def _is_valid_alignment(alignment: int) -> bool:
    """Whether it is a power of two that is large enough."""
    return alignment >= _MIN_ALIGNMENT and alignment.bit_count() == 1


def _with_places(tensors: list[Tensor], data_start: int, file_end: int) -> tuple[Tensor, ...]:
    """The tensors with their offsets in the file and their sizes.

    A tensor reaches to the next tensor or to the file's end. To compute sizes from the types
    would take a table of all types, and the newest would be missing in it.

    Args:
        tensors: The tensors, with offsets from `data_start`.
        data_start: Where the tensors start in the file, in bytes.
        file_end: The size of the file, in bytes.
    """
    begins = sorted({tensor.offset for tensor in tensors})
    sizes = {}
    for begin, next_begin in pairwise([*begins, file_end - data_start]):
        sizes[begin] = next_begin - begin
    placed = []
    for tensor in tensors:
        offset = data_start + tensor.offset
        size = sizes[tensor.offset]
        placed.append(replace(tensor, offset=offset, size_bytes=size))
    return tuple(placed)


def _not_gguf_error(path: Path, start: bytes) -> ModelFileError:
    """The error for a file that is not GGUF, which says what the file is if that is plain.

    Args:
        path: The file.
        start: The first bytes of the file.
    """
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
    """A hint that lists some GGUF files of a folder.

    Args:
        folder: The folder.
        wanted: A file name that does not exist: the hint suggests similar names. "" for none.
    """
    names = sorted(path.name for path in folder.glob("*.gguf"))
    listed = ", ".join(names[:_MAX_LISTED_FILES]) or "no .gguf file"
    suggestion = did_you_mean(wanted, names)
    return f"{suggestion}{folder.absolute()} holds {listed}."
