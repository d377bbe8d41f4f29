"""Text in other encodings: output that lacks a character, files that begin with a mark."""

from __future__ import annotations

import pytest
from click.testing import CliRunner, Result

from gguf_maker import write_random_model
from localspec.cli import main

NAMES = ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME")
SIGNS = "日本✓ “é” ─"
TERSE = ("--max-tokens", "4", "--ctx", "512")


@pytest.fixture(scope="module")
def home(tmp_path_factory, demo_target):
    """A home with such signs in its name, a preset of its own, and a model that says them."""
    folder = tmp_path_factory.mktemp("home") / SIGNS
    folder.mkdir()
    model = write_random_model(
        folder / "signs.gguf",
        demo_target,
        replace_tokens={i: token_text(f"{SIGNS}{i}") for i in range(300, 4096)},
    )
    add = ("models", "add", "mine", "--target", model, "--description", SIGNS, "--ctx", 512)
    with pytest.MonkeyPatch.context() as patch:
        for name in NAMES:
            patch.setenv(name, str(folder))
        assert run("utf-8", *add).exit_code == 0
        yield folder


def token_text(text: str) -> str:
    """The text as a byte-level vocabulary states it: a character for every byte."""
    shifted = [*range(0x21), *range(0x7F, 0xA1), 0xAD]
    stated = {byte: chr(0x100 + number) for number, byte in enumerate(shifted)}
    return "".join(stated.get(byte, chr(byte)) for byte in text.encode())


def run(encoding: str, *arguments: object) -> Result:
    """A command whose output is in that encoding."""
    runner = CliRunner(charset=encoding)
    return runner.invoke(main, [*map(str, arguments)], input=f"Say {SIGNS}\n".encode())


def assert_written(output: bytes, encoding: str) -> None:
    """All signs are there, or in cp1252 those that it has."""
    text = output.decode(encoding)
    assert "é" in text
    assert ("日本✓" in text, "???" in text) == (encoding == "utf-8", encoding == "cp1252")


OUTPUTS = pytest.mark.parametrize(
    ("encoding", "written"),
    # ASCII alone is a mistake of the surroundings: click writes UTF-8 instead.
    [("cp1252", "cp1252"), ("ascii", "utf-8")],
)


@OUTPUTS
@pytest.mark.parametrize(
    "arguments",
    [
        ("generate", "--preset", "mine", *TERSE),
        ("generate", "--preset", "mine", *TERSE, "--show-draft", SIGNS),
        ("chat", "--preset", "mine", *TERSE),
        ("explain", "mine"),
        ("models", "path", "mine"),
        ("doctor",),
    ],
    ids=" ".join,
)
def test_characters_that_the_output_lacks_are_replaced(home, arguments, encoding, written):
    done = run(encoding, *arguments)
    assert done.exit_code == 0, done.stderr_bytes
    assert b"Traceback" not in done.stderr_bytes
    assert_written(done.stdout_bytes, written)
