"""Adds a preset to the user's own file."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from localspec.atomic_write import write_whole
from localspec.errors import OptionError, PresetError
from localspec.gguf_file.check import check_model_file
from localspec.models.hub_api import find_quantization, remote_file
from localspec.models.preset import (
    MAX_CONTEXT_LENGTH,
    HubFile,
    HubModel,
    LocalModel,
    PackagedModel,
    Preset,
    Role,
)
from localspec.models.preset_file import PRESET_NAME, read_presets
from localspec.models.presets import load_presets, user_presets_file
from localspec.models.source import Quantized, parse_source


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPreset:
    """What a person says about a preset of their own. The models as in `models.source`."""

    name: str
    target: str
    draft: str | None
    head: str | None = None
    description: str
    context_length: int

    def __post_init__(self) -> None:
        for name in ("name", "target", "draft", "head", "description"):
            value = getattr(self, name)
            may_lack = name in ("draft", "head") and value is None
            if not isinstance(value, str) and not may_lack:
                raise OptionError(f"{name} is {value!r}, no text", "Give a string.")
        length = self.context_length
        if type(length) is not int or not 1 <= length <= MAX_CONTEXT_LENGTH:
            raise OptionError(
                f"context_length is {length!r}",
                f"Give a number of tokens from 1 to {MAX_CONTEXT_LENGTH}.",
            )


def add_preset(new: NewPreset) -> Preset:
    """Write the preset after the others in the user's file, models of the hub pinned.

    Asks the hub about files that it names. Raises OptionError for a name that is none or a
    text that no file can hold, PresetError if the user's file has it already, ModelFileError
    for a path without a model, DownloadError if the hub does not know a file.
    """
    if not PRESET_NAME.fullmatch(new.name):
        raise OptionError(
            f"{new.name!r} is no name for a preset", "Use letters, digits, dots and dashes."
        )
    _check_free(new.name)
    lines = [
        f"[{_quoted(new.name)}]",
        f"description = {_quoted(new.description)}",
        f"context_length = {new.context_length}",
        *_model_lines(new, "target", new.target),
        *(_model_lines(new, "draft", new.draft) if new.draft else []),
        *(_model_lines(new, "head", new.head) if new.head else []),
    ]
    import filelock  # late, as this module is imported by every command

    path = user_presets_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    # Others may add theirs at the same time. Not held while the hub is asked.
    with filelock.FileLock(path.with_name(f".{path.name}.lock")):
        _check_free(new.name)
        text = path.read_text(encoding="utf-8-sig") if path.exists() else ""
        text = "\n".join([*([text.rstrip("\n"), ""] if text else []), *lines, ""])
        preset = read_presets(str(path), text, load_presets())[new.name]
        write_whole(path, text.encode(), durable=True)
    return preset


def _check_free(name: str) -> None:
    if name in load_presets():
        raise PresetError(
            f"there is a preset {name!r} already",
            f"Choose another name, or edit {user_presets_file()}.",
        )


def _model_lines(new: NewPreset, role: Role, source: str) -> list[str]:
    table = ["", f"[{_quoted(new.name)}.{role}]"]
    named = parse_source(source, role)
    if isinstance(named, PackagedModel):
        named = LocalModel(path=named.path)
    if isinstance(named, LocalModel):
        check_model_file(named.path)
        return [*table, f"path = {_quoted(str(named.path.resolve()))}"]
    if isinstance(named, Quantized):
        files = find_quantization(named.repo, named.quantization)
        named = HubModel(files=tuple(files))
    files = [_pinned(file) for file in named.files]
    common = [f"repo = {_quoted(files[0].repo)}", f'revision = "{files[0].revision}"']
    if len(files) == 1:
        return [*table, *common, *_facts(files[0])]
    parts = [f"  {{ {', '.join(_facts(file))} }}," for file in files]
    return [*table, *common, "parts = [", *parts, "]"]


def _pinned(file: HubFile) -> HubFile:
    """The file as the hub has it now. What has a pin already keeps it."""
    if file.revision and file.sha256 and file.size_bytes:
        return file
    remote = remote_file(file)
    sha256 = remote.etag if len(remote.etag) == 64 else None
    return replace(file, revision=remote.commit, size_bytes=remote.size_bytes, sha256=sha256)


def _facts(file: HubFile) -> list[str]:
    facts = [f"file = {_quoted(file.file)}", f"size_bytes = {file.size_bytes}"]
    return [*facts, f'sha256 = "{file.sha256}"'] if file.sha256 else facts


def _quoted(text: str) -> str:
    """A TOML string; JSON writes the same escapes, but for DEL.

    Raises OptionError for what is no Unicode text, as the name of a file may be.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise OptionError(
            f"{text!r} is no Unicode text, which a file of presets has to be",
            "Give the file or its folder a name of ordinary characters.",
        ) from None
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
