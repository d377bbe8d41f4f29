"""Which model is taken: by a command, named, in the environment, chosen before, or the demo
pair; by `load` and `explain`, a path, or any other name.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import inside
import localspec
from command_line import run
from gguf_maker import write_random_model
from localspec.errors import OptionError, PresetError, UnknownPresetError
from localspec.presets.model_names import choose_model, resolve, set_alias, set_default
from localspec.presets.presets import find_preset, names_file, read_names, user_presets_file

TERSE = ["--temperature", "0", "--max-tokens", "4"]


pytestmark = pytest.mark.usefixtures("own_config")


@pytest.fixture
def model(own_config: Path, demo_target: Path) -> Path:
    """A model that is not the demo's: its vocabulary is larger."""
    return write_random_model(own_config / "other.gguf", demo_target, num_padding=3)


def chosen(model: str | None = None) -> str | None:
    return choose_model(model, None, None, is_target=False)


def test_the_order_is_command_line_environment_default_demo(monkeypatch, model):
    assert chosen() is None
    set_default("qwen3-8b")
    assert chosen() == "qwen3-8b"
    monkeypatch.setenv("LOCALSPEC_MODEL", str(model))
    assert chosen() == str(model)
    assert chosen("qwen3-4b") == "qwen3-4b"
    assert choose_model(None, "demo", None, is_target=False) == "demo"
    monkeypatch.setenv("LOCALSPEC_MODEL", "")
    assert chosen() == "qwen3-8b"
    set_default(None)
    assert chosen() is None


def test_with_a_draft_a_presets_name_is_its_target():
    assert choose_model("demo", None, None, is_target=True) == "demo"
    set_default("qwen3-8b")
    assert choose_model(None, None, None, is_target=True) is None


def prompt_size(*arguments: object) -> str:
    """What tells which model a command took: its text."""
    answer = run("generate", "--json", *TERSE, *arguments, "Hello!", stdin="")
    assert answer.exit_code == 0, answer.output
    return json.loads(answer.stdout)["text"]


def test_generate_takes_the_model_that_is_meant(monkeypatch, demo_draft):
    """By an option, the environment and a default: here the demo's draft alone."""
    demo, alone = prompt_size(), prompt_size("--target", demo_draft)
    assert demo != alone
    assert prompt_size("-m", demo_draft) == prompt_size("--model", demo_draft) == alone
    assert run("models", "default", demo_draft).exit_code == 0
    assert prompt_size() == alone
    assert prompt_size("-m", "demo") == demo
    monkeypatch.setenv("LOCALSPEC_MODEL", "demo")
    assert prompt_size() == demo


def test_what_names_an_unknown_model_is_said(monkeypatch):
    monkeypatch.setenv("LOCALSPEC_MODEL", "qwen3-8")
    with pytest.raises(UnknownPresetError, match=r"^LOCALSPEC_MODEL: there is no") as caught:
        chosen()
    assert caught.value.hint.startswith("Set it to another name, or unset it. Perhaps qw")
    monkeypatch.delenv("LOCALSPEC_MODEL")
    names_file().parent.mkdir(parents=True)
    names_file().write_text('default = "gone"')
    with pytest.raises(UnknownPresetError, match=r"names\.toml: .* no preset 'gone'") as caught:
        chosen()
    assert "localspec models default NAME, or --clear" in caught.value.hint


def test_default_shows_what_counts(monkeypatch, model):
    assert run("models", "default").stdout == "demo\n"
    assert run("models", "default", "qwen3-8b").stdout == "qwen3-8b\n"
    shown = run("models", "default")
    assert shown.stdout == "qwen3-8b\n"
    assert str(names_file()) in shown.stderr
    assert "Default: qwen3-8b." in run("models").stderr
    monkeypatch.setenv("LOCALSPEC_MODEL", "demo")
    shown = run("models", "default")
    assert (shown.stdout, shown.stderr) == ("demo\n", "That is LOCALSPEC_MODEL.\n")
    monkeypatch.delenv("LOCALSPEC_MODEL")
    assert run("models", "default", "--clear").stdout == "demo\n"
    assert run("models", "default", "demo", "--clear").exit_code == 2


def test_a_path_is_kept_for_every_folder(monkeypatch, model):
    monkeypatch.chdir(model.parent)
    run("models", "default", "other.gguf")
    run("models", "alias", "o", "other.gguf")
    monkeypatch.chdir("/")
    assert chosen() == chosen("o") == str(model)
    assert resolve("o").model.path == model


