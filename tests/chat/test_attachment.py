"""Text files that go with a question, and the encodings that any file of text may have."""

from __future__ import annotations

import pytest

from command_line import run
from localspec.chat.attachment import (
    MAX_ATTACHED_BYTES,
    Attachment,
    attached,
    read_attachment,
    text_of,
    without_files,
)
from localspec.cli.flags import read_option_file
from localspec.errors import OptionError
from localspec.evaluation.prompts import read_prompts


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
        ("photo.png", b"\x89PNG\r\n\x1a\n\0\0", "photo.png is not a picture that can be"),
        ("photo.txt", b"\xff\xd8\xff\xe0\0\x10JFIF", "photo.txt cannot be read"),
        ("x.wav", b"RIFF\x24\0\0\0WAVEfmt ", "x.wav is not text: it has zero bytes"),
        ("x.txt", b"%PDF-1.7\nonly characters of text", "x.txt is a PDF"),
        ("large.png", b"\x89PNG\r\n\x1a\n" + bytes(MAX_ATTACHED_BYTES), "large.png is not a"),
    ],
)
def test_damaged_images_sound_and_pdfs_are_refused(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(OptionError, match=said) as caught:
        read_attachment(tmp_path / name)
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


TEXT = "Grüße “naïve” café €5\r\nzwei\n"
READ = TEXT.replace("\r\n", "\n")
MARKED = ["utf-8-sig", "utf-16", "utf-32"]  # with a byte order mark
ENCODINGS = ["utf-8", *MARKED, "cp1252"]
TERSE = ["--temperature", "0", "--max-tokens", "8"]
BIG_ENDIAN = {"utf-16-be": "\ufeff", "utf-32-be": "\ufeff"}


@pytest.mark.parametrize("encoding", [*ENCODINGS, *BIG_ENDIAN])
def test_what_is_text_is_read(tmp_path, encoding):
    data = (BIG_ENDIAN.get(encoding, "") + TEXT).encode(encoding)
    assert text_of(data) == READ
    for name in ("notes.txt", "app.ts", "x.pdf"):  # two of them endings of other kinds, too
        (tmp_path / name).write_bytes(data)
        assert read_attachment(tmp_path / name) == Attachment(name, READ)


@pytest.mark.parametrize(
    "data",
    [
        bytes(range(256)),
        b"a\0b",
        b"\xff\xfe\0\0a",  # UTF-32 that was cut
        "text".encode("utf-16-le"),  # without a mark
        b"\x1f\x8b\x08\x00" + b"\xe9" * 40,  # gzip
        b"caf\xe9 \x81",  # a byte that no character has in it
        "äöüßé日本".encode()[:-1],  # UTF-8 that was cut
        "äöü".encode() + b"\xff" + "ßéñ".encode(),  # with a fault in the middle
    ],
)
def test_what_is_no_text_is_refused(tmp_path, data):
    with pytest.raises(ValueError, match=r"byte|bytes"):
        text_of(data)
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(OptionError, match="is not text: ") as caught:
        read_attachment(path)
    assert caught.value.hint


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_all_files_of_text_are_read_alike(tmp_path, encoding):
    path = tmp_path / "x.txt"
    path.write_bytes(TEXT.encode(encoding))
    assert read_prompts(path) == READ.split("\n")[:-1]
    assert read_option_file("--grammar", path) == READ
    path.write_bytes(b"\xff\xd8\xff\0")
    for read in (read_prompts, lambda path: read_option_file("--grammar", path)):
        with pytest.raises(OptionError, match=r"x\.txt"):
            read(path)


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_a_pipe_is_read_as_a_file_is(command, unrelated_draft):
    asked = (command, "--target", unrelated_draft, *TERSE)  # which is soon loaded
    text = "Grüße aus Köln: Name the café.\r\n"
    encodings = ("utf-8", *MARKED, "cp1252")
    plain, *others = (run(*asked, stdin=text.encode(each)) for each in encodings)
    assert plain.exit_code == 0
    assert plain.stdout.strip()
    assert [other.stdout for other in others] == [plain.stdout] * len(others)
    refused = run(*asked, stdin=b"\x89PNG\r\n\x1a\n\0\0\0")
    assert refused.exit_code == 2
    assert "The input is not text: " in refused.stderr
    assert "Traceback" not in refused.output
