"""Finds a draft for a model: one that fits it and is small enough to pay."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from localspec.errors import ModelFileError, PairError
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.head import check_target, head_facts
from localspec.gguf_file.header import Header
from localspec.gguf_file.header_vocabulary import HeaderVocabulary
from localspec.hub.hub_file import all_parts
from localspec.presets.located import missing_files, path_of
from localspec.presets.preset import PackagedModel
from localspec.presets.presets import load_presets
from localspec.speculative.shared_vocabulary import SharedVocabulary, shared_vocabulary

# Of the target's bytes. The more bytes a draft has, the more its tokens cost; with the usual
# acceptance little is gained once three of them cost as much as one token of the target.
LARGEST_SHARE = 1 / 3
_MOST_READ = 32  # headers, the smallest files first: each takes up to half a second


def choose_draft(
    target: Header, others: Iterable[tuple[Path, Header]], names: Mapping[Path, str]
) -> Path | str:
    """The smallest model with the target's tokenizer, if it has at most a third of its size;
    why there is none.

    others: models that could draft, ascending by size. names: what to call them.
    """
    for path, other in others:
        try:
            compare_vocabularies(target, other)
        except PairError:
            continue
        share = other.weights_bytes / target.weights_bytes
        if share <= LARGEST_SHARE:
            return path
        if share >= 1:
            return "it is the smallest here with its tokenizer"
        name = names.get(path, path.name)
        return f"{name} has its tokenizer and {share:.0%} of its size, above a third"
    return "no other model here has its tokenizer"


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


def draft_here(target: Header) -> Path | None:
    """Find a draft for a target: a model of a preset, or a file in the target's folder.

    The choice is that of `choose_draft`. None if no model pays by its size, or the target has a
    head that drafts. Reads headers alone, and uses no network.
    """
    facts = head_facts(target)
    if facts is not None and not facts.why_not:
        return None
    chosen = choose_draft(target, _smaller_models(target), {})
    return None if isinstance(chosen, str) else chosen


def _smaller_models(target: Header) -> Iterator[tuple[Path, Header]]:
    """Models that are small enough to draft for it, ascending by size."""
    most = LARGEST_SHARE * target.weights_bytes
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
    small = sorted(each for each in sizes.values() if each[0] <= most)
    for _, path in small[:_MOST_READ]:
        with contextlib.suppress(ModelFileError):
            header = check_model_file(path)
            check_target(header)
            yield path, header
