"""Kinds of inputs that are text: settings, and files beside a message."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

from fault_classes.kinds import Kind, Read, own_home
from fault_classes.mutations import (
    changed_bytes,
    changed_text,
    changed_toml,
)

_ROOT = Path(__file__).parents[3]


def _toml(data: bytes, random: Random, _samples: Sequence[bytes]) -> bytes:
    from localspec.presets.toml_text import parse_toml

    return changed_toml(data, random, parse_toml)


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
    from localspec.errors import LocalspecError

    path = folder / "read.txt"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        for action in (
            lambda: attached("see", [read_attachment(path, sees=False)]),
            lambda: read_attachment(path, sees=True),
            lambda: read_prompts(path),
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
    "texts": Kind("text files", _make_texts, _text, _open_texts),
}
