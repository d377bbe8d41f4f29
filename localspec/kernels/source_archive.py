"""llama.cpp's source, from the source archive of the installed llama-cpp-python."""

from __future__ import annotations

import tarfile
from importlib.metadata import version
from pathlib import Path

from localspec.errors import LocalspecError
from localspec.llama.own_build import BINDINGS

DOWNLOAD_BYTES = 76_589_250
# The sha256 of the package index's archives.
_PINNED = {"0.3.36": "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"}
# A thread of ggml that waits for another spins without end. If another program runs on that
# thread's core, each of a step's hundreds of barriers lasts until the system switches programs.
# OpenMP's threads sleep. Without OpenMP, this change makes threads yield after some 60 µs.
_WAITING_FILE = "ggml/src/ggml-cpu/ggml-cpu.c"
_SPINS = """\
    while (atomic_load_explicit(&tp->n_barrier_passed, memory_order_relaxed) == n_passed) {
        ggml_thread_cpu_relax();
    }
"""
_SPINS_BRIEFLY = """\
    int num_spins = 0;
    while (atomic_load_explicit(&tp->n_barrier_passed, memory_order_relaxed) == n_passed) {
        if (num_spins < 3000) {
            ggml_thread_cpu_relax();
            num_spins++;
        } else {
            sched_yield();
        }
    }
"""


def requirement() -> str:
    """The archive as a line of pip's requirements, with its hash.

    Raises LocalspecError if the archive of the installed version is not known.
    """
    installed = version(BINDINGS)
    if installed not in _PINNED:
        raise LocalspecError(
            f"localspec knows the source archive of {BINDINGS} {', '.join(_PINNED)}, and "
            f"{installed} is installed",
            "Compile llama-cpp-python itself instead: docs/install.md#compiled-from-source.",
        )
    # Without the setting pip would run CMake on the archive.
    return (
        f"{BINDINGS}=={installed} --hash=sha256:{_PINNED[installed]} "
        '--config-settings="wheel.cmake=false"\n'
    )


def download_command(pip: list[str], scratch: Path) -> list[str]:
    """The command that downloads the archive into a folder, and compares its hash.

    Writes the file of requirements that the command reads.
    """
    wanted = scratch / "requirements.txt"
    wanted.write_text(requirement())
    download = [*pip, "download", "--no-deps", "--require-hashes", "--no-binary", BINDINGS]
    return [*download, "--dest", str(scratch), "-r", str(wanted)]


def unpack(scratch: Path) -> Path:
    """Unpack the downloaded archive, delete it, and return llama.cpp's folder.

    Its tests, models, examples and docs are left out.

    Raises LocalspecError if there is no archive.
    """
    archive = next(scratch.glob("llama_cpp_python-*.tar.gz"), None)
    if archive is None:
        raise LocalspecError("pip has downloaded no source archive", "Run the command again.")
    archive_root = archive.name.removesuffix(".tar.gz")
    source = f"{archive_root}/vendor/llama.cpp/"
    left_out = tuple(f"{source}{name}/" for name in ("tests", "models", "examples", "docs"))
    with tarfile.open(archive) as opened:
        members = []
        for member in opened:
            name = member.name
            if name.startswith(source) and not name.startswith(left_out):
                members.append(member)
        # Early releases of Python 3.10 and 3.11, as Debian 12's, know no filters. There it is
        # enough that pip has compared the archive with a hash that is stated here.
        if hasattr(tarfile, "data_filter"):
            opened.extraction_filter = tarfile.data_filter
        opened.extractall(scratch, members)
    archive.unlink()
    return scratch / source


def let_threads_yield(source: Path) -> None:
    """Make ggml's own threads yield while they wait.

    Raises LocalspecError if the code to change is not found.
    """
    file = source / _WAITING_FILE
    text = file.read_text(encoding="utf-8")
    if text.count(_SPINS) != 1:
        raise LocalspecError(
            f"{_WAITING_FILE} does not wait as it did in {', '.join(_PINNED)}",
            "Install a compiler with OpenMP (gcc and g++), and run the command again.",
        )
    file.write_text(text.replace(_SPINS, _SPINS_BRIEFLY), encoding="utf-8")
