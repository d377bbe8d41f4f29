"""Saved conversations keep their pictures, once each, beside the session's file."""

from __future__ import annotations

import json

import pytest

from localspec import Picture, SessionError
from localspec.chat.chat import Chat
from localspec.chat.session import (
    read_session,
    remove_sessions,
    save_session,
    session_bytes,
    session_file,
)
from localspec.chat.shown import Shown

RED = Picture(2, 1, b"\xff\0\0" * 2)
BLUE = Picture(1, 2, b"\0\0\xff" * 2)


class Blind:
    """What a chat asks of an engine to be made."""

    def __init__(self, vocabulary):
        self.vocabulary, self.vision, self.chat_template = vocabulary, None, None
        self.context_length = self.trained_context_length = 2048


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def chat(demo_vocabulary):
    return Chat(Blind(demo_vocabulary), template="chatml")


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
    again = Chat(Blind(demo_vocabulary), template="chatml")
    read_session("seen").resume(again)
    assert again.messages == chat.messages


def test_a_question_that_a_killed_process_left_keeps_its_pictures(chat):
    """In the state that its file has while the answer is coming."""
    save_session("seen", chat, pending="What is it?", pending_pictures=[RED, BLUE])
    assert len(files()) == 2
    found = read_session("seen")
    assert (found.pending, found.shown()) == ("What is it?", [RED, BLUE])
    files()[0].unlink()
    with pytest.raises(SessionError, match="picture of the session is missing"):
        found.shown()
    save_session("seen", chat)
    assert files() == []
    content = json.loads(session_file("seen").read_text()) | {"pending_pictures": ["../x"]}
    session_file("seen").write_text(json.dumps(content))
    with pytest.raises(SessionError, match="not what they should be"):
        read_session("seen")


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
    with pytest.raises(SessionError, match="picture") as caught:
        read_session("seen").resume(chat)
    assert caught.value.hint


@pytest.mark.parametrize(
    "places",
    [
        5,
        [{"at": 0}],
        [{"at": -1, "sha256": "0" * 64}],
        [{"at": 10**9, "sha256": "0" * 64}],
        [{"at": 0, "sha256": "../../etc/passwd"}],
    ],
)
def test_places_that_cannot_be_are_refused(chat, places):
    chat.replace(shown_turns(RED))
    path = save_session("seen", chat)
    content = json.loads(path.read_bytes())
    content["messages"][0]["pictures"] = places
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(SessionError, match="not what they should be"):
        read_session("seen")