def test_a_server_of_an_aliass_file_is_found_by_the_alias(model):
    set_alias("o", str(model))
    length = {"max_model_len": 512, "meta": {"n_ctx_train": 512}}
    found = [{"id": "first", **length}, {"id": "other", **length}]
    assert inside.chosen_to_launch(found, "o").model == "other"
    assert inside.chosen_to_launch(found, "first").model == "first"
    with pytest.raises(OptionError, match="serves first, other, not absent"):
        inside.chosen_to_launch(found, "absent")


def test_an_alias_stands_for_a_preset_wherever_one_is_named(model):
    assert run("models", "alias", "d", "demo").exit_code == 0
    assert run("models", "alias", "e", "d").exit_code == 0
    assert run("models", "alias").stdout == "d  demo\ne  demo\n"
    assert find_preset("d") == find_preset("e") == find_preset("demo")
    assert chosen("d") == "demo"
    assert run("models", "path", "d").stdout == run("models", "path", "demo").stdout
    run("models", "default", "d")
    again = run("models", "alias", "d", "qwen3-4b")
    assert again.stderr == "d stands for qwen3-4b\n"
    gone = run("models", "alias", "d", "--clear")
    assert (gone.exit_code, gone.stderr) == (0, "")
    assert chosen() == "qwen3-4b"
    assert run("models", "path", "d").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a/b", "demo"], "is not a valid name"),
        (["demo", "qwen3-8b"], "a preset 'demo' already"),
        (["q", "--clear"], "no alias 'q'"),
        (["q"], "SHORT and NAME"),
        (["--clear"], "SHORT and NAME"),
        (["q", "demo", "--clear"], "SHORT and NAME"),
        (["q", __file__], "not a GGUF file"),
        (["q", "absent.gguf"], "does not exist"),
        (["q", "hf:o/m"], "does not name a file"),
    ],
)
def test_what_is_no_alias(arguments, words):
    result = run("models", "alias", *arguments)
    assert result.exit_code in (1, 2)
    assert words in result.stderr
    assert not names_file().exists()


@pytest.mark.parametrize("text", ["default = 3", "[", "aliases = 3", "\xff", "[aliases]\na=1"])
def test_a_file_of_names_that_cannot_be_read_is_told(text):
    names_file().parent.mkdir(parents=True)
    names_file().write_bytes(text.encode("latin-1"))
    for ask in (read_names, chosen, lambda: chosen("x")):
        with pytest.raises(PresetError, match=r"names\.toml cannot be read") as caught:
            ask()
        assert caught.value.hint
    assert chosen("demo") == "demo"
    with pytest.raises(PresetError):
        set_default("demo")


def test_a_broken_file_of_presets_leaves_the_shipped_ones(caplog, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # where nothing was measured
    user_presets_file().parent.mkdir(parents=True)
    user_presets_file().write_text('[mine]\ncolour = "red"\n')
    for _ in range(3):
        assert find_preset("demo").name == "demo"
    (record,) = caplog.records
    assert f"{user_presets_file()}: [mine] colour: is not a key" in record.getMessage()
    with pytest.raises(PresetError, match="colour") as caught:
        find_preset("mine")
    assert not isinstance(caught.value, UnknownPresetError)
    with pytest.raises(PresetError, match="colour"):
        chosen("mine")
    assert run("models").exit_code == 0
    assert "Nothing to remove" in run("models", "remove", "demo", "--yes").stderr
    assert run("models", "add", "other", "--target", "demo").exit_code == 1


# --- by load and explain ---


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
    assert size_of(target="demo") == 4096, "in every place a name comes before a file"
    assert size_of(target="./demo") == 4099
    Path("d").touch()
    assert size_of("d") == size_of(target="d") == 4096


@pytest.mark.parametrize(
    ("name", "error", "message", "hint"),
    [
        ("othr.gguf", localspec.ModelNotFoundError, "othr.gguf does not exist", "other.gguf?"),
        ("a/b/c", localspec.ModelNotFoundError, "a/b/c does not exist", "a/b holds no"),
        (".", localspec.ModelFileError, "is a directory", "other.gguf"),
        ("nothing", localspec.UnknownPresetError, "no preset", "a file is named by its path"),
        (
            "own/repo-GGUF",
            localspec.OptionError,
            "does not say which file",
            "own/repo-GGUF:Q4_K_M",
        ),
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
