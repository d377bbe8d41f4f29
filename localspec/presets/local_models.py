"""Finds models on this machine: to make presets of, to use without a preset, and as drafts.

A draft is a model that has its target's tokenizer and is small enough to pay.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from platformdirs import user_cache_path

from localspec.errors import DAMAGES, ModelFileError, OptionError, PairError
from localspec.gguf_file.adapter import check_adapters, read_adapter
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.head_facts import check_target, head_facts
from localspec.gguf_file.header import Header
from localspec.gguf_file.header_vocabulary import HeaderVocabulary
from localspec.gguf_file.projector_facts import checked_projector, require_projector_of
from localspec.hub.hub_file import all_parts, is_of_model
from localspec.hub.model_stores import HubCache, model_folders
from localspec.presets.located import list_models, missing_files, path_of
from localspec.presets.presets import LocalModel, PackagedModel, PresetModel, load_presets
from localspec.speculative.shared_vocabulary import SharedVocabulary, shared_vocabulary
from localspec.system.atomic_write import make_private_folder, read_regular_text, write_whole

# Of the target's bytes. The more bytes a draft has, the more its tokens cost; with the usual
# acceptance little is gained once three of them cost as much as one token of the target.
LARGEST_SHARE = 1 / 3
_MAX_HEADERS_READ = 32  # in search of a draft: each takes up to half a second
_MAX_USED_PATHS = 100  # that are kept
_MAX_MANIFEST_BYTES = 1 << 20  # Ollama's have some hundreds
_OLLAMA_MODEL = "application/vnd.ollama.image.model"
_OLLAMA_PROJECTOR = "application/vnd.ollama.image.projector"
_OLLAMA_ADAPTER = "application/vnd.ollama.image.adapter"  # ADAPTER of a Modelfile
_Content = tuple[Path, tuple[Path, ...]]  # a model's file and its adapters, links resolved


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedPreset:
    """A preset that could be added: its name, and the files of its models."""

    name: str
    target: Path
    size_bytes: int
    """The bytes of the target's weights."""

    draft: Path | None
    mmproj: Path | None
    """The projector in the model's manifest, if the model is Ollama's and has one."""

    adapters: tuple[Path, ...]
    """The LoRA adapters in the model's manifest, if the model is Ollama's."""

    why_no_draft: str
    """Why the preset has no draft, in words; empty if it has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderContent:
    """The models in a folder and below."""

    proposals: tuple[ProposedPreset, ...]
    """A preset for each model that is the target of none."""

    known: dict[Path, str]
    """Targets of existing presets, with the presets' names."""

    skipped: dict[Path, str]
    """Files that cannot be used, with the reason."""


def search_folder(folder: Path) -> FolderContent:
    """The GGUF models in a folder and below, with a proposed preset for each new model.

    A split model is listed by its first part, a model of Ollama's by its manifest. Drafts are
    chosen as by `choose_draft`. Raises OptionError if `folder` is not a folder.
    """
    if not os.path.isdir(folder):
        raise OptionError(f"{str(folder)!r} is not a folder", "Name one that holds GGUF files.")
    preset_names = _presets_by_content()
    headers: dict[Path, Header] = {}
    new_models: list[_FolderModel] = []
    known: dict[Path, str] = {}
    skipped: dict[Path, str] = {}
    seen: set[_Content] = set()
    first_paths: dict[Path, Path] = {}  # of each file, which may have several names
    for model in _models_below(folder.absolute()):
        file = _real_path(model.path)
        path = first_paths.setdefault(file, model.path)
        adapters = tuple(_real_path(adapter) for adapter in model.adapters)
        content = (file, adapters)
        if content in seen:
            continue
        seen.add(content)
        if path not in headers:
            try:
                header = check_model_file(path)
                check_target(header)
            except ModelFileError as error:
                skipped[path] = str(error)
                continue
            headers[path] = _with_shared_tokens(header, headers.values())
        if content in preset_names:
            known[path] = preset_names[content]
            continue
        misfits = _misfits(model, headers[path])
        skipped |= misfits
        if any(adapter in misfits for adapter in model.adapters):
            continue  # without its adapter it would be another model
        projector = model.projector
        if projector in misfits:
            projector = None
        new_models.append(model._replace(path=path, projector=projector))
    proposals = tuple(_proposals(headers, new_models))
    return FolderContent(
        proposals=proposals,
        known=known,
        skipped=skipped,
    )


