"""What is known of a projector before a pair is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from localspec.errors import LocalspecError, ModelFileError
from localspec.gguf_file.header import Header
from localspec.gguf_file.projector import require_free_of_place
from localspec.gguf_file.projector_check import (
    projector_beside,
    projector_facts,
    require_projector_of,
)
from localspec.presets.located import missing_files, path_of
from localspec.presets.model_header import FoundHeader, read_model_header
from localspec.presets.preset import LocalModel, PresetModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectorReport:
    """What lets the target see pictures.

    kind: llama.cpp's name of it, size_bytes: of its file; empty and 0 where that is damaged.
    misfit: why it cannot be the target's, or empty. is_named: whether it was asked for; `load`
    leaves out another one that cannot be the target's, which then sees nothing.
    """

    name: str
    is_here: bool
    kind: str
    size_bytes: int
    misfit: str
    is_named: bool


def found_projector(
    target: FoundHeader, model: PresetModel | None, *, is_named: bool
) -> tuple[ProjectorReport | None, Header | None]:
    """What is to be said of a projector, and its header if it is used.

    model: None for the one in the target's folder, if there is one. Raises ModelFileError for a
    file that was named and is none, DownloadError.
    """
    if model is None:
        path = projector_beside(target.header) if target.is_here else None
        if path is None:
            return None, None
        model = LocalModel(path=path)
    try:
        found = read_model_header(model, "mmproj")
    except ModelFileError as error:
        if is_named or missing_files(model) or not path_of(model).is_file():
            raise
        name = path_of(model).name
        return ProjectorReport(
            name=name, is_here=True, kind="", size_bytes=0, misfit=str(error), is_named=False
        ), None
    misfit = ""
    try:
        require_free_of_place(found.header)
        require_projector_of(target.header, found.header)
    except LocalspecError as error:
        misfit = str(error)
    report = ProjectorReport(
        name=found.header.path.name,
        is_here=found.is_here,
        kind=projector_facts(found.header).kind,
        size_bytes=found.size_bytes,
        misfit=misfit,
        is_named=is_named,
    )
    return report, None if misfit else found.header
