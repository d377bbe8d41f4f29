"""All presets: those of the shipped models.toml and of the user's own file."""

from __future__ import annotations

import difflib
import functools
import logging
import stat
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from localspec.errors import PresetError, UnknownPresetError
from localspec.presets.names import config_folder, read_names
from localspec.presets.preset import Preset
from localspec.presets.preset_file import header_of, read_presets
from localspec.rpc_address import checked_addresses

logger = logging.getLogger(__name__)

DEFAULT_PRESET = "demo"


def user_presets_file() -> Path:
    """The file of the user's own presets; it need not exist."""
    return config_folder() / "models.toml"


def load_presets() -> dict[str, Preset]:
    """All presets by name: the shipped ones in their order, then the user's.

    The user's presets replace shipped ones of the same name. If the user's file is malformed,
    its presets are left out, with a warning.
    """
    text, shipped = "", _shipped_presets()
    try:
        text = _users_text()
        return {**shipped, **read_presets(str(user_presets_file()), text, shipped)}
    except PresetError as error:
        _warn(f"{error}; your own presets are left out. {error.hint}")
        theirs = {header_of(line)[:1] for line in text.split("\n")}
        return {name: one for name, one in shipped.items() if (name,) not in theirs}


def user_presets() -> dict[str, Preset]:
    """The presets of the user's own file, by name.

    Raises PresetError, naming file, line and key, if it is malformed.
    """
    return read_presets(str(user_presets_file()), _users_text(), _shipped_presets())


def _users_text() -> str:
    """The text of the user's file, empty if there is none. Raises PresetError."""
    path = user_presets_file()
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # reading a pipe would block
            raise PresetError(f"{path} is not a regular file", "Remove it.")
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise PresetError(f"{path} cannot be read: {error}", "Correct or remove it.") from error


@functools.cache
def _warn(message: str) -> None:
    """Warn once: a command asks for presets several times."""
    logger.warning("%s", message)


@functools.cache
def _shipped_presets() -> Mapping[str, Preset]:
    """The shipped presets, parsed once: every command asks for them several times."""
    path = resources.files("localspec") / "models.toml"
    if not path.is_file():  # in a checkout it lies beside the package
        path = Path(__file__).parents[2] / "models.toml"
    return read_presets("models.toml", path.read_text(encoding="utf-8"), {})


def find_preset(name: str) -> Preset:
    """The preset of that name, or that the alias of that name stands for.

    Raises UnknownPresetError if there is none, PresetError if the user's file, which might have
    it, is malformed.
    """
    presets = load_presets()
    meant = stands_for(name) if isinstance(name, str) else name
    if not isinstance(meant, str) or meant not in presets:
        raise no_such_preset(name)
    return presets[meant]


def stands_for(name: str) -> str:
    """What the alias of that name stands for, or else the name itself.

    Raises PresetError if the file of aliases, which might have it, is malformed.
    """
    return name if name in load_presets() else read_names().aliases.get(name, name)


def no_such_preset(name: object) -> PresetError:
    """The error for an unknown name, or for a malformed file that may hide its preset."""
    try:
        user_presets()
    except PresetError as fault:
        return fault
    known = [*load_presets(), *read_names().aliases]
    near = difflib.get_close_matches(name, known, n=3) if isinstance(name, str) else []
    hint = "'localspec models' lists them; a file is named by its path, ending in .gguf."
    if near:
        hint = f"Did you mean {' or '.join(near)}?"
    return UnknownPresetError(f"there is no preset {name!r}", hint)


def as_preset(preset: str | Preset) -> Preset:
    """The preset itself, or the preset of that name. Raises what `find_preset` raises."""
    return preset if isinstance(preset, Preset) else find_preset(preset)


def common_servers(rpc: Sequence[str] | None, chosen: Preset | None) -> tuple[str, ...]:
    """The given addresses of RPC servers, or else the preset's. Raises OptionError."""
    if rpc is None:
        return () if chosen is None else chosen.rpc
    return checked_addresses(rpc)
