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
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from localspec.errors import ModelFileError
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.header import Header, Tensor

if TYPE_CHECKING:
    from localspec.speculative.model import Model

logger = logging.getLogger(__name__)

_NUM_SAMPLES, _SAMPLE_BYTES = 8, 64  # of each tensor
_CHUNK_BYTES = 1 << 20  # of a header, read at a time
_NUM_TRIED = 16  # tokens that an adopted model decodes


class FileContent:
    """A model's files, as they were when this was made. header: of `check_model_file`."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self._states = self._current_states()

    def digest(self) -> str | None:
        """A hash of their content, as hexadecimal digits.

        None if a file is gone or has changed, so that it is not known what was loaded; the
        reason goes to the log.
        """
        digest = hashlib.blake2b(digest_size=16)
        try:
            for part in self._header.parts:
                with part.path.open("rb", buffering=0) as file:
                    _add_part(digest, file, part)
        except OSError as error:
            logger.warning("%s cannot be read: %s", self._header.path, error.strerror)
            return None
        if None in self._states or self._states != self._current_states():
            logger.warning("%s has changed while it was loaded", self._header.path)
            return None
        return digest.hexdigest()

    def _current_states(self) -> list[tuple[int, ...] | None]:
        return [_state(part.path) for part in self._header.parts]


def content_of_adopted(model: Model, path: str) -> str | None:
    """A hash of the file at `path` and of the logits of an application's `model`.

    Adapters, control vectors and other settings of the application change the content of a
    cache, as does a file that was replaced since, and libllama reports none of that: so the
    logits after a few tokens count as well. The cache is emptied. None, and a reason in the
    log, as from `FileContent.digest`.
    """
    try:
        in_file = FileContent(check_model_file(Path(path))).digest()
    except ModelFileError as error:
        logger.warning("the loaded model cannot be identified by its file: %s", error)
        return None
    return None if in_file is None else f"{in_file} {_behaviour(model)}"


def are_of(identities: Sequence[str], contents: Sequence[str]) -> bool:
    """Whether the models with these identities are among those with these contents.

    identities, contents: the target's first; see `LlamaModel.identity`.
    """
    own = [identity.partition(" · ")[0] for identity in identities]
    return own[:1] == list(contents[:1]) and set(own) <= set(contents)


def _add_part(digest: hashlib.blake2b, file: BinaryIO, part: Header) -> None:
    """The header of one file, and samples of its tensors."""
    left = part.data_start
    while left > 0 and (chunk := file.read(min(left, _CHUNK_BYTES))):
        digest.update(chunk)
        left -= len(chunk)
    for tensor in part.tensors:
        for offset, size in _samples(tensor):
            file.seek(offset)
            digest.update(file.read(size))


def _samples(tensor: Tensor) -> list[tuple[int, int]]:
    """Offsets and lengths, evenly spread; a small tensor is read whole."""
    if tensor.size_bytes <= _NUM_SAMPLES * _SAMPLE_BYTES:
        return [(tensor.offset, tensor.size_bytes)]
    last = tensor.size_bytes - _SAMPLE_BYTES
    return [
        (tensor.offset + last * index // (_NUM_SAMPLES - 1), _SAMPLE_BYTES)
        for index in range(_NUM_SAMPLES)
    ]


def _state(path: Path) -> tuple[int, ...] | None:
    """Changes with the file; None if it is gone."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _behaviour(model: Model) -> str:
    """A hash of the logits after tokens from all over the vocabulary."""
    count = min(_NUM_TRIED, model.vocab_size, model.context_length)
    tokens = [model.vocab_size * index // count for index in range(count)]
    row = model.decode(tokens, 1)
    model.truncate(0)
    return hashlib.blake2b(row.tobytes(), digest_size=16).hexdigest()
