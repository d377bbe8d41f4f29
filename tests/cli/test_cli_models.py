"""The commands that fetch, list, check, remove and add models, against a hub on loopback."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest

from command_line import LOCALSPEC, run
from localspec.cli.commands import models
from localspec.planning.free_memory import MemoryRoom
from localspec.presets.presets import (
    DEFAULT_PRESET,
    find_preset,
    user_presets,
)
from standin_hub import COMMIT, DRAFT, REPO, TARGET, StandinHub


def test_explain_without_network_says_what_is_known_here(hub: StandinHub, monkeypatch):
    run("download", "qwen2-7b")
    named = run("explain", "qwen2-7b").stdout  # from the headers
    run("models", "remove", "qwen2-7b", "--yes")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    found = run("explain", "qwen2-7b")
    assert found.exit_code == 0, found.output
    assert found.stdout.splitlines()[0] == named.splitlines()[0]
    assert re.search(rf"^Target +{re.escape(TARGET)}, .* to download$", found.stdout, re.M)
    assert re.search(rf"^Draft +{re.escape(DRAFT)}, .* to download$", found.stdout, re.M)
    assert re.search(
        r"^Memory +all files [\d.]+ .B, free memory [\d.]+ .B$", found.stdout, re.M
    )
    assert "offline mode is on" in found.stderr
    assert run("explain", "qwen2-7b", "--json").exit_code == 1
    assert run("explain", "hf:o/m/x.gguf").exit_code == 1


def test_models_lists_files_that_were_used_or_lie_in_usual_folders(
    hub: StandinHub, tmp_path, monkeypatch, demo_target, demo_draft
):
    """Each content once, and no projector, no later part and no preset's file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    here, studio = tmp_path / "here", tmp_path / ".lmstudio/models/o/m"
    for folder in (here, studio):
        folder.mkdir(parents=True)
    monkeypatch.chdir(here)
    used = tmp_path / "far/away/used.gguf"
    used.parent.mkdir(parents=True)
    shutil.copy(demo_target, used)
    assert "Files that no preset names" not in run("models").stdout
    asked = ("generate", "-m", used, "--max-tokens", 1, "Hi")
    assert [run(*asked).exit_code for _ in range(2)] == [0, 0]
    names = ("a.gguf", "mmproj-a.gguf", "b-00001-of-00002.gguf", "b-00002-of-00002.gguf")
    for name in names:
        (studio / name).write_bytes(b"GGUF" * 5000)
    (here / "c.gguf").symlink_to(studio / "a.gguf")
    (here / "d.gguf").write_bytes(b"GGUF")
    run("models", "add", "own", "--target", demo_draft)
    _, _, listed = run("models").stdout.partition("'localspec chat FILE':\n")
    assert [line.split(maxsplit=2) for line in listed.splitlines()] == [
        ["20.0", "kB", str(here / "c.gguf")],
        ["40.0", "kB", str(studio / "b-00001-of-00002.gguf")],
        ["4", "bytes", str(here / "d.gguf")],
        ["12.3", "MB", str(used)],
    ]
    used.unlink()
    assert "used.gguf" not in run("models").stdout


def test_models_list_is_models():
    """Its name is that of other programs."""
    for options in ((), ("--json",), ("--fits",)):
        listed = run("models", "list", *options)
        assert listed.exit_code == 0
        assert listed.stdout == run("models", *options).stdout


def test_no_preset_may_fit(monkeypatch):
    """The list is empty then, and the demo pair is advised."""
    full = MemoryRoom(main_bytes=0, gpus=(), repacked={})
    monkeypatch.setattr(models, "free_memory", lambda: full)
    listed = run("models", "--fits")
    assert listed.exit_code == 0, listed.output
    assert listed.stdout.split("\n")[1] == ""
    assert f"Which should I take? {DEFAULT_PRESET}: nothing else fits" in listed.stdout


