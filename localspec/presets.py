"""Named pairs: models.toml → frozen presets."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from localspec.errors import PresetError
from localspec.sampling import SamplingParams

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_PRESET = "demo"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedFile:
    """A model file that came with localspec."""

    file: str
    quantization: str
    license: str

    @property
    def path(self) -> Path:
        return Path(str(resources.files("localspec") / "demo" / self.file))


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFile:
    """A model file of a hub repository, pinned by commit and sha256 (of the content, hex)."""

    repo: str
    file: str
    revision: str
    size_bytes: int
    sha256: str
    quantization: str
    license: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A target, its draft, and what the makers of the model recommend."""

    name: str
    description: str
    target: PackagedFile | HubFile
    draft: PackagedFile | HubFile | None
    context_length: int
    sampling: SamplingParams


def load_presets() -> dict[str, Preset]:
    """The shipped presets by name, in the order of models.toml."""
    text = (resources.files("localspec") / "models.toml").read_text(encoding="utf-8")
    return {name: _preset(name, entry) for name, entry in tomllib.loads(text).items()}


def find_preset(name: str) -> Preset:
    """The preset of that name. Raises PresetError if there is none."""
    presets = load_presets()
    if name not in presets:
        raise PresetError(
            f"there is no preset {name!r}", f"Choose one of: {', '.join(presets)}."
        )
    return presets[name]


def _preset(name: str, entry: Mapping[str, Any]) -> Preset:
    try:
        return Preset(
            name=name,
            description=entry["description"],
            target=_file(entry["target"]),
            draft=_file(entry["draft"]) if "draft" in entry else None,
            context_length=entry["context_length"],
            sampling=SamplingParams().changed(entry.get("sampling", {})),
        )
    except (KeyError, TypeError) as error:
        raise PresetError(f"models.toml, preset {name!r}: {error}") from error


def _file(entry: Mapping[str, Any]) -> PackagedFile | HubFile:
    return HubFile(**entry) if "repo" in entry else PackagedFile(**entry)