def _presets_by_content() -> dict[_Content, str]:
    """The names of the presets whose target is a file of the user's, by target and adapters."""
    names = {}
    for preset in load_presets().values():
        if isinstance(preset.target, LocalModel):
            adapters = _local_files(preset.adapter_models)
            content = (_real_path(preset.target.path), adapters)
            names[content] = preset.name
    return names


def _with_shared_tokens(header: Header, others: Iterable[Header]) -> Header:
    """The header without its parts, and with an equal token list of another header, if any.

    Models with the same tokenizer then share one list of tokens, which is large.
    """
    tokens = header.tokens
    for other in others:
        if other.tokens == tokens:
            tokens = other.tokens
            break
    return replace(header, tokens=tokens, parts=())


class DraftChoice(NamedTuple):
    """The model that could draft for a target, and whether it should."""

    path: Path | None
    """The smallest model with the target's tokenizer; None if no model smaller than the target
    has it, or if the target has a head."""

    why_not: str
    """Why no model drafts for the target, in words; empty if the model at `path` does."""


class _FolderModel(NamedTuple):
    """A model's file in a folder, and the other files in its manifest if it is Ollama's."""

    path: Path
    name: str
    """The name in Ollama, or else the file's name without its ending."""

    projector: Path | None = None
    adapters: tuple[Path, ...] = ()


def _local_files(models: Iterable[PresetModel]) -> tuple[Path, ...]:
    """The paths of the user's own files among these models, links resolved."""
    local = [model for model in models if isinstance(model, LocalModel)]
    return tuple(_real_path(model.path) for model in local)


def _misfits(model: _FolderModel, target: Header) -> dict[Path, str]:
    """The projector and adapters of a manifest that do not fit its model, each with the reason.

    Args:
        model: The model with its projector and adapters.
        target: The header of the model.
    """
    misfits = {}
    if model.projector is not None:
        try:
            require_projector_of(target, checked_projector(model.projector))
        except (ModelFileError, PairError) as error:
            misfits[model.projector] = str(error)
    for adapter in model.adapters:
        try:
            check_adapters([read_adapter(adapter)], target)
        except (ModelFileError, OptionError, PairError) as error:
            misfits[adapter] = str(error)
    return misfits


def _models_below(folder: Path) -> Iterator[_FolderModel]:
    """The models in a folder and below, in the order of their paths."""
    for parent, folders, files in os.walk(folder):
        folders.sort()  # os.walk visits them in this order
        for file in sorted(files):
            path = Path(parent, file)
            if file.lower().endswith(".gguf") and _is_first_part(file):
                name = re.sub(r"-00001-of-\d{5}$", "", path.stem)
                yield _FolderModel(path, name)
            elif "manifests" in path.parent.parts:
                yield from _models_in_manifest(path)


def _real_path(path: Path) -> Path:
    """The path with its links resolved. A link to itself is left as it is."""
    # `Path.resolve` raises RuntimeError for such a link before Python 3.13.
    return Path(os.path.realpath(path))


def _is_first_part(file: str) -> bool:
    """Whether a file of that name is a whole model, or the first part of a split model."""
    return all_parts(file)[0] == file


