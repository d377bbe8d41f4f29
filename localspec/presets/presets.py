"""Presets: a target, perhaps a draft or a head, and where their files come from.

They are those of the shipped models.toml and of the user's own file. Errors in such a file name
the file, the table and the key.

The user's short names for models, and the default model, are in `names.toml`, in the folder of
the user's presets. Commands write it:

    default = "qwen3-8b"

    [aliases]
    q = "qwen3-8b"
    big = "/home/me/big.gguf"
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import platformdirs

from localspec.errors import DAMAGES, OptionError, PresetError, UnknownPresetError, did_you_mean
from localspec.gguf_file.adapter import MOST_ADAPTERS, USUAL_SCALE, checked_scale
from localspec.hub.hub_file import HubFile, HubModel
from localspec.keywords import ours_for
from localspec.rpc_address import checked_addresses
from localspec.sampling.params import SamplingParams
from localspec.system.atomic_write import make_private_folder, read_regular_text, write_whole

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

logger = logging.getLogger(__name__)

DEFAULT_PRESET = "demo"
OWN_PACKAGE = "localspec"
PRESET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(@[A-Za-z0-9._-]+)?")

_MONTH = re.compile(r"\d{4}-(0[1-9]|1[0-2])")
_MAX_LENGTH = 2**31 - 1  # llama.cpp counts tokens in 32 bits
_PAGE = "docs/presets.md lists the keys of a preset."

Table = Mapping[str, Any]
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """A model file that comes with localspec, or in another Python package."""

    packaged: str
    """The file's name."""

    package: str = OWN_PACKAGE
    """Its Python package, as pip knows it."""

    extra: str = ""
    """The extra of localspec that installs this package."""

    sha256: str = ""
    """The file's hash, empty if it is not checked."""

    quantization: str
    license: str

    @property
    def path(self) -> Path:
        """The path of the file; there is none if its package is not installed or lacks it."""
        if self.package == OWN_PACKAGE:
            return Path(str(resources.files("localspec") / "demo" / self.packaged))
        from importlib import metadata  # late: few commands need it

        files = None
        with contextlib.suppress(metadata.PackageNotFoundError, ValueError):  # an empty name
            files = metadata.files(self.package)
        for file in files or ():
            if file.name == self.packaged:
                return Path(str(file.locate()))
        return Path(self.package, self.packaged)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModel:
    """A model file of the user's own; of a split model, the first part.

    Raises OptionError for an invalid path.
    """

    path: Path
    quantization: str = ""
    license: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.path, Path):
            raise OptionError(f"the path is {self.path!r}", "Give a pathlib.Path.")


