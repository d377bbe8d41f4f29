"""Reads the header of a model, wherever its files are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from localspec.gguf_file.check import check_embedder_file, check_model_file, check_parts
from localspec.gguf_file.head import head_facts
from localspec.gguf_file.header import Header, read_source_header
from localspec.gguf_file.projector import check_projector, checked_projector
from localspec.hub.api import find_quantization, remote_file
from localspec.hub.hub_file import HubModel
from localspec.hub.transfer import RemoteSource
from localspec.presets.located import cached_quantization, missing_files, path_of
from localspec.presets.preset import PresetModel, Role
from localspec.presets.source import Quantized, parse_source


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundHeader:
    """A model's header, and the size of its files. is_here: they need no download."""

    header: Header
    size_bytes: int
    is_here: bool


def read_model_header(
    model: PresetModel, role: Role = "target", *, embeds: bool = False
) -> FoundHeader:
    """Read the header of a model, or a projector; of files on the hub nothing else is fetched.

    embeds: whether it may be an embedder. Raises ModelFileError or
    DownloadError.
    """
    if isinstance(model, HubModel) and missing_files(model):
        remotes = [remote_file(file) for file in model.files]
        parts = [read_source_header(RemoteSource(remote)) for remote in remotes]
        size = sum(remote.size_bytes for remote in remotes)
        if role == "mmproj":
            check_projector(header := parts[0])
        else:
            header = check_parts(parts, embeds=embeds)
        return FoundHeader(header=header, size_bytes=size, is_here=False)
    header = (
        check_embedder_file(path_of(model)) if embeds else role_header(path_of(model), role)
    )
    # The later parts of a split model hold hardly more than weights.
    return FoundHeader(
        header=header, size_bytes=max(header.size_bytes, header.weights_bytes), is_here=True
    )


def role_header(path: Path, role: Role) -> Header:
    """The header of a file that is to be a model, or a projector. Raises ModelFileError."""
    return checked_projector(path) if role == "mmproj" else check_model_file(path)


def find_model(text: str | os.PathLike[str], role: Role) -> PresetModel:
    """The model that a user names in any of the ways of `presets.source`.

    Asks the hub which file owner/repo:QUANT is, unless it is here. Raises PresetError,
    OptionError or DownloadError.
    """
    named = parse_source(text, role)
    if not isinstance(named, Quantized):
        return named
    here = cached_quantization(named)
    return here or HubModel(files=tuple(find_quantization(named.repo, named.quantization)))


def read_model_headers(models: Mapping[Role, PresetModel]) -> dict[Role, FoundHeader]:
    """`read_model_header` of each; a head that was given as a draft is under its own role."""
    found = {role: read_model_header(model, role) for role, model in models.items()}
    draft = found.get("draft")
    facts = None if draft is None else head_facts(draft.header)
    if draft is not None and facts is not None and facts.is_apart and "head" not in found:
        found = {**found, "head": draft}
        del found["draft"]
    return found
