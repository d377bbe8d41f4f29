"""A person's own short names for models, and the model that is used if none is named.

They are in a file that commands write, `names.toml` beside the user's presets:

    default = "qwen3-8b"

    [aliases]
    q = "qwen3-8b"
    big = "/home/me/big.gguf"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

from localspec.atomic_write import write_whole
from localspec.errors import PresetError
from localspec.presets.toml_text import parse_toml, quoted


@dataclass(frozen=True, slots=True)
class Names:
    """default: a preset or a model, None if none was chosen. aliases: what each stands for."""

    default: str | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)


def config_folder() -> Path:
    """Where a user's own presets and names stand; it need not exist."""
    return platformdirs.user_config_path("localspec", appauthor=False)


def names_file() -> Path:
    """The file of names; it need not exist."""
    return config_folder() / "names.toml"


def read_names() -> Names:
    """What the file holds. Raises PresetError if it is malformed."""
    path = names_file()
    try:
        found = parse_toml(path.read_text(encoding="utf-8-sig"))
        default, aliases = found.get("default"), found.get("aliases", {})
        texts = [*aliases.values(), "" if default is None else default]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("a name in it is not a string")
    except FileNotFoundError:
        return Names()
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise PresetError(f"{path} cannot be read: {error}", "Correct or remove it.") from error
    return Names(default, aliases)


def change_names(change: Callable[[Names], Names]) -> None:
    """Replace what the file holds. Raises what `read_names` and `change` raise, or OSError."""
    import filelock  # late, as this module is imported by every command

    path = names_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(path.with_name(f".{path.name}.lock")):
        names = change(read_names())
        lines = [] if names.default is None else [f"default = {quoted(names.default)}", ""]
        lines += ["[aliases]"]
        lines += [f"{quoted(n)} = {quoted(meant)}" for n, meant in names.aliases.items()]
        write_whole(path, "\n".join([*lines, ""]).encode(), durable=True)
