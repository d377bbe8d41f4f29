"""What was learned of pairs, and of models on devices of this machine, saved between runs.

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
from localspec.gguf_file.adapter import has_adapters
from localspec.system.atomic_write import make_private_folder, read_regular_text, write_whole

logger = logging.getLogger(__name__)

VERSION = 12  # of the files
_EXACTNESS = "exactness ·"  # begins the last part of some identities: see `is_of_exactness`


class Profile:
    """A file of what was learned: of one pair in one setting, or of a model on one device.

    Args:
        identity: All that the measurements depend on. The file's name is its hash.
        folder: Where the file is kept; by default `profiles_folder`.
    """

    def __init__(self, identity: Sequence[str], folder: Path | None = None) -> None:
        self._identity = list(identity)
        name = hashlib.sha256("\n".join(self._identity).encode()).hexdigest()[:16]
        self.path = (folder or profiles_folder()) / f"{name}.json"
        self._saved: dict[str, Any] | None = None

    def load(self) -> dict[str, Any] | None:
        """What was learned; None if there is no file, or if it cannot be used."""
        content = _read_content(self.path)
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
    """The acceptance of the demo pair, which comes with the package; None for other pairs.

    `scripts/demo_pair/acceptance.py` measures it.

    Args:
        contents: The hashes of a pair's files.
    """
    path = resources.files("localspec") / "demo" / "acceptance.json"
    pairs: dict[str, dict[str, Any]] = json.loads(path.read_text("utf-8"))
    return pairs.get(" ".join(contents))


def latest_learned(contents: Sequence[str], adapters: str = "") -> dict[str, Any] | None:
    """What was learned last of a pair, in any setting; None if nothing was.

    Args:
        contents: The hashes of the pair's files.
        adapters: The adapters of its target in words, as from `adapter.adapters_identity`.
    """
    for _, identity, learned in kept_profiles():
        is_of_pair = contents_of(identity) == list(contents)
        if is_of_pair and has_adapters(identity[0], adapters):
            return learned
    return None


def contents_of(identity: Sequence[str]) -> list[str]:
    """The hashes of a pair's files, which begin the parts of its profile's identity."""
    return [part.partition(" ·")[0] for part in identity]


def kept_profiles(
    folder: Path | None = None,
) -> Iterator[tuple[Path, list[str], dict[str, Any]]]:
    """The files that can be used, the latest first: path, identity and what was learned.

    Args:
        folder: Where they are; by default `profiles_folder`.
    """
    if folder is None:
        folder = profiles_folder()
    paths = [path for path in folder.glob("*.json") if path.is_file()]
    paths.sort(key=lambda path: -path.stat().st_mtime)
    for path in paths:
        content = _read_content(path)
        if content is not None:
            identity, learned = content
            yield path, identity, learned


def _read_content(path: Path) -> tuple[list[str], dict[str, Any]] | None:
    """Identity and what was learned; None if the file is missing, damaged or out of date."""
    try:
        content = json.loads(read_regular_text(path))
        version = content["version"]
        identity = content["identity"]
        learned = content["learned"]
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
    """Whether an identity is that of a profile which says what decodes are exact.

    All others say what decodes cost.
    """
    return len(identity) == 2 and identity[-1].startswith(_EXACTNESS)


def exactness_setting(num_snapshots: int, num_sequences: int, gpus: Sequence[str]) -> str:
    """The second part of the identity of a profile which says what decodes are exact."""
    setting = f"{_EXACTNESS} {num_snapshots} snapshots"
    if num_sequences > 1:
        setting += f" · {num_sequences} sequences"
    return " · ".join([setting, *gpus])


def profiles_folder() -> Path:
    """The folder of the profiles of pairs."""
    return user_cache_path("localspec", appauthor=False) / "profiles"


def trials_folder() -> Path:
    """The folder of the profiles of models on devices."""
    return profiles_folder().parent / "devices"
