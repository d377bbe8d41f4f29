"""Downloads from a hub on loopback: what reaches the disk, and what is asked of the hub."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import huggingface_hub
import pytest
from click.testing import Result

import localspec
from command_line import run
from localspec.errors import DownloadError
from localspec.hub.api import cache_folder, list_files
from localspec.hub.hub_file import choose_quantization
from localspec.hub.model_stores import HubCache
from localspec.presets.located import damaged_files, locate, locate_model
from localspec.presets.presets import find_preset
from standin_hub import COMMIT, DRAFT, REPO, SMALL, TARGET, StandinHub

TAGGED = "89abcdef0123456789abcdef0123456789abcdef"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for downloads, in place of the hub's cache."""
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


def test_both_files_arrive_in_the_hubs_layout(hub: StandinHub, tmp_path):
    """Where huggingface_hub itself finds them, and says nothing against the cache."""
    progress = []
    paths = localspec.download("qwen2-7b", on_progress=progress.append)
    preset = find_preset("qwen2-7b")
    assert paths == list(locate(preset).values())
    for path, model in zip(paths, preset.models, strict=True):
        file = model.files[0]
        assert path == tmp_path / (
            f"cache/models--{file.repo.replace('/', '--')}/snapshots/{COMMIT}/{file.file}"
        )
        assert sha256(path) == path.resolve().name == file.sha256
        found = huggingface_hub.hf_hub_download(
            file.repo,
            file.file,
            revision=COMMIT,
            cache_dir=cache_folder(),
            local_files_only=True,
        )
        assert Path(found) == path
    cache = huggingface_hub.scan_cache_dir(cache_folder())
    assert cache.size_on_disk == sum(path.stat().st_size for path in paths)
    assert not [*cache.warnings]
    done = [event for event in progress if event.state == "done"]
    assert {event.file.file for event in done} == {TARGET, DRAFT}
    assert all(event.received_bytes == event.total_bytes for event in done)
    assert not [*(tmp_path / "cache").rglob("*.localspec-part")]


def test_a_model_by_its_hub_name(hub: StandinHub):
    """Not pinned, so by what the hub says; then found again without asking it."""
    name = f"hf:{SMALL}/{DRAFT}"
    with pytest.raises(localspec.PresetError, match="not on this machine") as caught:
        locate_model(name, "draft")
    assert f"localspec download {name}" in caught.value.hint
    (path,) = localspec.download(name)
    num_requests = len(hub.seen)
    assert localspec.download(name) == [path]
    assert locate_model(name, "draft") == path
    assert len(hub.seen) == num_requests
    assert locate_model(f"{SMALL}:Q4_K_M", "draft") == path


def test_the_projector_of_a_repository_comes_with_its_model(hub: StandinHub):
    """The one whose type is best, from the model's folder; of a head or another model none."""
    names = "mmproj-BF16 mmproj-F16 mmproj-other-F16 mtp-seer-Q8_0 seer-UD-Q4_K_XL"
    for name in (*names.split(), "large/seer-Q8_0"):
        hub.add("o/seer", f"{name}.gguf", b"GGUF" + name.encode())
    paths = localspec.download("o/seer:Q4_K_XL")
    assert [path.name for path in paths] == ["seer-UD-Q4_K_XL.gguf", "mmproj-F16.gguf"]
    assert len(localspec.download("o/seer:Q4_K_XL", mmproj=False)) == 1
    assert len(localspec.download("o/seer:mtp-Q8_0")) == 1
    assert len(localspec.download("o/seer:mmproj-BF16")) == 1
    assert len(localspec.download("o/seer:Q8_0")) == 1  # where it would not be found again


