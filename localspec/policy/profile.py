"""The costs of a pair of models on this machine, saved between runs.

This is a cache, in the user's cache directory. A file that is missing, damaged or of another
version is ignored, and if a file cannot be written, its content is learned again.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from localspec.errors import DAMAGES
from localspec.gguf_file.adapter import is_adapted
from localspec.system.atomic_write import make_private_folder, read_regular_text, write_whole

logger = logging.getLogger(__name__)

VERSION = 12
_EXACTNESS = "exactness ·"  # begins the setting of a profile of exact decodes


class Profile:
    """The file of one pair in one setting, or of a device's trial.

    Args:
        identity: All that the measurements depend on.
        folder: Where the file is kept; by default the folder of pairs.
    """

    def __init__(self, identity: Sequence[str], folder: Path | None = None) -> None:
        self._identity = list(identity)
        name = hashlib.sha256("\n".join(self._identity).encode()).hexdigest()[:16]
        self.path = (folder or profiles_folder()) / f"{name}.json"
        self._saved: dict[str, Any] | None = None

    def load(self) -> dict[str, Any] | None:
        """The saved content; None if there is nothing usable."""
        content = _content(self.path)
        if content is None:
            return None
        identity, learned = content
        if identity != self._identity:
            return None
        return learned

    def save(self, learned: dict[str, Any]) -> None:
        """Save what was learned, if it has changed since the last save.

        The file is replaced as a whole, so no reader sees a part of it. If it cannot be
        written, that is only noted in the log.
        """
        if learned == self._saved:
            return
        content = {
            "version": VERSION,
            "identity": self._identity,
            "learned": learned,
        }
        try:
            make_private_folder(self.path.parent)
            write_whole(self.path, json.dumps(content, indent=1).encode(), durable=False)
        except OSError as error:
            logger.info("%s cannot be written: %s", self.path, error)
            return
        self._saved = learned


def shipped_acceptance(contents: Sequence[str]) -> dict[str, Any] | None:
    """The acceptance that the package has of a pair of its own; None for all others.

    Args:
        contents: Hashes of the pair's files. See `scripts/demo_pair/acceptance.py`.
    """
    path = resources.files("localspec") / "demo" / "acceptance.json"
    pairs: dict[str, dict[str, Any]] = json.loads(path.read_text("utf-8"))
    return pairs.get(" ".join(contents))


def latest_learned(contents: Sequence[str], words: str = "") -> dict[str, Any] | None:
    """The content that was saved last for a pair.

    Args:
        contents: The hashes of the pair's files.
        words: The adapters of its target, as `adapted` has them.
    """
    for _, identity, learned in kept_profiles():
        is_of_pair = contents_of(identity) == list(contents)
        if is_of_pair and is_adapted(identity[0], words):
            return learned
    return None


def contents_of(identity: Sequence[str]) -> list[str]:
    """The hashes of the files that an identity names."""
    return [part.partition(" ·")[0] for part in identity]


def kept_profiles(
    folder: Path | None = None,
) -> Iterator[tuple[Path, list[str], dict[str, Any]]]:
    """The usable files, the latest first: path, identity and what was learned.

    Args:
        folder: Where they are; by default the folder of pairs.
    """
    if folder is None:
        folder = profiles_folder()
    paths = [path for path in folder.glob("*.json") if path.is_file()]
    paths.sort(key=lambda path: -path.stat().st_mtime)
    for path in paths:
        content = _content(path)
        if content is not None:
            yield path, *content


def _content(path: Path) -> tuple[list[str], dict[str, Any]] | None:
    """Identity and what was learned; None if the file is not there, damaged or out of date."""
    try:
        kept = json.loads(read_regular_text(path))
        version = kept["version"]
        identity = kept["identity"]
        learned = kept["learned"]
    except FileNotFoundError:
        return None
    except DAMAGES as error:
        logger.warning("%s is unreadable and will be replaced: %s", path, error)
        return None
    if version != VERSION or not isinstance(learned, dict):
        return None
    if not isinstance(identity, list) or not identity:
        return None
    if not all(isinstance(part, str) for part in identity):
        return None
    return identity, learned


def is_of_exactness(identity: Sequence[str]) -> bool:
    """Whether a profile says which decodes are exact, and not what they cost."""
    return len(identity) == 2 and identity[-1].startswith(_EXACTNESS)


def exactness_setting(num_snapshots: int, num_sequences: int, gpus: Sequence[str]) -> str:
    """The second part of an identity whose profile says which decodes are exact."""
    setting = f"{_EXACTNESS} {num_snapshots} snapshots"
    if num_sequences > 1:
        setting += f" · {num_sequences} sequences"
    return " · ".join([setting, *gpus])


def profiles_folder() -> Path:
    """The folder of the profiles."""
    return user_cache_path("localspec", appauthor=False) / "profiles"


def trials_folder() -> Path:
    """The folder of measurements of devices."""
    return profiles_folder().parent / "devices"
