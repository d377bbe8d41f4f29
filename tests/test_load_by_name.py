"""`load` and `explain` take first what commands take as MODEL: a path, or any other name."""

from __future__ import annotations

from pathlib import Path

import llama_cpp
import pytest
from command_line import run

import localspec
from gguf_maker import write_random_model
from localspec.presets.source import set_alias

pytestmark = pytest.mark.usefixtures("own_config")


@pytest.fixture
def model(own_config: Path, demo_target: Path) -> Path:
    """A model that is not the demo's: its vocabulary is larger."""
    return write_random_model(own_config / "other.gguf", demo_target, num_padding=3)


def size_of(*arguments: object, **keywords: object) -> int:
    """What tells which model was loaded."""
    with localspec.load(*arguments, num_threads=1, **keywords) as engine:
        return engine.vocabulary.size


def test_a_file_is_loaded_by_its_path(model, monkeypatch):
    assert size_of(str(model)) == size_of(model) == 4099
    monkeypatch.chdir(model.parent)
    assert (
        size_of("other.gguf") == size_of("~/other.gguf") == size_of(Path("other.gguf")) == 4099
    )


def test_a_preset_and_an_alias_of_either_are_names(model, tmp_path, monkeypatch):
    set_alias("d", "demo")
    set_alias("o", str(model))
    assert size_of("demo") == size_of("d") == 4096
    assert size_of("o") == 4099
    monkeypatch.chdir(tmp_path)
    model.rename(tmp_path / "demo")
    assert size_of("demo") == 4096
    assert size_of("./demo") == size_of(Path("demo")) == 4099


@pytest.mark.process
def test_an_object_of_llama_cpp_is_a_target_too(demo_target):
    llama = llama_cpp.Llama(str(demo_target), n_ctx=64, verbose=False)
    assert size_of(llama) == 4096
    with pytest.raises(localspec.OptionError, match="object of this process"):
        localspec.IsolatedEngine(llama)
    llama.close()


@pytest.mark.parametrize(
    ("name", "error", "message", "hint"),
    [
        ("othr.gguf", localspec.ModelNotFoundError, "othr.gguf does not exist", "other.gguf?"),
        ("a/b/c", localspec.ModelNotFoundError, "a/b/c does not exist", "no folder a/b"),
        (".", localspec.ModelFileError, "is a directory", "other.gguf"),
        ("nothing", localspec.UnknownPresetError, "no preset", "a file is named by its path"),
        ("own/repo-GGUF", localspec.OptionError, "names no file", "own/repo-GGUF:Q4_K_M"),
        ("o/m:Q4_0", localspec.PresetError, "is not on this machine", "download o/m:Q4_0"),
        ("hf:o/m/x.gguf", localspec.PresetError, "x.gguf is not on", "download hf:o/m/x.gguf"),
    ],
)
def test_what_is_not_there_is_said_alike_by_python_and_commands(
    model, monkeypatch, name, error, message, hint
):
    monkeypatch.chdir(model.parent)
    with pytest.raises(error) as caught:
        localspec.load(name)
    assert message in str(caught.value)
    assert hint in caught.value.hint
    assert caught.value.hint.count(",") < 5, "a list of everything"
    told = run("generate", "-m", name, "Hi")
    assert f"Error: {caught.value}\nHint: {caught.value.hint}\n" in told.stderr
    assert told.exit_code == (2 if issubclass(error, localspec.OptionError) else 1)


def test_two_names_are_one_too_many(model):
    with pytest.raises(localspec.OptionError, match="both a preset and a target"):
        localspec.load(str(model), target=str(model))
    for role in ("draft", "head"):
        with pytest.raises(localspec.OptionError, match=f"a {role} is given without a target"):
            localspec.load(**{role: str(model)})
