"""Adds presets to the user's own file, and removes them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import get_args

from localspec.errors import PairError, PresetError
from localspec.gguf_file.head_facts import check_target, head_misfit
from localspec.gguf_file.header import Header
from localspec.gguf_file.projector_facts import require_projector_of
from localspec.gguf_file.shape import ModelShape, context_to_open
from localspec.hub.api import remote_file
from localspec.hub.hub_file import HubFile
from localspec.presets.local_models import compare_vocabularies
from localspec.presets.located import (
    adapter_model,
    find_model,
    found_adapters,
    read_model_headers,
)
from localspec.presets.presets import (
    Adapter,
    LocalModel,
    PackagedModel,
    Preset,
    PresetModel,
    Role,
    check_free,
    header_of,
    load_presets,
    locked,
    parse_toml,
    read_presets,
    toml_of,
    user_presets,
    user_presets_file,
    users_text,
)
from localspec.system.atomic_write import write_whole

_FACTS = ("file", "size_bytes", "sha256")  # of a file on the hub


def add_preset(
    name: str,
    models: Mapping[str, str | None],
    *,
    adapters: Sequence[Adapter] = (),
    description: str,
    context_length: int | None,
) -> Preset:
    """Append a preset to the user's file, with models of the hub pinned.

    Asks the hub about its files, and reads all headers.

    Args:
        name: The new preset's name.
        models: The names of its models by their roles, as `presets.model_names` reads them.
            None or an empty text means that there is no such model.
        adapters: The adapters of the target.
        description: One line for `localspec models`.
        context_length: In tokens. None: what the models were trained for, up to 8192.

    Raises:
        OptionError: The name or the context is invalid, or a file cannot hold a text.
        PresetError: The name is taken, or the user's file is malformed.
        ModelFileError: There is no model at a path.
        PairError: A model does not fit the target.
        DownloadError: The hub could not be asked.
    """
    check_free(name, is_alias=False)
    named: dict[Role, PresetModel] = {}
    for role in get_args(Role):
        model_name = models.get(role)
        if model_name:
            named[role] = find_model(model_name, role)
    found = read_model_headers(named)
    headers = {role: model.header for role, model in found.items()}
    _check_together(headers)
    found_adapters(adapters, headers["target"])
    added: dict[str, object] = {"description": description}
    added |= _lengths(context_length, headers)
    for role, model in named.items():
        added[role] = _model_table(model)
    if adapters:
        added["adapters"] = [_adapter_table(adapter) for adapter in adapters]
    path = user_presets_file()
    with locked(path):
        # Again, since another process may have added it in the meantime.
        check_free(name, is_alias=False)
        before = users_text().strip()
        if before:
            before += "\n\n"
        text = before + toml_of({name: added})
        preset = read_presets(str(path), text, load_presets())[name]
        write_whole(path, text.encode(), durable=True)
    return preset


def drop_preset(name: str) -> None:
    """Remove a preset from the user's file. No other line changes.

    Raises PresetError if it is not there under headers of its own, or another preset
    there extends it.
    """
    path = user_presets_file()
    with locked(path):
        users = extended_by(name)
        if users:
            raise PresetError(f"{', '.join(users)} extends {name!r}", "Remove that first.")
        text = users_text()
        shortened = _without(text, name)
        expected = parse_toml(text)
        is_removed = False
        if expected.pop(name, None) is not None:
            with contextlib.suppress(ValueError):
                is_removed = parse_toml(shortened) == expected
        if not is_removed:
            raise PresetError(
                f"{name!r} is not in {path} under a header of its own",
                "Edit that file by hand.",
            )
        write_whole(path, shortened.encode(), durable=True)


def extended_by(name: str) -> list[str]:
    """The presets of the user's file that extend the preset of that name in it.

    Raises PresetError if the file is malformed.
    """
    user_presets()
    users = []
    for other, table in parse_toml(users_text()).items():
        if other != name and table.get("extends") == name:
            users.append(other)
    return users


def _without(text: str, name: str) -> str:
    """The lines of the text without those of the preset's tables.

    Comments before the next table belong to that one.
    """
    kept: list[str] = []
    between: list[str] = []  # blank lines and comments whose table is not known yet
    is_its = False
    for line in text.split("\n"):
        if not line.strip() or line.lstrip().startswith("#"):
            between.append(line)
            continue
        was_its = is_its
        header = header_of(line)
        if header:
            is_its = header[0] == name
        if not (was_its and is_its):
            kept += between
        between = []
        if not is_its:
            kept.append(line)
    return "\n".join([*kept, *between])


def _check_together(headers: dict[Role, Header]) -> None:
    """Raise PairError if they do not fit together, ModelFileError if the target is a head."""
    target = headers["target"]
    check_target(target)
    if "mmproj" in headers:
        require_projector_of(target, headers["mmproj"])
    if "draft" in headers:
        compare_vocabularies(target, headers["draft"])
    if "head" not in headers:
        return
    head = headers["head"]
    misfit = head_misfit(target, head)
    if misfit:
        raise PairError(
            f"{head.path} cannot draft for the target: {misfit}",
            "Choose the head that was made for this very model, or leave it out.",
        )


def _lengths(wanted: int | None, headers: dict[Role, Header]) -> dict[str, int]:
    """The keys of both context lengths, in tokens. Raises OptionError.

    Args:
        wanted: The context that the user asks for. None: what the models were trained for, up
            to 8192.
        headers: The models of the preset.
    """
    of_target = ModelShape(headers["target"]).context_length
    most = of_target
    if "draft" in headers:
        most = min(of_target, ModelShape(headers["draft"]).context_length)
    trained = of_target
    if wanted is None:
        trained = most
    length = context_to_open(wanted, trained, headers["target"].path.name)
    return {"context_length": length, "max_context_length": most}


def _model_table(model: PresetModel) -> dict[str, object]:
    """The model's table in a file of presets, its files of the hub pinned."""
    if isinstance(model, PackagedModel | LocalModel):
        # Links are not resolved: the parts of a split model are found by their names.
        return {"path": os.path.abspath(model.path)}
    files = [_pinned(file) for file in model.files]
    common = {"repo": files[0].repo, "revision": files[0].revision}
    parts = [_file_table(file) for file in files]
    if len(parts) == 1:
        return {**common, **parts[0]}
    return {**common, "parts": parts}


def _adapter_table(adapter: Adapter) -> dict[str, object]:
    """The adapter's table in a file of presets: a model's, with a scale."""
    model = adapter_model(adapter)
    return {**_model_table(model), "scale": adapter.scale}


def _file_table(file: HubFile) -> dict[str, object]:
    """A file's keys in a file of presets, but for what all parts of a model share."""
    table = {}
    for key in _FACTS:
        value = getattr(file, key)
        if value is not None:
            table[key] = value
    return table


def _pinned(file: HubFile) -> HubFile:
    """The file pinned to what the hub has now, unless it is pinned already."""
    if file.revision and file.sha256 and file.size_bytes:
        return file
    remote = remote_file(file)
    sha256 = None
    if len(remote.etag) == 64:
        sha256 = remote.etag
    return replace(
        file,
        revision=remote.commit,
        size_bytes=remote.size_bytes,
        sha256=sha256,
    )
