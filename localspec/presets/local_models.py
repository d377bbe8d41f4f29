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
    presets = load_presets().values()
    targets = {
        (preset.target.path.resolve(), _contents(preset.adapter_models)): preset.name
        for preset in presets
        if isinstance(preset.target, LocalModel)
    }
    headers: dict[Path, Header] = {}
    new: list[_Named] = []
    known: dict[Path, str] = {}
    skipped: dict[Path, str] = {}
    seen: set[tuple[Path, tuple[Path, ...]]] = set()
    paths: dict[Path, Path] = {}  # by content, which may have several names
    for found in _models_below(folder.absolute()):
        content = found.path.resolve()
        one = found._replace(path=paths.setdefault(content, found.path))
        key = content, tuple(each.resolve() for each in one.adapters)
        if key in seen:
            continue
        seen.add(key)
        if one.path not in headers:
            try:
                header = check_model_file(one.path)
                check_target(header)
            except ModelFileError as error:
                skipped[one.path] = str(error)
                continue
            # Models of one tokenizer share its tokens, which are large.
            tokens = (each.tokens for each in headers.values() if each.tokens == header.tokens)
            headers[one.path] = replace(header, tokens=next(tokens, header.tokens), parts=())
        if key in targets:
            known[one.path] = targets[key]
            continue
        misfits = _misfits(one, headers[one.path])
        skipped |= misfits
        if not any(adapter in misfits for adapter in one.adapters):  # it would be another model
            new.append(one._replace(projector=None) if one.projector in misfits else one)
    proposals = tuple(_proposals(headers, new))
    return FolderContent(proposals=proposals, known=known, skipped=skipped)


class DraftChoice(NamedTuple):
    """The model of a folder that could draft for another one."""

    path: Path | None
    """The smallest with its tokenizer; None if every model with it is as large."""

    why_not: str
    """Why this is no draft for it, in words; empty if it is one."""


class _Named(NamedTuple):
    """A model's file, the name it has elsewhere, and what is named with it."""

    path: Path
    name: str
    projector: Path | None = None
    adapters: tuple[Path, ...] = ()


def _contents(models: Iterable[PresetModel]) -> tuple[Path, ...]:
    """The files of the user's own among these models."""
    return tuple(model.path.resolve() for model in models if isinstance(model, LocalModel))


def _misfits(one: _Named, target: Header) -> dict[Path, str]:
    """The files named with a model that are not for it, and why."""
    misfits = {}
    if one.projector is not None:
        try:
            require_projector_of(target, checked_projector(one.projector))
        except (ModelFileError, PairError) as error:
            misfits[one.projector] = str(error)
    for adapter in one.adapters:
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
            if file.lower().endswith(".gguf") and all_parts(file)[0] == file:
                yield _Named(path, re.sub(r"-00001-of-\d{5}$", "", path.stem))
            elif "manifests" in path.parent.parts:
                yield from _in_manifest(path)


def _in_manifest(path: Path) -> Iterator[_Named]:
    """The model of one of Ollama's manifests: …/manifests/HOST/LIBRARY/NAME/TAG."""
    root = next(each for each in path.parents if each.name == "manifests").parent
    try:
        if path.stat().st_size > _MAX_MANIFEST:
            return
        layers = json.loads(read_regular_text(path))["layers"]
        found = [(one["mediaType"], str(one["digest"])) for one in layers]
    except DAMAGES:
        return
    blobs: dict[str, list[Path]] = {
        _OLLAMA_MODEL: [],
        _OLLAMA_PROJECTOR: [],
        _OLLAMA_ADAPTER: [],
    }
    for kind, digest in found:
        if kind in blobs and re.fullmatch("sha256:[0-9a-f]{64}", digest):
            blobs[kind].append(root / "blobs" / digest.replace(":", "-"))
    projector = next(iter(blobs[_OLLAMA_PROJECTOR]), None)
    for blob in blobs[_OLLAMA_MODEL]:
        name = f"{path.parent.name}-{path.name}"
        yield _Named(blob, name, projector, tuple(blobs[_OLLAMA_ADAPTER]))


def _proposals(headers: dict[Path, Header], new: Sequence[_Named]) -> Iterator[ProposedPreset]:
    names = {one.path: one.name for one in new}
    taken = set(load_presets())
    by_size = sorted(headers.items(), key=lambda item: item[1].weights_bytes)
    for path, name, projector, adapters in new:
        target = headers[path]
        name = _free_name(name, taken)
        taken.add(name)
        others = ((other, one) for other, one in by_size if other != path)
        chosen = choose_draft(target, others, names)
        yield ProposedPreset(
            name=name,
            target=path,
            size_bytes=target.weights_bytes,
            draft=None if chosen.why_not else chosen.path,
            mmproj=projector,
            adapters=adapters,
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
    lines = [*(each for each in _used() if each != used), used]
    with contextlib.suppress(OSError, UnicodeError):
        content = "\n".join(lines[-_MOST_KEPT:])
        make_private_folder(_used_file().parent)
        write_whole(_used_file(), content.encode(), durable=False)


def files_here() -> list[Path]:
    """Models that were used, in this folder, or where programs keep them; each content once."""
    folders = [
        HubCache().root,
        *(one for several in model_folders().values() for one in several),
    ]
    deep = [one.path for folder in folders for one in _models_below(folder)]
    seen = {path.resolve() for state in list_models() for path in state.paths}
    # By glob and os, since pathlib raises for folders that are gone and names too long.
    shallow = [*map(os.path.abspath, sorted(glob.glob("*.gguf"))), *_used()]
    found = {
        path.resolve(): path
        for path in (*deep, *map(Path, shallow))
        if is_of_model(path.name)
        and all_parts(path.name)[0] == path.name
        and os.path.isfile(path)
    }
    return [path for content, path in found.items() if content not in seen]


def _used() -> list[str]:
    with contextlib.suppress(OSError, UnicodeError):
        return read_regular_text(_used_file()).splitlines()
    return []


def _used_file() -> Path:
    return user_cache_path("localspec", appauthor=False) / "used_files"


def choose_draft(
    target: Header, others: Iterable[tuple[Path, Header]], names: Mapping[Path, str]
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
    sizes = {}
    presets = load_presets().values()
    models = [model for preset in presets for model in (preset.target, preset.draft)]
    # But for the demo's, which knows its own topics only.
    files = [model for model in models if not isinstance(model, PackagedModel | None)]
    here = [path_of(file) for file in files if not missing_files(file)]
    for path in (*here, *target.path.parent.glob("*.gguf")):
        is_other = path.resolve() != target.path.resolve()
        if is_other and all_parts(path.name)[0] == path.name:
            with contextlib.suppress(OSError):
                sizes[path.resolve()] = (path.stat().st_size, path)
    small = sorted(each for each in sizes.values() if each[0] < target.weights_bytes)
    for _, path in small[:_MOST_READ]:
        with contextlib.suppress(ModelFileError):
            header = check_model_file(path)
            check_target(header)
            yield path, header
