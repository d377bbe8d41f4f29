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
    stands_for,
)

VARIABLE = "LOCALSPEC_MODEL"

_SEPARATOR = re.compile(r"[/\\]")
_HUB_FILE = re.compile(r"hf:([^/@]*/[^/@]*)(?:@([^/]*))?/(.+)", re.DOTALL)
_QUANTIZED = re.compile(r"(?:hf:)?([^/:\\]+/[^/:\\]+):([A-Za-z0-9_.-]+)")


@dataclass(frozen=True, slots=True)
class Quantized:
    """The model of a repository in one quantisation; the repository's list says which file."""

    repo: str
    quantization: str
    """The quantization. With "mtp-" in front, it means the model's head, with "mmproj-" its
    projector."""

    @property
    def name(self) -> str:
        """The name that a command takes."""
        return f"{self.repo}:{self.quantization}"


@dataclass(frozen=True, slots=True)
class Resolved:
    """The meaning of a name."""

    name: str
    """The name itself, or what it stands for if it is an alias."""

    preset: Preset | None
    """The preset of that name, if it is a preset's."""

    model: PresetModel | Quantized
    """The model of the role that was asked for: the preset's, a file, or one of the hub."""


def resolve(name: str | os.PathLike[str], role: Role = "target") -> Resolved:
    """Decide what a name means. A `Path` is a path; for a text the first of these counts:

    1. the name of a preset; its model is the one of the role
    2. an alias, and then what it stands for
    3. a path that exists (./name is the file where `name` is a preset or an alias)
    4. a name on the hub
    5. the path of a file that is missing

    Raises:
        OptionError: the name is not a string, or half a name on the hub.
        PresetError: the preset has no such model.
        UnknownPresetError: nothing has that name.
    """
    if isinstance(name, os.PathLike) and isinstance(os.fspath(name), str):
        return Resolved(os.fspath(name), None, LocalModel(path=Path(name)))
    if not isinstance(name, str):
        raise OptionError(
            f"{name!r} does not name a model",
            "Give a string: a preset, a path, hf:owner/repo/file.gguf or owner/repo:Q4_K_M.",
        )
    meant = stands_for(name)
    preset = load_presets().get(meant)
    if preset is not None:
        return Resolved(meant, preset, _of_preset(preset, role))
    path = Path(os.path.expanduser(meant))  # Path.expanduser raises for ~nobody
    if os.path.exists(path):
        return Resolved(meant, None, LocalModel(path=path))
    on_hub = _on_hub(meant, role)
    if on_hub is not None:
        return Resolved(meant, None, on_hub)
    _require_path(meant)
    return Resolved(meant, None, LocalModel(path=path))


def _of_preset(preset: Preset, role: Role) -> PresetModel:
    model: PresetModel | None = getattr(preset, role)
    if model is not None:
        return model
    hint = f"Name the {role}'s file."
    if role == "head":
        hint = "Name the head's file; one inside the target's file needs none."
    raise PresetError(f"preset {preset.name!r} has no {role}", hint)


def _on_hub(name: str, role: Role) -> HubModel | Quantized | None:
    """The model of the hub that a name means; None for a name of another form."""
    quantized = _QUANTIZED.fullmatch(name)
    if quantized and is_repo(quantized[1]):
        sign = {"head": HEAD_SIGN, "mmproj": PROJECTOR_SIGN}.get(role, "")
        return Quantized(quantized[1], sign + quantized[2].removeprefix(sign))
    if not name.startswith("hf:"):
        return None
    named = _HUB_FILE.fullmatch(name)
    if named is None:
        raise OptionError(
            f"{name!r} does not name a file",
            "Write hf:owner/repo/file.gguf or owner/repo:Q4_K_M.",
        )
    repo, revision, file = named.groups()
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


def _require_path(name: str) -> None:
    """Raise OptionError if the name of what is missing does not look like a file's path."""
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
    """The meaning of a name. Raises OptionError for a preset that embeds, and as `resolve`."""
    found = resolve(name)
    if found.preset is not None and found.preset.embeds:
        raise OptionError(
            f"{found.name} is an embedding model and cannot answer questions",
            "Open it with load_embedder, or give it to a server for embeddings.",
        )
    return found


