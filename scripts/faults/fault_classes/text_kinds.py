"""Kinds of inputs that are text, or JSON beside bytes: settings, and what is kept."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from random import Random

from fault_classes.kinds import Kind, Read, own_home
from fault_classes.mutations import (
    changed_bytes,
    changed_json,
    changed_lines,
    changed_text,
    changed_toml,
)

_ROOT = Path(__file__).parents[3]
_TOKENIZER = [b"a", b"b", b"c"]


class _Entries:
    """A vocabulary of three tokens."""

    kind, size, bos, add_bos = 1, 3, -1, False

    def entries(self) -> list[bytes]:
        return _TOKENIZER


def _toml(data: bytes, random: Random, _samples: Sequence[bytes]) -> bytes:
    from localspec.presets.toml_text import parse_toml

    return changed_toml(data, random, parse_toml)


def _json(data: bytes, random: Random, _samples: Sequence[bytes]) -> bytes:
    return changed_json(data, random)


def _lines(data: bytes, random: Random, _samples: Sequence[bytes]) -> bytes:
    return changed_lines(data, random)


# models.toml


def _make_presets(folder: Path) -> None:
    for name in ("models.toml", "tests/presets.toml"):
        path = _ROOT / "localspec" / name
        if path.exists():
            text = path.read_text("utf-8")
            tables = text.split("\n\n[")
            for number in range(0, min(len(tables), 24), 3):
                part = "\n\n[".join(tables[number : number + 3])
                part = (
                    part if part.lstrip().startswith(("[", "#")) or number == 0 else f"[{part}"
                )
                (folder / f"sample{number:02}.toml").write_text(part, "utf-8")
    (folder / "sample99.toml").write_text(_PRESET, "utf-8")


_PRESET = """
[mine]
description = "One's own"
context_length = 4096
max_context_length = 32768
embeds = false
rpc = ["192.168.0.2:50052"]
[mine.sampling]
temperature = 0.7
top_k = 40
top_p = 0.9
min_p = 0.05
dry_sequence_breakers = ["a", "b"]
logit_bias = { 5 = -1.5, 7 = -inf }
[mine.target]
repo = "owner/name"
revision = "0123456789012345678901234567890123456789"
parts = [{ file = "a-00001-of-00002.gguf", size_bytes = 5, sha256 = "00" }]
[mine.draft]
path = "~/draft.gguf"
[more]
extends = "mine"
notes = "n"
[more.mmproj]
packaged = "demo.gguf"
"""


def _open_presets(folder: Path) -> Read:
    home = own_home(folder)
    from localspec.errors import LocalspecError
    from localspec.presets import presets
    from localspec.presets.names import names_file
    from localspec.presets.user_presets import drop_preset, extended_by

    file = presets.user_presets_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    assert home in names_file().parents
    presets._warn = lambda _message: None  # which keeps every message

    def read(data: bytes) -> None:
        file.write_bytes(data)
        found = presets.load_presets()
        for preset in found.values():
            repr(preset)
        for action in (
            presets.user_presets,
            lambda: extended_by("mine"),
            lambda: presets.find_preset("mine"),
            lambda: drop_preset("mine"),
        ):
            try:
                action()
            except LocalspecError:
                continue

    return read


# names.toml


def _make_names(folder: Path) -> None:
    text = 'default = "demo"\n[aliases]\nq = "demo"\nbig = "/home/me/big.gguf"\n'
    (folder / "sample.toml").write_text(text)


def _open_names(folder: Path) -> Read:
    own_home(folder)
    from localspec.errors import LocalspecError
    from localspec.presets import names
    from localspec.presets.presets import find_preset, stands_for

    file = names.names_file()
    file.parent.mkdir(parents=True, exist_ok=True)

    def read(data: bytes) -> None:
        file.write_bytes(data)
        for action in (
            names.read_names,
            lambda: stands_for("q"),
            lambda: find_preset("q"),
            lambda: names.change_names(lambda found: found),
        ):
            try:
                action()
            except LocalspecError:
                continue

    return read


# memories


def _memory_bytes(parts: Sequence[tuple[int, Sequence[int]]]) -> bytes:
    tokens = b"".join(struct.pack("<i", token) for _, part in parts for token in part)
    header = {
        "format": "localspec-memory",
        "version": 1,
        "tokenizer": _identity(),
        "sha256": hashlib.sha256(tokens).hexdigest(),
        "parts": [[used, len(part)] for used, part in parts],
    }
    return json.dumps(header).encode() + b"\n" + tokens


def _identity() -> str:
    digest = hashlib.blake2b(digest_size=16)
    for entry in _TOKENIZER:
        digest.update(len(entry).to_bytes(4, "little"))
        digest.update(entry)
    return digest.hexdigest()


def _make_memories(folder: Path) -> None:
    parts = [(1, [0, 1, 2] * 8), (2, [2, 1, 0, 0] * 8), (5, [1] * 16)]
    (folder / "sample").write_bytes(_memory_bytes(parts))


def _change_memory(data: bytes, random: Random, _samples: Sequence[bytes]) -> bytes:
    head, _, tokens = data.partition(b"\n")
    tokens = changed_bytes(tokens, random) if random.random() < 0.3 else tokens
    if random.random() < 0.7:
        found = json.loads(head) | {"sha256": hashlib.sha256(tokens).hexdigest()}
        head = json.dumps(found).encode()
    if random.random() < 0.8:
        head = changed_json(head, random)
    return head + b"\n" + tokens


def _open_memories(folder: Path) -> Read:
    own_home(folder)
    from localspec.engine import memory_file
    from localspec.speculative.memory import TextMemory

    file = memory_file.MemoryFile("mine", _Entries())
    file.path.parent.mkdir(parents=True, exist_ok=True)

    def read(data: bytes) -> None:
        file.path.write_bytes(data)
        memory_file.kept_memories()
        memory_file.num_tokens_in(file.path)
        memory = TextMemory()
        again = memory_file.MemoryFile("mine", _Entries())
        again.load(memory)
        memory.add([0, 1, 2] * 8)
        again.save(memory, at_least=0)
        memory_file.MemoryFile("mine", _Entries()).load(TextMemory())

    return read


# files beside a message


def _make_texts(folder: Path) -> None:
    text = "Grüße — a text.\r\nÇa va? 日本語\n"
    for name in ("utf-8", "utf-8-sig", "utf-16", "utf-32", "cp1252"):
        (folder / f"sample-{name}").write_bytes(text.encode(name, errors="replace"))
    (folder / "sample-notebook").write_text('{"cells": [{"source": ["a"]}], "nbformat": 4}')


def _open_texts(folder: Path) -> Read:
    own_home(folder)
    from localspec.chat.attachment import attached, read_attachment
    from localspec.checks.prompts import read_prompts
    from localspec.engine.remembered_files import RememberedFiles
    from localspec.errors import LocalspecError

    path = folder / "read.txt"

    def remember() -> None:
        files = RememberedFiles()
        files.add(path)
        list(files.changed())

    def read(data: bytes) -> None:
        path.write_bytes(data)
        for action in (
            lambda: attached("see", [read_attachment(path, sees=False)]),
            lambda: read_attachment(path, sees=True),
            lambda: read_prompts(path),
            remember,
        ):
            try:
                action()
            except LocalspecError:
                continue

    return read


def _text(data: bytes, random: Random, samples: Sequence[bytes]) -> bytes:
    return (changed_bytes if random.random() < 0.5 else _as_text)(data, random)


def _as_text(data: bytes, random: Random) -> bytes:
    return changed_text(data, random, [data])


KINDS: dict[str, Kind] = {
    "models.toml": Kind("presets (`models.toml`)", _make_presets, _toml, _open_presets),
    "names.toml": Kind("names (`names.toml`)", _make_names, _toml, _open_names),
    "memories": Kind("memories of texts", _make_memories, _change_memory, _open_memories),
    "texts": Kind("text files", _make_texts, _text, _open_texts),
}
