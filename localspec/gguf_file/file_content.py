"""Identifies a model by the content of its files, whatever they are called.

Fine-tunes of a model share its name, size and shape. Caches and costs of one must not be used
for another, so they are kept with a hash of the whole header and of samples of every tensor. A
fine-tune, a merge or another quantisation changes nearly all values of each tensor that it
touches, so the samples differ; reading them takes milliseconds if the file has just been
loaded. Two files that differ in a few bytes elsewhere have the same hash.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

from localspec.errors import ModelFileError
from localspec.gguf_file.header import Header

logger = logging.getLogger(__name__)

# Paths, and a mark that changes with each file; None if it is gone.
FileStates = Mapping[Path, tuple[int, ...] | None]
_NUM_SAMPLES = 8
_SAMPLE_BYTES = 64  # of each tensor
_CHUNK_BYTES = 1 << 20  # of a header, read at a time


class FileContent:
    """A model's files, as they were when this was made.

    Args:
        header: The header that `check_model_file` returned.
    """

    def __init__(self, header: Header) -> None:
        self._header = header
        # For `require_unwritten`.
        self.states = self._current_states()

    def digest(self) -> str | None:
        """A hash of the files' content, as hexadecimal digits.

        None if a file is gone or has changed, since the loaded content is then unknown. The
        reason goes to the log.
        """
        digest = hashlib.blake2b(digest_size=16)
        try:
            for part in self._header.parts:
                with part.path.open("rb", buffering=0) as file:
                    for offset, size in _pieces(part):
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
        return {part.path: _state(part.path) for part in self._header.parts}


def _pieces(part: Header) -> Iterator[tuple[int, int]]:
    """Offsets and lengths of a file's header, and of samples of its tensors, evenly spread."""
    for begin in range(0, part.data_start, _CHUNK_BYTES):
        yield begin, min(_CHUNK_BYTES, part.data_start - begin)
    for tensor in part.tensors:
        if tensor.size_bytes <= _NUM_SAMPLES * _SAMPLE_BYTES:  # it is read whole
            yield tensor.offset, tensor.size_bytes
            continue
        last = tensor.size_bytes - _SAMPLE_BYTES
        for index in range(_NUM_SAMPLES):
            begin = last * index // (_NUM_SAMPLES - 1)
            yield tensor.offset + begin, _SAMPLE_BYTES


def require_unwritten(states: FileStates) -> None:
    """Raise ModelFileError if one of these files was written to after it was loaded.

    A file that was removed or replaced does no harm: its old content stays mapped.
    """
    for path, before in states.items():
        now = _state(path)
        if now is None or before is None or now == before:
            continue
        is_same_file = now[:2] == before[:2]
        if is_same_file:
            raise ModelFileError(
                f"{path} was written to after it was loaded, which changes the model in use",
                "Load it again. Next time, write the new file under another name, then rename "
                "it.",
            )


def _state(path: Path) -> tuple[int, ...] | None:
    """A mark that changes with the file; None if the file is gone."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
