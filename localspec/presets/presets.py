"""All presets: those of the shipped models.toml and of the user's own file; and short names.

The user's short names for models, and the default model, are in `names.toml` beside the user's
presets. Commands write it:

    default = "qwen3-8b"

    [aliases]
    q = "qwen3-8b"
    big = "/home/me/big.gguf"
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import logging
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import platformdirs

from localspec.atomic_write import write_whole
from localspec.errors import DAMAGES, PresetError, UnknownPresetError
from localspec.presets.preset import Preset
from localspec.presets.preset_file import header_of, parse_toml, read_presets, toml_of
from localspec.rpc_address import checked_addresses

logger = logging.getLogger(__name__)

DEFAULT_PRESET = "demo"


@dataclass(frozen=True, slots=True)
class Names:
    """default: a preset or a model, None if none was chosen. aliases: what each stands for."""

    default: str | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)


def user_presets_file() -> Path:
    """The file of the user's own presets; it need not exist."""
    return platformdirs.user_config_path("localspec", appauthor=False) / "models.toml"


def names_file() -> Path:
    """The file of names; it need not exist."""
    return user_presets_file().with_name("names.toml")


def load_presets() -> dict[str, Preset]:
    """All presets by name: the shipped ones in their order, then the user's.

    The user's presets replace shipped ones of the same name. If the user's file is malformed,
    its presets are left out, with a warning.
    """
    text, shipped = "", _shipped_presets()
    try:
        text = users_text()
        return {**shipped, **read_presets(str(user_presets_file()), text, shipped)}
    except PresetError as error:
        _warn(f"{error}; your own presets are left out. {error.hint}")
        theirs = {header_of(line)[:1] for line in text.split("\n")}
        return {name: one for name, one in shipped.items() if (name,) not in theirs}


def user_presets() -> dict[str, Preset]:
    """The presets of the user's own file, by name.

    Raises PresetError, naming file, table and key, if it is malformed.
    """
    return read_presets(str(user_presets_file()), users_text(), _shipped_presets())


def users_text() -> str:
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
    """The meaning of an alias, or else the name itself.

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


def check_free(name: str) -> None:
    """Raise PresetError if a preset or an alias has that name, or a file is malformed."""
    user_presets()
    if name in load_presets():
        raise PresetError(
            f"there is a preset {name!r} already",
            f"Choose another name, or edit {user_presets_file()}.",
        )
    if name in read_names().aliases:
        raise PresetError(
            f"{name!r} is an alias of {read_names().aliases[name]}",
            f"Choose another name, or: localspec models alias {name} --clear",
        )


def common_servers(rpc: Sequence[str] | None, chosen: Preset | None) -> tuple[str, ...]:
    """The given addresses of RPC servers, or else the preset's. Raises OptionError."""
    if rpc is None:
        return () if chosen is None else chosen.rpc
    return checked_addresses(rpc)


def read_names() -> Names:
    """Read the file. Raises PresetError if it is malformed."""
    path = names_file()
    try:
        found = parse_toml(path.read_text(encoding="utf-8-sig"))
        default, aliases = found.get("default"), found.get("aliases", {})
        texts = [*aliases.values(), "" if default is None else default]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("a name in it is not a string")
    except FileNotFoundError:
        return Names()
    except DAMAGES as error:
        raise PresetError(f"{path} cannot be read: {error}", "Correct or remove it.") from error
    return Names(default, aliases)


def change_names(change: Callable[[Names], Names]) -> None:
    """Rewrite the file. Raises what `read_names` and `change` raise, or OSError."""
    path = names_file()
    with locked(path):
        names = change(read_names())
        default = {} if names.default is None else {"default": names.default}
        text = toml_of({**default, "aliases": dict(names.aliases)})
        write_whole(path, text.encode(), durable=True)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes from changing a file that this block changes."""
    import filelock  # late: every command imports this module

    path.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(path.with_name(f".{path.name}.lock")):
        yield
