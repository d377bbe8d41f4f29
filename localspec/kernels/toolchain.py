"""The compiler: the machine's own, or one that comes as a Python package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import LocalspecError

# Tested together. zig is clang with headers and a linker; it has no OpenMP library.
_ZIG = "ziglang==0.17.1"
_BUILDERS = {"cmake": "cmake==4.4.5", "ninja": "ninja==1.13.2"}
_ZIG_DOWNLOAD_BYTES = 100_000_000
_BUILDERS_DOWNLOAD_BYTES = 32_000_000
_OPENMP_PROGRAM = "#include <omp.h>\nint main(void) { return omp_get_max_threads() == 0; }\n"
# GCC 12 takes a part of AMX's configuration for a dead store, and drops it: quirks/amx.py
_NO_DEAD_STORES = "-fno-dse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """How libllama is compiled."""

    name: str
    """The compiler and its version."""

    packages: tuple[str, ...]
    """Python packages that have to be installed first, next to the build."""

    c: str
    """The command of the C compiler, empty if it comes with the packages."""

    cxx: str
    """The command of the C++ compiler, empty if it comes with the packages."""

    has_openmp: bool
    """Whether threads wait for each other by means of OpenMP's library."""

    flags: str
    """Flags for both compilers."""

    @property
    def download_bytes(self) -> int:
        """Bytes to download for the packages, about."""
        num_bytes = 0
        if _ZIG in self.packages:
            num_bytes += _ZIG_DOWNLOAD_BYTES
        if set(_BUILDERS.values()) & set(self.packages):
            num_bytes += _BUILDERS_DOWNLOAD_BYTES
        return num_bytes


def choose_toolchain(scratch: Path, *, only_packages: bool) -> Toolchain:
    """The machine's own compiler if it can compile with OpenMP, or else zig.

    Args:
        scratch: A folder for a program that is compiled as a test.
        only_packages: Use no compiler of the machine.
    """
    compiler = None
    if not only_packages:
        compiler = _own_compiler(scratch)
    if compiler is not None:
        missing = [package for name, package in _BUILDERS.items() if shutil.which(name) is None]
        c, cxx, name = compiler
        flags = ""
        if name.startswith("gcc"):
            flags = _NO_DEAD_STORES
        return Toolchain(
            name=name,
            packages=tuple(missing),
            c=c,
            cxx=cxx,
            has_openmp=True,
            flags=flags,
        )
    return Toolchain(
        name=_ZIG.replace("ziglang==", "zig "),
        packages=(_ZIG, *_BUILDERS.values()),
        c="",
        cxx="",
        has_openmp=False,
        flags="",
    )


def _own_compiler(scratch: Path) -> tuple[str, str, str] | None:
    """The machine's compiler: its commands for C and C++, and its name with a version.

    None if there is no compiler with OpenMP.
    """
    for c, cxx in (("gcc", "g++"), ("clang", "clang++")):
        if shutil.which(c) is None or shutil.which(cxx) is None:
            continue
        program = scratch / "openmp.c"
        program.write_text(_OPENMP_PROGRAM)
        compiled = subprocess.run(
            [c, "-fopenmp", program, "-o", scratch / "openmp"],
            capture_output=True,
            check=False,
        )
        printed = subprocess.run(
            [c, "-dumpfullversion", "-dumpversion"],
            capture_output=True,
            text=True,
            check=False,
        )
        version = re.match(r"[\d.]+", printed.stdout)
        if compiled.returncode == 0 and version is not None:
            return c, cxx, f"{c} {version[0]}"
    return None


def install_command(packages: tuple[str, ...], folder: Path) -> list[str]:
    """The command that installs packages into a folder. Raises LocalspecError without pip."""
    return [*pip_command(), "install", "--no-deps", "--target", str(folder), *packages]


def pip_command() -> list[str]:
    """The beginning of every command of pip. Raises LocalspecError if there is no pip."""
    version = subprocess.run(
        [sys.executable, "-m", "pip", "--version"],
        capture_output=True,
        check=False,
    )
    if version.returncode != 0:
        raise LocalspecError(
            f"{sys.executable} has no pip, which downloads what has to be compiled",
            f"Install it: {sys.executable} -m ensurepip, or with uv: uv pip install pip",
        )
    return [sys.executable, "-m", "pip", "--disable-pip-version-check"]


def make_zig_wrappers(packages: Path, folder: Path) -> dict[str, Path]:
    """Make programs that CMake can call as compilers, archiver and indexer.

    Returns their paths by zig's names for them.

    Args:
        packages: The folder where zig's package is installed.
        folder: The folder for the programs.
    """
    zig = packages / "ziglang" / "zig"
    wrappers = {}
    for name in ("cc", "c++", "ar", "ranlib"):
        wrapper = folder / name
        wrapper.write_text(f'#!/bin/sh\nexec "{zig}" {name} "$@"\n')
        wrapper.chmod(0o755)
        wrappers[name] = wrapper
    return wrappers


def environment_with(packages: Path, scratch: Path) -> dict[str, str]:
    """The environment in which the packages' programs run. They write only in `scratch`.

    Args:
        packages: The folder where the packages are installed.
        scratch: The folder for files.
    """
    path = os.environ.get("PATH", os.defpath)
    return {
        **os.environ,
        "PATH": f"{packages / 'bin'}{os.pathsep}{path}",
        "PYTHONPATH": str(packages),
        "ZIG_GLOBAL_CACHE_DIR": str(scratch / "zig-cache"),
        "ZIG_LOCAL_CACHE_DIR": str(scratch / "zig-cache"),
    }
