"""Finds models on this machine: in a folder, with presets for them; without a preset; drafts.

A draft is a model that fits its target and is small enough to pay.
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
_MOST_READ = 32  # headers, the smallest files first: each takes up to half a second
_MOST_KEPT = 100  # paths of files that were used
_MAX_MANIFEST = 1 << 20  # bytes: Ollama's have some hundreds
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
    draft: Path | None
    mmproj: Path | None
    """The projector that is named with the model, as Ollama's manifests name one."""

    adapters: tuple[Path, ...]
    """The LoRA adapters that are named with the model, as Ollama's manifests name them."""

    why_no_draft: str
    """Why it has no draft, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderContent:
    """The models in a folder."""

    proposals: tuple[ProposedPreset, ...]
    known: dict[Path, str]
    """Targets of existing presets, with the presets' names."""

    skipped: dict[Path, str]
    """Files that cannot be used, with the reason."""


def search_folder(folder: Path) -> FolderContent:
    """The GGUF models in a folder and below, each with a draft if there is one.

    A split model is listed by its first part, a model of Ollama's by its manifest. Drafts are
    chosen as by `choose_draft`. Raises OptionError if it is not a folder.
    """
    if not os.path.isdir(folder):
        raise OptionError(f"{str(folder)!r} is not a folder", "Name one that holds GGUF files.")
    preset_names = _names_by_content()
    headers: dict[Path, Header] = {}
    new: list[_Named] = []
    known: dict[Path, str] = {}
    skipped: dict[Path, str] = {}
    seen: set[_Content] = set()
    paths: dict[Path, Path] = {}  # by content, which may have several names
    for found in _models_below(folder.absolute()):
        resolved = found.path.resolve()
        model = found._replace(path=paths.setdefault(resolved, found.path))
        adapters = tuple(adapter.resolve() for adapter in model.adapters)
        content = (resolved, adapters)
        if content in seen:
            continue
        seen.add(content)
        if model.path not in headers:
            try:
                header = check_model_file(model.path)
                check_target(header)
            except ModelFileError as error:
                skipped[model.path] = str(error)
                continue
            headers[model.path] = _without_copies(header, headers.values())
        if content in preset_names:
            known[model.path] = preset_names[content]
            continue
        misfits = _misfits(model, headers[model.path])
        skipped |= misfits
        if not misfits.keys().isdisjoint(model.adapters):
            continue  # without its adapter it would be another model
        if model.projector in misfits:
            model = model._replace(projector=None)
        new.append(model)
    proposals = tuple(_proposals(headers, new))
    return FolderContent(
        proposals=proposals,
        known=known,
        skipped=skipped,
    )


def _names_by_content() -> dict[_Content, str]:
    """The names of the presets whose target is a file of the user's own."""
    names = {}
    for preset in load_presets().values():
        if isinstance(preset.target, LocalModel):
            adapters = _contents(preset.adapter_models)
            names[preset.target.path.resolve(), adapters] = preset.name
    return names


def _without_copies(header: Header, others: Iterable[Header]) -> Header:
    """The header without its parts, and with the tokens of another header if they are equal.

    Models with the same tokenizer then share its tokens, which are large.
    """
    tokens = header.tokens
    for other in others:
        if other.tokens == tokens:
            tokens = other.tokens
            break
    return replace(header, tokens=tokens, parts=())


class DraftChoice(NamedTuple):
    """The model of a folder that could draft for another one."""

    path: Path | None
    """The smallest with its tokenizer; None if every model with it is as large."""

    why_not: str
    """Why this is no draft for it, in words; empty if it is one."""


class _Named(NamedTuple):
    """A model's file, and the other files that a manifest names with it."""

    path: Path
    name: str
    """The name in Ollama, or else the file's name without its ending."""

    projector: Path | None = None
    adapters: tuple[Path, ...] = ()


def _contents(models: Iterable[PresetModel]) -> tuple[Path, ...]:
    """The resolved paths of the user's own files among these models."""
    own = [model for model in models if isinstance(model, LocalModel)]
    return tuple(model.path.resolve() for model in own)


def _misfits(model: _Named, target: Header) -> dict[Path, str]:
    """The files named with a model that are not for it, and why."""
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


def _models_below(folder: Path) -> Iterator[_Named]:
    """Files of models in a folder and below, with the name of each."""
    for here, folders, files in os.walk(folder):
        folders.sort()
        for file in sorted(files):
            path = Path(here, file)
            if file.lower().endswith(".gguf") and _is_first_part(file):
                name = re.sub(r"-00001-of-\d{5}$", "", path.stem)
                yield _Named(path, name)
            elif "manifests" in path.parent.parts:
                yield from _in_manifest(path)


def _is_first_part(file: str) -> bool:
    """Whether a file of that name is a whole model, or the first part of a split one."""
    return all_parts(file)[0] == file


def _in_manifest(path: Path) -> Iterator[_Named]:
    """The model of one of Ollama's manifests: …/manifests/HOST/LIBRARY/NAME/TAG."""
    manifests = next(parent for parent in path.parents if parent.name == "manifests")
    blob_folder = manifests.parent / "blobs"
    blobs: dict[str, list[Path]] = {
        _OLLAMA_MODEL: [],
        _OLLAMA_PROJECTOR: [],
        _OLLAMA_ADAPTER: [],
    }
    try:
        if path.stat().st_size > _MAX_MANIFEST:
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
    for blob in blobs[_OLLAMA_MODEL]:
        yield _Named(blob, f"{path.parent.name}-{path.name}", projector, adapters)


