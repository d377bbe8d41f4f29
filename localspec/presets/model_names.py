"""Finds out which model a name means: a preset or alias, a path, or files on the hub.

Names of the hub: hf:owner/repo/file.gguf, hf:owner/repo@revision/file.gguf, owner/repo:QUANT.
Here are, too, the default model and the aliases that the user sets.
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
from localspec.gguf_file.projector_facts import NO_PROJECTOR
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
    resolve_alias,
)

VARIABLE = "LOCALSPEC_MODEL"  # in the environment: the name of the default model

_SEPARATOR = re.compile(r"[/\\]")
# hf:owner/repo/file.gguf or hf:owner/repo@revision/file.gguf
_HUB_FILE = re.compile(r"hf:([^/@]*/[^/@]*)(?:@([^/]*))?/(.+)", re.DOTALL)
# owner/repo:QUANT or hf:owner/repo:QUANT
_QUANTIZED = re.compile(r"(?:hf:)?([^/:\\]+/[^/:\\]+):([A-Za-z0-9_.-]+)")
# What stands before a quantization to mean a file of that role.
_ROLE_SIGNS: dict[Role, str] = {"head": HEAD_SIGN, "mmproj": PROJECTOR_SIGN}


@dataclass(frozen=True, slots=True)
class Quantized:
    """The model of a repository in one quantization, whose file names are not known yet.

    `choose_quantization` finds them in the list of the repository's files.
    """

    repo: str
    quantization: str
    """The quantization. With "mtp-" in front, it means the model's head, with "mmproj-" its
    projector."""

    @property
    def name(self) -> str:
        """The model's name, as commands take it."""
        return f"{self.repo}:{self.quantization}"


@dataclass(frozen=True, slots=True)
class Resolved:
    """The meaning of a name."""

    name: str
    """The name itself; of an alias, the name that it stands for."""

    preset: Preset | None
    """The preset of that name; None if the name is no preset's."""

    model: PresetModel | Quantized
    """The model of that name; of a preset, its model in the role that was asked for."""


def resolve(name: str | os.PathLike[str], role: Role = "target") -> Resolved:
    """Find out what a name means.

    A `Path` is a path. A text is the first of these that it can be:

    1. the name of a preset; the model is the preset's in that role
    2. an alias; then the name that it stands for counts
    3. a path that exists (./name if `name` alone is a preset or an alias)
    4. a name on the hub
    5. the path of a file that is missing

    Args:
        name: The name.
        role: What the model is for.

    Raises:
        OptionError: The name is not a string, or is an incomplete name on the hub.
        PresetError: The preset has no model in that role, or a file of the user's, which may
            have the name, is malformed.
        UnknownPresetError: Nothing has that name.
    """
    if isinstance(name, os.PathLike) and isinstance(os.fspath(name), str):
        return Resolved(os.fspath(name), None, LocalModel(path=Path(name)))
    if not isinstance(name, str):
        raise OptionError(
            f"{name!r} does not name a model",
            "Give a string: a preset, a path, hf:owner/repo/file.gguf or owner/repo:Q4_K_M.",
        )
    name = resolve_alias(name)
    preset = load_presets().get(name)
    if preset is not None:
        return Resolved(name, preset, _preset_model(preset, role))
    path = Path(os.path.expanduser(name))  # Path.expanduser raises for ~nobody
    if os.path.exists(path):
        return Resolved(name, None, LocalModel(path=path))
    hub_model = _hub_model(name, role)
    if hub_model is not None:
        return Resolved(name, None, hub_model)
    _require_path_of_file(name)
    return Resolved(name, None, LocalModel(path=path))


def _preset_model(preset: Preset, role: Role) -> PresetModel:
    """The preset's model in that role. Raises PresetError if it has none."""
    model: PresetModel | None = getattr(preset, role)
    if model is not None:
        return model
    hint = f"Name the {role}'s file."
    if role == "head":
        hint = "Name the head's file; one inside the target's file needs none."
    raise PresetError(f"preset {preset.name!r} has no {role}", hint)


def _hub_model(name: str, role: Role) -> HubModel | Quantized | None:
    """The model that a name of the hub means; None for a name of another form.

    Raises OptionError for a name that begins with hf: and does not name a file.
    """
    quantized = _QUANTIZED.fullmatch(name)
    if quantized and is_repo(quantized[1]):
        sign = _ROLE_SIGNS.get(role, "")
        quantization = quantized[2].removeprefix(sign)
        return Quantized(quantized[1], sign + quantization)
    if not name.startswith("hf:"):
        return None
    hub_file = _HUB_FILE.fullmatch(name)
    if hub_file is None:
        raise OptionError(
            f"{name!r} does not name a file",
            "Write hf:owner/repo/file.gguf or owner/repo:Q4_K_M.",
        )
    repo, revision, file = hub_file.groups()
    files = []
    for part in all_parts(file):
        files.append(
            HubFile(
                repo=repo,
                file=part,
                revision=revision,
            )
        )
    return HubModel(files=tuple(files))


def _require_path_of_file(name: str) -> None:
    """Raise the error for a name that means nothing here, unless it may be a file's path.

    Raises:
        PresetError: The name is no path at all: the error of `no_such_preset`.
        OptionError: The name is a repository's, without a file or quantization.
    """
    if name.lower().endswith(".gguf"):
        return
    if not _SEPARATOR.search(name):
        raise no_such_preset(name)
    if is_repo(name):
        raise OptionError(
            f"there is no path {name!r}, and if it is a repository, it does not say which file",
            f"Add the quantisation, as in {name}:Q4_K_M.",
        )