def test_a_preset_is_loaded_without_a_projector_that_was_left_out(hub: StandinHub, tmp_path):
    served = hub.add("o/seer", "mmproj-F16.gguf", b"GGUF" * 5000)
    own = tmp_path / "config/localspec/models.toml"
    with own.open("a") as file:
        file.write(
            '\n[qwen2-7b.mmproj]\nrepo = "o/seer"\nfile = "mmproj-F16.gguf"\n'
            f'revision = "{COMMIT}"\nsha256 = "{served.sha256}"\n'
        )
    done = run("download", "--no-mmproj", "qwen2-7b")
    assert done.exit_code == 0, done.output
    assert not hub.gets("mmproj-F16.gguf")
    preset = find_preset("qwen2-7b")
    assert list(locate(preset)) == ["target", "draft"]
    state = next(each for each in localspec.list_models() if each.name == "qwen2-7b")
    assert state.state == "ready"
    num_requests = len(hub.seen)
    assert localspec.explain("qwen2-7b").projector is None
    localspec.load("qwen2-7b", num_threads=1).close()
    assert len(hub.seen) == num_requests
    assert localspec.download("qwen2-7b")[2] == locate(preset)["mmproj"]


@pytest.mark.parametrize(
    ("quantization", "names", "chosen"),
    [
        ("Q4_0", ["a-Q4_0.gguf", "a-Q4_0_4_4.gguf"], ["a-Q4_0.gguf"]),
        ("q4_0", ["x/a.Q4_0.gguf", "mmproj-Q4_0.gguf"], ["x/a.Q4_0.gguf"]),
        ("Q8_0", ["a-Q8_0-00002-of-00002.gguf", "a-Q8_0-00001-of-00002.gguf"],
         ["a-Q8_0-00001-of-00002.gguf", "a-Q8_0-00002-of-00002.gguf"]),
        ("Q8_0", ["a-Q8_0-00001-of-00002.gguf", "a-Q8_0-00002-of-00002.gguf", "a-Q8_0.gguf"],
         ["a-Q8_0.gguf"]),
        ("Q8_0", ["a-Q8_0.gguf", "b-Q8_0.gguf"], None),
        ("Q8_0", ["a-Q8_0-00001-of-00002.gguf"], None),
        ("Q4_0", ["a-Q4_0.gguf", "mtp-a-Q4_0.gguf", "dflash-a-Q4_0.gguf"], ["a-Q4_0.gguf"]),
        ("mtp-q4_0", ["a-Q4_0.gguf", "mtp-a-Q4_0.gguf"], ["mtp-a-Q4_0.gguf"]),
        ("mtp-Q4_0", ["a-Q4_0.gguf", "eagle3-a-Q4_0.gguf"], ["eagle3-a-Q4_0.gguf"]),
        ("mtp-Q4_0", ["mtp-a-Q4_0.gguf", "eagle3-a-Q4_0.gguf"], None),
        ("mtp-Q4_0", ["a-Q4_0.gguf", "dspark-a-Q4_0.gguf"], ["dspark-a-Q4_0.gguf"]),
    ],
)  # fmt: skip
def test_which_file_a_quantisation_means(quantization, names, chosen):
    """Whole words of the name; a single file before parts; never one of several."""
    if chosen is None:
        with pytest.raises(DownloadError):
            choose_quantization("o/m", quantization, names)
    else:
        assert choose_quantization("o/m", quantization, names) == chosen


def test_a_small_file_is_checked_by_its_git_blob_id(hub: StandinHub):
    """Below LFS the hub redirects on the same host and states no sha256."""
    served = hub.add("o/m", "small.gguf", b"GGUF" * 100)
    (path,) = localspec.download("hf:o/m/small.gguf")
    assert path.read_bytes() == served.content
    assert path.resolve().name == served.etag
    assert len(served.etag) == 40


@pytest.mark.parametrize("keeper", ["lm studio", "ollama", "llama.cpp", "llama.cpp now"])
def test_a_file_that_another_program_keeps_is_taken_on_request(
    hub: StandinHub, tmp_path, monkeypatch, keeper
):
    """After its content was checked, and without touching it."""
    file = find_preset("qwen2-7b").target.files[0]
    content = hub.files[file.repo, file.file].content
    new_blob = f"models--{file.repo.replace('/', '--')}/blobs/{file.sha256}"
    other = {
        "lm studio": tmp_path / ".lmstudio/models" / file.repo / file.file,
        "ollama": tmp_path / ".ollama/models/blobs" / f"sha256-{file.sha256}",
        "llama.cpp": tmp_path / "llama" / f"{file.repo.replace('/', '_')}_{file.file}",
        "llama.cpp now": tmp_path / "llama" / new_blob,
    }[keeper]
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "llama"))
    other.parent.mkdir(parents=True)
    other.write_bytes(content)
    if keeper == "ollama":  # on another disk
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(18, "far")))
    paths = localspec.download("qwen2-7b", reuse=True)
    assert hub.gets(TARGET) == []
    assert len(hub.gets(DRAFT)) == 1
    assert paths[0].read_bytes() == other.read_bytes() == content
    assert paths[0].samefile(other) == (keeper != "ollama")
    assert not [*tmp_path.rglob("*.localspec-part")]


