"""llama.cpp's own programs, built from the source of the installed llama-cpp-python.

So both sides of a comparison run the same commit, by the same compiler with the same flags.
The build takes minutes and is kept in its folder.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import platformdirs

from localspec.errors import LocalspecError
from localspec.llama.library import amx_is_left_out, system_info

RPC_SERVER = "ggml-rpc-server"
PROGRAMS = ("llama-bench", "llama-server", "llama-speculative-simple", RPC_SERVER)
_NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"


@dataclass(frozen=True)
class Tools:
    """Where the programs are, and what libllama says it was built for."""

    folder: Path
    system_info: str

    def path(self, program: str) -> Path:
        return program_in(self.folder, program)


def program_in(binaries: Path, program: str) -> Path:
    """The path of a program in a folder of programs."""
    return binaries / (program + (".exe" if os.name == "nt" else ""))


def default_folder() -> Path:
    """A folder of the user's cache, one for each version."""
    cache = Path(platformdirs.user_cache_dir("localspec"))
    return cache / f"llama-tools-{version('llama-cpp-python')}"


def build(folder: Path, *, jobs: int) -> Tools:
    """PROGRAMS, built as `build_programs` does it, and found to compute as localspec does."""
    binaries = build_programs(folder, PROGRAMS, jobs=jobs)
    tools = Tools(binaries, _system_info(binaries))
    _check_same_features(tools.system_info)
    return tools


def binaries_of(folder: Path) -> Path:
    """Where `build_programs` puts them."""
    return folder / "build" / "bin"


def build_programs(folder: Path, programs: Sequence[str], *, jobs: int) -> Path:
    """The folder of the programs, built in `folder` unless they are there already.

    They can use RPC servers, and have no AMX kernels where localspec leaves them out. jobs:
    compilers at once. What the environment's CMAKE_ARGS, CFLAGS and CXXFLAGS say is passed on,
    as llama-cpp-python's own build does. Raises LocalspecError if a step fails.
    """
    if shutil.which("cmake") is None:
        raise LocalspecError(
            "cmake is not installed", "The build needs CMake and a C++ compiler."
        )
    folder.mkdir(parents=True, exist_ok=True)
    source = _source(folder)
    target = binaries_of(folder).parent
    without_amx = f" {_NO_AMX}" if amx_is_left_out() else ""
    options = [
        "-DCMAKE_BUILD_TYPE=Release",
        "-DLLAMA_USE_PREBUILT_UI=OFF",
        "-DLLAMA_OPENSSL=OFF",
        "-DGGML_RPC=ON",
    ]
    for language in ("C", "CXX"):
        # Said on every run, since CMake would keep what an earlier one said.
        flags = os.environ.get(f"{language}FLAGS", "") + without_amx
        options.append(f"-DCMAKE_{language}_FLAGS={flags}")
    options += shlex.split(os.environ.get("CMAKE_ARGS", ""))
    _run("cmake", "-S", source, "-B", target, *options)
    _run("cmake", "--build", target, "--config", "Release", f"-j{jobs}", "--target", *programs)
    return binaries_of(folder)


def _run(*command: str | Path) -> None:
    print("$", shlex.join(str(word) for word in command), file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=sys.stderr, check=False)
    if done.returncode != 0:
        raise LocalspecError(
            f"{command[0]} ended with status {done.returncode}",
            "Its messages above say why; start again when that is mended.",
        )


def _source(folder: Path) -> Path:
    """llama.cpp's source, fetched by pip and unpacked into `folder` once."""
    installed = version("llama-cpp-python")
    name = f"llama_cpp_python-{installed}"
    source = folder / name / "vendor" / "llama.cpp"
    if (source / "CMakeLists.txt").exists():
        return source
    with tempfile.TemporaryDirectory(dir=folder) as download:
        _run(
            *(sys.executable, "-m", "pip", "download", "--no-deps", "--dest", download),
            *("--no-binary", "llama-cpp-python", f"llama-cpp-python=={installed}"),
        )
        archive = next(Path(download).glob("*.tar.gz"))
        shutil.unpack_archive(archive, download)
        (Path(download) / name).rename(folder / name)
    return source


def _system_info(folder: Path) -> str:
    """llama_print_system_info() of the library in `folder`, called in another process.

    Two libllama in one process would share symbols.
    """
    names = {"darwin": "libllama.dylib", "win32": "llama.dll"}
    library = folder / names.get(sys.platform, "libllama.so")
    code = (
        "import ctypes, sys; ask = ctypes.CDLL(sys.argv[1]).llama_print_system_info; "
        "ask.restype = ctypes.c_char_p; print(ask().decode())"
    )
    return subprocess.run(
        [sys.executable, "-c", code, library], capture_output=True, text=True, check=True
    ).stdout.strip()


def _check_same_features(tools: str) -> None:
    """Raise LocalspecError if localspec computes with other kernels here."""

    def features(line: str) -> set[str]:
        return {part.strip() for part in line.replace(":", "|").split("|")} - {""}

    different = features(system_info()) ^ features(tools)
    if different:
        raise LocalspecError(
            "the programs do not compute as localspec does here: "
            + ", ".join(sorted(different)),
            "Set CMAKE_ARGS, CFLAGS and CXXFLAGS as they were for llama-cpp-python, empty the "
            "folder, start again.",
        )