def _models_in_manifest(path: Path) -> Iterator[_FolderModel]:
    """The model in a manifest of Ollama's, …/manifests/HOST/LIBRARY/NAME/TAG.

    Gives nothing if the manifest is damaged or names no model.
    """
    manifests = next(parent for parent in path.parents if parent.name == "manifests")
    blob_folder = manifests.parent / "blobs"
    blobs: dict[str, list[Path]] = {
        _OLLAMA_MODEL: [],
        _OLLAMA_PROJECTOR: [],
        _OLLAMA_ADAPTER: [],
    }
    try:
        if path.stat().st_size > _MAX_MANIFEST_BYTES:
            return
        for layer in json.loads(read_regular_text(path))["layers"]:
            kind = layer["mediaType"]
            digest = str(layer["digest"])
            if kind in blobs and re.fullmatch("sha256:[0-9a-f]{64}", digest):
                blobs[kind].append(blob_folder / digest.replace(":", "-"))
    except DAMAGES:
        return
    projector = None
    if blobs[_OLLAMA_PROJECTOR]:
        projector = blobs[_OLLAMA_PROJECTOR][0]
    adapters = tuple(blobs[_OLLAMA_ADAPTER])
    name = f"{path.parent.name}-{path.name}"
    for blob in blobs[_OLLAMA_MODEL]:
        yield _FolderModel(blob, name, projector, adapters)


def _proposals(
    headers: dict[Path, Header],
    new_models: Sequence[_FolderModel],
) -> Iterator[ProposedPreset]:
    """A preset for each new model.

    Args:
        headers: The headers of all models in the folder, any of which may draft.
        new_models: The models that are the target of no preset.
    """
    model_names = {model.path: model.name for model in new_models}
    preset_names = set(load_presets())
    by_size = sorted(headers, key=lambda path: headers[path].weights_bytes)
    for model in new_models:
        target = headers[model.path]
        name = _free_name(model.name, preset_names)
        preset_names.add(name)
        candidates = [(path, headers[path]) for path in by_size if path != model.path]
        choice = choose_draft(target, candidates, model_names)
        draft = choice.path
        if choice.why_not:
            draft = None
        yield ProposedPreset(
            name=name,
            target=model.path,
            size_bytes=target.weights_bytes,
            draft=draft,
            mmproj=model.projector,
            adapters=model.adapters,
            why_no_draft=choice.why_not,
        )


def _free_name(model_name: str, preset_names: set[str]) -> str:
    """A name for a new preset that resembles the model's name, and that no preset has."""
    plain = re.sub(r"[^a-z0-9._-]+", "-", model_name.lower()).strip("-._") or "model"
    number = 2
    name = plain
    while name in preset_names:
        name = f"{plain}-{number}"
        number += 1
    return name


def note_used(path: Path) -> None:
    """Save the path of a file that was opened, for `files_here`.

    Nothing is saved if the disk is full or cannot be written.
    """
    used = os.path.abspath(path)
    paths = [other for other in _used_paths() if other != used]
    paths.append(used)
    latest = paths[-_MAX_USED_PATHS:]
    with contextlib.suppress(OSError, UnicodeError):
        content = "\n".join(latest)
        make_private_folder(_used_paths_file().parent)
        write_whole(_used_paths_file(), content.encode(), durable=False)


def files_here() -> list[Path]:
    """The paths of models on this machine that belong to no preset.

    Looks into the hub's cache, the folders of other programs and the current folder, and at
    files that were used before. Each file is listed once, even if it has several names.
    """
    folders = [HubCache().root]
    for program_folders in model_folders().values():
        folders += program_folders
    paths = []
    for folder in folders:
        paths += [model.path for model in _models_below(folder)]
    # By glob and os, since pathlib raises for folders that are gone and names too long.
    for name in sorted(glob.glob("*.gguf")):
        paths.append(Path(os.path.abspath(name)))
    paths += map(Path, _used_paths())
    by_file = {}
    for path in paths:
        is_model = is_of_model(path.name) and _is_first_part(path.name)
        if is_model and os.path.isfile(path):
            by_file[_real_path(path)] = path
    for state in list_models():
        for path in state.paths:
            by_file.pop(_real_path(path), None)
    return list(by_file.values())