@pytest.mark.process
def test_download_then_chat(hub: StandinHub, tmp_path):
    """The installed command, from an empty machine to an answer of the flagship's files."""

    def localspec(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [LOCALSPEC, *arguments],
            env={**os.environ, **hub.environment},
            cwd=tmp_path,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )

    before = localspec("chat", "--preset", "qwen2-7b", stdin="hi\n")
    assert before.returncode == 1
    assert "localspec download qwen2-7b" in before.stderr
    fetched = localspec("download", "qwen2-7b")
    assert fetched.returncode == 0, fetched.stderr
    assert [Path(line).name for line in fetched.stdout.splitlines()] == [TARGET, DRAFT]
    chat = localspec("chat", "--preset", "qwen2-7b", "--max-tokens", "8", stdin="hi\n")
    assert chat.returncode == 0, chat.stderr
    assert chat.stdout.strip()
    command = ["generate", "--preset", "qwen2-7b", "--json", "--draft-tokens", "3"]
    answer = localspec(*command, "--max-tokens", "8", "hi")
    stats = json.loads(answer.stdout)["stats"]
    assert stats["num_draft_tokens"] > 0


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_chat_on_a_terminal_offers_to_fetch(hub: StandinHub, tmp_path):
    """With size, place and free disk."""
    from terminal import Terminal

    words = ("chat", "--preset", "qwen2-7b", "--max-tokens", "4")
    terminal = Terminal(tmp_path, *words, columns=200, **hub.environment)
    offer = r"qwen2-7b is not on this machine. Download 10.\d MB to (\S+) \(.*free\)"
    found = re.search(offer, terminal.wait_for(lambda text: "free)" in text))
    assert found[1] == str(tmp_path / "cache")
    terminal.process.send("y\r")
    terminal.wait_for_prompt(1)
    assert terminal.leave() == 0
    terminal.close()
    assert len(hub.gets(TARGET)) == len(hub.gets(DRAFT)) == 1


def test_another_programs_files_are_named_on_a_pipe(hub: StandinHub, tmp_path):
    file = find_preset("qwen2-7b").target.files[0]
    other = tmp_path / ".lmstudio/models" / file.repo / file.file
    other.parent.mkdir(parents=True)
    other.write_bytes(hub.files[file.repo, file.file].content)
    result = run("download", "qwen2-7b", "--dry-run")
    assert result.exit_code == 0
    result = run("download", "qwen2-7b")
    assert f"LM Studio has {TARGET}: {other}" in result.stderr
    assert "--reuse" in result.stderr
    assert len(hub.gets(TARGET)) == 1


def test_remove_asks_and_says_what_it_frees(hub: StandinHub):
    run("download", "qwen2-7b")
    refused = run("models", "remove", "qwen2-7b", stdin="n\n")
    assert refused.exit_code == 130
    assert "10.3 MB" in refused.stderr
    assert run("models", "path", "qwen2-7b").exit_code == 0
    done = run("models", "remove", "qwen2-7b", stdin="y\nn\n")
    assert done.exit_code == 0
    assert "10.3 MB freed" in done.stderr
    assert run("models", "path", "qwen2-7b").exit_code == 1
    assert "qwen2-7b" in user_presets()
    assert "Nothing to remove" in run("models", "remove", "demo").stderr


def test_add_pins_what_the_hub_has(hub: StandinHub, demo_target):
    result = run(
        "models", "add", "mine@q4", "--target", f"{REPO}:q4_k_m",
        "--draft", demo_target, "--ctx", 256,
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    preset = find_preset("mine@q4")
    served = hub.files[REPO, TARGET]
    (file,) = preset.target.files
    assert (file.revision, file.sha256) == (COMMIT, served.sha256)
    assert file.size_bytes == len(served.content)
    assert preset.draft.path == demo_target.resolve()
    assert preset.context_length == 256
    assert find_preset("qwen2-7b").context_length == 512  # the rest of the file is as it was
    assert run("download", "mine@q4").exit_code == 0
    assert len(run("models", "path", "mine@q4").stdout.splitlines()) == 2
