"""The shipped models.toml, and a user's own file."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import localspec
from command_line import run
from localspec.errors import OptionError, PresetError
from localspec.hub.hub_file import HubFile, HubModel, all_parts
from localspec.presets.located import locate, preset_state
from localspec.presets.model_names import Quantized, resolve
from localspec.presets.presets import (
    LocalModel,
    PackagedModel,
    Preset,
    find_preset,
    hub_files,
    load_presets,
    read_presets,
    user_presets,
    user_presets_file,
)

ROOT = Path(__file__).parents[2]
PRESETS = load_presets()


@pytest.fixture
def users_file(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(
        "localspec.presets.presets.user_presets_file", lambda: tmp_path / "models.toml"
    )
    return tmp_path / "models.toml"


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS.keys())
def test_every_preset_is_complete(preset):
    """Models with licences, somebody to draft or why not, files that are pinned or labelled."""
    assert preset.description
    assert 0 < preset.context_length <= (preset.max_context_length or 32768) <= 262144
    alone = ("The head is inside the target's file", "No model drafts for it")
    alone += ("For load_embedder",) * preset.embeds
    assert preset.draft or preset.head or preset.notes.startswith(alone)
    for model in preset.models:
        assert model.license
        assert model.quantization
    for file in hub_files(preset.models):
        if preset.unconfirmed == "":
            assert re.fullmatch(r"[0-9a-f]{40}", file.revision)
            assert re.fullmatch(r"[0-9a-f]{64}", file.sha256)
            assert file.size_bytes > 3 * 10**7


def test_the_demo_pair_came_with_the_package():
    preset = find_preset("demo")
    assert all(isinstance(model, PackagedModel) for model in preset.models)
    target, draft = locate(preset).values()
    assert target.stat().st_size + draft.stat().st_size <= 14_000_000


@pytest.fixture
def llm_fox(tmp_path, monkeypatch, demo_draft) -> Path:
    """A model that an installed package brings, as pip leaves it."""
    (tmp_path / "llm_fox").mkdir()
    model = shutil.copy(demo_draft, tmp_path / "llm_fox" / "fox.gguf")
    (tmp_path / "llm_fox" / "__init__.py").write_text("raise AssertionError('imported')")
    about = tmp_path / "llm_fox-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-fox\nVersion: 1.0\n")
    (about / "RECORD").write_text("llm_fox/__init__.py,,\nllm_fox/fox.gguf,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    return Path(model)


def fox_table(sha256: str, extra: str = "") -> str:
    return (
        '[fox]\ndescription = "A fox"\ncontext_length = 64\n[fox.target]\n'
        f'packaged = "fox.gguf"\npackage = "llm-fox"\nsha256 = "{sha256}"\nextra = "{extra}"\n'
    )


def of_package(sha256: str, extra: str = "") -> Preset:
    return read_presets("mine.toml", fox_table(sha256, extra), {})["fox"]


def test_a_file_of_another_package_is_found_by_name_and_checked_by_its_digest(llm_fox):
    preset = of_package(hashlib.sha256(llm_fox.read_bytes()).hexdigest())
    assert locate(preset) == {"target": llm_fox}
    assert preset_state(preset).is_installed
    with localspec.load(preset) as engine:
        assert engine.generate("Hi", max_tokens=2).reply().token_ids
    assert locate(of_package("")) == {"target": llm_fox}
    for refused in (locate, localspec.load, localspec.explain, localspec.download):
        with pytest.raises(PresetError, match="sha256 is not 0000") as caught:
            refused(of_package("0" * 64))
        assert caught.value.hint.endswith("--force-reinstall --no-deps llm-fox")


def test_verify_names_all_damaged_files(users_file, llm_fox, demo_draft, tmp_path):
    """Also behind a file of a package, or of the user's own."""
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(demo_draft.read_bytes()[:-4096])
    users_file.write_text(
        fox_table("0" * 64)
        + f'[cut]\ndescription = "d"\ncontext_length = 5\n[cut.target]\npath = "{cut}"\n'
    )
    done = run("models", "verify")
    assert done.exit_code == 1
    assert done.stdout.split("\n")[-3:] == ["fox: damaged", "cut: damaged", ""]
    assert "demo: ok" in done.stdout
    assert f"damaged: {llm_fox}, {cut}" in done.stderr
    assert "--force-reinstall --no-deps llm-fox" in done.stderr


