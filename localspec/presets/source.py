"""The ways to name a model: a preset or alias, a path, files on the hub, and the default.

On the hub: hf:owner/repo/file.gguf, hf:owner/repo@revision/file.gguf, owner/repo:QUANT.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from localspec.errors import LocalspecError, OptionError, PresetError
from localspec.gguf_file.check import check_model_file
from localspec.hub.hub_file import (
    HEAD_SIGN,
    PROJECTOR_SIGN,
    HubFile,
    HubModel,
    all_parts,
    is_repo,
)
from localspec.presets.presets import (
    DEFAULT_PRESET,
    LocalModel,
    Names,
    Preset,
    PresetModel,
    Role,
    change_names,
    check_free,
    find_preset,
    load_presets,
    names_file,
    no_such_preset,
    read_names,
    stands_for,
)

VARIABLE = "LOCALSPEC_MODEL"

_SEPARATOR = re.compile(r"[/\\]")
_HUB_FILE = re.compile(r"hf:([^/@]*/[^/@]*)(?:@([^/]*))?/(.+)", re.DOTALL)
_QUANTIZED = re.compile(r"(?:hf:)?([^/:\\]+/[^/:\\]+):([A-Za-z0-9_.-]+)")


@dataclass(frozen=True, slots=True)
class Quantized:
    """The model of a repository in one quantisation; the repository's list says which file.

    quantization: with "mtp-" in front, it means the model's head, with "mmproj-" its projector.
    """

    repo: str
    quantization: str


def choose(name: str, *, is_target: bool) -> tuple[Preset | None, str | None]:
    """The preset, or else the target, that the first argument of `load` means.

    A preset's name comes before a path: ./name is the file. is_target: a draft or a head is
    named, too, so a preset's name means its target. Raises OptionError for a preset that
    embeds, and what `parse_source` does.
    """
    meant = stands_for(name)
    preset = load_presets().get(meant)
    if preset is None or is_target:
        parse_source(meant, "target")
        return None, meant
    if preset.embeds:
        raise OptionError(
            f"{meant} turns texts into vectors, and answers nothing",
            "Open it with load_embedder, or give it to a server for embeddings.",
        )
    return preset, None


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
        return choose(model, is_target=helper is not None)
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
    if not text.startswith("hf:"):
        return _absent_path(text)
    named = _HUB_FILE.fullmatch(text)
    if named is None:
        raise OptionError(
            f"{text!r} names no file", "Write hf:owner/repo/file.gguf or owner/repo:Q4_K_M."
        )
    repo, revision, file = named.groups()
    parts = (HubFile(repo=repo, file=part, revision=revision) for part in all_parts(file))
    return HubModel(files=tuple(parts))


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


def _expanded(path: str) -> Path:
    """The path with ~ expanded: not all shells expand it after an option's =."""
    return Path(os.path.expanduser(path))  # Path.expanduser raises for ~nobody


class Named(NamedTuple):
    """The model that is used if none is named, where that is set, and how to change it."""

    name: str
    origin: str
    remedy: str


def choose_model(
    model: str | None, preset: str | None, target: str | None, *, is_target: bool
) -> str | None:
    """The first argument of `load` that MODEL, --preset or --target stands for.

    is_target: a draft or a head is named, so a preset's name means its target. If nothing is
    named, the environment counts, and then the saved default; None means the demo pair, or
    the target. Raises OptionError if two are named, and what `choose` raises.
    """
    ways = {"MODEL": model, "--preset": preset, "--target": target}
    named = [f"{way} ({text})" for way, text in ways.items() if text is not None]
    if len(named) > 1:
        raise OptionError(f"{' and '.join(named)} are named", "Name one of them.")
    if model is not None:
        choose(model, is_target=is_target)
        return stands_for(model)
    usual = None if named or is_target else usual_model()
    if usual is None:
        return preset
    try:
        choose(usual.name, is_target=False)
    except LocalspecError as error:
        hint = f"{usual.remedy} {error.hint}"
        raise type(error)(f"{usual.origin}: {error}", hint) from error
    return stands_for(usual.name)


def usual_model() -> Named | None:
    """The default model's name; None means the demo pair.

    Raises PresetError if the file of names is malformed.
    """
    if chosen := os.environ.get(VARIABLE):
        return Named(chosen, VARIABLE, "Set it to another name, or unset it.")
    default = read_names().default
    if default is None:
        return None
    remedy = "Choose another: localspec models default NAME, or --clear."
    return Named(default, f"the default of {names_file()}", remedy)


def set_default(name: str | None) -> None:
    """Save the default model's name; None for the demo pair.

    Raises what `choose` raises, ModelFileError for a file without a model, PresetError if the
    file of names is malformed.
    """
    meant = None if name is None else _lasting(name)
    change_names(lambda names: replace(names, default=meant))


def set_alias(alias: str, name: str) -> str:
    """Let a short name stand for a preset or a model; returns what it stands for.

    Raises OptionError for an invalid name, PresetError if it is a preset's, and what
    `set_default` raises.
    """
    check_free(alias, is_alias=True)
    meant = stands_for(_lasting(name))
    change_names(lambda names: replace(names, aliases={**names.aliases, alias: meant}))
    return meant


def drop_alias(alias: str) -> None:
    """Forget an alias; a default that used it stays the same model.

    Raises OptionError if there is none, PresetError as `set_default`.
    """

    def without(names: Names) -> Names:
        if alias not in names.aliases:
            known = ", ".join(names.aliases) or "none"
            raise OptionError(f"there is no alias {alias!r}", f"There are: {known}.")
        left = {name: meant for name, meant in names.aliases.items() if name != alias}
        is_default = names.default == alias
        return Names(names.aliases[alias] if is_default else names.default, left)

    change_names(without)


def _lasting(name: str) -> str:
    """The name as it is saved: a path becomes absolute."""
    _, target = choose(name, is_target=False)
    model = None if target is None else parse_source(target, "target")
    if not isinstance(model, LocalModel):
        return name
    check_model_file(model.path)
    return os.path.abspath(model.path)
