"""Chooses the model: from the command line, the environment, or the saved default."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import NamedTuple

from localspec.errors import LocalspecError, OptionError
from localspec.gguf_file.check import check_model_file
from localspec.presets.preset import LocalModel
from localspec.presets.preset_file import PRESET_NAME
from localspec.presets.presets import (
    Names,
    change_names,
    load_presets,
    names_file,
    read_names,
    stands_for,
)
from localspec.presets.source import Choice, choose, parse_source
from localspec.presets.user_presets import check_free

VARIABLE = "LOCALSPEC_MODEL"


class Named(NamedTuple):
    """The model that is used if none is named, where that is set, and how to change it."""

    name: str
    origin: str
    remedy: str


def choose_model(
    model: str | None, preset: str | None, target: str | None, *, is_target: bool
) -> Choice:
    """The model that MODEL, --preset or --target names.

    is_target: a draft or a head is named, so a preset's name means its target. If nothing is
    named, the environment counts, and then the saved default. Raises OptionError if two are
    named, and what `choose` raises.
    """
    ways = {"MODEL": model, "--preset": preset, "--target": target}
    named = [f"{way} ({text})" for way, text in ways.items() if text is not None]
    if len(named) > 1:
        raise OptionError(f"{' and '.join(named)} are named", "Name one of them.")
    if model is not None:
        return choose(model, is_target=is_target)
    usual = None if named or is_target else usual_model()
    if usual is None:
        return Choice(preset, target)
    try:
        return choose(usual.name, is_target=False)
    except LocalspecError as error:
        hint = f"{usual.remedy} {error.hint}"
        raise type(error)(f"{usual.origin}: {error}", hint) from error


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
    if not PRESET_NAME.fullmatch(alias):
        raise OptionError(
            f"{alias!r} is not a valid name", "Use letters, digits, dots and dashes."
        )
    if alias in load_presets():
        check_free(alias)
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
    choice = choose(name, is_target=False)
    model = None if choice.target is None else parse_source(choice.target, "target")
    if not isinstance(model, LocalModel):
        return name
    check_model_file(model.path)
    return os.path.abspath(model.path)
