"""Text files in the encodings that programs write: read alike wherever one is taken."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import Result
from command_line import run

from localspec.chat.attachment import Attachment, read_attachment
from localspec.chat.text_file import text_of
from localspec.checks.prompts import read_prompts
from localspec.cli.flags import read_option_file
from localspec.errors import OptionError

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


@pytest.fixture
def answers(unrelated_draft) -> Callable[[str, bytes], Result]:
    """What a command answers to what a pipe brings, with a model that is soon loaded."""
    asked = ["--target", str(unrelated_draft), *TERSE]
    return lambda command, data: run(command, *asked, stdin=data)


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_a_pipe_is_read_as_a_file_is(command, answers):
    text = "Grüße aus Köln: Name the café.\r\n"
    plain, *others = (answers(command, text.encode(e)) for e in ("utf-8", *MARKED, "cp1252"))
    assert plain.exit_code == 0
    assert plain.stdout.strip()
    assert [other.stdout for other in others] == [plain.stdout] * len(others)
    refused = answers(command, b"\x89PNG\r\n\x1a\n\0\0\0")
    assert refused.exit_code == 2
    assert "The input is not text: " in refused.stderr
    assert "Traceback" not in refused.output