def _used_paths() -> list[str]:
    """The paths of files that were opened, the latest last; empty if they cannot be read."""
    with contextlib.suppress(OSError, UnicodeError):
        return read_regular_text(_used_paths_file()).splitlines()
    return []


def _used_paths_file() -> Path:
    """The file in which `note_used` saves paths."""
    return user_cache_path("localspec", appauthor=False) / "used_files"


def choose_draft(
    target: Header,
    candidates: Iterable[tuple[Path, Header]],
    names: Mapping[Path, str],
) -> DraftChoice:
    """The smallest model with the target's tokenizer, and why not if it is too large to draft.

    A draft has at most a third of the target's bytes.

    Args:
        target: The target's header.
        candidates: Paths and headers of models that could draft, the smallest first.
        names: Names of models for `why_not`, by path; else the file's name.
    """
    for path, candidate in candidates:
        try:
            compare_vocabularies(target, candidate)
        except PairError:
            continue
        share = candidate.weights_bytes / target.weights_bytes
        if share <= LARGEST_SHARE:
            return DraftChoice(path, "")
        if share >= 1:
            break
        name = names.get(path, path.name)
        why_not = f"{name} has its tokenizer and {share:.0%} of its size, above a third"
        return DraftChoice(path, why_not)
    return DraftChoice(None, "no smaller model here has its tokenizer")


def compare_vocabularies(target: Header, draft: Header) -> SharedVocabulary:
    """The vocabulary that two models share. Raises PairError if their tokenizers differ."""
    return shared_vocabulary(HeaderVocabulary(target), HeaderVocabulary(draft))


def size_warning(target: Header, draft: Header) -> str:
    """A warning about a draft that is too large for its target; "" if it is small enough."""
    share = draft.weights_bytes / target.weights_bytes
    if share <= LARGEST_SHARE:
        return ""
    beginning = f"{draft.path.name} drafts for {target.path.name}"
    if share > 1:
        return f"{beginning} and is larger: target and draft may have been swapped"
    return f"{beginning} and has {share:.0%} of its size: above a third drafting hardly pays"


def draft_here(target: Header) -> DraftChoice:
    """The draft for a target, as `choose_draft` chooses it.

    Chooses from the models of presets and the files in the target's folder. A target with a
    head that can draft gets no draft. Reads only headers, and uses no network.
    """
    facts = head_facts(target)
    if facts is not None and not facts.why_not:
        return DraftChoice(None, "the target has a head")
    return choose_draft(target, _smaller_models(target), {})


def _smaller_models(target: Header) -> Iterator[tuple[Path, Header]]:
    """Paths and headers of models with fewer bytes than the target, the smallest first.

    At most _MAX_HEADERS_READ headers are read.
    """
    paths = _preset_model_paths()
    paths += target.path.parent.glob("*.gguf")
    sizes_and_paths: dict[Path, tuple[int, Path]] = {}  # by file, which may have several names
    for path in paths:
        file = _real_path(path)
        if file == _real_path(target.path) or not _is_first_part(path.name):
            continue
        with contextlib.suppress(OSError):
            num_bytes = 0
            for name in all_parts(path.name):
                num_bytes += path.with_name(name).stat().st_size
            if num_bytes < target.weights_bytes:
                sizes_and_paths[file] = (num_bytes, path)
    by_size = sorted(sizes_and_paths.values())
    for _, path in by_size[:_MAX_HEADERS_READ]:
        with contextlib.suppress(ModelFileError):
            header = check_model_file(path)
            check_target(header)
            yield path, header


def _preset_model_paths() -> list[Path]:
    """The paths of the targets and drafts of presets that are on this machine.

    Without files of Python packages; the demo's models, for one, know only their own topics.
    """
    paths = []
    for preset in load_presets().values():
        for model in (preset.target, preset.draft):
            if model is None or isinstance(model, PackagedModel):
                continue
            if not missing_files(model):
                paths.append(path_of(model))
    return paths
