"""Builds a wheel of libllama with kernels for all kinds of processors, and perhaps Vulkan.

    python scripts/develop/library_wheel.py DIR [--platform TAG] [--settings=-DNAME=VALUE ...]

The source is that of the installed llama-cpp-python, pinned by its hash, as `localspec kernels`
has it; the wheel's version is that of llama-cpp-python. ggml's back ends are files, of which it
loads the best for the processor that it finds. With the wheel, localspec-libllama, installed,
localspec uses it (docs/install.md). TAG is the platform's, such as manylinux_2_28_x86_64;
without it that of this machine. It takes a compiler with OpenMP, on Linux, and some 15 minutes
on two cores without Vulkan.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from localspec.errors import LocalspecError
from localspec.kernels.compiling import compile_libraries, fetch_source
from localspec.kernels.steps import OnStep
from localspec.kernels.toolchain import choose_toolchain
from localspec.llama.own_build import BINDINGS

NAME = "localspec_libllama"
_ALL_PROCESSORS = ("-DGGML_NATIVE=OFF", "-DGGML_BACKEND_DL=ON", "-DGGML_CPU_ALL_VARIANTS=ON")
_VULKAN = "-DGGML_VULKAN=ON"
_VERSIONED = re.compile(r"\.so\.\d+$")  # the name by which a library is looked for
_METADATA = """\
Metadata-Version: 2.1
Name: {name}
Version: {version}
Summary: libllama of llama-cpp-python {version}, with kernels for every kind of processor.
License: MIT
Requires-Python: >=3.10
"""
_WHEEL = """\
Wheel-Version: 1.0
Generator: localspec library_wheel
Root-Is-Purelib: false
Tag: py3-none-{platform}
"""


def build_wheel(folder: Path, platform: str, settings: list[str], on_step: OnStep) -> Path:
    """Build the wheel into a folder. Raises LocalspecError if a step fails."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        toolchain = choose_toolchain(scratch, only_packages=False)
        if not toolchain.has_openmp:
            raise LocalspecError("there is no compiler with OpenMP", "Install gcc and g++.")
        unpacked = fetch_source(scratch, toolchain, on_step)
        chosen = [*_ALL_PROCESSORS, *settings]
        if shutil.which("glslc") is not None:
            chosen.append(_VULKAN)
        built = compile_libraries(scratch, unpacked, toolchain, chosen, on_step)
        libraries = [*_without_links(built), _openmp(toolchain.c)]
        licence = (unpacked / "LICENSE").read_bytes()
        return pack(folder, platform, libraries, licence)


def _without_links(built: list[Path]) -> Iterator[Path]:
    """A file for each library, by the name that others look for: a wheel has no links."""
    for path in built:
        is_plugin = path.suffix == ".so" and not path.is_symlink()
        if is_plugin or _VERSIONED.search(path.name):
            yield path


def _openmp(compiler: str) -> Path:
    """The compiler's OpenMP library, which a user's machine may lack."""
    asked = subprocess.run(
        [compiler, "-print-file-name=libgomp.so.1"], capture_output=True, text=True, check=True
    )
    return Path(asked.stdout.strip())


def pack(folder: Path, platform: str, libraries: list[Path], licence: bytes) -> Path:
    """Write the wheel of these libraries, and return its path."""
    number = version(BINDINGS)
    info = f"{NAME}-{number}.dist-info"
    files = {f"{NAME}/__init__.py": b"", f"{info}/licenses/LICENSE": licence}
    for library in libraries:
        files[f"{NAME}/lib/{library.name}"] = library.read_bytes()
    metadata = _METADATA.format(name=NAME.replace("_", "-"), version=number)
    files[f"{info}/METADATA"] = metadata.encode()
    files[f"{info}/WHEEL"] = _WHEEL.format(platform=platform).encode()
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{NAME}-{number}-py3-none-{platform}.whl"
    record = f"{info}/RECORD"
    lines = [f"{path},{_digest(data)},{len(data)}" for path, data in files.items()]
    files[record] = "\n".join([*lines, f"{record},,", ""]).encode()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return wheel


def _digest(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return f"sha256={digest.decode().rstrip('=')}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    own = re.sub(r"[-.]", "_", sysconfig.get_platform())
    parser.add_argument("--platform", default=own)
    parser.add_argument("--settings", action="append", default=[])
    options = parser.parse_args()

    def show(what: str, part: float | None) -> None:
        print(what, "" if part is None else f"{100 * part:.0f} %", file=sys.stderr, flush=True)

    try:
        print(build_wheel(options.folder, options.platform, options.settings, show))
    except LocalspecError as error:
        sys.exit(f"{error}\n{error.hint}")


if __name__ == "__main__":
    main()
