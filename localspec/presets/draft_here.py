"""Finds what could draft on this machine for a model that has no draft."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import LocalspecError, ModelFileError
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.head import check_target, head_facts
from localspec.gguf_file.header import Header
from localspec.hub.hub_file import all_parts
from localspec.presets.located import missing_files, path_of
from localspec.presets.pairing import LARGEST_SHARE, choose_draft
from localspec.presets.preset import PackagedModel
from localspec.presets.presets import load_presets
from localspec.speculative.shared_vocabulary import CommonTokens

_MOST_READ = 32  # headers, the smallest files first: each takes up to half a second


@dataclass(frozen=True, slots=True)
class DraftHere:
    """A model on this machine that could draft, and does not.

    common: what it has in common with the target, if their tokenizers differ.
    """

    path: Path
    common: CommonTokens | None


def draft_here(target: Header) -> DraftHere | None:
    """What could draft for a target: a model of a preset, or a file beside the target's own.

    Which one: see `choose_draft`. None if there is none that pays by its size, or the target
    has a head that drafts. Reads headers alone, and uses no network.
    """
    return _draft_here(target, _header)


def _draft_here(target: Header, read: Callable[[Path], Header]) -> DraftHere | None:
    facts = head_facts(target)
    if facts is not None and not facts.why_not:
        return None
    path, common, _ = choose_draft(target, _smaller_models(target, read), {})
    return None if path is None else DraftHere(path, common)


def drafts_for_presets() -> dict[str, DraftHere]:
    """What could draft, for each preset on this machine that has only a target."""
    found: dict[str, DraftHere] = {}
    read = functools.cache(_header)  # several may have the same neighbours
    for name, preset in load_presets().items():
        is_alone = preset.draft is None and preset.head is None
        if not is_alone or isinstance(preset.target, PackagedModel):
            continue
        try:
            if not missing_files(preset):
                here = _draft_here(read(path_of(preset.target)), read)
                found |= {} if here is None else {name: here}
        except LocalspecError:  # of which those are told who want to use it
            continue
    return found


def _smaller_models(
    target: Header, read: Callable[[Path], Header]
) -> Iterator[tuple[Path, Header]]:
    """Models that are small enough to draft for it, ascending by size."""
    most = LARGEST_SHARE * target.weights_bytes
    sizes = {}
    for path in (*_of_presets(), *_beside(target.path)):
        try:
            size = path.stat().st_size
        except OSError:
            continue
        if size <= most and path.resolve() != target.path.resolve():
            sizes[path.resolve()] = (size, path)
    for _, path in sorted(sizes.values())[:_MOST_READ]:
        try:
            yield path, read(path)
        except ModelFileError:
            continue


def _of_presets() -> Iterator[Path]:
    """Targets and drafts that are here, but for the demo's, which knows its own topics only."""
    for preset in load_presets().values():
        for model in (preset.target, preset.draft):
            if model is None or isinstance(model, PackagedModel) or missing_files(model):
                continue
            yield path_of(model)


def _beside(target: Path) -> Iterator[Path]:
    if not os.path.isdir(target.parent):  # it is not here yet
        return
    for name in os.listdir(target.parent):
        if name.lower().endswith(".gguf") and all_parts(name)[0] == name:
            yield target.with_name(name)


def _header(path: Path) -> Header:
    """Raises ModelFileError for a file that is no model for text."""
    header = check_model_file(path)
    check_target(header)
    return header
