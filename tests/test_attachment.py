"""Text files that go with a question."""

from __future__ import annotations

import os

import pytest

from localspec.chat.attachment import MAX_BYTES, Attachment, attached, read_attachment
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


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe", "no UTF-8 text .byte 0"),
        (b"a\0b", "zero bytes"),
        (b"x" * (MAX_BYTES + 1), "more than 8000000 bytes"),
    ],
)
def test_what_is_no_text_of_bearable_size_is_refused(tmp_path, content, words):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(OptionError, match=words):
        read_attachment(path)


def test_a_path_that_is_no_file_is_refused(tmp_path):
    with pytest.raises(OptionError, match="does not exist"):
        read_attachment(tmp_path / "absent")
    with pytest.raises(OptionError, match="is no file"):
        read_attachment(tmp_path)
    with pytest.raises(OptionError):
        read_attachment(tmp_path / "zero\0byte")
    with pytest.raises(OptionError, match="cannot be read"):
        read_attachment(tmp_path / ("x" * 300))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_a_named_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OptionError, match="is no file"):
        read_attachment(tmp_path / "pipe")
