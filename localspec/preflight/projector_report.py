"""What is known of a projector before a pair is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from localspec.errors import PairError
from localspec.gguf_file.header import Header
from localspec.gguf_file.projector_check import (
    projector_beside,
    projector_facts,
    require_projector_of,
)
from localspec.presets.model_header import FoundHeader, read_model_header
from localspec.presets.preset import LocalModel, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectorReport:
    """What lets the target see pictures.

    kind: llama.cpp's name of it. misfit: why it cannot be the target's, or empty.
    """

    name: str
    is_here: bool
    kind: str
    size_bytes: int
    misfit: str


def found_projector(found: dict[Role, FoundHeader]) -> FoundHeader | None:
    """The projector, taken out of what was found, or the one in the target's folder."""
    projector = found.pop("mmproj", None)
    if projector is not None or not found["target"].is_here:
        return projector
    path = projector_beside(found["target"].header)
    return None if path is None else read_model_header(LocalModel(path=path), "mmproj")


def projector_report(target: Header, projector: FoundHeader | None) -> ProjectorReport | None:
    """What is to be said of it, if there is one."""
    if projector is None:
        return None
    misfit = ""
    try:
        require_projector_of(target, projector.header)
    except PairError as error:
        misfit = str(error)
    return ProjectorReport(
        name=projector.header.path.name,
        is_here=projector.is_here,
        kind=projector_facts(projector.header).kind,
        size_bytes=projector.size_bytes,
        misfit=misfit,
    )
