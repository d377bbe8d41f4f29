"""A kind of input that localspec reads: what is changed, how, and what reads it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

Read = Callable[[bytes], None]
Change = Callable[[bytes, Random, Sequence[bytes]], bytes]


@dataclass(frozen=True)
class Kind:
    """what: in words. make: writes files that are right into a folder, those named sample*
    are changed. change: a sample, and all of them. opened: gives what reads an input, in a
    process that may end; it raises LocalspecError, or nothing, for whatever it is given.
    share: of the time, beside others. is_native: whether C or Rust reads it.
    """

    what: str
    make: Callable[[Path], None]
    change: Change
    opened: Callable[[Path], Read]
    share: float = 1.0
    is_native: bool = False


def samples(folder: Path) -> list[bytes]:
    """What is changed, in the order of its names."""
    return [path.read_bytes() for path in sorted(folder.glob("sample*"))]


def numbered(kind: Kind, name: str, seed: int, number: int, known: Sequence[bytes]) -> bytes:
    """The input of that number. Those of the first numbers are the samples themselves."""
    if number < len(known):
        return known[number]
    random = Random(f"{name} {seed} {number}")
    return kind.change(random.choice(known), random, known)


def own_home(folder: Path) -> Path:
    """A home in which nobody has chosen anything, for this process; the folder is made."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "HOME", "LOCALAPPDATA"):
        os.environ[name] = str(home)
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.pop("LOCALSPEC_MODEL", None)
    return home
