"""The user's own short names for models, and the default model.

They are in `names.toml` beside the user's presets, which commands write:

    default = "qwen3-8b"

    [aliases]
    q = "qwen3-8b"
    big = "/home/me/big.gguf"
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

from localspec.atomic_write import write_whole
from localspec.errors import DAMAGES, PresetError
from localspec.presets.toml_text import parse_toml, quoted


@dataclass(frozen=True, slots=True)
class Names:
    """default: a preset or a model, None if none was chosen. aliases: what each stands for."""

    default: str | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)


def config_folder() -> Path:
    """The folder of the user's own presets and names; it need not exist."""
    return platformdirs.user_config_path("localspec", appauthor=False)


def names_file() -> Path:
    """The file of names; it need not exist."""
    return config_folder() / "names.toml"


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
        lines = [] if names.default is None else [f"default = {quoted(names.default)}", ""]
        lines += ["[aliases]"]
        lines += [f"{quoted(n)} = {quoted(meant)}" for n, meant in names.aliases.items()]
        write_whole(path, "\n".join([*lines, ""]).encode(), durable=True)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes from changing a file that this block changes."""
    import filelock  # late: every command imports this module

    path.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(path.with_name(f".{path.name}.lock")):
        yield