Role = Literal["target", "draft", "head", "mmproj"]
PresetModel = HubModel | PackagedModel | LocalModel


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter of a target, which changes its weights while it computes, and its scale.

    Raises OptionError for another kind of file, or a scale out of range.
    """

    file: str | os.PathLike[str] | PresetModel
    """The path of its GGUF file, or hf:owner/repo/file.gguf; in a preset a model."""

    scale: float = USUAL_SCALE
    """What its weights are multiplied with, in 32 bits: -1000 to 1000. 0 leaves it out until
    an answer asks for it."""

    def __post_init__(self) -> None:
        if not isinstance(self.file, str | os.PathLike | PresetModel):
            raise OptionError(
                f"an adapter is {self.file!r:.80}",
                "Give the path of its GGUF file, or hf:owner/repo/file.gguf.",
            )
        object.__setattr__(self, "scale", checked_scale(self.scale))


AnyAdapter = str | os.PathLike[str] | Adapter


def checked_adapters(adapters: Sequence[AnyAdapter]) -> tuple[Adapter, ...]:
    """Adapters, each with its scale. Raises OptionError for anything else, and for too many."""
    if isinstance(adapters, str | os.PathLike) or not isinstance(adapters, Sequence):
        raise OptionError(
            f"the adapters are {adapters!r:.80}",
            "Give a list of files, or of Adapters.",
        )
    if len(adapters) > MOST_ADAPTERS:
        raise OptionError(
            f"{len(adapters)} adapters are given; the limit is {MOST_ADAPTERS}",
            "Give fewer.",
        )
    checked = []
    for adapter in adapters:
        if not isinstance(adapter, Adapter):
            adapter = Adapter(adapter)
        checked.append(adapter)
    return tuple(checked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A target, what drafts for it, and the settings that the model's makers recommend.

    It has a name in a file of presets, or is made by an application and given to `load`,
    `explain` and `download` in place of a name.

    Raises OptionError for an invalid model, context length or address.
    """

    name: str
    description: str = ""
    target: PresetModel
    draft: PresetModel | None = None
    head: PresetModel | None = None
    """A trained head in a file of its own; one inside the target's file is not named."""

    mmproj: PresetModel | None = None
    """The projector with which the target sees pictures."""

    adapters: tuple[Adapter, ...] = ()
    """LoRA adapters of the target."""

    context_length: int
    """Tokens of context that the models are opened with."""

    max_context_length: int | None = None
    """Tokens that all models were trained for, None if no source says."""

    sampling: SamplingParams = field(default_factory=SamplingParams)
    rpc: tuple[str, ...] = ()
    """Addresses of llama.cpp's RPC servers that hold layers of the target, too, each
    "host:port"."""

    notes: str = ""
    unconfirmed: str = ""
    """Facts that only one source states, or none; empty if all are confirmed."""

    embeds: bool = False
    """Whether the target is an embedding model and cannot answer questions."""

    released: str = ""
    """The month in which the makers released the target, as 2026-08; empty if unknown."""

    active_share: float = 1.0
    """The part of the target's weights that a token needs: below 1 for a mixture of experts."""

    def __post_init__(self) -> None:
        for role in get_args(Role):
            model = getattr(self, role)
            if model is None and role != "target":
                continue
            if not isinstance(model, HubModel | PackagedModel | LocalModel):
                raise OptionError(
                    f"the {role} of preset {self.name!r} is {model!r}",
                    "Give a HubModel or a LocalModel.",
                )
        object.__setattr__(self, "adapters", checked_adapters(self.adapters))
        for adapter in self.adapters:
            if isinstance(adapter.file, str | os.PathLike):
                raise OptionError(
                    f"an adapter of preset {self.name!r} is {adapter.file!r}",
                    "Give an Adapter of a HubModel or a LocalModel.",
                )
        check_length("context_length", self.context_length)
        if self.max_context_length is not None:
            check_length("max_context_length", self.max_context_length)
        if self.released and not _MONTH.fullmatch(self.released):
            raise OptionError(f"released is {self.released!r}", "Give a month, as 2026-08.")
        if not 0.0 < self.active_share <= 1.0:
            raise OptionError(f"active_share is {self.active_share}", "Give 0 to 1, but not 0.")
        object.__setattr__(self, "rpc", checked_addresses(self.rpc))

    @property
    def models(self) -> tuple[PresetModel, ...]:
        """The target, and the draft, the head, the projector and adapters if there are any."""
        return (*self.by_role().values(), *self.adapter_models)

    @property
    def adapter_models(self) -> tuple[PresetModel, ...]:
        """The files of the adapters."""
        files = []
        for adapter in self.adapters:
            if not isinstance(adapter.file, str | os.PathLike):
                files.append(adapter.file)
        return tuple(files)

    @property
    def needed(self) -> tuple[PresetModel, ...]:
        """All models but a projector on the hub, without which the target is blind."""
        named = self.by_role()
        if isinstance(self.mmproj, HubModel):
            del named["mmproj"]
        return (*named.values(), *self.adapter_models)

    def by_role(self) -> dict[Role, PresetModel]:
        """The models by their roles, the target first."""
        found = {}
        for role in get_args(Role):
            model = getattr(self, role)
            if model is not None:
                found[role] = model
        return found


def check_length(name: str, length: object) -> None:
    """Raise OptionError for an invalid number of tokens.

    Args:
        name: The argument's name, for the message.
        length: Its value.
    """
    if type(length) is not int or not 1 <= length <= _MAX_LENGTH:
        raise OptionError(f"{name} is {length!r}", f"Give 1 to {_MAX_LENGTH} tokens.")