def test_a_package_that_is_missing_is_named_with_what_installs_it():
    assert preset_state(of_package("")).state == "absent"
    for extra, hint in (("", "pip install llm-fox"), ("x", "pip install 'localspec[x]'")):
        for refused in (locate, localspec.load, localspec.explain, localspec.download):
            with pytest.raises(PresetError, match="package llm-fox") as caught:
                refused(of_package("", extra))
            assert caught.value.hint == f"Install it: {hint}"


@pytest.mark.process
def test_python_in_a_checkout_finds_them():
    """The working directory comes before what is installed, and people install from there."""
    program = "import localspec; print(localspec.__file__, localspec.find_preset('demo').name)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == [str(ROOT / "localspec/__init__.py"), "demo"], done.stderr


def test_an_unknown_preset_names_near_ones_and_not_all_of_them():
    for name, near in (("nope", "'localspec models' lists them"), ("qwen3-8", "qwen3-8b")):
        with pytest.raises(PresetError, match=repr(name)) as caught:
            find_preset(name)
        assert near in caught.value.hint
        assert "smollm2" not in caught.value.hint


def test_the_users_file_overrides_and_extends(users_file, demo_target):
    users_file.write_text(
        '[qwen3-8b]\nextends = "qwen3-8b"\ncontext_length = 16384\n'
        "[qwen3-8b.sampling]\ntemperature = 0\n"
        '["own@fast"]\ndescription = "mine"\ncontext_length = 128\n'
        f'["own@fast".target]\npath = "{demo_target.as_posix()}"\n'
    )
    presets = load_presets()
    assert list(presets) == [*PRESETS, "own@fast"]
    changed = presets["qwen3-8b"]
    assert changed.context_length == 16384
    assert changed.sampling.is_greedy
    assert changed.target == PRESETS["qwen3-8b"].target
    own = presets["own@fast"]
    assert own.draft is None
    assert own.target == LocalModel(path=demo_target)
    assert locate(own) == {"target": demo_target}


@pytest.mark.skipif(os.name != "posix", reason="pipes and devices have no names here")
def test_a_users_file_that_is_no_file_is_an_error(users_file):
    """Neither waited for nor read without end."""
    users_file.write_bytes(b"\xff")
    with pytest.raises(PresetError, match="cannot be read"):
        user_presets()
    users_file.unlink()
    os.mkfifo(users_file)
    with pytest.raises(PresetError, match="not a regular file"):
        user_presets()
    users_file.unlink()
    users_file.symlink_to("/dev/zero")
    with pytest.raises(PresetError, match="not a regular file"):
        user_presets()


@pytest.mark.parametrize("path", ["~nouser/x.gguf", "a\\u0000b", "x" * 5000])
def test_a_preset_whose_model_is_not_there_is_told(users_file, path):
    users_file.write_text(
        f'[a]\ndescription = "d"\ncontext_length = 5\n[a.target]\npath = "{path}"\n'
    )
    with pytest.raises(PresetError, match="there is no file"):
        locate(find_preset("a"))