def _proposals(headers: dict[Path, Header], new: Sequence[_Named]) -> Iterator[ProposedPreset]:
    names = {model.path: model.name for model in new}
    taken = set(load_presets())
    by_size = sorted(headers, key=lambda path: headers[path].weights_bytes)
    for model in new:
        target = headers[model.path]
        name = _free_name(model.name, taken)
        taken.add(name)
        others = [(path, headers[path]) for path in by_size if path != model.path]
        chosen = choose_draft(target, others, names)
        draft = chosen.path
        if chosen.why_not:
            draft = None
        yield ProposedPreset(
            name=name,
            target=model.path,
            size_bytes=target.weights_bytes,
            draft=draft,
            mmproj=model.projector,
            adapters=model.adapters,
            why_no_draft=chosen.why_not,
        )


def _free_name(name: str, taken: set[str]) -> str:
    """An unused preset name that resembles the file's."""
    plain = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._") or "model"
    number = 2
    free = plain
    while free in taken:
        free = f"{plain}-{number}"
        number += 1
    return free


def note_used(path: Path) -> None:
    """Keep the path of a file that was opened, if the disk is not full."""
    used = os.path.abspath(path)
    lines = [line for line in _used() if line != used]
    lines.append(used)
    with contextlib.suppress(OSError, UnicodeError):
        content = "\n".join(lines[-_MOST_KEPT:])
        make_private_folder(_used_file().parent)
        write_whole(_used_file(), content.encode(), durable=False)


def files_here() -> list[Path]:
    """Models without a preset: in this folder, used before, or where programs keep them.

    Each content is listed once.
    """
    folders = [HubCache().root]
    for folders_of_program in model_folders().values():
        folders += folders_of_program
    paths = []
    for folder in folders:
        paths += [model.path for model in _models_below(folder)]
    # By glob and os, since pathlib raises for folders that are gone and names too long.
    for name in sorted(glob.glob("*.gguf")):
        paths.append(Path(os.path.abspath(name)))
    paths += map(Path, _used())
    found = {}
    for path in paths:
        is_model = is_of_model(path.name) and _is_first_part(path.name)
        if is_model and os.path.isfile(path):
            found[path.resolve()] = path
    for state in list_models():
        for path in state.paths:
            found.pop(path.resolve(), None)
    return list(found.values())


def _used() -> list[str]:
    with contextlib.suppress(OSError, UnicodeError):
        return read_regular_text(_used_file()).splitlines()
    return []


def _used_file() -> Path:
    return user_cache_path("localspec", appauthor=False) / "used_files"


def choose_draft(
    target: Header,
    others: Iterable[tuple[Path, Header]],
    names: Mapping[Path, str],
) -> DraftChoice:
    """The smallest model with the target's tokenizer; a draft has at most a third of its size.

    Args:
        others: Models that could draft, ascending by size.
        names: What to call them.
    """
    for path, other in others:
        try:
            compare_vocabularies(target, other)
        except PairError:
            continue
        share = other.weights_bytes / target.weights_bytes
        if share <= LARGEST_SHARE:
            return DraftChoice(path, "")
        if share >= 1:
            break
        name = names.get(path, path.name)
        why_not = f"{name} has its tokenizer and {share:.0%} of its size, above a third"
        return DraftChoice(path, why_not)
    return DraftChoice(None, "no smaller model here has its tokenizer")


def compare_vocabularies(target: Header, draft: Header) -> SharedVocabulary:
    """The vocabulary that they share. Raises PairError if their tokenizers differ."""
    return shared_vocabulary(HeaderVocabulary(target), HeaderVocabulary(draft))


def size_warning(target: Header, draft: Header) -> str:
    """A sentence about a draft that is too large; empty if it is small enough."""
    share = draft.weights_bytes / target.weights_bytes
    if share <= LARGEST_SHARE:
        return ""
    names = f"{draft.path.name} drafts for {target.path.name}"
    if share > 1:
        return f"{names} and is larger: target and draft may have been swapped"
    return f"{names} and has {share:.0%} of its size: above a third drafting hardly pays"


def draft_here(target: Header) -> DraftChoice:
    """Find a draft for a target: a model of a preset, or a file in the target's folder.

    The choice is that of `choose_draft`; a target with a head that drafts needs none. Reads
    headers alone, and uses no network.
    """
    facts = head_facts(target)
    if facts is not None and not facts.why_not:
        return DraftChoice(None, "the target has a head")
    return choose_draft(target, _smaller_models(target), {})


def _smaller_models(target: Header) -> Iterator[tuple[Path, Header]]:
    """Models with fewer bytes than the target, ascending by size."""
    paths = _paths_of_presets()
    paths += target.path.parent.glob("*.gguf")
    small: dict[Path, tuple[int, Path]] = {}  # by content: bytes and path
    for path in paths:
        content = path.resolve()
        if content == target.path.resolve() or not _is_first_part(path.name):
            continue
        with contextlib.suppress(OSError):
            num_bytes = path.stat().st_size
            if num_bytes < target.weights_bytes:
                small[content] = (num_bytes, path)
    by_size = sorted(small.values())
    for _, path in by_size[:_MOST_READ]:
        with contextlib.suppress(ModelFileError):
            header = check_model_file(path)
            check_target(header)
            yield path, header


def _paths_of_presets() -> list[Path]:
    """The targets and drafts of presets that are on this machine.

    The demo's files are left out: that model knows only its own topics.
    """
    paths = []
    for preset in load_presets().values():
        for model in (preset.target, preset.draft):
            if model is None or isinstance(model, PackagedModel):
                continue
            if not missing_files(model):
                paths.append(path_of(model))
    return paths
