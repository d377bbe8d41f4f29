"""Makes a libllama for this machine: downloads, compiles, tries, compares, and installs it.

The steps before the last one work in a folder next to the final one. It gets its final name in
one step at the end: a build that was stopped, or is no faster, leaves nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from localspec.errors import LocalspecError
from localspec.hub.model_stores import free_bytes
from localspec.kernels import source_archive
from localspec.kernels.comparing import compare, require_faster
from localspec.kernels.compiling import compile_libraries, fetch_source
from localspec.kernels.steps import OnStep, last_line, num_jobs
from localspec.kernels.toolchain import (
    Toolchain,
    choose_toolchain,
    pip_command,
)
from localspec.llama.binding import Library, installed_library
from localspec.llama.own_build import (
    BINDINGS,
    OwnBuild,
    builds_folder,
    folder_here,
    processor_here,
    write_facts,
)
from localspec.llama.placement import usable_gpus

_DISK_BYTES = 700_000_000  # source and objects
_ZIG_DISK_BYTES = 900_000_000  # its package and its cache
_FULL_DISK_BYTES = _DISK_BYTES / 10  # an error with less free space is for lack of it
_CORE_SECONDS = 400  # seconds that compiling takes on one core, about
_OPTIONS = ("-DGGML_NATIVE=ON",)  # for this processor
_SCRATCH = ".making-"
# Python code that loads libllama as localspec does, with a check of its structures.
_LOADING = "from localspec.llama.library import system_info; print(system_info())"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPlan:
    """The steps and costs of making a build."""

    folder: Path
    """The final folder of the build."""

    toolchain: Toolchain
    installed: Library
    """The library that it is compared with."""

    download_bytes: int
    """Bytes to download, about."""

    disk_bytes: int
    """Bytes of disk that the build takes while it is made, about."""

    free_bytes: int
    """Free bytes of that disk."""

    seconds: float
    """The time for compiling, about."""


def plan_build(*, only_packages: bool) -> BuildPlan:
    """Plan a build for this machine. Nothing is downloaded.

    Raises LocalspecError if no build can be made here.

    Args:
        only_packages: Compile with zig, even if there is a compiler.
    """
    if not sys.platform.startswith("linux"):
        raise LocalspecError(
            "localspec compiles kernels on Linux only so far",
            "Compile llama-cpp-python itself: docs/install.md#compiled-from-source.",
        )
    # The next two raise if the source cannot be downloaded.
    source_archive.requirement()
    pip_command()
    _require_no_gpu()
    with tempfile.TemporaryDirectory() as scratch:
        toolchain = choose_toolchain(Path(scratch), only_packages=only_packages)
    disk_bytes = _DISK_BYTES
    if not toolchain.c:
        disk_bytes += _ZIG_DISK_BYTES
    return BuildPlan(
        folder=folder_here(),
        toolchain=toolchain,
        installed=installed_library(),
        download_bytes=source_archive.DOWNLOAD_BYTES + toolchain.download_bytes,
        disk_bytes=disk_bytes,
        free_bytes=free_bytes(builds_folder()),
        seconds=_CORE_SECONDS / num_jobs(),
    )


def _require_no_gpu() -> None:
    """Raise LocalspecError if libllama computes on a GPU, which a new build would not."""
    from localspec.llama.library import devices  # loads libllama

    for gpu in usable_gpus(devices()):
        raise LocalspecError(
            f"the libllama in use computes on {gpu.name}, {gpu.description}, and one that is "
            "compiled for the processor would not",
            "Hide the GPU if you want that all the same, for example with "
            "GGML_VK_VISIBLE_DEVICES=.",
        )


def make_build(plan: BuildPlan, on_progress: OnStep) -> OwnBuild:
    """Make the build, and put it in place if it is right and faster.

    Raises LocalspecError if a step fails, and NotFasterError if it is right and no faster.
    """
    if plan.free_bytes < plan.disk_bytes:
        raise _no_room(plan)
    builds_folder().mkdir(parents=True, exist_ok=True)
    for leftover in builds_folder().glob(f"{_SCRATCH}*"):  # of a kill or a power cut
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=builds_folder()) as name:
            return _make_in(Path(name), plan, on_progress)
    except OSError as error:
        if shutil.disk_usage(builds_folder()).free < _FULL_DISK_BYTES:
            raise _no_room(plan) from error
        raise LocalspecError(f"a build failed: {error}", "Run the command again.") from error


def _no_room(plan: BuildPlan) -> LocalspecError:
    """The error for too little free space on the disk."""
    return LocalspecError(
        f"the build needs about {plan.disk_bytes / 1e6:.0f} MB at {builds_folder()}, and "
        f"{free_bytes(builds_folder()) / 1e6:.0f} MB are free",
        "Free some disk space, or choose another place for data: XDG_DATA_HOME=DIR.",
    )


def _make_in(scratch: Path, plan: BuildPlan, on_progress: OnStep) -> OwnBuild:
    """Make the build in a folder, and move it to its final place if it is right and faster."""
    toolchain = plan.toolchain
    unpacked = fetch_source(scratch, toolchain, on_progress)
    libraries = compile_libraries(scratch, unpacked, toolchain, _OPTIONS, on_progress)
    made = scratch / "made"
    build = OwnBuild(
        folder=made,
        bindings=version(BINDINGS),
        processor=processor_here(),
        instead_of=plan.installed.origin,
        compiler=toolchain.name,
        speedups={},
    )
    build.libraries.mkdir(parents=True)
    for library in libraries:
        shutil.copy(library, build.libraries, follow_symlinks=False)
    on_progress("trying whether it computes right", None)
    _check_loading(build)
    speedups = compare(plan.installed.folder, build.libraries, on_progress)
    require_faster(speedups)
    write_facts(replace(build, speedups=speedups))
    final = replace(build, folder=plan.folder, speedups=speedups)
    if plan.folder.exists():  # stale, or damaged
        shutil.rmtree(plan.folder)
    made.rename(plan.folder)
    return final


def _check_loading(build: OwnBuild) -> None:
    """Raise LocalspecError if localspec cannot load the library."""
    done = subprocess.run(
        [sys.executable, "-c", _LOADING],
        env={**os.environ, "LLAMA_CPP_LIB_PATH": str(build.libraries)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise LocalspecError(
            f"what was compiled cannot be loaded: {last_line(done.stderr)}",
            "Nothing was kept. Report this with the output of localspec doctor.",
        )
