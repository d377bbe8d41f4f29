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

RPC_SERVER = "ggml-rpc-server"
PROGRAMS = ("llama-bench", "llama-server", "llama-speculative-simple", RPC_SERVER)
_NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"

# Exits 0 unless the compiler drops part of a tile configuration as dead stores, as GCC 12
# does, whose ldtilecfg is said to read eight bytes. ggml's AMX kernels then end the process.
_AMX_PROBE = """
#ifndef __AMX_TILE__
int main(void) { return 0; }
#else
#include <immintrin.h>
struct config {
    unsigned char palette, start_row, reserved[14];
    unsigned short row_bytes[16];
    unsigned char rows[16];
};
static __attribute__((noinline)) void load(void) {
    _Alignas(64) struct config written = {0};
    written.palette = 1;
    written.rows[0] = 8;
    written.rows[7] = 16;
    written.row_bytes[0] = 64;
    written.row_bytes[7] = 32;
    _tile_loadconfig(&written);
}
int main(void) {
    _Alignas(64) struct config kept = {0};
    load();
    __asm__ volatile("" : : "r"(&kept) : "memory");
    _tile_storeconfig(&kept);
    __asm__ volatile("" : : "r"(&kept) : "memory");
    return kept.rows[0] != 8 || kept.rows[7] != 16 || kept.row_bytes[0] != 64
        || kept.row_bytes[7] != 32;
}
#endif
"""


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


def build(folder: Path, *, jobs: int, no_amx: bool) -> Tools:
    """PROGRAMS, built as `build_programs` does it, and found to compute as localspec does."""
    binaries = build_programs(folder, PROGRAMS, jobs=jobs, no_amx=no_amx)
    tools = Tools(binaries, _system_info(binaries))
    _check_same_features(tools.system_info)
    return tools


def binaries_of(folder: Path) -> Path:
    """Where `build_programs` puts them."""
    return folder / "build" / "bin"


def build_programs(folder: Path, programs: Sequence[str], *, jobs: int, no_amx: bool) -> Path:
    """The folder of the programs, built in `folder` unless they are there already.

    They can use RPC servers. jobs: compilers at once. no_amx: leave AMX out, also when the
    compiler can be trusted with it. What the environment's CMAKE_ARGS, CFLAGS and CXXFLAGS say
    is passed on, as llama-cpp-python's own build does. Raises LocalspecError if a program is
    missing or a step fails.
    """
    if shutil.which("cmake") is None:
        raise LocalspecError(
            "cmake is not installed", "The build needs CMake and a C++ compiler."
        )
    folder.mkdir(parents=True, exist_ok=True)
    source = _source(folder)
    place = binaries_of(folder).parent
    without_amx = no_amx or _compiler_breaks_amx()
    options = [
        "-DCMAKE_BUILD_TYPE=Release",
        "-DLLAMA_USE_PREBUILT_UI=OFF",
        "-DLLAMA_OPENSSL=OFF",
        "-DGGML_RPC=ON",
    ]
    for language in ("C", "CXX"):
        # Said on every run, since CMake would keep what an earlier one said.
        flags = f"{os.environ.get(language + 'FLAGS', '')} {_NO_AMX if without_amx else ''}"
        options.append(f"-DCMAKE_{language}_FLAGS={flags.strip()}")
    options += shlex.split(os.environ.get("CMAKE_ARGS", ""))
    _run("cmake", "-S", source, "-B", place, *options)
    _run("cmake", "--build", place, "--config", "Release", f"-j{jobs}", "--target", *programs)
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


def _compiler_breaks_amx() -> bool:
    """Whether the probe, built as llama.cpp is, fails on this machine."""
    compiler = shlex.split(f"{os.environ.get('CC', 'cc')} {os.environ.get('CFLAGS', '')}")
    if not sys.platform.startswith("linux") or shutil.which(compiler[0]) is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "probe.c", Path(folder) / "probe"
        source.write_text(_AMX_PROBE)
        command = [*compiler, "-O3", "-march=native", str(source), "-o", str(program)]
        compiled = subprocess.run(command, capture_output=True, check=False)
        if compiled.returncode != 0:
            return False  # not an x86 machine, or a compiler that has never heard of AMX
        broken = subprocess.run([program], check=False).returncode != 0
    if broken:
        print("the compiler breaks AMX kernels: left out (--no-amx)", file=sys.stderr)
    return broken


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
    from localspec.llama.library import system_info

    def features(line: str) -> set[str]:
        return {part.strip() for part in line.replace(":", "|").split("|")} - {""}

    different = features(system_info()) ^ features(tools)
    if different:
        raise LocalspecError(
            "the programs do not compute as localspec does here: "
            + ", ".join(sorted(different)),
            "Set CMAKE_ARGS, CFLAGS and CXXFLAGS as they were for llama-cpp-python, or leave "
            "out AMX if only that differs (--no-amx); empty the folder, start again.",
        )
