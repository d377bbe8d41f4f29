"""What is otherwise on Windows and macOS, played here; docs/reliability.md lists it."""

from __future__ import annotations

import errno
import hashlib
import os
import sys
from types import SimpleNamespace
from typing import Any

import platformdirs
import pytest
from platformdirs.macos import MacOS
from platformdirs.unix import Unix
from platformdirs.windows import Windows

from localspec.chat.session import read_session, save_session
from localspec.errors import OptionError, SessionError
from localspec.hub.api import RemoteFile
from localspec.hub.hub_file import HubFile
from localspec.hub.model_stores import find_elsewhere
from localspec.server import running
from localspec.system.atomic_write import write_whole

DEVICES = ("con", "NUL", "aux", "com1", "LPT9")


def _said(text: str) -> Any:
    message = {"role": "user", "content": text}
    return SimpleNamespace(transcript=[message], num_asked=1, num_forgotten=0)


def test_a_folder_is_not_flushed_where_the_system_cannot(tmp_path, monkeypatch):
    """Windows opens no folder; the file itself is flushed."""
    real, path = os.open, tmp_path / "file"

    def opened(name: Any, *arguments: Any) -> int:
        if os.path.isdir(name):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(name, *arguments)

    monkeypatch.setattr(os, "open", opened)
    with pytest.raises(PermissionError):
        write_whole(path, b"one", durable=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "name", "nt")
        write_whole(path, b"two", durable=True)
    assert path.read_bytes() == b"two"


def test_a_session_that_another_program_has_open_stays_as_it_was(own_folders, monkeypatch):
    """Windows replaces no file that is open, as a virus scanner has it for a moment."""
    save_session("s", _said("one"))

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Access is denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        with pytest.raises(SessionError, match="Access is denied"):
            save_session("s", _said("two"))
    kept = read_session("s")
    assert kept is not None
    assert kept.messages[0]["content"] == "one"
    path = save_session("s", _said("three"))
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("name", DEVICES)
def test_no_file_has_the_name_of_a_device(name):
    """Windows would write to the device, whatever stands behind a dot."""
    with pytest.raises(OptionError):
        save_session(name, _said("x"))
    for file in (f"{name}.gguf", f"{name}/model.gguf", ".. /.. /model.gguf", "a./model.gguf"):
        with pytest.raises(OptionError):
            HubFile(repo="owner/model", file=file)


@pytest.mark.parametrize(
    ("platform", "folder"),
    [
        (Unix, ".cache/llama.cpp"),
        (MacOS, "Library/Caches/llama.cpp"),
        (Windows, "AppData/Local/llama.cpp"),
    ],
)
def test_files_of_llama_cpp_are_looked_for_where_it_keeps_them(
    tmp_path, monkeypatch, platform, folder
):
    for name in ("LLAMA_CACHE", "XDG_CACHE_HOME", "OLLAMA_MODELS"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path))
    local = str(tmp_path / "AppData/Local")
    monkeypatch.setattr("platformdirs.windows.get_win_folder", lambda _name: local)
    checksum = hashlib.sha256(b"model").hexdigest()
    file = HubFile(repo="owner/name", file="model.gguf", sha256=checksum, size_bytes=5)
    path = tmp_path / folder / "owner_name_model.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"model")
    remote = _remote(file, checksum)
    monkeypatch.setattr(platformdirs, "PlatformDirs", platform)
    found = find_elsewhere(remote)
    assert found is not None
    assert found.path == path


def _remote(file: HubFile, checksum: str) -> RemoteFile:
    return RemoteFile(file=file, commit="0" * 40, etag=checksum, size_bytes=5)


def test_a_server_starts_where_files_have_no_limit(monkeypatch):
    """Windows has no module for it, which is never imported there."""
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setitem(sys.modules, "resource", None)
    running.Runner(lambda *_: None, lambda: None, lambda: None)  # type: ignore[arg-type]
