"""The libllama that `localspec kernels` has compiled for this processor.

It lies in the user's data folder, under a name made of the version of llama-cpp-python, whose
source archive it is, and of the processor. It is used in place of one library: the one that it
was found faster than. If another is installed, such as one for a GPU, it is stale.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
import shutil
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import platformdirs

from localspec.errors import DAMAGES

BINDINGS = "llama-cpp-python"
OWN_ORIGIN = "localspec kernels"  # how the origin of each begins
_FACTS = "build.json"
_LIBRARIES = "lib"
_CPUINFO = Path("/proc/cpuinfo")
_NAMES = ("model name", "CPU part", "uarch")  # of a processor, on x86, ARM and RISC-V
_FEATURES = ("flags", "Features", "isa")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnBuild:
    """A finished build, which computes right and was faster when it was made."""

    folder: Path
    bindings: str
    """The version of llama-cpp-python."""

    processor: str
    """See `processor_here`."""

    instead_of: str
    """The origin of the library that it is used in place of."""

    compiler: str
    """Its name and version."""

    speedups: dict[str, float]
    """How many times as fast it was, by product."""

    @property
    def libraries(self) -> Path:
        """The folder of libllama and what it is linked to."""
        return self.folder / _LIBRARIES

    @property
    def origin(self) -> str:
        """Where the library is from, in words."""
        return f"{OWN_ORIGIN} ({BINDINGS} {self.bindings}, {self.compiler})"

    def staleness(self, installed: str) -> str:
        """Why it is not used, in words; empty if it is.

        Args:
            installed: The origin of the library that is used without it.
        """
        if self.bindings != version(BINDINGS):
            return f"it is of {BINDINGS} {self.bindings}, and {version(BINDINGS)} is installed"
        if self.processor != processor_here():
            return "it was compiled for another processor"
        if self.instead_of != installed:
            return f"it was compared with {self.instead_of}, and {installed} is installed"
        return ""


def builds_folder() -> Path:
    """Where builds are."""
    return platformdirs.user_data_path("localspec", appauthor=False) / "kernels"


def folder_here() -> Path:
    """Where a build for this processor and this llama-cpp-python is, or will be."""
    digest = hashlib.sha256(processor_here().encode()).hexdigest()
    return builds_folder() / f"{version(BINDINGS)}-{digest[:12]}"


def processor_here() -> str:
    """This machine's processor: its name and its features, which a compiler makes use of."""
    if not _CPUINFO.exists():
        return f"{platform.machine()} {platform.processor()}"
    of_first = _CPUINFO.read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
    facts = {}
    for line in of_first.splitlines():
        name, _, value = line.partition(":")
        facts[name.strip()] = value.strip()
    named = [facts[name] for name in _NAMES if name in facts]
    features = [" ".join(sorted(facts[name].split())) for name in _FEATURES if name in facts]
    return ": ".join([*named, *features])


def all_builds() -> list[OwnBuild]:
    """All finished builds, also those for other processors and versions."""
    found = (_read_build(folder) for folder in sorted(builds_folder().glob("*-*")))
    return [build for build in found if build is not None]


def usable_build(installed: str) -> OwnBuild | None:
    """The build to use in place of the library with this origin, if there is one."""
    build = _read_build(folder_here())
    if build is None or build.staleness(installed):
        return None
    return build


def write_facts(build: OwnBuild) -> None:
    """Write down what a build is. Without that it is none."""
    facts = dataclasses.asdict(build)
    del facts["folder"]
    (build.folder / _FACTS).write_text(json.dumps(facts, indent=1), encoding="utf-8")


def remove_builds() -> list[OwnBuild]:
    """Remove all builds, and return them. Raises OSError."""
    removed = all_builds()
    if builds_folder().exists():
        shutil.rmtree(builds_folder())
    return removed


def _read_build(folder: Path) -> OwnBuild | None:
    """The build in a folder; None if there is none, or what it is cannot be read."""
    try:
        facts = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
        return OwnBuild(folder=folder, **facts)
    except DAMAGES:
        return None
