"""Reads a TOML file of presets; errors name file, line and key."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from localspec.errors import OptionError, PresetError, perhaps
from localspec.hub.hub_file import HubFile, HubModel
from localspec.presets.preset import (
    MAX_CONTEXT_LENGTH,
    LocalModel,
    PackagedModel,
    Preset,
    PresetModel,
    Role,
)
from localspec.presets.toml_text import parse_toml
from localspec.rpc_address import checked_addresses
from localspec.sampling.params import SamplingParams

PRESET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(@[A-Za-z0-9._-]+)?")

_PAGE = "docs/presets.md lists the keys of a preset."

Table = Mapping[str, Any]

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


def read_presets(name: str, text: str, known: Mapping[str, Preset]) -> dict[str, Preset]:
    """The presets of a TOML text, in its order.

    name: of the file, for errors. known: presets that `extends` may name, besides those
    further up in the text. Raises PresetError with file, line and key.
    """
    found: dict[str, Preset] = {}
    try:
        for preset_name, table in parse_toml(text).items():
            reader = _PresetReader(name, text, preset_name)
            found[preset_name] = reader.preset(table, {**known, **found})
    except ValueError as error:  # a TOMLDecodeError, or a number with too many digits
        raise PresetError(f"{name}: {error}", "Correct the line.") from error
    except RecursionError:
        raise PresetError(f"{name}: it is nested too deeply", "Correct it.") from None
    return found


class _PresetReader:
    """Reads one preset of the text, and finds the lines of its errors."""

    def __init__(self, file: str, text: str, preset: str) -> None:
        self._file = file
        self._text = text
        self._preset = preset

    def preset(self, table: Any, known: Mapping[str, Preset]) -> Preset:
        """The preset that the table describes or changes."""
        if not isinstance(table, dict):
            raise self._error((), self._preset, "stands outside of any preset")
        here = (self._preset,)
        if not PRESET_NAME.fullmatch(self._preset):
            raise self._error(here, None, "is not a valid name for a preset")
        self._check(table, _PRESET, ())
        values = {**self._base(table, known), **table}
        values.pop("extends", None)
        for role in get_args(Role):
            if role in table:
                values[role] = self._model(table[role], role)
        if "sampling" in table:
            values["sampling"] = self._sampling(table["sampling"])
        if "rpc" in table:
            try:
                values["rpc"] = checked_addresses(table["rpc"])
            except OptionError as error:
                raise self._error(here, "rpc", str(error)) from error
        for key in ("description", "context_length", "target"):
            if key not in values:
                raise self._error(here, None, f"lacks the key {key!r}")
        self._check_lengths(values)
        return Preset(**{**values, "name": self._preset})

    def _base(self, table: Table, known: Mapping[str, Preset]) -> Table:
        """The values of the preset that this one extends."""
        if "extends" not in table:
            return {}
        base = known.get(table["extends"])
        if base is None:
            raise self._error((self._preset,), "extends", "names no preset further up")
        return {field.name: getattr(base, field.name) for field in dataclasses.fields(base)}

    def _model(self, table: Table, role: Role) -> PresetModel:
        kinds = [kind for kind in _MODEL if kind in table]
        if len(kinds) != 1:
            raise self._error((self._preset, role), None, "needs one of: repo, path, packaged")
        self._check(table, _MODEL[kinds[0]], (role,))
        common = {key: table.get(key, "") for key in _COMMON}
        if kinds[0] == "packaged":
            if table.get("package") == "":
                raise self._error((self._preset, role), "package", "is empty")
            return PackagedModel(**{**table, **common})
        if kinds[0] == "path":
            # Not Path.expanduser, which raises for the home of an unknown user.
            return LocalModel(path=Path(os.path.expanduser(table["path"])), **common)
        if ("file" in table) == ("parts" in table):
            raise self._error((self._preset, role), None, "needs one of: file, parts")
        parts = table.get("parts", [table])
        if not parts:
            raise self._error((self._preset, role), "parts", "names no file")
        return HubModel(
            files=tuple(self._file_of(part, table, role) for part in parts), **common
        )

    def _file_of(self, part: Any, table: Table, role: str) -> HubFile:
        where = (self._preset, role)
        if not isinstance(part, dict):
            raise self._error(where, "parts", "holds something that is not a table")
        if part is not table:
            self._check(part, _FILE, (role,), inside="parts")
        if "file" not in part:
            raise self._error(where, "parts", "holds a part without 'file'")
        try:
            return HubFile(
                repo=table["repo"],
                revision=table.get("revision"),
                file=part["file"],
                size_bytes=part.get("size_bytes"),
                sha256=part.get("sha256"),
            )
        except OptionError as error:
            raise self._error(where, None, str(error)) from error

    def _sampling(self, table: Table) -> SamplingParams:
        try:
            return SamplingParams().changed(table)
        except OptionError as error:
            named = next((key for key in table if str(error).startswith(f"{key} ")), None)
            raise self._error(
                (self._preset, "sampling"), named, str(error), error.hint
            ) from error

    def _check(
        self,
        table: Table,
        allowed: Mapping[str, type],
        within: tuple[str, ...],
        inside: str = "",
    ) -> None:
        """Raise PresetError for an unknown key, or a value of the wrong type."""
        path = (self._preset, *within)
        for key, value in table.items():
            if key not in allowed:
                near = perhaps(key, allowed).strip() or f"Known are {', '.join(allowed)}."
                raise self._error(path, inside or key, "is not a key here", near)
            if not isinstance(value, allowed[key]) or (
                isinstance(value, bool) and allowed[key] is not bool
            ):
                kind = allowed[key].__name__
                raise self._error(path, inside or key, f"is {value!r}, not of type {kind}")

    def _check_lengths(self, values: Table) -> None:
        """Raise PresetError for a context length that is out of range."""
        for key in ("context_length", "max_context_length"):
            length = values.get(key)
            if length is not None and not 1 <= length <= MAX_CONTEXT_LENGTH:
                raise self._error(
                    (self._preset,), key, f"is not from 1 to {MAX_CONTEXT_LENGTH}"
                )

    def _error(
        self, path: tuple[str, ...], key: str | None, what: str, hint: str = _PAGE
    ) -> PresetError:
        table = "".join(f"[{'.'.join(path)}] " if path else "")
        named = f"{key}: " if key else ""
        line = line_of(self._text, path, key)
        return PresetError(f"{self._file}, line {line}: {table}{named}{what}", hint)


def header_of(line: str) -> tuple[str, ...]:
    """The path of the table whose header is the line; empty if it is not a header."""
    header = re.fullmatch(r"\s*\[([^\[\]]+)\]\s*(#.*)?", line)
    if header is None:
        return ()
    return tuple(a or b for a, b in re.findall(r'"([^"]*)"|([\w-]+)', header[1]))


def line_of(text: str, path: tuple[str, ...], key: str | None) -> int:
    """The line number of `key` in the table `path`, or else of the table's header.

    Found by the headers, since the parser keeps no positions. 1 if the table has no header.
    """
    found = 1
    current: tuple[str, ...] = ()
    for number, line in enumerate(text.split("\n"), start=1):
        if header := header_of(line):
            current = header
            if current == path or (found == 1 and current[: len(path)] == path):
                found = number
        elif current == path and key is not None:
            named = re.match(r'\s*(?:"([^"]*)"|([\w-]+))\s*[.=]', line)
            if named and (named[1] or named[2]) == key:
                return number
    return found
