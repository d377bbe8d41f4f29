"""The presets that are there: the shipped models.toml and the user's own file."""

from __future__ import annotations

import stat
from importlib import resources
from pathlib import Path

import platformdirs

from localspec.errors import PresetError
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
    shipped = (resources.files("localspec") / "models.toml").read_text(encoding="utf-8")
    presets = read_presets("models.toml", shipped, {})
    path = user_presets_file()
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for
            raise PresetError(f"{path} is no regular file", "Remove it.")
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return presets
    except (OSError, UnicodeDecodeError) as error:
        raise PresetError(f"{path} cannot be read: {error}", "Correct or remove it.") from error
    return {**presets, **read_presets(str(path), text, presets)}


def find_preset(name: str) -> Preset:
    """The preset of that name. Raises PresetError if there is none."""
    presets = load_presets()
    if not isinstance(name, str) or name not in presets:
        plain = [known for known in presets if "@" not in known]
        raise PresetError(f"there is no preset {name!r}", f"Choose one of: {', '.join(plain)}.")
    return presets[name]