def hub_files(models: Sequence[PresetModel]) -> list[HubFile]:
    """The models' files on the hub, each once."""
    files: dict[HubFile, None] = {}  # a set that keeps the order
    for model in models:
        if isinstance(model, HubModel):
            files |= dict.fromkeys(model.files)
    return list(files)


_COMMON: dict[str, type] = {"quantization": str, "license": str}
_FILE: dict[str, type] = {
    "file": str,
    "size_bytes": int,
    "sha256": str,
}
_MODEL: dict[str, dict[str, type]] = {
    "packaged": {
        "packaged": str,
        "package": str,
        "extra": str,
        "sha256": str,
        **_COMMON,
    },
    "path": {"path": str, **_COMMON},
    "repo": {
        "repo": str,
        "revision": str,
        "parts": list,
        **_FILE,
        **_COMMON,
    },
}
_PRESET: dict[str, type] = {
    **dict.fromkeys(("extends", "description", "notes", "released", "unconfirmed"), str),
    **dict.fromkeys(("context_length", "max_context_length"), int),
    **dict.fromkeys(("sampling", *get_args(Role)), dict),
    "active_share": float,
    "embeds": bool,
    "rpc": list,
    "adapters": list,
}


@dataclass(frozen=True, slots=True)
class Names:
    """The user's short names for models, and the default model."""

    default: str | None = None
    """The name of the default preset or model; None if the user chose none."""

    aliases: Mapping[str, str] = field(default_factory=dict)
    """What each alias stands for."""


def user_presets_file() -> Path:
    """The file of the user's own presets; it need not exist."""
    return platformdirs.user_config_path("localspec", appauthor=False) / "models.toml"


def names_file() -> Path:
    """The file of names; it need not exist."""
    return user_presets_file().with_name("names.toml")


def load_presets() -> dict[str, Preset]:
    """All presets by name: the shipped ones in their order, then the user's.

    The user's presets replace shipped ones of the same name. If the user's file is malformed,
    its presets are left out, with a warning.
    """
    text = ""
    shipped = _shipped_presets()
    try:
        text = users_text()
        return {**shipped, **read_presets(str(user_presets_file()), text, shipped)}
    except PresetError as error:
        _warn(f"{error}; your own presets are left out. {error.hint}")
        presets = dict(shipped)
        for line in text.split("\n"):
            header = header_of(line)
            if header:
                presets.pop(header[0], None)  # a shipped preset that the user replaced
        return presets


def user_presets() -> dict[str, Preset]:
    """The presets of the user's own file, by name.

    Raises PresetError, naming file, table and key, if it is malformed.
    """
    return read_presets(str(user_presets_file()), users_text(), _shipped_presets())


def users_text() -> str:
    """The text of the user's file, empty if there is none. Raises PresetError."""
    path = user_presets_file()
    try:
        return read_regular_text(path, "utf-8-sig")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise PresetError(f"{path} cannot be read: {error}", "Correct or remove it.") from error


@functools.cache
def _warn(message: str) -> None:
    """Warn once: a command asks for presets several times."""
    logger.warning("%s", message)


@functools.cache
def _shipped_presets() -> Mapping[str, Preset]:
    """The shipped presets, parsed once: every command asks for them several times."""
    path = resources.files("localspec") / "models.toml"
    if not path.is_file():  # in a checkout it is at the top
        path = Path(__file__).parents[2] / "models.toml"
    return read_presets("models.toml", path.read_text(encoding="utf-8"), {})


def find_preset(name: str) -> Preset:
    """The preset of that name, or that the alias of that name stands for.

    Raises UnknownPresetError if there is none, PresetError if the user's file, which might have
    it, is malformed.
    """
    preset = None
    if isinstance(name, str):
        preset = load_presets().get(stands_for(name))
    if preset is None:
        raise no_such_preset(name)
    return preset


