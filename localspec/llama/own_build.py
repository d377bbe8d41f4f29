"""The libllama that `localspec kernels` has compiled for this processor: a build.

Builds lie in the user's data folder. A build's folder is named after the version of
llama-cpp-python, whose source archive was compiled, and the processor. The build is used in
place of one library only: the installed one, compared with which it was faster. If another
library is installed later, such as one for a GPU, the build is stale.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import platformdirs

from localspec.errors import DAMAGES

BINDINGS = "llama-cpp-python"
OWN_ORIGIN = "localspec kernels"  # the origin of each build begins with this
_FACTS = "build.json"
_LIBRARIES = "lib"
_CPUINFO = Path("/proc/cpuinfo")
# The lines of /proc/cpuinfo with a processor's name and its features, on x86, ARM and RISC-V.
_NAMES = ("model name", "CPU part", "uarch")
_FEATURES = ("flags", "Features", "isa")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnBuild:
    """A finished build that computes correctly and was faster when it was made."""

    folder: Path
    """The build's own folder."""

    bindings: str
    """The version of llama-cpp-python."""

    processor: str
    """See `processor_here`."""

    instead_of: str
    """The origin of the library that it replaces."""

    compiler: str
    """The compiler's name and version."""

    speedups: dict[str, float]
    """How many times as fast as the other library it was, by kind of product."""

    @property
    def libraries(self) -> Path:
        """The folder of libllama and the libraries that it is linked to."""
        return self.folder / _LIBRARIES

    @property
    def origin(self) -> str:
        """The origin of the library, in words."""
        return f"{OWN_ORIGIN} ({BINDINGS} {self.bindings}, {self.compiler})"

    def staleness(self, installed: str) -> str:
        """Why the build is not used, in words; "" if it is used.

        Args:
            installed: The origin of the library that would be used without it.
        """
        bindings = version(BINDINGS)
        if self.bindings != bindings:
            return f"it is of {BINDINGS} {self.bindings}, and {bindings} is installed"
        if self.processor != processor_here():
            return "it was compiled for another processor"
        if self.instead_of != installed:
            return f"it was compared with {self.instead_of}, and {installed} is installed"
        return ""


def builds_folder() -> Path:
    """The folder of all builds, which may not exist."""
    return platformdirs.user_data_path("localspec", appauthor=False) / "kernels"


def folder_here() -> Path:
    """The folder of a build for this processor and this llama-cpp-python; it may not exist."""
    digest = hashlib.sha256(processor_here().encode()).hexdigest()
    return builds_folder() / f"{version(BINDINGS)}-{digest[:12]}"


def processor_here() -> str:
    """This machine's processor in words: its name and its features, which a compiler uses.

    Outside Linux the architecture and the system's words for the processor.
    """
    if sys.platform == "darwin":
        return f"{platform.machine()} {_brand()}"
    if not _CPUINFO.exists():
        return f"{platform.machine()} {platform.processor()}"
    text = _CPUINFO.read_text(encoding="utf-8", errors="replace")
    first_core, _, _ = text.partition("\n\n")
    facts = {}
    for line in first_core.splitlines():
        name, _, value = line.partition(":")
        facts[name.strip()] = value.strip()
    parts = [facts[name] for name in _NAMES if name in facts]
    for name in _FEATURES:
        if name in facts:
            features = sorted(facts[name].split())
            parts.append(" ".join(features))
    return ": ".join(parts)


def _brand() -> str:
    """The processor's name on macOS, where `platform.processor` is alike for all of Apple's.

    "" if the system does not say.
    """
    command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
    try:
        return subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL).strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def all_builds() -> list[OwnBuild]:
    """All finished builds, also those for other processors and versions."""
    builds = []
    for folder in sorted(builds_folder().glob("*-*")):
        build = _read_build(folder)
        if build is not None:
            builds.append(build)
    return builds


def usable_build(installed: str) -> OwnBuild | None:
    """The build to use in place of the installed library.

    Returns None if there is no build, or it is stale.

    Args:
        installed: The origin of the installed library.
    """
    build = _read_build(folder_here())
    if build is None or build.staleness(installed):
        return None
    return build


def write_facts(build: OwnBuild) -> None:
    """Write the facts of a build into its folder. A folder without them is no build."""
    facts = dataclasses.asdict(build)
    del facts["folder"]
    (build.folder / _FACTS).write_text(json.dumps(facts, indent=1), encoding="utf-8")


def remove_builds() -> list[OwnBuild]:
    """Remove all builds, unfinished ones too. Returns the finished ones. Raises OSError."""
    removed = all_builds()
    if builds_folder().exists():
        shutil.rmtree(builds_folder())
    return removed


def _read_build(folder: Path) -> OwnBuild | None:
    """The build in a folder; None if there is none, or its facts cannot be read."""
    try:
        facts = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
        return OwnBuild(folder=folder, **facts)
    except DAMAGES:
        return None
