"""Identifies a model by the content of its files, not by their names.

Fine-tunes of a model share its name, size and shape. Caches and costs of one fine-tune must
not be used for another, so localspec keeps them with a hash of the model's whole header and of
samples of every tensor. A fine-tune, a merge or another quantisation changes nearly all values
of each tensor that it touches, so the samples differ. Reading the samples takes milliseconds if
the file has just been loaded. Two files have the same hash if they differ only in bytes that
are not sampled.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

from localspec.errors import ModelFileError
from localspec.gguf_file.header import Header

logger = logging.getLogger(__name__)

# For each path, numbers that change whenever the file does; None if there is no file.
FileStates = Mapping[Path, tuple[int, ...] | None]
_NUM_SAMPLES = 8  # of each tensor
_SAMPLE_BYTES = 64
_CHUNK_BYTES = 1 << 20  # of a header, read at a time


class FileContent:
    """The content of a model's files at the time when this object is made.

    Args:
        header: The header that `check_model_file` returned.
    """

    def __init__(self, header: Header) -> None:
        self._header = header
        self.states = self._current_states()
        """The states of the files at that time, for `require_unwritten`."""

    def digest(self) -> str | None:
        """A hash of the files' content, as hexadecimal digits.

        None if a file cannot be read, or has changed after this object was made: nobody knows
        then which content was loaded. Logs the reason.
        """
        digest = hashlib.blake2b(digest_size=16)
        try:
            for part in self._header.parts:
                with part.path.open("rb", buffering=0) as file:
                    for offset, size in _hashed_ranges(part):
                        file.seek(offset)
                        digest.update(file.read(size))
        except OSError as error:
            logger.warning("%s cannot be read: %s", self._header.path, error.strerror)
            return None
        if None in self.states.values() or self.states != self._current_states():
            logger.warning("%s has changed while it was loaded", self._header.path)
            return None
        return digest.hexdigest()

    def _current_states(self) -> FileStates:
        return {part.path: _file_state(part.path) for part in self._header.parts}


def _hashed_ranges(part: Header) -> Iterator[tuple[int, int]]:
    """Offset and length, in bytes, of each range of a file that is hashed.

    The ranges are the whole header in chunks, and for each tensor either all of it or samples
    at even distances, the first at its start and the last at its end.
    """
    for offset in range(0, part.data_start, _CHUNK_BYTES):
        num_left = part.data_start - offset
        yield offset, min(_CHUNK_BYTES, num_left)
    for tensor in part.tensors:
        if tensor.size_bytes <= _NUM_SAMPLES * _SAMPLE_BYTES:
            yield tensor.offset, tensor.size_bytes
            continue
        last_begin = tensor.size_bytes - _SAMPLE_BYTES
        for index in range(_NUM_SAMPLES):
            begin = last_begin * index // (_NUM_SAMPLES - 1)
            yield tensor.offset + begin, _SAMPLE_BYTES


def require_unwritten(states: FileStates) -> None:
    """Raise ModelFileError if one of these files was written to after it was loaded.

    A file that was removed or replaced does no harm: its old content stays mapped.

    Args:
        states: The states of the files when they were loaded.
    """
    for path, before in states.items():
        now = _file_state(path)
        if now is None or before is None or now == before:
            continue
        is_same_file = now[:2] == before[:2]  # device and inode: it was not replaced
        if is_same_file:
            raise ModelFileError(
                f"{path} was written to after it was loaded, which changes the model in use",
                "Load it again. Next time, write the new file under another name, then rename "
                "it.",
            )


def _file_state(path: Path) -> tuple[int, ...] | None:
    """The file's device, inode, size in bytes and time of change in ns; None if it is gone."""
    try:
        info = path.stat()
    except OSError:
        return None
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns
