"""Fetches llama.cpp's source, and compiles it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from localspec.kernels import source_archive
from localspec.kernels.steps import OnStep, num_jobs, run_step
from localspec.kernels.toolchain import (
    Toolchain,
    environment_with,
    install_command,
    make_zig_wrappers,
    pip_command,
)

_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    "-DLLAMA_BUILD_COMMON=OFF",
    "-DLLAMA_BUILD_TOOLS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_MTMD=ON",  # reads pictures
    "-DLLAMA_OPENSSL=OFF",
    # The libraries find each other in the folder to which they are moved.
    "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
    "-DCMAKE_INSTALL_RPATH=$ORIGIN",
    "-DCMAKE_SHARED_LINKER_FLAGS=-s",  # without symbols for debuggers
)
_TARGETS = ("llama", "mtmd")
_NINJA_STEP = re.compile(r"\[(\d+)/(\d+)\]")
_PACKAGES = "packages"  # the folder where the toolchain's packages are installed


def fetch_source(scratch: Path, toolchain: Toolchain, on_progress: OnStep) -> Path:
    """Install the toolchain's packages, download and unpack llama.cpp's source.

    Returns the folder of the source.

    Raises LocalspecError if a step fails, for example without a network.

    Args:
        scratch: A folder for packages and source.
        toolchain: The compiler, for which the source is changed where necessary.
        on_progress: Called before each step.
    """
    if toolchain.packages:
        on_progress("installing " + ", ".join(toolchain.packages), None)
        install = install_command(toolchain.packages, scratch / _PACKAGES)
        _run_quietly(install, "the packages could not be installed")
    on_progress("downloading llama.cpp's source", None)
    download = source_archive.download_command(pip_command(), scratch)
    _run_quietly(download, "the source could not be downloaded")
    on_progress("unpacking", None)
    unpacked = source_archive.unpack(scratch)
    if not toolchain.has_openmp:
        source_archive.let_threads_yield(unpacked)
    return unpacked


def _run_quietly(command: Sequence[str], failure: str) -> None:
    """Run a program, and ignore its output unless it fails."""
    run_step(command, dict(os.environ), failure, lambda _line: None)


def compile_libraries(
    scratch: Path,
    unpacked: Path,
    toolchain: Toolchain,
    settings: Sequence[str],
    on_progress: OnStep,
) -> list[Path]:
    """Compile libllama, libmtmd and ggml, and return their files, links among them.

    Args:
        scratch: The folder for all files of the build, in which `fetch_source` has installed
            the packages.
        unpacked: The folder of llama.cpp's source.
        toolchain: The compiler.
        settings: Additional settings of CMake, which choose the processors.
        on_progress: Called before each step, and while it compiles.

    Raises:
        LocalspecError: A step failed.
    """
    build_folder = scratch / "build"
    environment = environment_with(scratch / _PACKAGES, scratch)
    c_compiler = toolchain.c
    cxx_compiler = toolchain.cxx
    options = [*_OPTIONS, *settings]
    if toolchain.has_openmp:
        options.append("-DGGML_OPENMP=ON")
    else:
        options.append("-DGGML_OPENMP=OFF")
    if not c_compiler:  # zig is among the packages
        wrappers = make_zig_wrappers(scratch / _PACKAGES, scratch)
        c_compiler = str(wrappers["cc"])
        cxx_compiler = str(wrappers["c++"])
        options += [
            f"-DCMAKE_AR={wrappers['ar']}",
            f"-DCMAKE_RANLIB={wrappers['ranlib']}",
        ]
    options += [
        f"-DCMAKE_C_COMPILER={c_compiler}",
        f"-DCMAKE_CXX_COMPILER={cxx_compiler}",
    ]
    if toolchain.flags:
        options += [
            f"-DCMAKE_C_FLAGS={toolchain.flags}",
            f"-DCMAKE_CXX_FLAGS={toolchain.flags}",
        ]
    on_progress("looking at the compiler", None)
    configure = ["cmake", "-G", "Ninja", "-S", str(unpacked), "-B", str(build_folder)]
    configure += options
    run_step(configure, environment, "the compiler could not be set up", lambda _: None)

    def report_progress(line: str) -> None:
        step = _NINJA_STEP.match(line)
        if step is not None:
            on_progress("compiling", int(step[1]) / int(step[2]))

    on_progress("compiling", 0.0)
    compiling = ["cmake", "--build", str(build_folder), f"-j{num_jobs()}"]
    compiling += ["--target", *_TARGETS]
    run_step(compiling, environment, "libllama could not be compiled", report_progress)
    return sorted((build_folder / "bin").glob("lib*"))
