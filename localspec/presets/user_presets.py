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
from localspec.hub.hub_file import SHA256_DIGITS, HubFile
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

_FILE_KEYS = ("file", "size_bytes", "sha256")  # of one file of a model on the hub


def add_preset(
    name: str,
    models: Mapping[str, str | None],
    *,
    adapters: Sequence[Adapter] = (),
    description: str,
    context_length: int | None,
) -> Preset:
    """Append a preset to the user's file, with models of the hub pinned.

    Asks the hub about the models' files there, and reads all headers.

    Args:
        name: The new preset's name.
        models: The names of its models by their roles, as `presets.model_names` reads them.
            None or an empty text means that there is no such model.
        adapters: The adapters of the target.
        description: One line for `localspec models`.
        context_length: In tokens. None: what the models were trained for, up to 8192.

    Raises:
        OptionError: The name or the context is invalid, or a text is not valid Unicode.
        PresetError: The name is taken, or the user's file is malformed.
        ModelFileError: A file is missing, or does not hold what its role needs.
        PairError: A model does not fit the target.
        DownloadError: The hub could not be asked.
    """
    check_free(name, is_alias=False)
    by_role: dict[Role, PresetModel] = {}
    for role in get_args(Role):
        model_name = models.get(role)
        if model_name:
            by_role[role] = find_model(model_name, role)
    found_headers = read_model_headers(by_role)
    headers = {role: found.header for role, found in found_headers.items()}
    _check_together(headers)
    found_adapters(adapters, headers["target"])  # raises if one does not fit
    table: dict[str, object] = {"description": description}
    table |= _length_keys(context_length, headers)
    for role, model in by_role.items():
        table[role] = _model_table(model)
    if adapters:
        table["adapters"] = [_adapter_table(adapter) for adapter in adapters]
    path = user_presets_file()
    with locked(path):
        # Checked again, since another process may have added the name in the meantime.
        check_free(name, is_alias=False)
        text = users_text().strip()
        if text:
            text += "\n\n"
        text += toml_of({name: table})
        preset = read_presets(str(path), text, load_presets())[name]
        write_whole(path, text.encode(), durable=True)
    return preset


def drop_preset(name: str) -> None:
    """Remove a preset from the user's file. No other line changes.

    Raises PresetError if the file has no such preset, or not under headers of its own, or if
    another preset in the file extends it.
    """
    path = user_presets_file()
    with locked(path):
        extending = presets_extending(name)
        if extending:
            raise PresetError(f"{', '.join(extending)} extends {name!r}", "Remove that first.")
        text = users_text()
        shortened = _without_preset(text, name)
        remaining_tables = parse_toml(text)
        removed_table = remaining_tables.pop(name, None)
        is_removed = False
        if removed_table is not None:
            with contextlib.suppress(ValueError):
                is_removed = parse_toml(shortened) == remaining_tables
        if not is_removed:
            raise PresetError(
                f"{name!r} is not in {path} under a header of its own",
                "Edit that file by hand.",
            )
        write_whole(path, shortened.encode(), durable=True)


def presets_extending(name: str) -> list[str]:
    """The names of presets in the user's file that extend the preset of that name.

    Raises PresetError if the file is malformed.
    """
    user_presets()  # raises if it is malformed
    extending = []
    for other_name, table in parse_toml(users_text()).items():
        if other_name != name and table.get("extends") == name:
            extending.append(other_name)
    return extending


def _without_preset(text: str, name: str) -> str:
    """The text of a file of presets without the lines of one preset's tables.

    Blank lines and comments are left out only between two lines of the preset.
    """
    kept: list[str] = []
    undecided: list[str] = []  # blank lines and comments since the last other line
    is_in_preset = False
    for line in text.split("\n"):
        if not line.strip() or line.lstrip().startswith("#"):
            undecided.append(line)
            continue
        was_in_preset = is_in_preset
        header = header_of(line)
        if header:
            is_in_preset = header[0] == name
        if not (was_in_preset and is_in_preset):
            kept += undecided
        undecided = []
        if not is_in_preset:
            kept.append(line)
    return "\n".join([*kept, *undecided])


def _check_together(headers: dict[Role, Header]) -> None:
    """Check that the models of a preset fit the target.

    Raises PairError if one does not, and ModelFileError if the target's file holds only a head.
    """
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


def _length_keys(wanted: int | None, headers: dict[Role, Header]) -> dict[str, int]:
    """The keys context_length and max_context_length of a preset, in tokens.

    Raises OptionError if the target was trained for less than `wanted`.

    Args:
        wanted: The context that the user asks for, in tokens. None: what the target and the
            draft were trained for, up to 8192.
        headers: The headers of the preset's models.
    """
    target_trained = ModelShape(headers["target"]).context_length
    both_trained = target_trained
    if "draft" in headers:
        draft_trained = ModelShape(headers["draft"]).context_length
        both_trained = min(target_trained, draft_trained)
    limit = target_trained
    if wanted is None:
        limit = both_trained
    length = context_to_open(wanted, limit, headers["target"].path.name)
    return {"context_length": length, "max_context_length": both_trained}


def _model_table(model: PresetModel) -> dict[str, object]:
    """The table of a model in a file of presets, with its files of the hub pinned."""
    if isinstance(model, PackagedModel | LocalModel):
        # Links are not resolved: the parts of a split model are found by their names.
        return {"path": os.path.abspath(model.path)}
    files = [_pinned_file(file) for file in model.files]
    table: dict[str, object] = {"repo": files[0].repo, "revision": files[0].revision}
    parts = [_file_table(file) for file in files]
    if len(parts) == 1:
        table |= parts[0]
    else:
        table["parts"] = parts
    return table


def _adapter_table(adapter: Adapter) -> dict[str, object]:
    """The table of an adapter in a file of presets: that of a model, with a scale."""
    table = _model_table(adapter_model(adapter))
    table["scale"] = adapter.scale
    return table


def _file_table(file: HubFile) -> dict[str, object]:
    """The keys of one file of a model, without those that all its files share."""
    table = {}
    for key in _FILE_KEYS:
        value = getattr(file, key)
        if value is not None:
            table[key] = value
    return table


def _pinned_file(file: HubFile) -> HubFile:
    """The file, pinned to what the hub has now unless it is pinned already.

    Raises DownloadError if the hub cannot be asked.
    """
    if file.revision and file.sha256 and file.size_bytes:
        return file
    remote = remote_file(file)
    sha256 = None
    if len(remote.etag) == SHA256_DIGITS:  # else it is a git blob id
        sha256 = remote.etag
    return replace(
        file,
        revision=remote.commit,
        size_bytes=remote.size_bytes,
        sha256=sha256,
    )
