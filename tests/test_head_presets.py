"""Heads in files of their own: named by presets and options, fetched, checked and removed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import run
from head_maker import write_head_model

import localspec
from localspec.errors import DownloadError, PresetError
from localspec.presets.presets import (
    user_presets_file,
)
from localspec.presets.source import Quantized, parse_source
from standin_hub import COMMIT, StandinHub

REPO = "o/headed-GGUF"
TARGET, HEAD = "headed-Q4_0.gguf", "mtp-headed-Q4_0.gguf"


@pytest.fixture(scope="session")
def headed_files(
    tmp_path_factory: pytest.TempPathFactory, demo_target: Path
) -> SimpleNamespace:
    """A hybrid without a head in its file, and that head's own file."""
    folder = tmp_path_factory.mktemp("headed")
    parts = [
        write_head_model(folder / f"{part}.gguf", demo_target, "qwen35", part=part)
        for part in ("whole", "head")
    ]
    return SimpleNamespace(target=parts[0], head=parts[1])


@pytest.fixture
def headed(hub: StandinHub, headed_files: SimpleNamespace) -> StandinHub:
    """The hub with the two, which the user's preset `headed` pins."""
    lines = ['\n[headed]\ndescription = "With a head"\ncontext_length = 256\n']
    for role, file, path in (
        ("target", TARGET, headed_files.target),
        ("head", HEAD, headed_files.head),
    ):
        served = hub.add(REPO, file, path.read_bytes())
        lines.append(
            f'[headed.{role}]\nrepo = "{REPO}"\nfile = "{file}"\nrevision = "{COMMIT}"\n'
            f'size_bytes = {len(served.content)}\nsha256 = "{served.sha256}"\n'
        )
    with user_presets_file().open("a") as presets:
        presets.writelines(lines)
    return hub


def stats_of(*arguments: object) -> dict[str, object]:
    result = run(
        "generate", "--raw", "hi", "--json", "--max-tokens", 16, "--draft-tokens", 3, *arguments
    )
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["stats"]


def test_a_preset_without_a_head_says_so():
    with pytest.raises(PresetError, match="'qwen3-8b' has no head") as caught:
        parse_source("qwen3-8b", "head")
    assert "inside the target's file needs none" in caught.value.hint


def test_a_quantisation_of_a_head_is_the_file_beside_the_model(headed):
    assert parse_source(f"{REPO}:Q4_0", "head") == Quantized(REPO, "mtp-Q4_0")
    assert parse_source(f"{REPO}:mtp-Q4_0", "head") == Quantized(REPO, "mtp-Q4_0")
    assert parse_source(f"{REPO}:Q4_0", "target") == Quantized(REPO, "Q4_0")
    missing = run("generate", "hi", "--target", "demo", "--head", f"{REPO}:Q4_0")
    assert missing.exit_code == 1
    command = f"download {REPO}:mtp-Q4_0"
    assert f"localspec {command}" in missing.stderr
    (path,) = map(Path, run(*command.split()).stdout.splitlines())
    assert path.name == HEAD
    (model,) = localspec.download(f"{REPO}:Q4_0")
    assert model.name == TARGET
    with pytest.raises(DownloadError, match="0 models in 'mtp-Q8_0'"):
        localspec.download(f"{REPO}:mtp-Q8_0")
    named = ("--target", f"{REPO}:Q4_0", "--head", f"{REPO}:Q4_0")
    assert stats_of(*named, "--proposer", "head")["steps_per_proposer"]["head"] > 0


@pytest.mark.parametrize("proposer", ["mtp", "auto"])
def test_a_presets_head_proposes(headed, proposer):
    run("download", "headed")
    stats = stats_of("--preset", "headed", "--proposer", proposer)
    assert stats["steps_per_proposer"]["head"] > 0
    assert stats["num_draft_tokens"] > 0
