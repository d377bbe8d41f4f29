"""Reads a TOML file of presets; errors name the file, the table and the key."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from localspec.errors import OptionError, PresetError, perhaps
from localspec.hub.hub_file import HubFile, HubModel
from localspec.presets.preset import (
    LocalModel,
    PackagedModel,
    Preset,
    PresetModel,
    Role,
)
from localspec.sampling.params import SamplingParams

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PRESET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(@[A-Za-z0-9._-]+)?")

_PAGE = "docs/presets.md lists the keys of a preset."

Table = Mapping[str, Any]
Made = TypeVar("Made")

_COMMON: dict[str, type] = {"quantization": str, "license": str}
_FILE: dict[str, type] = {"file": str, "size_bytes": int, "sha256": str}
_MODEL: dict[str, dict[str, type]] = {
    "packaged": {"packaged": str, "package": str, "extra": str, "sha256": str, **_COMMON},
    "path": {"path": str, **_COMMON},
    "repo": {"repo": str, "revision": str, "parts": list, **_FILE, **_COMMON},
}
_PRESET = {
    "extends": str,
    "description": str,
    "context_length": int,
    "max_context_length": int,
    "notes": str,
    "unconfirmed": str,
    "embeds": bool,
    "rpc": list,
    "sampling": dict,
    "target": dict,
    "draft": dict,
    "head": dict,
    "mmproj": dict,
}


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a text. Raises ValueError, or RecursionError if nested too deeply."""
    return tomllib.loads(text)


def toml_of(tables: Table) -> str:
    """A TOML text. Raises OptionError for a text in it that is not valid Unicode."""
    import tomli_w  # late: few commands write

    text = tomli_w.dumps(tables)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise OptionError(
            f"{text!r} is not valid Unicode, which a file of presets has to be",
            "Give the file or its folder a name of ordinary characters.",
        ) from None
    return text


def header_of(line: str) -> tuple[str, ...]:
    """The path of the table whose header is the line; empty if it is not a header."""
    header = re.fullmatch(r"\s*\[([^\[\]]+)\]\s*(#.*)?", line)
    if header is None:
        return ()
    return tuple(a or b for a, b in re.findall(r'"([^"]*)"|([\w-]+)', header[1]))


def read_presets(name: str, text: str, known: Mapping[str, Preset]) -> dict[str, Preset]:
    """The presets of a TOML text, in its order.

    name: of the file, for errors. known: presets that `extends` may name, besides those
    further up in the text. Raises PresetError with file, table and key.
    """
    found: dict[str, Preset] = {}
    try:
        for preset, table in parse_toml(text).items():
            found[preset] = _PresetReader(name, preset).preset(table, {**known, **found})
    except ValueError as error:  # a TOMLDecodeError, or a number with too many digits
        raise PresetError(f"{name}: {error}", "Correct the line.") from error
    except RecursionError:
        raise PresetError(f"{name}: it is nested too deeply", "Correct it.") from None
    return found


class _PresetReader:
    """Reads one preset of a file."""

    def __init__(self, file: str, preset: str) -> None:
        self._file = file
        self._preset = preset

    def preset(self, table: Any, known: Mapping[str, Preset]) -> Preset:
        """The preset that the table describes or changes."""
        if not isinstance(table, dict):
            raise self._error("", "stands outside of any preset")
        if not PRESET_NAME.fullmatch(self._preset):
            raise self._error("", "is not a valid name for a preset")
        self._check(table, _PRESET, "")
        values = {**self._base(table, known), **table, "name": self._preset}
        values.pop("extends", None)
        for role in get_args(Role):
            if role in table:
                values[role] = self._model(table[role], role)
        if "sampling" in table:
            change = SamplingParams().changed
            values["sampling"] = self._made(".sampling", change, table["sampling"])
        for key in ("description", "context_length", "target"):
            if key not in values:
                raise self._error("", f"lacks the key {key!r}")
        return self._made("", Preset, **values)

    def _base(self, table: Table, known: Mapping[str, Preset]) -> Table:
        """The values of the preset that this one extends."""
        if "extends" not in table:
            return {}
        base = known.get(table["extends"])
        if base is None:
            raise self._error("", "extends: names no preset further up")
        return {field.name: getattr(base, field.name) for field in dataclasses.fields(base)}

    def _model(self, table: Table, role: Role) -> PresetModel:
        where, kinds = f".{role}", [kind for kind in _MODEL if kind in table]
        if len(kinds) != 1:
            raise self._error(where, "needs one of: repo, path, packaged")
        self._check(table, _MODEL[kinds[0]], where)
        common = {key: table.get(key, "") for key in _COMMON}
        if kinds[0] == "packaged":
            return self._made(where, PackagedModel, **{**table, **common})
        if kinds[0] == "path":
            # Not Path.expanduser, which raises for the home of an unknown user.
            return LocalModel(path=Path(os.path.expanduser(table["path"])), **common)
        if ("file" in table) == ("parts" in table):
            raise self._error(where, "needs one of: file, parts")
        files = tuple(self._file_of(part, table, where) for part in table.get("parts", [table]))
        return self._made(where, HubModel, files=files, **common)

    def _file_of(self, part: Any, table: Table, where: str) -> HubFile:
        if part is not table:
            if not isinstance(part, dict) or "file" not in part:
                raise self._error(where, "parts: each is a table with a 'file'")
            self._check(part, _FILE, where)
        facts = {key: part.get(key) for key in _FILE}
        repo, revision = table["repo"], table.get("revision")
        return self._made(where, HubFile, repo=repo, revision=revision, **facts)

    def _check(self, table: Table, allowed: Mapping[str, type], where: str) -> None:
        """Raise PresetError for an unknown key, or a value of the wrong type."""
        for key, value in table.items():
            if key not in allowed:
                near = perhaps(key, allowed).strip() or f"Known are {', '.join(allowed)}."
                raise self._error(where, f"{key}: is not a key here", near)
            if not isinstance(value, allowed[key]) or (
                isinstance(value, bool) and allowed[key] is not bool
            ):
                kind = allowed[key].__name__
                raise self._error(where, f"{key}: is {value!r}, not of type {kind}")

    def _made(self, where: str, make: Callable[..., Made], *values: Any, **more: Any) -> Made:
        """The object made of the values. Raises PresetError if it refuses them."""
        try:
            return make(*values, **more)
        except OptionError as error:
            raise self._error(where, str(error), error.hint) from error

    def _error(self, where: str, what: str, hint: str = _PAGE) -> PresetError:
        return PresetError(f"{self._file}: [{self._preset}{where}] {what}", hint)
