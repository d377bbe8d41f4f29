"""Downloads into a folder of the user's, where anything may stand under a file's name."""

from __future__ import annotations

import os
from pathlib import Path

import huggingface_hub
import pytest
from click.testing import CliRunner, Result

import localspec
from localspec.cli import main
from localspec.errors import DownloadError
from localspec.presets.presets import find_preset
from standin_hub import StandinHub

TARGET = "qwen2-7b-instruct-q4_k_m.gguf"
DRAFT = "qwen2-0_5b-instruct-q4_k_m.gguf"
REPO = "Qwen/Qwen2-7B-Instruct-GGUF"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


def test_garbage_of_the_right_length_is_refused(hub: StandinHub, folder):
    """By the pinned sum; what stands there is the user's and stays."""
    garbage = bytes(len(hub.files[REPO, TARGET].content))
    (folder / TARGET).write_bytes(garbage)
    with pytest.raises(DownloadError, match="in the way: its content is not that of") as caught:
        localspec.download("qwen2-7b", local_dir=folder)
    assert "another folder" in caught.value.hint
    assert (folder / TARGET).read_bytes() == garbage
    assert hub.gets(TARGET) == []


@pytest.mark.parametrize("content", [b"GGUX" * 5000, b"GGUF" * 6000])
def test_another_repositorys_file_is_refused(hub: StandinHub, folder, content):
    """Of a file that is not pinned the hub says what it should be."""
    hub.add("one/model", "x.gguf", b"GGUF" * 5000)
    hub.add("other/model", "x.gguf", content)
    (path,) = localspec.download("hf:one/model/x.gguf", local_dir=folder)
    with pytest.raises(DownloadError, match="in the way"):
        localspec.download("hf:other/model/x.gguf", local_dir=folder)
    assert path.read_bytes() == b"GGUF" * 5000


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
        assert "one/model/a/x.gguf of commit" in result.stderr
        assert "would both be" in result.stderr
        assert "different folders" in result.stderr
    assert list(folder.iterdir()) == []
    in_the_cache = run("download", "hf:one/model/a/x.gguf", "hf:two/model/x.gguf")
    assert len({Path(line).read_bytes() for line in in_the_cache.stdout.splitlines()}) == 2


def test_one_content_may_have_two_names(hub: StandinHub, folder):
    """A preset's file and the same one by its hub name, or that of a copied repository."""
    hub.add("copy/model", TARGET, hub.files[REPO, TARGET].content)
    names = [f"hf:{REPO}/{TARGET}", f"hf:copy/model/{TARGET}"]
    result = run("download", *names, "--local-dir", folder)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines() == [str(folder / TARGET)] * 2
    assert len(hub.gets(TARGET)) == 1


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
    assert f"{folder / 'x.gguf'} is there, but nothing of it could be checked" in other.stderr
    assert "offline mode is on" in other.stderr
    (folder / DRAFT).write_bytes(bytes((folder / DRAFT).stat().st_size))
    damaged = offline("qwen2-7b")
    assert damaged.exit_code == 1
    assert f"{DRAFT} is in the way" in damaged.stderr
    assert len(hub.seen) == num_requests


def test_a_pin_without_a_sum_is_told_apart(hub: StandinHub, folder, tmp_path):
    """Its length can be checked, its content cannot while the hub is not to be asked."""
    presets = tmp_path / "config/localspec/models.toml"
    presets.write_text(
        presets.read_text()
        + '\n[sized]\ndescription = "d"\ncontext_length = 512\n[sized.target]\n'
        'repo = "o/m"\nfile = "x.gguf"\nsize_bytes = 20000\n'
    )
    (folder / "x.gguf").write_bytes(b"GGUF" * 5000)
    with pytest.raises(DownloadError, match="its length is right, its content could not"):
        localspec.download("sized", local_dir=folder)
    (folder / "x.gguf").write_bytes(b"GGUF" * 5)
    with pytest.raises(DownloadError, match="its length is not 20000 but 20"):
        localspec.download("sized", local_dir=folder)


def test_a_plan_tells_what_it_will_compare(hub: StandinHub, folder):
    (folder / TARGET).write_bytes(b"?")
    result = run("download", "qwen2-7b", "--local-dir", folder, "--dry-run")
    assert result.exit_code == 0
    assert f"{TARGET} is in {folder} already and is compared" in result.stderr
    assert "2.4 MB to download" in result.stderr


# --- files that another program keeps


@pytest.fixture
def other(hub: StandinHub, tmp_path: Path) -> Path:
    """The target where LM Studio would keep it."""
    file = find_preset("qwen2-7b").target.files[0]
    other = tmp_path / ".lmstudio/models" / file.repo / file.file
    other.parent.mkdir(parents=True)
    other.write_bytes(hub.files[file.repo, file.file].content)
    return other


def test_a_file_that_changes_before_the_link_is_not_taken(hub, other, monkeypatch):
    """What is checked is what gets the name."""
    real_link = os.link

    def link_late(source, *arguments, **extra):
        other.write_bytes(bytes(other.stat().st_size))
        real_link(source, *arguments, **extra)

    monkeypatch.setattr(os, "link", link_late)
    (path, _) = localspec.download("qwen2-7b", reuse=True)
    assert path.read_bytes() == hub.files[REPO, TARGET].content
    assert len(hub.gets(TARGET)) == 1


def test_a_file_that_changes_while_it_is_checked_is_not_taken(hub, other, monkeypatch):
    """A link shares its bytes with the program that may write to them."""
    from localspec.hub import download_job

    real_check = download_job.has_checksum

    def check_then_write(*arguments):
        is_right = real_check(*arguments)
        with other.open("r+b") as file:
            file.write(b"?")
        return is_right

    monkeypatch.setattr(download_job, "has_checksum", check_then_write)
    (path, _) = localspec.download("qwen2-7b", reuse=True)
    assert path.read_bytes() == hub.files[REPO, TARGET].content
    assert len(hub.gets(TARGET)) == 1


def test_a_file_that_cannot_be_linked_is_copied(hub, other, monkeypatch, tmp_path):
    """And what was received before is kept until the copy is right."""

    def no_link(*arguments, **extra):
        raise PermissionError(1, "not allowed")

    monkeypatch.setattr(os, "link", no_link)
    (path, _) = localspec.download("qwen2-7b", reuse=True)
    assert path.read_bytes() == other.read_bytes()
    assert not path.samefile(other)
    assert hub.gets(TARGET) == []
    assert not [*tmp_path.rglob("*.localspec-part")]


def test_a_wrong_file_leaves_what_was_received(hub, other, tmp_path):
    file = find_preset("qwen2-7b").target.files[0]
    other.write_bytes(bytes(file.size_bytes))
    blobs = tmp_path / f"cache/models--{REPO.replace('/', '--')}/blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{file.sha256}.localspec-part").write_bytes(
        hub.files[REPO, TARGET].content[:1000]
    )
    localspec.download("qwen2-7b", reuse=True)
    assert [seen.range for seen in hub.gets(TARGET)] == ["bytes=1000-"]
