"""Finds a draft for a model: one that fits it and is small enough to pay."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
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
from localspec.speculative.shared_vocabulary import (
    CommonTokens,
    SharedVocabulary,
    common_tokens,
    shared_vocabulary,
)

# Of the target's bytes. The more bytes a draft has, the more its tokens cost; with the usual
# acceptance little is gained once three of them cost as much as one token of the target.
LARGEST_SHARE = 1 / 3
# A draft with another tokenizer is right less often, so it has to cost less.
_LARGEST_TRANSLATED_SHARE = 1 / 6
_MOST_READ = 32  # headers, the smallest files first: each takes up to half a second


@dataclass(frozen=True, slots=True)
class DraftHere:
    """A model on this machine that could draft, and does not.

    common: what it has in common with the target, if their tokenizers differ.
    """

    path: Path
    common: CommonTokens | None


def choose_draft(
    target: Header, others: Iterable[tuple[Path, Header]], names: Mapping[Path, str]
) -> DraftHere | str:
    """The smallest model with the target's tokenizer, if it has at most a third of its size,
    or else the smallest with enough tokens in common and at most a sixth; why there is none.

    others: models that could draft, ascending by size. names: what to call them.
    """
    why_not, translated = "no other model here has its tokenizer", None
    for path, other in others:
        share = other.weights_bytes / target.weights_bytes
        if have_one_tokenizer(target, other):
            if share <= LARGEST_SHARE:
                return DraftHere(path, None)
            why_not = "it is the smallest here with its tokenizer"
            if share < 1:
                name = names.get(path, path.name)
                why_not = f"{name} has its tokenizer and {share:.0%} of its size, above a third"
            break
        if translated is None and share <= _LARGEST_TRANSLATED_SHARE:
            with contextlib.suppress(PairError):
                translated = DraftHere(path, _common(target, other))
    return translated or why_not


def have_one_tokenizer(target: Header, draft: Header) -> bool:
    """Whether their tokens have the same ids, but for a few."""
    try:
        shared_vocabulary(HeaderVocabulary(target), HeaderVocabulary(draft))
    except PairError:
        return False
    return True


def compare_vocabularies(target: Header, draft: Header) -> SharedVocabulary | CommonTokens:
    """The vocabulary that they share, or what two tokenizers have in common.

    Raises PairError if that is too little.
    """
    try:
        return shared_vocabulary(HeaderVocabulary(target), HeaderVocabulary(draft))
    except PairError:
        return _common(target, draft)


def _common(target: Header, draft: Header) -> CommonTokens:
    theirs, own = HeaderVocabulary(target), HeaderVocabulary(draft)
    return common_tokens(theirs.spelled_out(), own.spelled_out())


def size_warning(target: Header, draft: Header) -> str:
    """A sentence about a draft that is too large; empty if it is small enough."""
    share = draft.weights_bytes / target.weights_bytes
    if share <= LARGEST_SHARE:
        return ""
    names = f"{draft.path.name} drafts for {target.path.name}"
    if share > 1:
        return f"{names} and is larger: target and draft may have been swapped"
    return f"{names} and has {share:.0%} of its size: above a third drafting hardly pays"


def draft_here(target: Header) -> DraftHere | None:
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
