"""The ways to name a model: a preset or alias, a path, and files on the hub.

On the hub: hf:owner/repo/file.gguf, hf:owner/repo@revision/file.gguf, owner/repo:QUANT.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from localspec.errors import OptionError, PresetError
from localspec.hub.hub_file import (
    HEAD_SIGN,
    PROJECTOR_SIGN,
    HubFile,
    HubModel,
    all_parts,
    is_repo,
)
from localspec.presets.preset import LocalModel, Preset, PresetModel, Role
from localspec.presets.presets import (
    DEFAULT_PRESET,
    find_preset,
    load_presets,
    no_such_preset,
    stands_for,
)

_SEPARATOR = re.compile(r"[/\\]")
_QUANTIZED = re.compile(r"(?:hf:)?([^/:\\]+/[^/:\\]+):([A-Za-z0-9_.-]+)")


@dataclass(frozen=True, slots=True)
class Quantized:
    """The model of a repository in one quantisation; the repository's list says which file.

    quantization: with "mtp-" in front, it means the model's head, with "mmproj-" its projector.
    """

    repo: str
    quantization: str


class Choice(NamedTuple):
    """A preset, or a target as for `localspec.load`; neither means the demo pair."""

    preset: str | None
    target: str | None


def choose(name: str, *, is_target: bool) -> Choice:
    """The meaning of MODEL on the command line, and of the first argument of `load`.

    A preset's name comes before a path: ./name is the file. is_target: a draft or a head is
    named, too, so a preset's name means its target. Raises OptionError for a preset that
    embeds, and what `parse_source` does.
    """
    meant = stands_for(name) if isinstance(name, str) else name
    presets = load_presets()
    if isinstance(meant, str) and meant in presets and not is_target:
        if presets[meant].embeds:
            raise OptionError(
                f"{meant} turns texts into vectors, and answers nothing",
                "Open it with load_embedder, or give it to a server for embeddings.",
            )
        return Choice(meant, None)
    parse_source(meant, "target")
    return Choice(None, meant)


def chosen_pair(model: object, named: Mapping[Role, Any]) -> tuple[Preset | None, Any]:
    """The preset, or else the target, that the first argument of `load` means.

    named: the models that are given by their roles. Without any model it is the demo pair.
    Raises OptionError for a draft or a head without a target, or two targets, and what `choose`
    does.
    """
    target = named["target"]
    helper = next((role for role in ("draft", "head") if named.get(role) is not None), None)
    if target is not None:
        if model is not None:
            raise OptionError("both a preset and a target are given", "Choose one of them.")
        return None, target
    if isinstance(model, str):
        choice = choose(model, is_target=helper is not None)
        return None if choice.preset is None else find_preset(choice.preset), choice.target
    if model is not None and not isinstance(model, Preset):
        return None, model
    if helper is not None:
        raise OptionError(f"a {helper} is given without a target", "Name the target, too.")
    return find_preset(DEFAULT_PRESET) if model is None else model, None


def parse_source(text: str | os.PathLike[str], role: Role) -> PresetModel | Quantized:
    """The model that a name means.

    A path that exists is a path, and so is any other name unless it looks like a preset's.
    role: which model of a preset its name stands for. Raises OptionError for a name that is not
    a string and for hf: without a file, PresetError for a preset that has no such model,
    UnknownPresetError for an unknown name.
    """
    if isinstance(text, os.PathLike) and isinstance(os.fspath(text), str):
        return LocalModel(path=Path(text))
    if not isinstance(text, str):
        raise OptionError(
            f"{text!r} does not name a model",
            "Give a string: a preset, a path, hf:owner/repo/file.gguf or owner/repo:Q4_K_M.",
        )
    if os.path.exists(_expanded(text)):
        return LocalModel(path=_expanded(text))
    presets, text = load_presets(), stands_for(text)
    if text in presets:
        model = presets[text].by_role().get(role)
        if model is None:
            inside = "; one inside the target's file needs none" if role == "head" else ""
            raise PresetError(
                f"preset {text!r} has no {role}", f"Name the {role}'s file{inside}."
            )
        return model
    named = _QUANTIZED.fullmatch(text)
    if named and is_repo(named[1]):
        sign = {"head": HEAD_SIGN, "mmproj": PROJECTOR_SIGN}.get(role, "")
        return Quantized(named[1], sign + named[2].removeprefix(sign))
    return _hub_model(text) if text.startswith("hf:") else _absent_path(text)


def _absent_path(text: str) -> LocalModel:
    """The path of a missing file. Raises OptionError if it looks like another name."""
    if not text.lower().endswith(".gguf"):
        if not _SEPARATOR.search(text):
            raise no_such_preset(text)
        if is_repo(text):
            raise OptionError(
                f"there is no path {text!r}, and as a repository it names no file",
                f"Add the quantisation, as in {text}:Q4_K_M.",
            )
    return LocalModel(path=_expanded(text))


def _hub_model(text: str) -> HubModel:
    """The model of hf:owner/repo/file.gguf. Raises OptionError if that names no file."""
    owner, _, rest = text.removeprefix("hf:").partition("/")
    place, _, file = rest.partition("/")
    name, at, revision = place.partition("@")
    if not file:
        raise OptionError(
            f"{text!r} names no file", "Write hf:owner/repo/file.gguf or owner/repo:Q4_K_M."
        )
    repo = f"{owner}/{name}"
    return HubModel(
        files=tuple(
            HubFile(repo=repo, file=part, revision=revision if at else None)
            for part in all_parts(file)
        )
    )


def _expanded(path: str) -> Path:
    """The path with ~ expanded: not all shells expand it after an option's =."""
    return Path(os.path.expanduser(path))  # Path.expanduser raises for ~nobody
