"""Files of localspec's own: for this user alone, and read only where they are files."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from prompt_toolkit.history import FileHistory, InMemoryHistory

import inside
from localspec import Picture
from localspec.chat.session import lock_session, read_session, save_session, session_file
from localspec.chat.shown import Shown
from localspec.cli.launch_log import new_log
from localspec.engine.cache_file import PooledCache, identities_in, read_cache_header
from localspec.engine.cache_store import CacheStore
from localspec.engine.open_models import CacheDisk
from localspec.errors import PresetError, SessionError
from localspec.hub.hub_file import HubFile
from localspec.hub.model_stores import HubCache
from localspec.llama.cache_state import CacheState
from localspec.policy.profile import Profile
from localspec.presets.local_models import note_used
from localspec.presets.presets import Names, change_names, names_file, read_names
from localspec.server.own_server import announced, read_key
from localspec.system.atomic_write import open_regular, read_regular_text

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes and pipes of Unix")


@pytest.fixture
def home(own_folders: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home in which nothing is yet, whose folders are not there either."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(own_folders / "config"))
    return own_folders


def pipe(path: Path) -> Path:
    """Makes a named pipe, and the folders above it. To open it would wait for ever."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    return path


def test_a_pipe_is_no_session(home):
    pipe(session_file("x"))
    with pytest.raises(SessionError, match="not a regular file"):
        read_session("x")


def test_a_pipe_is_no_kept_cache(home, tmp_path):
    path = pipe(tmp_path / "x.caches")
    assert identities_in(path) == []
    with pytest.raises(OSError, match="not a regular file"):
        read_cache_header(path)


def test_a_pipe_is_no_file_of_names(home):
    pipe(names_file())
    with pytest.raises(PresetError, match="not a regular file"):
        read_names()


def test_a_pipe_is_no_profile(home):
    profile = Profile(["a"])
    pipe(profile.path)
    assert profile.load() is None


def test_a_pipe_is_no_server_s_key(home):
    with announced(8617):
        [path] = home.rglob("8617.json")
        path.unlink()
        pipe(path)
        assert read_key(8617) is None


def test_a_pipe_names_no_commit_of_a_branch(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    pipe(tmp_path / "models--a--b" / "refs" / "main")
    assert HubCache().find(HubFile(repo="a/b", file="x.gguf")) is None


def test_a_pipe_has_no_used_files(home, demo_target):
    path = pipe(inside.used_file())
    assert inside.used_files() == []
    note_used(demo_target)  # in vain: nothing replaces what is no file
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_a_pipe_is_no_history(home):
    assert isinstance(inside.chat_history(), FileHistory)
    [path] = home.rglob("chat_history")
    path.unlink()
    pipe(path)
    assert isinstance(inside.chat_history(), InMemoryHistory)


@pytest.mark.parametrize("path", ["/dev/null", "/dev/zero", "/"])
def test_a_device_or_a_folder_is_not_read(path):
    with pytest.raises(OSError, match=r"regular file|directory"):
        open_regular(Path(path))


def test_newlines_of_windows_are_read(tmp_path):
    path = tmp_path / "x"
    path.write_bytes("\ufeffa\r\nb".encode())
    assert read_regular_text(path, "utf-8-sig") == "a\nb"


@pytest.fixture
def _no_umask() -> Iterator[None]:
    """In the test, what is created without a mode is for everybody."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_no_umask")
def test_nothing_is_for_others_whatever_the_umask(home, engine, demo_target):
    chat = engine.chat()
    picture = Picture(1, 1, bytes(3))
    shown = {"role": "user", "content": "What is it?", "pictures": (Shown(0, picture),)}
    chat.replace([shown, {"role": "assistant", "content": "A fox."}])
    save_session("x", chat)
    lock_session("x").release()
    text = PooledCache([1, 2, 3], [CacheState(3, np.zeros(8, np.uint8))])
    disk = CacheDisk(1_000_000)
    CacheStore(disk, lambda _scales: ["a"], lambda _state, count: count, 100).keep(text)
    Profile(["a"]).save({"x": 1})
    change_names(lambda _names: Names("demo", {}))
    note_used(demo_target)
    inside.chat_history().store_string("typed")
    new_log(8617)[1].close()
    with announced(8617):
        found = [path for path in home.rglob("*") if path.suffix != ".lock"]
        open_to_others = [path.name for path in found if path.stat().st_mode & 0o077]
    names = {path.name for path in found}
    assert {"x.json", "x.pictures", "caches", "profiles", "names.toml"} <= names
    assert {"used_files", "chat_history", "8617.json", "8617.log"} <= names
    assert open_to_others == []
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