def stands_for(name: str) -> str:
    """The meaning of an alias, or else the name itself.

    Raises PresetError if the file of aliases, which might have it, is malformed.
    """
    if name in load_presets():
        return name
    return read_names().aliases.get(name, name)


def no_such_preset(name: object) -> PresetError:
    """The error for an unknown name, or for a malformed file that may hide its preset."""
    try:
        user_presets()
    except PresetError as fault:
        return fault
    known = [*load_presets(), *read_names().aliases]
    hint = "'localspec models' lists them; a file is named by its path, ending in .gguf."
    return UnknownPresetError(
        f"there is no preset {name!r}",
        did_you_mean(str(name), known) + hint,
    )


def as_preset(preset: str | Preset) -> Preset:
    """The preset itself, or the preset of that name. Raises what `find_preset` raises."""
    if isinstance(preset, Preset):
        return preset
    return find_preset(preset)


def check_free(name: str, *, is_alias: bool) -> None:
    """Raise PresetError if a preset has that name, or a file is malformed.

    Args:
        name: The new name.
        is_alias: Whether an alias may have the name; it is then replaced.

    Raises:
        OptionError: For an invalid name.
    """
    if not PRESET_NAME.fullmatch(name):
        raise OptionError(f"{name!r} is not a valid name", "Use letters, digits, . and -.")
    user_presets()
    if name in load_presets():
        raise PresetError(f"there is a preset {name!r} already", "Choose another name.")
    if is_alias:
        return
    meant = read_names().aliases.get(name)
    if meant:
        raise PresetError(
            f"{name!r} is an alias of {meant}",
            f"Choose another name, or: localspec models alias {name} --clear",
        )


def common_servers(rpc: Sequence[str] | None, chosen: Preset | None) -> tuple[str, ...]:
    """The given addresses of RPC servers, or else the preset's. Raises OptionError."""
    if rpc is not None:
        return checked_addresses(rpc)
    if chosen is None:
        return ()
    return chosen.rpc


def read_names() -> Names:
    """Read the file. Raises PresetError if it is malformed."""
    path = names_file()
    try:
        found = parse_toml(read_regular_text(path, "utf-8-sig"))
        default = found.get("default")
        aliases = found.get("aliases", {})
        texts = list(aliases.values())
        if default is not None:
            texts.append(default)
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("a name in it is not a string")
    except FileNotFoundError:
        return Names()
    except DAMAGES as error:
        raise PresetError(f"{path} cannot be read: {error}", "Correct or remove it.") from error
    return Names(default, aliases)


