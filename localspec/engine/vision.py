"""Finds and opens the projector with which an engine's target reads pictures."""

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
    """A projector cannot be opened for which the user did not ask. The models can."""


class ProjectorChoice(NamedTuple):
    """A projector for a target."""

    header: Header
    """The header of the projector's file."""

    is_named: bool
    """Whether the user asked for it; else it is the preset's, or lies beside the target."""


def sees(model: str | os.PathLike[str] | Preset | None, arguments: LoadKeywords) -> bool:
    """Whether `load` would open a target with a projector, so that it reads pictures.

    Raises what `named_sources` and `projectors_to_try` raise.

    Args:
        model: The first argument of `load`.
        arguments: Its other arguments.
    """
    named: dict[Role, Any] = {role: arguments.get(role) for role in get_args(Role)}
    located, _ = named_sources(model, named)
    target = located["target"]
    projector = located.get("mmproj")
    assert isinstance(target, Path)  # no command has a `Llama`
    assert projector is None or isinstance(projector, Path)
    target_header = check_model_file(target)
    choices = projectors_to_try(arguments.get("mmproj"), projector, target_header)
    return choices[0] is not None


def projectors_to_try(
    named: str | os.PathLike[str] | None,
    path: Path | None,
    target: Header | None,
) -> list[ProjectorChoice | None]:
    """The projectors to try, in this order; None stands for a target without a projector.

    None is the last one unless the user asked for a certain projector: a fault of one that was
    only found does not stop the models from loading.

    Args:
        named: The argument of `load`: the projector that the user asked for, "none", or None.
        path: The file of that projector, or else the preset's. If None, a file in the target's
            folder is taken.
        target: The header of the target; None for a `Llama`.

    Raises:
        ModelFileError: The projector that the user asked for is another kind of file.
        PairError: It belongs to another model.
        OptionError: Its target is a `Llama`.
    """
    if named == NO_PROJECTOR:
        return [None]
    if path is None and target is not None:
        path = projector_beside(target)
    if path is None:
        return [None]
    if named is not None:
        return [ProjectorChoice(_checked_header(path, target), is_named=True)]
    from localspec.llama.library import mtmd  # loads libllama

    try:
        mtmd()  # raises if libmtmd, which reads pictures, cannot be loaded
        header = _checked_header(path, target)
    except LocalspecError as error:
        warn_unused(path, error)
        return [None]
    logger.info("%s lets the model see images", path)
    return [ProjectorChoice(header, is_named=False), None]


def _checked_header(path: Path, target: Header | None) -> Header:
    """The header of a target's projector. Raises as `projectors_to_try`."""
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
    """Log why the models are loaded without a projector that was found."""
    logger.warning(
        '%s is not used: %s. mmproj="none" leaves it out without this warning.',
        path.name,
        fault,
    )


def has_room_on_gpu(header: Header, gpus: Sequence[Device]) -> bool:
    """Whether the first GPU, which libmtmd uses, has enough free memory for a projector.

    If it has not, libmtmd would end the process. True without a GPU: libmtmd then uses the
    processor.

    Args:
        header: The projector's header.
        gpus: The GPUs, after the models were loaded.
    """
    if not gpus:
        return True
    gpu = gpus[0]
    if gpu.total_bytes == 0:  # the driver does not say
        return True
    needed = projector_memory(header, 0)
    return gpu.free_bytes > needed.weights_bytes + needed.compute_bytes


def open_projector(
    header: Header,
    options: LlamaOptions,
    target: LlamaModel,
    draft: LlamaModel | None,
    stack: contextlib.ExitStack,
) -> None:
    """Open a projector, so that the target reads pictures. A draft passes over them.

    Raises ModelFileError, and OptionError.

    Args:
        header: The projector's header.
        options: The target's options.
        target: The target.
        draft: The draft, if any.
        stack: Closes the projector, before it closes the models.
    """
    from localspec.llama.projector import Projector  # loads libllama

    # Check again: the file may have changed, and libmtmd trusts it.
    header = checked_projector(header.path)
    content = FileContent(header)
    may_use_gpu = options.num_gpu_layers != 0
    use_gpu = may_use_gpu and has_room_on_gpu(header, free_memory().gpus)
    projector = Projector(
        header.path,
        target.handle,
        num_threads=target.num_threads,
        use_gpu=use_gpu,
    )
    stack.callback(projector.close)
    # Read now, while the system has the file in memory. Without a digest, random digits: no
    # other file has them.
    projector.content = content.digest() or os.urandom(16).hex()
    target.vision = projector
    if draft is not None:
        draft.is_blind = True
