"""The header of a GGUF file, read with every length checked against the file's size.

libllama trusts a header further than a downloaded or damaged file deserves: what it finds
late can end the process. So the header is read here first. Arrays are skipped, not kept: a
vocabulary alone would be 150 000 strings.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import ModelFileError

Value = int | float | bool | str | None  # None stands for an array

_SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i",
    6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_MAX_ENTRIES = 1 << 20  # of metadata or tensors: far above any real file
_MAX_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class Header:
    """What a GGUF file says of itself. metadata holds scalars and strings."""

    path: Path
    size_bytes: int
    version: int
    num_tensors: int
    metadata: Mapping[str, Value]

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    def number(self, key: str) -> int:
        """An integer of the metadata, 0 if it is not there."""
        value = self.metadata.get(key)
        return value if isinstance(value, int) else 0


def read_header(path: Path) -> Header:
    """The header of the GGUF file at `path`.

    Raises ModelFileError if there is no such file, or it is no GGUF file, or its header
    points outside of it (a download that was cut short, say).
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            if size < 4 or file.read(4) != b"GGUF":
                raise ModelFileError(
                    f"{path} is not a GGUF file (it does not begin with 'GGUF')",
                    "Choose a .gguf model file; other formats have to be converted first.",
                )
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Reader(path, data).header()
    except FileNotFoundError:
        raise ModelFileError(f"{path} does not exist", "Check the path.") from None
    except IsADirectoryError:
        raise ModelFileError(f"{path} is a directory", "Name the .gguf file in it.") from None
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}", "") from error


class _Reader:
    """A position in the mapped file that never leaves it."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._at = 4

    def header(self) -> Header:
        version = self._scalar("<I")
        if version not in (2, 3):
            raise ModelFileError(
                f"{self._path} has GGUF version {version}; 2 and 3 can be read",
                "Convert it again with a current llama.cpp.",
            )
        num_tensors, num_entries = self._scalar("<Q"), self._scalar("<Q")
        if max(num_tensors, num_entries) > _MAX_ENTRIES:
            raise self._damaged(f"it claims {num_tensors} tensors and {num_entries} entries")
        metadata = {self._string(): self._value(self._scalar("<I")) for _ in range(num_entries)}
        last_offset = max((self._tensor_offset() for _ in range(num_tensors)), default=0)
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 8 or alignment & (alignment - 1):
            raise self._damaged(f"its alignment is {alignment}")
        data_start = -(-self._at // alignment) * alignment
        # The length of the last tensor is libllama's to check; it must at least begin.
        if num_tensors and data_start + last_offset >= len(self._data):
            raise self._damaged(
                f"its tensors reach beyond {data_start + last_offset} bytes, "
                f"the file has {len(self._data)}"
            )
        return Header(self._path, len(self._data), version, num_tensors, metadata)

    def _damaged(self, what: str) -> ModelFileError:
        return ModelFileError(
            f"{self._path} is damaged or was cut short: {what}", "Download it again."
        )

    def _skip(self, num_bytes: int) -> int:
        """Move on by num_bytes; the position before."""
        begin, self._at = self._at, self._at + num_bytes
        if self._at > len(self._data):
            raise self._damaged(f"its header ends after {len(self._data)} bytes")
        return begin

    def _scalar(self, kind: str) -> int:
        value: int = struct.unpack_from(kind, self._data, self._skip(struct.calcsize(kind)))[0]
        return value

    def _string(self) -> str:
        length = self._scalar("<Q")
        begin = self._skip(length)
        return self._data[begin : begin + length].decode("utf-8", errors="replace")

    def _value(self, kind: int) -> Value:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            self._skip_array()
            return None
        return self._scalar(self._format(kind))

    def _format(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise self._damaged(f"it has a value of unknown type {kind}")
        return _SCALARS[kind]

    def _skip_array(self) -> None:
        kind, count = self._scalar("<I"), self._scalar("<Q")
        if kind != _STRING:
            self._skip(count * struct.calcsize(self._format(kind)))
            return
        if count * 8 > len(self._data):
            raise self._damaged(f"it claims an array of {count} strings")
        # The hot loop of the check: 300 000 strings in a large vocabulary.
        at, data, size, length_at = self._at, self._data, len(self._data), _LENGTH.unpack_from
        try:
            for _ in range(count):
                at += 8 + length_at(data, at)[0]
        except (struct.error, OverflowError):
            at = size + 1
        self._at = at
        self._skip(0)

    def _tensor_offset(self) -> int:
        self._string()
        num_dimensions = self._scalar("<I")
        if num_dimensions > _MAX_DIMENSIONS:
            raise self._damaged(f"a tensor has {num_dimensions} dimensions")
        self._skip(8 * num_dimensions + 4)
        return self._scalar("<Q")


_LENGTH = struct.Struct("<Q")