def test_another_programs_file_with_other_content_is_not_taken(hub: StandinHub, tmp_path):
    file = find_preset("qwen2-7b").target.files[0]
    other = tmp_path / ".lmstudio/models" / file.repo / file.file
    other.parent.mkdir(parents=True)
    other.write_bytes(b"x" * file.size_bytes)
    (path, _) = localspec.download("qwen2-7b", reuse=True)
    assert sha256(path) == file.sha256
    assert other.read_bytes()[:1] == b"x"
    assert len(hub.gets(TARGET)) == 1


def test_removing_frees_what_we_fetched_and_nothing_else(hub: StandinHub, tmp_path):
    localspec.download("qwen2-7b")
    target, draft = (model.files[0] for model in find_preset("qwen2-7b").models)
    foreign = tmp_path / "cache/models--Qwen--Qwen2-7B-Instruct-GGUF/blobs/foreign"
    foreign.write_bytes(b"somebody else's")
    cache = HubCache()
    assert cache.remove(target) == target.size_bytes
    assert cache.find(target) is None
    assert cache.find(draft) is not None
    assert foreign.exists()
    assert {p.name for p in foreign.parent.iterdir()} == {"foreign"}
    assert cache.remove(target) == 0


def test_odd_names_in_a_repository_do_not_hide_the_others(hub: StandinHub):
    for name in ("x-00000-of-00000.gguf", "x[Q4_0].gguf", "größer-Q4_0.gguf", "x-Q4_0.gguf"):
        hub.add("o/m", name, b"GGUF" * 5000)
    assert [file.file for file in list_files("o/m")] == ["x-Q4_0.gguf"]
    (path,) = localspec.download("o/m:Q4_0")
    assert path.name == "x-Q4_0.gguf"


# --- a branch, a tag or a commit in the name


@pytest.mark.parametrize(("revision", "commit"), [("v1.0", TAGGED), ("main", COMMIT)])
def test_a_revision_is_downloaded_and_loaded(hub: StandinHub, revision, commit):
    hub.revisions["v1.0"] = TAGGED
    name = f"hf:{SMALL}@{revision}/{DRAFT}"
    (path,) = localspec.download(name)
    assert path.parent.name == commit
    assert any(f"/resolve/{revision}/" in seen.path for seen in hub.seen)
    with localspec.load(target=name, num_threads=1) as engine:
        assert engine.vocabulary.size == 4096


def test_another_revision_of_a_file_that_is_here_is_not_taken_for_it(hub: StandinHub):
    localspec.download(f"hf:{SMALL}/{DRAFT}")
    with pytest.raises(localspec.PresetError, match="not on this machine") as caught:
        localspec.load(target=f"hf:{SMALL}@v1.0/{DRAFT}")
    assert f"localspec download hf:{SMALL}@v1.0/{DRAFT}" in caught.value.hint


@pytest.mark.parametrize("ask", [localspec.download, lambda n: localspec.explain(target=n)])
def test_a_revision_that_there_is_not_is_named(hub: StandinHub, ask):
    with pytest.raises(DownloadError, match=rf"{SMALL} has no revision 'v2.0'") as caught:
        ask(f"hf:{SMALL}@v2.0/{DRAFT}")
    assert "a branch, tag or commit" in caught.value.hint


# --- a folder of the user's