def resolve_answering(name: str) -> Resolved:
    """The meaning of the name of a model that is to answer.

    Raises OptionError for the preset of an embedding model, and what `resolve` raises.
    """
    resolved = resolve(name)
    if resolved.preset is not None and resolved.preset.embeds:
        raise OptionError(
            f"{resolved.name} is an embedding model and cannot answer questions",
            "Open it with load_embedder, or give it to a server for embeddings.",
        )
    return resolved


def resolve_pair(
    model: object,
    named: Mapping[Role, Any],
) -> tuple[Preset | None, dict[Role, Any]]:
    """The preset that the arguments of `load` mean, and the models that replace its own.

    If no target is named, the preset is the demo pair. If a model is named that is no preset,
    the first result is None, and the second one has all models. A projector named "none" is
    left out.

    Args:
        model: The first argument of `load`. With a draft or a head, a preset's name means only
            its target.
        named: The argument for each role; None if it is not given.

    Raises:
        OptionError: A draft or a head is given without a target, or two targets are given.
        LocalspecError: As `resolve_answering`.
    """
    models = {role: argument for role, argument in named.items() if argument is not None}
    if models.get("mmproj") == NO_PROJECTOR:
        del models["mmproj"]
    drafter = None
    if "draft" in models:
        drafter = "draft"
    elif "head" in models:
        drafter = "head"
    if "target" in models:
        if model is not None:
            raise OptionError("both a preset and a target are given", "Choose one of them.")
        return None, models
    if model is None or isinstance(model, Preset):
        if drafter is not None:
            raise OptionError(f"a {drafter} is given without a target", "Name the target, too.")
        return model or find_preset(DEFAULT_PRESET), models
    if isinstance(model, str) and drafter is None:
        preset = resolve_answering(model).preset
        if preset is not None:
            return preset, models
    return None, {"target": model, **models}


class DefaultModel(NamedTuple):
    """The model that is used if none is named."""

    name: str
    origin: str
    """Where the default is set, in words."""

    remedy: str
    """How to change the default: the first sentence of an error's hint."""


def choose_model(
    model: str | None,
    preset: str | None,
    target: str | None,
    *,
    is_target: bool,
) -> str | None:
    """The first argument of `load` for a command's MODEL, --preset and --target.

    If none of them is given, it is the default model. None means the demo pair, or that `load`
    takes the model from its argument `target`.

    Args:
        model, preset, target: The command's values; None for each that was not given.
        is_target: Whether MODEL can only be a target, since a draft or a head is given.

    Raises:
        OptionError: Two of them are given, and as `resolve_answering`.
    """
    given = []
    for option, value in (("MODEL", model), ("--preset", preset), ("--target", target)):
        if value is not None:
            given.append(f"{option} ({value})")
    if len(given) > 1:
        raise OptionError(f"{' and '.join(given)} are named", "Name one of them.")
    if model is not None:
        if is_target:
            return resolve(model).name
        return resolve_answering(model).name
    if given or is_target:
        return preset
    default = default_model()
    if default is None:
        return None
    try:
        return resolve_answering(default.name).name
    except LocalspecError as error:
        hint = f"{default.remedy} {error.hint}"
        raise type(error)(f"{default.origin}: {error}", hint) from error


def default_model() -> DefaultModel | None:
    """The default model, from the environment or else as saved; None means the demo pair.

    Raises PresetError if the file of names is malformed.
    """
    name = os.environ.get(VARIABLE)
    if name:
        return DefaultModel(name, VARIABLE, "Set it to another name, or unset it.")
    name = read_names().default
    if name is None:
        return None
    remedy = "Choose another: localspec models default NAME, or --clear."
    return DefaultModel(name, f"the default of {names_file()}", remedy)


def set_default(name: str | None) -> None:
    """Save the default model's name; None for the demo pair.

    The path of a file is saved as an absolute path. Raises what `resolve_answering` raises,
    ModelFileError if the named file is not a model, and PresetError if the file of names is
    malformed.
    """
    default = None
    if name is not None:
        default = _name_to_save(name)

    def with_default(names: Names) -> Names:
        return replace(names, default=default)

    change_names(with_default)


def set_alias(alias: str, name: str) -> str:
    """Let a short name stand for a preset or a model, and return the name that it stands for.

    Raises OptionError for an invalid alias, PresetError if it is a preset's name, and what
    `set_default` raises.
    """
    check_free(alias, is_alias=True)
    model_name = resolve_alias(_name_to_save(name))

    def with_alias(names: Names) -> Names:
        return replace(names, aliases={**names.aliases, alias: model_name})

    change_names(with_alias)
    return model_name


def drop_alias(alias: str) -> None:
    """Remove an alias. If the default is the alias, the default becomes what it stood for.

    Raises OptionError if there is no such alias, and PresetError if the file of names is
    malformed.
    """

    def without_alias(names: Names) -> Names:
        if alias not in names.aliases:
            known = ", ".join(names.aliases) or "none"
            raise OptionError(f"there is no alias {alias!r}", f"Known aliases: {known}.")
        aliases = dict(names.aliases)
        model_name = aliases.pop(alias)
        default = names.default
        if default == alias:
            default = model_name
        return Names(default, aliases)

    change_names(without_alias)


def _name_to_save(name: str) -> str:
    """The name of a model to save: a file's path as an absolute path, any other name as it is.

    Raises what `resolve_answering` raises, and ModelFileError if the file is not a model.
    """
    resolved = resolve_answering(name)
    if resolved.preset is not None or not isinstance(resolved.model, LocalModel):
        return name
    check_model_file(resolved.model.path)
    return os.path.abspath(resolved.model.path)
