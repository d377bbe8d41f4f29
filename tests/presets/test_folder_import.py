"""Models that lie in a folder become presets, paired where they can be."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

import localspec
from command_line import run
from gguf_maker import split_model, write_random_model
from localspec.presets.local_models import files_here, search_folder
from localspec.presets.presets import find_preset, load_presets
from vision_maker import write_projector

HASHES = ["ab" * 32, "cd" * 32, "ef" * 32]


pytestmark = pytest.mark.usefixtures("own_config")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, demo_target: Path) -> dict[str, Path]:
    """A large model, a middle and a small one of its tokenizer, and a small one of another."""
    folder = tmp_path_factory.mktemp("models")
    other = {n: f"other{n}" for n in range(1000, 4096)}
    return {
        "large": write_random_model(folder / "L.gguf", demo_target, width=256),
        "middle": write_random_model(folder / "M.gguf", demo_target, width=128),
        "small": write_random_model(folder / "S.gguf", demo_target, width=64),
        "other": write_random_model(
            folder / "O.gguf", demo_target, width=64, quantization="F16", replace_tokens=other
        ),
    }


@pytest.fixture
def lm_studio(tmp_path: Path, models: dict[str, Path]) -> Path:
    """Folders as LM Studio has them, with what is no model and what is broken."""
    root = tmp_path / "lm"
    for name, path in {
        "maker/Big-GGUF/Big Model-Q8_0.gguf": models["large"],
        "maker/Small-GGUF/small-Q8_0.gguf": models["small"],
        "maker/Other-GGUF/other.GGUF": models["other"],
    }.items():
        (root / name).parent.mkdir(parents=True)
        shutil.copy(path, root / name)
    (root / "maker/Small-GGUF/README.md").write_text("no model")
    (root / "maker/broken.gguf").write_bytes(models["small"].read_bytes()[:5000])
    return root


def test_what_would_be_added_is_shown_and_asked(lm_studio):
    shown = run("models", "import", lm_studio)
    assert shown.exit_code == 0
    big = lm_studio / "maker/Big-GGUF/Big Model-Q8_0.gguf"
    assert f"big-model-q8_0: {big}, " in shown.stderr
    assert f"draft {lm_studio / 'maker/Small-GGUF/small-Q8_0.gguf'}" in shown.stderr
    assert f"Skipped: {lm_studio / 'maker/broken.gguf'}" in shown.stderr
    assert "README" not in shown.stderr
    assert "To add 3 presets" in shown.stderr
    assert "--yes" in shown.stderr
    assert "small-q8_0" not in load_presets()


def test_presets_are_added_once(lm_studio):
    done = run("models", "import", lm_studio, "--yes")
    assert done.stdout.split() == ["big-model-q8_0", "other", "small-q8_0"]
    preset = find_preset("big-model-q8_0")
    assert preset.draft.path.name == "small-Q8_0.gguf"
    assert preset.context_length == 2048
    with localspec.load("big-model-q8_0", num_threads=1) as engine:
        assert engine.shared_vocabulary.size == 4096
    again = run("models", "import", lm_studio, "--yes")
    assert f"{preset.target.path} is a preset already: big-model-q8_0" in again.stderr
    assert "Nothing to add" in again.stderr
    assert again.stdout == ""


@pytest.fixture
def ollama(tmp_path: Path, models: dict[str, Path]) -> Path:
    """Manifests and blobs, as Ollama has them; one blob is gone."""
    root = tmp_path / "ollama"
    (root / "blobs").mkdir(parents=True)
    for name, digest, path in (
        ("qwen3/8b", HASHES[0], models["large"]),
        ("qwen3/0.6b", HASHES[1], models["small"]),
        ("gone/latest", HASHES[2], None),
    ):
        manifest = root / "manifests/registry.ollama.ai/library" / name
        manifest.parent.mkdir(parents=True, exist_ok=True)
        kind = "application/vnd.ollama.image"
        layers = [
            {"mediaType": f"{kind}.model", "digest": f"sha256:{digest}", "size": 1},
            {"mediaType": f"{kind}.license", "digest": f"sha256:{'00' * 32}", "size": 1},
        ]
        manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
        if path is not None:
            shutil.copy(path, root / f"blobs/sha256-{digest}")
    for name, text in (("list", "[]"), ("broken", "{"), ("odd", '{"layers": [3]}')):
        (root / "manifests" / name).write_text(text)
    return root


def test_models_of_ollama_are_called_by_their_manifests(ollama):
    done = run("models", "import", ollama, "--yes")
    assert done.stdout.split() == ["qwen3-0.6b", "qwen3-8b-2"]
    preset = find_preset("qwen3-8b-2")
    assert preset.target.path == ollama / f"blobs/sha256-{HASHES[0]}"
    assert preset.draft.path == ollama / f"blobs/sha256-{HASHES[1]}"
    assert f"Skipped: {ollama / 'blobs'}/sha256-{HASHES[2]} does not exist" in done.stderr
    localspec.load("qwen3-8b-2", num_threads=1).close()


def test_a_projector_of_ollama_belongs_to_the_model_of_its_manifest(ollama, models):
    """One that fits is part of the preset; one of another model is skipped, and said."""
    kind = "application/vnd.ollama.image"
    for name, digest, width in (("seer/4b", "12" * 32, 256), ("wrong/1b", "34" * 32, 96)):
        write_projector(ollama / f"blobs/sha256-{digest}", "gemma3", width=width)
        manifest = ollama / "manifests/registry.ollama.ai/library" / name
        manifest.parent.mkdir()
        copy = ollama / f"blobs/sha256-{digest[::-1]}"
        shutil.copy(models["large"], copy)
        layers = [
            {"mediaType": f"{kind}.projector", "digest": f"sha256:{digest}"},
            {"mediaType": f"{kind}.model", "digest": f"sha256:{digest[::-1]}"},
        ]
        manifest.write_text(json.dumps({"layers": layers}))
    done = run("models", "import", ollama, "--yes")
    seer = find_preset("seer-4b")
    assert seer.mmproj.path == ollama / f"blobs/sha256-{'12' * 32}"
    assert f", sees images with {seer.mmproj.path}" in done.stderr
    assert find_preset("wrong-1b").mmproj is None
    assert f"sha256-{'34' * 32} is made for models of width 96" in done.stderr


def test_a_split_model_counts_once(tmp_path, models):
    folder = tmp_path / "x"
    folder.mkdir()
    first = split_model(models["large"], folder)
    (proposal,) = search_folder(folder).proposals
    assert (proposal.name, proposal.target) == ("split", first)
    (folder / "split-00002-of-00002.gguf").unlink()
    found = search_folder(folder)
    assert found.proposals == ()
    assert "split-00002-of-00002.gguf does not exist" in found.skipped[first]


def test_a_link_to_a_folder_above_is_not_followed(tmp_path, models):
    deep = tmp_path.joinpath("x", *"abc")
    deep.mkdir(parents=True)
    shutil.copy(models["small"], deep)
    (tmp_path / "x/a/round").symlink_to(tmp_path / "x", target_is_directory=True)
    assert len(search_folder(tmp_path / "x").proposals) == 1


def test_a_link_to_itself_is_skipped(tmp_path, models, monkeypatch):
    folder = tmp_path / "x"
    folder.mkdir()
    shutil.copy(models["small"], folder)
    loop = folder / "loop.gguf"
    loop.symlink_to("loop.gguf")
    found = search_folder(folder)
    assert len(found.proposals) == 1
    assert list(found.skipped) == [loop]
    monkeypatch.chdir(folder)
    assert models["small"].name in [path.name for path in files_here()]


def test_why_there_is_no_draft_is_said(tmp_path, models):
    folder = tmp_path / "x"
    folder.mkdir()
    for path in models.values():
        shutil.copy(path, folder)
    share = models["small"].stat().st_size / models["middle"].stat().st_size
    shown = run("models", "import", folder).stderr
    lines = {line.partition(":")[0]: line for line in shown.splitlines()}
    assert lines["l"].endswith(f"draft {folder / 'S.gguf'}")
    assert re.search(
        r"no draft: S has its tokenizer and (\d+)% of its size, above a third", lines["m"]
    )
    assert abs(int(re.search(r"(\d+)%", lines["m"])[1]) - 100 * share) < 3
    assert lines["s"].endswith("no draft: no smaller model here has its tokenizer")
    assert lines["o"].endswith("no draft: no smaller model here has its tokenizer")
