"""Conversations on disk: what comes back, what is refused, what survives a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import localspec
from localspec.chat import session
from localspec.chat.session import (
    known_name,
    lock_session,
    read_session,
    remove_sessions,
    save_session,
    session_file,
    session_names,
)
from localspec.errors import OptionError, SessionError
from spawned import session_open_elsewhere


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty data directory for this process and its children."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_a_conversation_comes_back_as_it_was(engine):
    """Odd characters included, and its next answer is the one it would have had."""
    chat, other = engine.chat(system="S\ud800 ☃"), engine.chat()
    chat.send("Hello \x1b\u202e", seed=4, max_tokens=5).reply()
    path = save_session("first-1", chat, pending="And then?")
    found = read_session("first-1")
    found.resume(other)
    assert other.messages == chat.messages
    assert found.pending == "And then?"
    assert session_names() == ["first-1"]
    texts = [
        each.send("Tell me a story.", seed=4, max_tokens=30).reply().text
        for each in (chat, other)
    ]
    assert texts[0] == texts[1]
    if os.name == "posix":
        assert path.stat().st_mode & 0o777 == 0o600


def test_forgotten_turns_stay_in_the_file_and_forgotten(engine, demo_target):
    with localspec.load(target=demo_target, context_length=128) as small:
        chat, other = small.chat(), small.chat()
        for number in range(9):
            chat.send(f"Tell me about number {number}.", seed=4, max_tokens=24).reply()
        assert chat.num_forgotten > 0
        save_session("x", chat)
        read_session("x").resume(other)
        assert (other.transcript, other.messages) == (chat.transcript, chat.messages)
        assert len(other.transcript) == 18
        texts = [
            each.send("And?", seed=4, max_tokens=20).reply().text for each in (chat, other)
        ]
        assert texts[0] == texts[1]
        other.clear()
        assert (other.transcript, other.num_forgotten) == ((), 0)


@pytest.mark.process
def test_a_session_is_kept_by_one_process_at_a_time(folder):
    is_refused = pytest.raises(SessionError, match="open in another localspec")
    with session_open_elsewhere("x", folder), is_refused:
        lock_session("x")
    lock_session("x").release()


@pytest.mark.parametrize(
    "name",
    [
        "", " ", "../x", "a/b", "a\\b", ".hidden", "-x", "a" * 101, "語" * 79, "a:b", "a*",
        "a?", "NUL", "con.x", "con .x", "COM1", "com¹.x", "a\n", "a\0b", "a\x1b",
        "a\u202eb", "a\ud800",
    ],
)  # fmt: skip
def test_a_name_cannot_leave_the_folder(name):
    with pytest.raises(OptionError, match="cannot be the name of a session"):
        session_file(name)


@pytest.mark.parametrize(
    "name",
    [
        "ü", "日本語", "हिन्दी", "ภาษาไทย", "می\u200cروم", "my chat 2", "l'été, again!",
        "R&D (new)", "party 🎉", "語" * 78, "a.b.", "_x", "v1.2",
    ],
)  # fmt: skip
def test_any_letters_are_a_name(engine, name):
    path = save_session(name, engine.chat(system="S"))
    assert path.parent == session_file("x").parent
    assert session_names() == [name]
    assert read_session(name).messages == [{"role": "system", "content": "S"}]
    lock_session(name).release()
    assert session.caches_file(name).name == f"{name}.caches"
    remove_sessions([name])
    assert session_names() == []


def test_one_session_has_one_file_however_its_name_is_written(engine):
    """As on file systems that keep one file for all of these; blanks are blanks."""
    spelled = "Élan Straße"
    path = save_session(spelled, engine.chat(system="S"))
    for name in ("E\u0301lan Straße", "élan STRASSE", " Élan Straße ", "Élan\u3000Straße"):
        assert known_name(name) == spelled
        assert session_file(name) == path
        assert save_session(name, engine.chat(system="S")) == path
        lock = lock_session(name)
        with pytest.raises(SessionError, match="open in another"):
            lock_session(spelled)
        lock.release()
    assert session_names() == [spelled]
    assert known_name("Elan") == "Elan"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, "version 2 of the format; this localspec reads version 1"),
        ({"version": None}, "version None"),
        ({"format": "other"}, "not a localspec session"),
        ({"messages": {}}, "not what they should be"),
        ({"messages": [{"role": "user", "content": 1}]}, "not what they should be"),
        ({"messages": [{"role": "user", "content": "x"}]}, "in turn|roles"),
        ({"num_forgotten": None}, "not what they should be"),
        ({"num_asked": -1}, "not what they should be"),
        ({"pending": None}, "not what they should be"),
    ],
)
def test_what_is_no_session_is_refused(engine, change, words):
    chat = engine.chat()
    path = save_session("x", chat)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(SessionError, match=words):
        read_session("x").resume(chat)
    assert chat.messages == ()


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 100_000, b"3"])
def test_what_is_no_json_is_refused(content):
    path = session_file("x")
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(SessionError, match="cannot be read"):
        read_session("x")


def test_what_cannot_be_written_is_said_and_leaves_the_old_file(engine, monkeypatch):
    chat = engine.chat(system="old")
    path = save_session("x", chat)
    chat.system = "new"

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SessionError, match="No space left"):
        save_session("x", chat)
    assert read_session("x").messages[0]["content"] == "old"
    assert list(path.parent.iterdir()) == [path]


_SAVER = """
import itertools, sys, localspec
from localspec.chat.session import save_session
class Chat:
    num_asked = num_forgotten = 0
chat = Chat()
for number in itertools.count():
    chat.transcript = [{"role": "system", "content": str(number) * 200_000}]
    save_session("x", chat)
    print(number, flush=True)
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="kill -9")
def test_a_kill_while_saving_leaves_a_whole_session(folder):
    """At a few moments; what had been saved before the last save is never lost."""
    for number in range(0, 20, 4):
        saver = subprocess.Popen(
            [sys.executable, "-c", _SAVER], stdout=subprocess.PIPE, text=True, cwd=folder
        )
        assert saver.stdout is not None
        assert saver.stdout.readline() == "0\n"
        time.sleep(number * 0.0013)
        saver.send_signal(signal.SIGKILL)
        said = ["0", *saver.communicate()[0].split()]
        content = read_session("x").messages[0]["content"]
        found = int(content[: len(content) // 200_000])
        assert content == str(found) * 200_000
        assert found >= int(said[-1])
