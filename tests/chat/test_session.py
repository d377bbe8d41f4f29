"""Conversations on disk: what comes back, what survives a kill, and `localspec sessions`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

import command_line
import localspec
from localspec import Picture
from localspec.chat.chat import Chat
from localspec.chat.session import (
    Session,
    known_name,
    lock_session,
    read_session,
    remove_sessions,
    save_session,
    session_bytes,
    session_file,
    session_names,
)
from localspec.chat.shown import Shown
from localspec.errors import OptionError, SessionError
from prompts import NoModels
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
    path = save_session("first-1", chat)
    found = read_session("first-1")
    found.resume(other)
    assert other.messages == chat.messages
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


@pytest.mark.skipif(sys.platform == "win32", reason="links need a right there")
def test_a_lock_that_is_a_link_empties_nothing(folder):
    """filelock 3.12 followed the link, and emptied the file that it leads to."""
    precious = folder / "precious"
    precious.write_bytes(b"mine")
    sessions = session_file("x").parent
    sessions.mkdir(parents=True)
    (sessions / ".x.lock").symlink_to(precious)
    with pytest.raises(SessionError, match="cannot be written"):
        lock_session("x")
    assert precious.read_bytes() == b"mine"


@pytest.mark.parametrize(
    "name",
    [
        "", "../x", "a/b", "a\\b", ".hidden", "a" * 101, "語" * 79, "a:b", "con .x", "com¹.x",
        "a\n", "a\0b", "a\u202eb", "a\ud800",
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


def shown_at(position, sha256):
    pictures = [{"at": position, "sha256": sha256}]
    return [{"role": "user", "content": "x", "pictures": pictures}]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        *((content, "cannot be read") for content in (b"{", b"\xff", b"[" * 100_000, b"3")),
        ({"version": 2}, "version 2 of the format; this localspec reads version 1"),
        ({"format": "other"}, "not a localspec session"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages or counts are invalid"),
        ({"messages": [{"role": "user", "content": "x"}]}, "no answer"),
        ({"num_asked": -1}, "messages or counts are invalid"),
        ({"messages": shown_at(True, "0" * 64)}, "messages or counts are invalid"),
        ({"messages": shown_at(0, "../../etc/passwd")}, "messages or counts are invalid"),
    ],
)
def test_what_is_no_session_is_refused(engine, change, words):
    chat = engine.chat()
    path = save_session("x", chat)
    if isinstance(change, dict):
        change = json.dumps(json.loads(path.read_text()) | change).encode()
    path.write_bytes(change)
    with pytest.raises(SessionError, match=words):
        read_session("x").resume(chat)
    assert chat.messages == ()


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


RED = Picture(2, 1, b"\xff\0\0" * 2, "red.png")
BLUE = Picture(1, 2, b"\0\0\xff" * 2)


@pytest.fixture
def chat(demo_vocabulary):
    return Chat(NoModels(demo_vocabulary), template="chatml")


def shown_turns(*pictures):
    shown = tuple(Shown(number, each) for number, each in enumerate(pictures))
    return [
        {"role": "user", "content": "What is it?", "pictures": shown},
        {"role": "assistant", "content": "A fox."},
    ]


def files():
    return sorted(session_file("seen").with_suffix(".pictures").glob("*"))


def test_pictures_are_kept_and_come_back(chat, demo_vocabulary):
    chat.replace(shown_turns(RED, BLUE))
    path = save_session("seen", chat)
    assert len(files()) == 2
    assert b"\xff" not in path.read_bytes()
    again = Chat(NoModels(demo_vocabulary), template="chatml")
    read_session("seen").resume(again)
    assert again.messages == chat.messages
    kept = [each.given.name for each in again.messages[0]["pictures"]]
    assert kept == ["red.png", ""]  # the second was read from no file


def test_a_picture_is_written_once_and_removed_with_its_turn(chat):
    chat.replace([*shown_turns(RED, BLUE), *shown_turns(RED)])
    save_session("seen", chat)
    before = {path: path.stat().st_mtime_ns for path in files()}
    assert len(before) == 2
    save_session("seen", chat)
    assert {path: path.stat().st_mtime_ns for path in files()} == before
    assert session_bytes("seen") > session_file("seen").stat().st_size
    chat.replace(shown_turns(RED))
    save_session("seen", chat)
    assert [path.stem for path in files()] == [RED.digest.hex()]
    remove_sessions(["seen"])
    assert not session_file("seen").with_suffix(".pictures").exists()


@pytest.mark.parametrize("content", [None, b"x", BLUE.png()])
def test_a_picture_that_is_missing_or_another_is_an_error(chat, content):
    chat.replace(shown_turns(RED))
    save_session("seen", chat)
    (path,) = files()
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SessionError, match=r"picture .*red\.png") as caught:
        read_session("seen").resume(chat)
    assert caught.value.hint


CUT = "So:\n```py\nprint('é')"  # an answer that ended within its code


def keep(name: str, *texts: str, system: str = "") -> None:
    """Write a session of these questions and answers."""
    messages = [{"role": "system", "content": system}] if system else []
    messages += [
        {"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)
    ]
    path = session_file(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(Session(name, messages, len(texts) // 2, 0).as_json())


run = partial(command_line.run, "sessions")


def test_the_list_says_what_there_is():
    for arguments in ([], ["list"]):
        assert "no sessions yet" in run(*arguments).stdout
    assert run("list", "--json").stdout == "[]\n"
    keep("french", "Bonjour?", "Bonjour!", "Ça va?", "Oui.", system="S")
    keep("work", "Hi" * 2_500_000, "Hello")
    session_file("bad").write_text("{}")
    session_file("bad").with_name("no:name.json").write_text("{}")
    lock = lock_session("french")
    lines = [line.split()[2:] for line in run().stdout.splitlines()]
    assert run("list").stdout == run().stdout
    assert lines[0] == ["unreadable", "2", "bytes", "bad"]
    assert (lines[1][:2], lines[1][-2:]) == (["2", "turns"], ["french,", "open"])
    assert lines[2] == ["1", "turn", "5.0", "MB", "work"]
    assert max(map(len, run().stdout.splitlines())) < 60
    listed = json.loads(run("list", "--json").stdout)
    assert [each["num_turns"] for each in listed] == [None, 2, 1]
    assert [each["is_open"] for each in listed] == [False, True, False]
    assert listed[2]["size_bytes"] > 5_000_000
    assert listed[1]["path"] == str(session_file("french"))
    lock.release()


def test_export_writes_markdown_or_json_to_a_file_or_to_stdout(folder):
    """JSON is a session again."""
    keep("a", "Why?", CUT, "And?", "half \ud800 of a pair, \x9b", system="S")
    expected = (
        "# a\n\n## System message\n\nS\n\n## You\n\nWhy?\n\n## Model\n\n" + CUT + "\n```\n\n"
        "## You\n\nAnd?\n\n## Model\n\nhalf ? of a pair, \x9b\n"
    )
    assert run("export", "a").stdout == expected
    result = run("export", "a", folder / "a.md")
    assert (result.exit_code, result.stdout) == (0, "")
    assert (folder / "a.md").read_text("utf-8") == expected
    assert run("export", "a", folder / "a.json").exit_code == 0
    assert run("export", "a", "--json").stdout == (folder / "a.json").read_text("utf-8")
    (folder / "a.json").rename(session_file("b"))
    assert read_session("b").messages == read_session("a").messages


def test_export_replaces_only_a_file_and_only_when_told(folder):
    keep("a", "Why?", "So.")
    (folder / "a.md").write_text("mine")
    result = run("export", "a", folder / "a.md")
    assert (result.exit_code, (folder / "a.md").read_text()) == (2, "mine")
    assert "--overwrite" in result.stderr
    assert run("export", "a", folder / "a.md", "--overwrite").exit_code == 0
    assert "So." in (folder / "a.md").read_text()
    (folder / "sub").mkdir()
    assert run("export", "a", folder / "sub", "--overwrite").exit_code == 2
    result = run("export", "a", folder / "absent" / "a.md")
    assert result.exit_code == 1
    assert "No such file" in result.stderr


def test_remove_deletes_the_session():
    for name in ("a", "b", "c"):
        keep(name, "Why?", "So.")
    result = run("remove", "a", "b", "a", "--yes")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "2 sessions removed" in result.stderr
    assert session_names() == ["c"]
    session_file("c").write_text("{}")  # one that cannot be read, too
    assert run("remove", "c", "--yes").exit_code == 0
    assert session_names() == []


def test_nothing_is_removed_if_nobody_agrees_or_a_name_is_wrong(monkeypatch):
    keep("a", "Why?", "So.")
    result = run("remove", "a")
    assert result.exit_code == 2
    assert "--yes" in result.stderr
    assert run("remove", "a", "absent", "--yes").exit_code == 2
    assert run("remove", "--yes").exit_code == 2
    assert session_names() == ["a"]
    monkeypatch.setattr(sys.modules["localspec.cli.commands.sessions"], "is_terminal", bool)
    for answer, code, names in (("n", 130, ["a"]), ("y", 0, [])):
        asked = run("remove", "a", stdin=f"{answer}\n")
        assert "Remove 1 session? [y/N]:" in asked.stderr
        assert (asked.exit_code, session_names()) == (code, names)


@pytest.mark.parametrize("command", ["export", "remove"])
def test_an_unknown_session_is_told_with_near_names(command):
    keep("french", "Why?", "So.")
    result = run(command, "frnch")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "there is no session 'frnch'" in result.stderr
    assert "Perhaps french?" in result.stderr
    assert "cannot be the name of a session" in run(command, "../x").stderr