def resolve_pair(
    model: object,
    named: Mapping[Role, Any],
) -> tuple[Preset | None, dict[Role, Any]]:
    """The preset that is meant, if any, and the models that are named with it or instead of it.

    If no model is named, it is the demo pair. A projector named "none" is left out.

    Args:
        model: the first argument of `load`. With a draft or a head, a preset's name means its
            target.
        named: the model that is given for each role, or None.

    Raises:
        OptionError: a draft or a head is given without a target, or two targets are given.
        LocalspecError: as `resolve_answering`.
    """
    given = {role: one for role, one in named.items() if one is not None}
    if given.get("mmproj") == NO_PROJECTOR:
        del given["mmproj"]
    helper = None
    if "draft" in given:
        helper = "draft"
    elif "head" in given:
        helper = "head"
    if "target" in given:
        if model is not None:
            raise OptionError("both a preset and a target are given", "Choose one of them.")
        return None, given
    if model is None or isinstance(model, Preset):
        if helper is not None:
            raise OptionError(f"a {helper} is given without a target", "Name the target, too.")
        return model or find_preset(DEFAULT_PRESET), given
    if isinstance(model, str) and helper is None:
        preset = resolve_answering(model).preset
        if preset is not None:
            return preset, given
    return None, {"target": model, **given}


class Named(NamedTuple):
    """The model that is used if none is named."""

    name: str
    origin: str
    """Where that is set, in words."""

    remedy: str
    """How to change it: the first sentence of an error's hint."""


def choose_model(
    model: str | None,
    preset: str | None,
    target: str | None,
    *,
    is_target: bool,
) -> str | None:
    """The first argument of `load` that MODEL, --preset or --target stands for.

    If nothing is named, the environment counts, and then the saved default. None means the
    demo pair, or the target.

    Args:
        is_target: A draft or a head is named, so a preset's name means its target.

    Raises:
        OptionError: If two are named, and as `resolve_answering`.
    """
    named = []
    for way, text in (("MODEL", model), ("--preset", preset), ("--target", target)):
        if text is not None:
            named.append(f"{way} ({text})")
    if len(named) > 1:
        raise OptionError(f"{' and '.join(named)} are named", "Name one of them.")
    if model is not None:
        if is_target:
            return resolve(model).name
        return resolve_answering(model).name
    if named or is_target:
        return preset
    usual = usual_model()
    if usual is None:
        return None
    try:
        return resolve_answering(usual.name).name
    except LocalspecError as error:
        hint = f"{usual.remedy} {error.hint}"
        raise type(error)(f"{usual.origin}: {error}", hint) from error


def usual_model() -> Named | None:
    """The default model's name; None means the demo pair.

    Raises PresetError if the file of names is malformed.
    """
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return Named(chosen, VARIABLE, "Set it to another name, or unset it.")
    default = read_names().default
    if default is None:
        return None
    remedy = "Choose another: localspec models default NAME, or --clear."
    return Named(default, f"the default of {names_file()}", remedy)


def set_default(name: str | None) -> None:
    """Save the default model's name; None for the demo pair.

    The path of a file is saved as an absolute one. Raises what `resolve_answering` raises,
    ModelFileError if the named file is not a model, and PresetError if the file in which names
    are saved is malformed.
    """
    default = None
    if name is not None:
        default = _lasting(name)

    def with_default(names: Names) -> Names:
        return replace(names, default=default)

    change_names(with_default)


def set_alias(alias: str, name: str) -> str:
    """Let a short name stand for a preset or a model; returns what it stands for.

    Raises OptionError for an invalid name, PresetError if it is a preset's, and what
    `set_default` raises.
    """
    check_free(alias, is_alias=True)
    meant = stands_for(_lasting(name))

    def with_alias(names: Names) -> Names:
        return replace(names, aliases={**names.aliases, alias: meant})

    change_names(with_alias)
    return meant


def drop_alias(alias: str) -> None:
    """Forget an alias; a default that used it stays the same model.

    Raises OptionError if there is none, PresetError as `set_default`.
    """

    def without_alias(names: Names) -> Names:
        if alias not in names.aliases:
            known = ", ".join(names.aliases) or "none"
            raise OptionError(f"there is no alias {alias!r}", f"Known aliases: {known}.")
        aliases = dict(names.aliases)
        meant = aliases.pop(alias)
        default = names.default
        if default == alias:
            default = meant
        return Names(default, aliases)

    change_names(without_alias)


def _lasting(name: str) -> str:
    """The name as it is saved: a path becomes absolute."""
    found = resolve_answering(name)
    if found.preset is not None or not isinstance(found.model, LocalModel):
        return name
    check_model_file(found.model.path)
    return os.path.abspath(found.model.path)
