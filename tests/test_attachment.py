"""Text files that go with a question."""

from __future__ import annotations

import pytest

from localspec.chat.attachment import (
    MAX_ATTACHED_BYTES,
    Attachment,
    attached,
    read_attachment,
    without_files,
)
from localspec.errors import OptionError


def test_a_file_comes_before_the_question_between_fences(tmp_path):
    path = tmp_path / "notes.md"
    path.write_bytes("\ufeffGrüße\r\n```py\nx\n```\r\n".encode())
    attachment = read_attachment(path)
    assert attachment == Attachment("notes.md", "Grüße\n```py\nx\n```\n")
    assert attached("Why?", [attachment, Attachment("a", "b")]) == (
        "notes.md:\n````\nGrüße\n```py\nx\n```\n````\n\na:\n```\nb\n```\n\nWhy?"
    )
    assert attached("Why?", []) == "Why?"


def test_the_question_is_told_from_the_files_before_it():
    """Whatever stands in them, fences too; a question that begins with a fence is whole."""
    files = [Attachment("a: b", "x\n\n```\n\ny"), Attachment("empty", ""), Attachment("c", "z")]
    for question in ("Why?", "", "two\n\nlines", "```\ncode\n```\n\nWhy?"):
        whole = attached(question, files)
        before, found = without_files(whole)
        assert found == question
        assert before + found == whole
        assert without_files(question) == ("", question)


def test_a_text_of_more_than_bearable_size_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * (MAX_ATTACHED_BYTES + 1))
    with pytest.raises(OptionError, match="more than 8000000 bytes"):
        read_attachment(path)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("photo.png", b"\x89PNG\r\n\x1a\n\0\0", "photo.png is an image"),
        ("photo.txt", b"\xff\xd8\xff\xe0\0\x10JFIF", "photo.txt is an image"),
        ("x.wav", b"RIFF\x24\0\0\0WAVEfmt ", "x.wav is an audio file"),
        ("x.txt", b"%PDF-1.7\nonly characters of text", "x.txt is a PDF"),
        ("large.png", b"\x89PNG\r\n\x1a\n" + bytes(MAX_ATTACHED_BYTES), "is an image"),
        ("odd.mov", b"\1\0\2", "odd.mov is a video"),  # by its ending
    ],
)
def test_images_sound_videos_and_pdfs_are_refused_by_their_kind(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(OptionError, match=r"; this model reads text$") as caught:
        read_attachment(tmp_path / name)
    assert said in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.ts", "let x"),  # the ending is a video's, too
        ("photo.png", "no picture"),
        ("x", "GIF89a is a format, and ID3 a tag; BMP, OggS, RIFF"),
        ("x", "é" * 4096),  # the end of what is looked at is in the midst of one
        ("x", "a" + "é" * 4096),
        ("picture.svg", "<svg/>"),
    ],
)
def test_text_is_text_whatever_it_is_called_and_begins_with(tmp_path, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert read_attachment(tmp_path / name).text == text


def test_a_path_that_is_no_file_is_refused(tmp_path):
    for name in ("absent", ".", "zero\0byte", "x" * 300):
        with pytest.raises(OptionError, match="does not exist, or is not a file"):
            read_attachment(tmp_path / name)
