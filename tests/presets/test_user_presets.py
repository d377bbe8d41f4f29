"""Presets of a person's own: what `models add` makes of them, and how they go again."""

from __future__ import annotations

from pathlib import Path

import pytest

import localspec
from command_line import run
from gguf_maker import write_random_model
from head_maker import write_head_model
from localspec.presets.presets import LocalModel, find_preset, load_presets, user_presets_file
from localspec.presets.user_presets import drop_preset


@pytest.fixture(autouse=True)
def users_file(own_config: Path, tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # nothing was measured there
    user_presets_file().parent.mkdir(parents=True)
    return user_presets_file()


@pytest.mark.parametrize(
    ("trained", "context", "most"),
    [((256, 512), 256, 256), ((32768, 16384), 8192, 16384)],
)
def test_the_smaller_trained_context_is_taken(tmp_path, demo_target, trained, context, most):
    target, draft = (
        write_random_model(tmp_path / f"{length}.gguf", demo_target, context_length=length)
        for length in trained
    )
    result = run("models", "add", "mine", "--target", target, "--draft", draft)
    assert result.exit_code == 0, result.output
    preset = find_preset("mine")
    assert (preset.context_length, preset.max_context_length) == (context, most)
    with localspec.load("mine", draft_tokens=0, num_threads=1) as engine:
        assert engine.context_length == context


def test_a_head_of_another_model_is_refused(tmp_path, demo_target, users_file):
    target, head = (
        write_head_model(tmp_path / f"{part}.gguf", demo_target, "qwen35", part=part)
        for part in ("whole", "head")
    )
    for role in ("--head", "--draft"):
        result = run("models", "add", "mine", "--target", demo_target, role, head)
        assert result.exit_code == 1
        assert f"{head} cannot draft for the target" in result.stderr
    result = run("models", "add", "x", "--target", head)
    assert "holds only a head" in result.stderr
    assert not users_file.exists()
    assert run("models", "add", "mine", "--target", target, "--head", head).exit_code == 0


OTHERS = """# mine, by hand
["other@x"]  # stays
description = "[mine]"
context_length = 9
target = { path = "x.gguf" }

"""


@pytest.mark.parametrize("before", ["", OTHERS])
@pytest.mark.parametrize("after", ["", OTHERS.replace("other@x", "mine2")])
def test_remove_takes_a_preset_out_and_leaves_the_rest(users_file, demo_target, before, after):
    users_file.write_text(before)
    assert run("models", "add", "mine", "--target", demo_target, "--head", "").exit_code == 0
    users_file.write_text(users_file.read_text() + after)
    kept = {name for name in load_presets() if name != "mine"}
    refused = run("models", "remove", "mine", stdin="n\n")
    assert refused.exit_code == 0
    assert f"Remove the preset mine from {users_file}?" in refused.stderr
    assert "mine" in load_presets()
    done = run("models", "remove", "mine", stdin="y\n")
    assert done.exit_code == 0, done.output
    assert demo_target.exists()
    assert load_presets().keys() == kept
    assert [line for line in users_file.read_text().splitlines() if line] == [
        line for line in (before + after).splitlines() if line
    ]
    assert run("models", "remove", "mine", "--yes").exit_code == 2


def test_a_preset_that_another_extends_stays(users_file, demo_target):
    run("models", "add", "mine", "--target", demo_target)
    users_file.write_text(users_file.read_text() + '[twin]\nextends = "mine"\n')
    result = run("models", "remove", "mine", "--yes")
    assert "The preset mine stays: twin extends it" in result.stderr
    with pytest.raises(localspec.PresetError, match="twin extends 'mine'"):
        drop_preset("mine")
    assert {"mine", "twin"} <= load_presets().keys()


def test_a_preset_without_a_header_is_left_to_an_editor(users_file):
    text = 'mine = { description = "d", context_length = 9, target = { path = "x.gguf" } }\n'
    users_file.write_text(text)
    result = run("models", "remove", "mine", "--yes")
    assert result.exit_code == 1
    assert "under a header of its own" in result.stderr
    assert users_file.read_text() == text


def test_the_list_has_a_header_and_says_what_fits(users_file, tmp_path):
    large, unknown = (
        f'[{name}]\ndescription = "d"\ncontext_length = 9\n[{name}.target]\nrepo = "o/m"\n'
        f'file = "x.gguf"\n{size}\n'
        for name, size in (("large", "size_bytes = 99999999999999"), ("unknown", ""))
    )
    users_file.write_text(large + unknown)
    shown = run("models")
    table, _, _ = shown.stdout.partition("\n\n")
    first, *lines = table.splitlines()
    assert first.split() == ["PRESET", "STATE", "SIZE", "FITS", "RELEASED", "LICENCE"]
    fits = {line.split()[0]: line[first.index("FITS") :].split()[0] for line in lines}
    assert (fits["demo"], fits["large"], fits["unknown"]) == ("yes", "no", "-")
    assert "qwen2-7b*" in fits
    assert "*: some details are unconfirmed" in shown.stderr
    assert "FITS: whether it fits into the memory" in shown.stderr


@pytest.mark.parametrize(
    "wrong",
    [
        {"target": "x.gguf"}, {"draft": 3}, {"context_length": 0}, {"context_length": "8"},
        {"target": None},
    ],
    ids=str,
)  # fmt: skip
def test_a_preset_made_in_code_is_checked(wrong, demo_target):
    facts = {"name": "x", "target": LocalModel(path=demo_target), "context_length": 8}
    with pytest.raises(localspec.OptionError) as caught:
        localspec.Preset(**{**facts, **wrong})
    assert caught.value.hint
    with pytest.raises(localspec.OptionError, match="the path is"):
        LocalModel(path=str(demo_target))