def test_a_file_with_other_content_in_a_folder_is_refused(hub: StandinHub, folder):
    """By the pinned sum; what stands there is the user's and stays."""
    garbage = bytes(len(hub.files[REPO, TARGET].content))
    (folder / TARGET).write_bytes(garbage)
    with pytest.raises(DownloadError, match="in the way: its content is not that of") as caught:
        localspec.download("qwen2-7b", local_dir=folder)
    assert "another folder" in caught.value.hint
    assert (folder / TARGET).read_bytes() == garbage
    assert hub.gets(TARGET) == []


def test_the_right_file_is_compared_and_taken(hub: StandinHub, folder):
    """Asked about, and not fetched again; whoever put it there."""
    served = hub.add("o/m", "x.gguf", b"GGUF" * 5000)
    (folder / "x.gguf").write_bytes(served.content)
    states = []
    (path,) = localspec.download(
        "hf:o/m/x.gguf", local_dir=str(folder), on_progress=lambda p: states.append(p.state)
    )
    assert path == folder / "x.gguf"
    assert states[-1] == "done"
    assert [seen.method for seen in hub.seen] == ["HEAD"]


def test_two_files_of_one_name_are_refused(hub: StandinHub, folder):
    """Before a byte of them is fetched; upper and lower case are the same on many disks."""
    hub.add("one/model", "a/x.gguf", b"GGUF" * 5000)
    for number, name in enumerate(["hf:two/model/x.gguf", "hf:two/model/X.gguf"]):
        hub.add("two/model", name.rpartition("/")[2], b"GGUF" * (6000 + number))
        result = run("download", "hf:one/model/a/x.gguf", name, "--local-dir", folder)
        assert result.exit_code == 1
        assert "a/x.gguf of one/model" in result.stderr
        assert "would both be" in result.stderr
        assert "different folders" in result.stderr
    assert list(folder.iterdir()) == []
    in_the_cache = run("download", "hf:one/model/a/x.gguf", "hf:two/model/x.gguf")
    assert len({Path(line).read_bytes() for line in in_the_cache.stdout.splitlines()}) == 2


def test_offline_says_what_could_be_checked(hub: StandinHub, folder, monkeypatch):
    """Pinned files by their sums; of others it says that nothing vouches for them."""

    def offline(*arguments: str) -> Result:
        return run("download", *arguments, "--local-dir", folder)

    localspec.download("qwen2-7b", local_dir=folder)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    (folder / "x.gguf").write_bytes(b"GGUF" * 5000)
    num_requests = len(hub.seen)
    pinned = offline("qwen2-7b")
    assert pinned.exit_code == 0, pinned.stderr
    assert pinned.stdout.splitlines() == [str(folder / TARGET), str(folder / DRAFT)]
    other = offline("hf:o/m/x.gguf")
    assert other.exit_code == 1
    assert other.stdout == ""
    assert f"{folder / 'x.gguf'} is there, but its content could not be checked" in other.stderr
    assert "offline mode is on" in other.stderr
    (folder / DRAFT).write_bytes(bytes((folder / DRAFT).stat().st_size))
    damaged = offline("qwen2-7b")
    assert damaged.exit_code == 1
    assert f"{DRAFT} is in the way" in damaged.stderr
    assert len(hub.seen) == num_requests


@pytest.mark.parametrize("is_pinned", [False, True])
def test_a_file_whose_checksum_nobody_knows_is_not_called_damaged(hub: StandinHub, is_pinned):
    """Where the cache has no links, a file that is not pinned has no name that says it."""
    localspec.download("qwen2-7b")
    preset = find_preset("qwen2-7b")
    (file,) = preset.target.files
    path = HubCache().find(file)
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[:-1] + b"!")
    file = replace(file, revision=COMMIT, sha256=file.sha256 if is_pinned else None)
    model = replace(preset.target, files=(file,))
    damaged = damaged_files(replace(preset, target=model))
    assert list(damaged) == ([path] if is_pinned else [])


def test_another_content_than_the_pinned_one_is_not_found(hub: StandinHub):
    """Another tool may have fetched newer content under the same name."""
    (file,) = find_preset("qwen2-7b").target.files
    localspec.download("qwen2-7b")
    pinned = replace(file, revision=COMMIT, sha256="c" * 64)
    assert HubCache().find(replace(pinned, sha256=None)) is not None
    assert HubCache().find(pinned) is None
