"""Models that other programs store on this machine: LM Studio, Ollama, llama.cpp."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from localspec.hub.api import RemoteFile


@dataclass(frozen=True, slots=True)
class ForeignFile:
    """A file that may have the wanted content; owner is the program that stores it."""

    path: Path
    owner: str


def find_elsewhere(remote: RemoteFile) -> ForeignFile | None:
    """A file of another program with the right name (for Ollama, the right hash) and size.

    Its content is not read, and still has to be checked. None for a file without a sha256.
    """
    if len(remote.checksum) != 64:
        return None
    for candidate in _candidates(remote):
        try:
            if candidate.path.stat().st_size == remote.size_bytes:
                return candidate
        except OSError:
            continue
    return None


def model_folders() -> dict[str, list[Path]]:
    """Where other programs keep their models, by program."""
    home = Path.home()
    chosen = os.environ.get("OLLAMA_MODELS")
    ollama = [home / ".ollama/models", Path("/usr/share/ollama/.ollama/models")]
    return {
        "LM Studio": [home / ".lmstudio/models", home / ".cache/lm-studio/models"],
        "Ollama": [Path(chosen), *ollama] if chosen else ollama,
        "llama.cpp": _llama_cpp_folders(home),
    }


def _candidates(remote: RemoteFile) -> Iterator[ForeignFile]:
    file, sha256 = remote.file, remote.checksum
    folders = model_folders()
    for folder in folders["LM Studio"]:
        yield ForeignFile(folder / file.repo / file.name, "LM Studio")
    for folder in folders["Ollama"]:
        yield ForeignFile(folder / "blobs" / f"sha256-{sha256}", "Ollama")
    # llama.cpp's former cache; now it uses the hub's layout, perhaps in another folder.
    flat = f"{file.repo.replace('/', '_')}_{file.file.replace('/', '_')}"
    for folder in folders["llama.cpp"]:
        yield ForeignFile(folder / flat, "llama.cpp")
        repo = folder / f"models--{file.repo.replace('/', '--')}"
        yield ForeignFile(repo / "blobs" / sha256, "llama.cpp")


def _llama_cpp_folders(home: Path) -> list[Path]:
    if chosen := os.environ.get("LLAMA_CACHE"):
        return [Path(chosen)]
    if sys.platform == "darwin":
        return [home / "Library/Caches/llama.cpp"]
    if sys.platform == "win32":
        return [Path(os.environ.get("LOCALAPPDATA") or home) / "llama.cpp"]
    return [Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "llama.cpp"]