def change_names(change: Callable[[Names], Names]) -> None:
    """Rewrite the file. Raises what `read_names` and `change` raise, or OSError."""
    path = names_file()
    with locked(path):
        names = change(read_names())
        tables: dict[str, Any] = {}
        if names.default is not None:
            tables["default"] = names.default
        tables["aliases"] = dict(names.aliases)
        write_whole(path, toml_of(tables).encode(), durable=True)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes from changing a file that this block changes."""
    import filelock  # late: every command imports this module

    make_private_folder(path.parent)
    with filelock.FileLock(path.with_name(f".{path.name}.lock")):
        yield


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
    keys = re.finditer(r'"([^"]*)"|([\w-]+)', header[1])
    return tuple(key[1] or key[2] for key in keys)


def read_presets(name: str, text: str, known: Mapping[str, Preset]) -> dict[str, Preset]:
    """The presets of a TOML text, in its order.

    Args:
        name: The name of the file, for errors.
        known: Presets that `extends` may name, besides those further up in the text.

    Raises:
        PresetError: With file, table and key.
    """
    found: dict[str, Preset] = {}
    try:
        for preset, table in parse_toml(text).items():
            reader = _PresetReader(name, preset)
            found[preset] = reader.preset(table, {**known, **found})
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
            raise self._error("", "is outside any preset")
        if not PRESET_NAME.fullmatch(self._preset):
            raise self._error("", "is not a valid name for a preset")
        self._check(table, _PRESET, "")
        values: dict[str, Any] = {}
        if "extends" in table:
            if table["extends"] not in known:
                raise self._error("", "extends: does not name a preset further up")
            base = known[table["extends"]]
            for preset_field in dataclasses.fields(base):
                values[preset_field.name] = getattr(base, preset_field.name)
        values |= table
        values.pop("extends", None)
        values["name"] = self._preset
        values |= self._models(table)
        if "sampling" in table:
            change = SamplingParams().changed
            values["sampling"] = self._construct(".sampling", change, table["sampling"])
        for key in ("description", "context_length", "target"):
            if key not in values:
                raise self._error("", f"lacks the key {key!r}")
        return self._construct("", Preset, **values)

    def _models(self, table: Table) -> dict[str, Any]:
        """The models that a preset's table names, and the adapters, by their keys."""
        found: dict[str, Any] = {}
        for role in get_args(Role):
            if role in table:
                found[role] = self._model(table[role], role)
        if "adapters" in table:
            adapters = [self._adapter(adapter) for adapter in table["adapters"]]
            found["adapters"] = tuple(adapters)
        return found

    def _adapter(self, table: Any) -> Adapter:
        """An adapter: a model's table with a scale."""
        if not isinstance(table, dict):
            raise self._error("", "adapters: each is a table with a path or a repo")
        file = dict(table)
        scale = file.pop("scale", USUAL_SCALE)
        model = self._model(file, "adapters")
        return self._construct(".adapters", Adapter, model, scale)

    def _model(self, table: Table, name: str) -> PresetModel:
        where = f".{name}"
        kinds = [kind for kind in _MODEL if kind in table]
        if len(kinds) != 1:
            raise self._error(where, "needs one of: repo, path, packaged")
        kind = kinds[0]
        self._check(table, _MODEL[kind], where)
        common = {key: table.get(key, "") for key in _COMMON}
        if kind == "packaged":
            return self._construct(where, PackagedModel, **{**table, **common})
        if kind == "path":
            # Not Path.expanduser, which raises for the home of an unknown user.
            path = os.path.expanduser(table["path"])
            return LocalModel(path=Path(path), **common)
        if ("file" in table) == ("parts" in table):
            raise self._error(where, "needs one of: file, parts")
        parts = table.get("parts", [table])
        files = [self._file_of(part, table, where) for part in parts]
        return self._construct(
            where,
            HubModel,
            files=tuple(files),
            **common,
        )

    def _file_of(self, part: Any, table: Table, where: str) -> HubFile:
        if part is not table:
            if not isinstance(part, dict) or "file" not in part:
                raise self._error(where, "parts: each is a table with a 'file'")
            self._check(part, _FILE, where)
        facts = {key: part.get(key) for key in _FILE}
        repo = table["repo"]
        revision = table.get("revision")
        return self._construct(
            where,
            HubFile,
            repo=repo,
            revision=revision,
            **facts,
        )

    def _check(self, table: Table, allowed: Mapping[str, type], where: str) -> None:
        """Raise PresetError for an unknown key, or a value of the wrong type."""
        for key, value in table.items():
            if key not in allowed:
                hint = did_you_mean(ours_for(key), allowed).strip()
                if not hint:
                    hint = f"Known keys: {', '.join(allowed)}."
                raise self._error(where, f"{key}: is not a key here", hint)
            kind = allowed[key]
            is_of_kind = isinstance(value, kind)
            if isinstance(value, bool):
                is_of_kind = kind is bool  # a bool is an int, too
            if not is_of_kind:
                raise self._error(where, f"{key}: is {value!r}, not of type {kind.__name__}")

    def _construct(
        self,
        where: str,
        make: Callable[..., Made],
        *values: Any,
        **more: Any,
    ) -> Made:
        """The object made of the values. Raises PresetError if it refuses them."""
        try:
            return make(*values, **more)
        except OptionError as error:
            raise self._error(where, str(error), error.hint) from error

    def _error(self, where: str, what: str, hint: str = _PAGE) -> PresetError:
        return PresetError(f"{self._file}: [{self._preset}{where}] {what}", hint)
