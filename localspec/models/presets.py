"""The presets that are there: the shipped models.toml and the user's own file."""

from __future__ import annotations

import functools
import stat
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import platformdirs

from localspec.errors import OptionError, PresetError, UnknownPresetError
from localspec.models.preset import Preset
from localspec.models.preset_file import read_presets

DEFAULT_PRESET = "demo"


def user_presets_file() -> Path:
    """Where a user's own presets stand; the file need not exist."""
    return platformdirs.user_config_path("localspec", appauthor=False) / "models.toml"


def load_presets() -> dict[str, Preset]:
    """All presets by name: the shipped ones in their order, then the user's.

    A preset of the user's takes the place of a shipped one with its name. Raises
    PresetError, naming file, line and key, if a file is malformed.
    """
    shipped = _shipped_presets()
    path = user_presets_file()
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for
            raise PresetError(f"{path} is no regular file", "Remove it.")
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return dict(shipped)
    except (OSError, UnicodeDecodeError) as error:
        raise PresetError(f"{path} cannot be read: {error}", "Correct or remove it.") from error
    return {**shipped, **read_presets(str(path), text, shipped)}


@functools.cache
def _shipped_presets() -> Mapping[str, Preset]:
    """Parsed once: every command asks for presets several times."""
    text = (resources.files("localspec") / "models.toml").read_text(encoding="utf-8")
    return read_presets("models.toml", text, {})


def find_preset(name: str) -> Preset:
    """The preset of that name. Raises UnknownPresetError if there is none."""
    presets = load_presets()
    if not isinstance(name, str) or name not in presets:
        plain = [known for known in presets if "@" not in known]
        raise UnknownPresetError(
            f"there is no preset {name!r}", f"Choose one of: {', '.join(plain)}."
        )
    return presets[name]


def preset_to_load(
    preset: str | None, target: object | None, draft: object | None, head: object | None
) -> Preset | None:
    """What is to be loaded where no target is named: the preset, or the demo pair.

    Raises OptionError for a draft or a head without a target, or a target beside a preset,
    PresetError for an unknown preset.
    """
    if target is None and (draft is not None or head is not None):
        role = "head" if draft is None else "draft"
        raise OptionError(f"a {role} is given without a target", "Name the target, too.")
    if target is None:
        return find_preset(preset or DEFAULT_PRESET)
    if preset is not None:
        raise OptionError("both a preset and a target are given", "Choose one of them.")
    return None
