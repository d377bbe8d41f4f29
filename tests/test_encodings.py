"""Text in other encodings: output that lacks a character, files that begin with a mark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gguf_maker import write_random_model
from localspec.chat.template import BUILT_IN
from localspec.checks.prompts import read_prompts

pytestmark = pytest.mark.process

SIGNS = "日本✓ “é” ─"
TERSE = ("--max-tokens", "4", "--ctx", "512")
LOCALSPEC = Path(sys.executable).with_name("localspec")


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
    assert run(folder, "utf-8", *add).returncode == 0
    return folder


def token_text(text: str) -> str:
    """The text as a byte-level vocabulary states it: a character for every byte."""
    shifted = [*range(0x21), *range(0x7F, 0xA1), 0xAD]
    stated = {byte: chr(0x100 + number) for number, byte in enumerate(shifted)}
    return "".join(stated.get(byte, chr(byte)) for byte in text.encode())


def run(home: Path, encoding: str, *arguments: object) -> subprocess.CompletedProcess[bytes]:
    """A command whose streams are pipes in that encoding."""
    names = ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME")
    return subprocess.run(
        [LOCALSPEC, *map(str, arguments)],
        env={**os.environ, **dict.fromkeys(names, str(home)), "PYTHONIOENCODING": encoding},
        input=f"Say {SIGNS}\n".encode(),
        capture_output=True,
    )


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
    done = run(home, encoding, *arguments)
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    text = done.stdout.decode(written)
    assert "é" in text
    assert ("日本✓" in text, "???" in text) == (written == "utf-8", written == "cp1252")


@OUTPUTS
@pytest.mark.parametrize("arguments", [("models",), ("bench", "--help"), ("chat", "--help")])
def test_lists_and_help_can_be_written(home, arguments, encoding, written):
    done = run(home, encoding, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode(written).count("\n") > 10


def test_a_mark_of_byte_order_is_no_part_of_a_text(home, tmp_path):
    """Editors of Windows begin UTF-8 with one: prompts, templates, presets."""
    prompts, template = tmp_path / "prompts.txt", tmp_path / "template.jinja"
    prompts.write_text("One.\nTwo.\n", encoding="utf-8-sig")
    assert read_prompts(prompts) == ["One.", "Two."]
    counts = []
    for encoding in ("utf-8", "utf-8-sig"):
        template.write_text(BUILT_IN["chatml"], encoding=encoding)
        options = ("--chat-template", template, "--max-tokens", 1, "--json")
        counts.append(json.loads(run(home, "utf-8", "generate", *options).stdout))
    assert counts[0]["prompt_tokens"] == counts[1]["prompt_tokens"]
    presets = Path(json.loads(run(home, "utf-8", "doctor", "--json").stdout)["presets_file"])
    presets.write_text(presets.read_text("utf-8"), encoding="utf-8-sig")
    assert run(home, "utf-8", "models", "path", "mine").returncode == 0
    assert run(home, "utf-8", "models", "add", "more", "--target", "mine").returncode == 0
