"""A projector opened for an engine's target, with which it reads pictures."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from localspec.engine.sources import LoadKeywords, named_sources
from localspec.errors import LocalspecError, OptionError
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.file_content import FileContent
from localspec.gguf_file.projector_facts import (
    NO_PROJECTOR,
    checked_projector,
    projector_beside,
    require_free_of_position,
    require_projector_of,
)
from localspec.planning.free_memory import free_memory
from localspec.planning.memory import projector_memory
from localspec.presets.presets import Preset, Role

if TYPE_CHECKING:
    from localspec.gguf_file.header import Header
    from localspec.llama.devices import Device
    from localspec.llama.model import LlamaModel
    from localspec.llama.model_options import LlamaOptions

logger = logging.getLogger(__name__)


class ProjectorError(Exception):
    """A projector that was only found cannot be opened beside the models, which could."""


class Sight(NamedTuple):
    """A projector for a target."""

    projector: Header

    is_named: bool
    """Whether it was asked for, not just found."""


def sees(model: str | os.PathLike[str] | Preset | None, arguments: LoadKeywords) -> bool:
    """Whether `load` would open a target with a projector. Raises what naming a model does."""
    named: dict[Role, Any] = {role: arguments.get(role) for role in get_args(Role)}
    found, _ = named_sources(model, named)
    target = found["target"]
    projector = found.get("mmproj")
    assert isinstance(target, Path)  # no command has a `Llama`
    assert projector is None or isinstance(projector, Path)
    ways = ways_to_see(arguments.get("mmproj"), projector, check_model_file(target))
    return ways[0] is not None


def ways_to_see(
    named: str | os.PathLike[str] | None, path: Path | None, target: Header | None
) -> list[Sight | None]:
    """The projectors to open a target with, in this order; None is none of them.

    A projector that was only found does not keep the models from loading.

    Args:
        named: the projector that was asked for.
        path: its file, or else the preset's; if there is neither, one in the target's folder
            counts.
        target: the header of the target; None for a `Llama`.

    Raises:
        ModelFileError: the projector that was asked for is another file.
        PairError: it is another model's.
        OptionError: the target is a `Llama`.
    """
    if named == NO_PROJECTOR:
        return [None]
    if path is None and target is not None:
        path = projector_beside(target)
    if path is None:
        return [None]
    if named is not None:
        return [Sight(_checked(path, target), is_named=True)]
    from localspec.llama.library import mtmd  # loads libllama

    try:
        mtmd()
        projector = _checked(path, target)
    except LocalspecError as error:
        warn_unused(path, error)
        return [None]
    logger.info("%s lets the model see images", path)
    return [Sight(projector, is_named=False), None]


def _checked(path: Path, target: Header | None) -> Header:
    """The header of a target's projector. Raises as `ways_to_see`."""
    header = checked_projector(path)
    require_free_of_position(header)
    if target is None:
        raise OptionError(
            "the target is a Llama object, which keeps its own settings",
            "Name its file instead, or leave mmproj out.",
        )
    require_projector_of(target, header)
    return header


def warn_unused(path: Path, fault: Exception) -> None:
    """Say why the models are loaded without a projector that was found."""
    logger.warning(
        '%s is not used: %s. mmproj="none" leaves it out without this warning.',
        path.name,
        fault,
    )


def has_room_on_gpu(header: Header, gpus: Sequence[Device]) -> bool:
    """Whether the first GPU, which libmtmd takes, has as much free memory as a projector needs.

    libmtmd ends the process where it has not; without a GPU it takes the processor by itself.

    Args:
        gpus: The GPUs as they are once the models are loaded.
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
    stack: contextlib.ExitStack,
) -> None:
    """Let the target read pictures, and a draft pass over them. options: of the target.

    Raises ModelFileError.

    Args:
        stack: Gets what closes the projector, which is closed before the models are.
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
    stack.callback(projector.close)
    # Now that the system has the file at hand.
    projector.content = content.digest() or os.urandom(16).hex()
    target.vision = projector
    if draft is not None:
        draft.is_blind = True
