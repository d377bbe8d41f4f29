"""A projector opened for an engine's target, with which it reads pictures."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from localspec.errors import LocalspecError, MemoryLimitError, OptionError
from localspec.gguf_file.content import FileContent
from localspec.gguf_file.projector import (
    NO_PROJECTOR,
    cells_at_once,
    checked_projector,
    projector_beside,
    require_free_of_position,
    require_projector_of,
)
from localspec.preflight.free_memory import free_memory
from localspec.preflight.memory import projector_memory

if TYPE_CHECKING:
    from localspec.engine.sources import ModelSource, Source
    from localspec.gguf_file.header import Header
    from localspec.llama.devices import Device
    from localspec.llama.model import LlamaModel
    from localspec.llama.options import LlamaOptions

Opened = TypeVar("Opened")

logger = logging.getLogger(__name__)


class ProjectorError(Exception):
    """A projector could not be opened beside a model that could. error: why."""

    def __init__(self, error: LocalspecError) -> None:
        super().__init__(str(error))
        self.error = error


def with_projector(
    mmproj: ModelSource | None,
    target: Header | None,
    opened: Callable[[Path | None], Opened],
    *,
    is_named: bool,
) -> Opened:
    """Open with the named projector, or with the one in the target's folder.

    is_named: whether it was asked for; if not, it is the preset's. opened: may raise
    ProjectorError, in place of which its reason is raised. Without a projector where none was
    asked for, and the other one cannot be used, or has no room.
    """
    path = None if is_named or target is None else _usable(mmproj, target)
    named = mmproj if is_named else None
    if path is None:
        assert isinstance(named, str | os.PathLike | None)
        try:
            return opened(None if named in (None, NO_PROJECTOR) else Path(named))
        except ProjectorError as failed:
            raise failed.error from failed.error.__cause__
    try:
        return opened(path)
    except (MemoryLimitError, ProjectorError) as error:  # others are the models'
        fault = str(error)
    found = opened(None)
    _warn(path, fault)
    return found


def seeing(mmproj: Path | None, sources: list[Source]) -> tuple[list[Source], Header | None]:
    """The sources as the projector needs them, and its header, if there is one.

    Raises ModelFileError for another file, PairError for another model's projector, OptionError
    where the target is a `Llama`.
    """
    target, *others = sources
    if mmproj is None:
        return sources, None
    header = checked_projector(mmproj)
    require_free_of_position(header)
    if target.header is None:
        raise OptionError(
            "the target is a Llama object, which keeps its own settings",
            "Name its file instead, or leave mmproj out.",
        )
    require_projector_of(target.header, header)
    options = replace(target.options, num_picture_cells=cells_at_once(header))
    return [target._replace(options=options), *others], header


def _usable(of_preset: ModelSource | None, target: Header) -> Path | None:
    """The preset's projector, or else the one in the target's folder, if it can be used."""
    assert isinstance(of_preset, str | os.PathLike | None)
    path = projector_beside(target) if of_preset is None else Path(of_preset)
    if path is None:
        return None
    from localspec.llama.library import mtmd  # loads libllama

    try:
        mtmd()
        header = checked_projector(path)
        require_free_of_position(header)
        require_projector_of(target, header)
    except LocalspecError as error:
        _warn(path, str(error))
        return None
    logger.info("%s lets the model see", path)
    return path


def _warn(path: Path, fault: str) -> None:
    logger.warning(
        '%s is not used: %s. mmproj="none" leaves it out without a word.', path.name, fault
    )


def has_room_on_gpu(header: Header, gpus: Sequence[Device]) -> bool:
    """Whether the first GPU, which libmtmd takes, has as much free memory as a projector needs.

    libmtmd ends the process where it has not; without a GPU it takes the processor by itself.
    gpus: as they are once the models are loaded.
    """
    needed = projector_memory(header, 0)
    return all(
        gpu.total_bytes == 0  # not stated
        or gpu.free_bytes > needed.weights_bytes + needed.compute_bytes
        for gpu in gpus[:1]
    )


def open_projector(
    header: Header,
    options: LlamaOptions,
    target: LlamaModel,
    draft: LlamaModel | None,
    undo: contextlib.ExitStack,
) -> None:
    """Let the target read pictures, and a draft pass over them. options: of the target.

    undo: gets what closes the projector, which is closed before the models are. Raises
    ModelFileError.
    """
    from localspec.llama.projector import Projector  # loads libllama

    # Again, since libmtmd takes for granted what was checked.
    header = checked_projector(header.path)
    content = FileContent(header)
    projector = Projector(
        header.path,
        target.handle,
        num_threads=target.num_threads,
        use_gpu=options.num_gpu_layers != 0 and has_room_on_gpu(header, free_memory().gpus),
    )
    undo.callback(projector.close)
    # Now that the system has the file at hand.
    projector.content = content.digest() or os.urandom(16).hex()
    target.vision = projector
    if draft is not None:
        draft.is_blind = True
