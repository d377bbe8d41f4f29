"""Saved conversations keep their pictures, once each, beside the session's file."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from localspec import Picture, SessionError
from localspec.chat.attachment import Attachment
from localspec.chat.chat import Chat
from localspec.chat.session import (
    read_session,
    remove_sessions,
    save_session,
    session_bytes,
    session_file,
)
from localspec.chat.shown import Shown
from localspec.cli import main
from localspec.cli.conversation import Conversation
from localspec.pictures import picture
from localspec.streaming.options import AnswerOptions

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


def test_a_resumed_question_is_asked_with_its_pictures(chat, demo_vocabulary, monkeypatch):
    """They are attached again, and saved as what is pending until then."""
    save_session("seen", chat, pending="What is it?", pending_pictures=[RED])
    seeing = Blind(demo_vocabulary)
    seeing.vision, seeing.load_caches = object(), lambda *_: None
    again = Conversation(seeing, chat, AnswerOptions(), lambda *_: None, show_draft=False)
    again.resume("seen", must_exist=True)
    assert again.pending == "What is it?"
    assert [each.picture for each in again.attachments] == [RED]
    again.save()
    assert read_session("seen").shown() == [RED]
    again.attachments[:] = [Attachment("blue.png", picture=BLUE)]
    again.save(pending="And that?")
    assert (read_session("seen").pending, read_session("seen").shown()) == ("And that?", [BLUE])
    again.lock.release()


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


def test_a_picture_may_be_larger_as_it_is_kept_than_it_was(chat, monkeypatch):
    """A photo takes more bytes as a PNG than as a JPEG."""
    monkeypatch.setattr(picture.Picture.read.__func__, "__kwdefaults__", {"most_bytes": 9})
    chat.replace(shown_turns(RED))
    save_session("seen", chat)
    read_session("seen").resume(chat)
    assert chat.messages[0]["pictures"][0].given == RED


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
        [5],
        [{"at": 0}],
        [{"at": -1, "sha256": "0" * 64}],
        [{"at": 10**9, "sha256": "0" * 64}],
        [{"at": 0, "sha256": "../../etc/passwd"}],
        [{"at": 0, "sha256": "0" * 63 + "/"}],
        [{"at": True, "sha256": "0" * 64}],
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


def test_exports_note_them(chat):
    chat.replace(shown_turns(RED))
    save_session("seen", chat)
    for command in ("export", "show"):
        told = CliRunner().invoke(main, ["sessions", command, "seen"])
        assert told.exit_code == 0, told.output
        assert f"[image {RED.digest.hex()[:8]}]" in told.output