def test_the_users_file_stands_in_the_platforms_place(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = user_presets_file()
    assert (path.parent.name, path.name) == ("localspec", "models.toml")
    assert sys.platform != "linux" or path.parent.parent == tmp_path


TARGET = '[a.target]\nrepo = "o/m"\nfile = "x.gguf"\n'
PLAIN = '[a]\ndescription = "d"\ncontext_length = 5\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[a\n", "Expected.*line 1"),
        ("a = " + "9" * 10_000, ""),
        ("x = 1\n" + PLAIN, r"\[x\] is outside any preset"),
        (PLAIN.replace("5", '"5"') + TARGET, r"\[a\] context_length: is '5', not of type int"),
        (PLAIN + "colour = 3\n" + TARGET, r"\[a\] colour: is not a key here"),
        (PLAIN + 'extends = "b"\n' + TARGET, "extends: does not name a preset further up"),
        (PLAIN + TARGET + 'path = "p"\n', r"\[a.target\] needs one of: repo, path, packaged"),
        (
            PLAIN + TARGET.replace("x.gguf", "../x.gguf"),
            "'../x.gguf' is not the name of a GGUF file",
        ),
        (PLAIN + TARGET + '[a.head]\npath = "h"\nsise = 3\n', r"\[a.head\] sise: is not a key"),
        (PLAIN + '[a.target]\nrepo = "o/m"\nparts = []\n', "has no files"),
        ('["../x"]\n' + PLAIN.removeprefix("[a]\n"), "is not a valid name for a preset"),
    ],
)  # fmt: skip
def test_a_malformed_file_names_file_table_and_key(text, words):
    with pytest.raises(PresetError, match=f"(?s)mine.toml.*{words}"):
        read_presets("mine.toml", text, {})


@pytest.mark.parametrize("written", ["1", "1.0"])
def test_a_share_may_be_written_as_a_whole_number(written):
    text = f"{PLAIN}active_share = {written}\n{TARGET}"
    assert read_presets("mine.toml", text, {})["a"].active_share == 1.0


@pytest.mark.parametrize("wrong", ["true", '"1"', "2", "nan"])
def test_a_share_is_a_number_up_to_1(wrong):
    text = f"{PLAIN}active_share = {wrong}\n{TARGET}"
    with pytest.raises(PresetError, match="active_share"):
        read_presets("mine.toml", text, {})


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("qwen3-8b", PRESETS["qwen3-8b"].target),
        ("models/x.gguf", LocalModel(path=Path("models/x.gguf"))),
        ("o/m:Q4_K_M", Quantized("o/m", "Q4_K_M")),
        ("hf:o/m:Q4_K_M", Quantized("o/m", "Q4_K_M")),
        ("hf:o/m/x.gguf", HubModel(files=(HubFile(repo="o/m", file="x.gguf"),))),
        (
            "hf:o/m@v1.0/x.gguf",
            HubModel(files=(HubFile(repo="o/m", file="x.gguf", revision="v1.0"),)),
        ),
        ("hf:o/m/d/x.gguf", HubModel(files=(HubFile(repo="o/m", file="d/x.gguf"),))),
        ("C:\\models\\x.gguf", LocalModel(path=Path("C:\\models\\x.gguf"))),
    ],
)
def test_ways_to_name_a_model(text, meant):
    assert resolve(text).model == meant


@pytest.mark.parametrize(
    "text",
    ["hf:", "hf:o", "hf:o/m", "hf:o/m/", "hf:o/m/x.bin", "hf:o/m@/x.gguf", "hf:o/m@../x.gguf"],
)
def test_half_a_hub_name_is_refused(text):
    with pytest.raises(OptionError):
        resolve(text)


@pytest.mark.parametrize(
    "repo",
    ["o/m--x", "o/m..x", "o/m.git", "o/m-", "o./m", f"o/{'m' * 97}"],
)
def test_a_repository_has_a_name_that_the_hub_takes(repo):
    """Others would end in an exception of huggingface_hub's."""
    with pytest.raises(OptionError, match="is not a repository"):
        HubFile(repo=repo, file="x.gguf")
    with pytest.raises(OptionError):
        resolve(f"hf:{repo}/x.gguf")
    HubFile(repo=f"o_9/{'m' * 94}-x", file="x.gguf")


@pytest.mark.parametrize("numbers", ["00000-of-00000", "00000-of-00002", "00003-of-00002"])
def test_parts_that_there_cannot_be(numbers):
    name = f"x-{numbers}.gguf"
    assert all_parts(name) == [name]
    with pytest.raises(OptionError, match="is part") as caught:
        HubFile(repo="o/m", file=name)
    assert "00001" in caught.value.hint
