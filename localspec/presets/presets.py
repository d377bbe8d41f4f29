"""Presets: a target, perhaps a draft or a head, and where their files come from.

The shipped models.toml has presets, and so may a file of the user's. Errors in such a file name
the file, the table and the key.

The user's aliases, short names for models, and the default model are in the file of names,
`names.toml`, in the folder of the user's presets. Commands write it:

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
from localspec.keywords import keyword_for
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
_KEYS_HINT = "docs/presets.md lists the keys of a preset."

Table = Mapping[str, Any]
Object = TypeVar("Object")


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
    """The file's hash in hex; empty if the file is not checked."""

    quantization: str
    license: str

    @property
    def path(self) -> Path:
        """The path of the file.

        No file is there if the package is not installed or lacks the file.
        """
        if self.package == OWN_PACKAGE:
            return Path(str(resources.files("localspec") / "demo" / self.packaged))
        from importlib import metadata  # late: few commands need it

        files = None
        # ValueError is raised for an empty name.
        with contextlib.suppress(metadata.PackageNotFoundError, ValueError):
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
    """The adapters, those without a scale with the scale 1.

    Raises OptionError for anything but a sequence of adapters, and for too many.
    """
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
    """The share of the target's weights that a token needs: below 1 for mixtures of experts."""

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
        """The target, then the draft, the head, the projector and the adapters there are."""
        return (*self.by_role().values(), *self.adapter_models)

    @property
    def adapter_models(self) -> tuple[PresetModel, ...]:
        """The models that stand for the adapters' files."""
        files = []
        for adapter in self.adapters:
            if not isinstance(adapter.file, str | os.PathLike):  # always, in a preset
                files.append(adapter.file)
        return tuple(files)

    @property
    def needed(self) -> tuple[PresetModel, ...]:
        """All models without which the preset cannot be loaded.

        These are all but a projector on the hub: without it, the target sees no pictures.
        """
        models = self.by_role()
        if isinstance(self.mmproj, HubModel):
            del models["mmproj"]
        return (*models.values(), *self.adapter_models)

    def by_role(self) -> dict[Role, PresetModel]:
        """The models by their roles, the target first; without the adapters."""
        models = {}
        for role in get_args(Role):
            model = getattr(self, role)
            if model is not None:
                models[role] = model
        return models


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


# The keys of tables in a file of presets, with the types of their values.
_COMMON_KEYS: dict[str, type] = {"quantization": str, "license": str}  # of every model
_FILE_KEYS: dict[str, type] = {
    "file": str,
    "size_bytes": int,
    "sha256": str,
}
_MODEL_KEYS: dict[str, dict[str, type]] = {  # by the key that tells the kind of the model
    "packaged": {
        "packaged": str,
        "package": str,
        "extra": str,
        "sha256": str,
        **_COMMON_KEYS,
    },
    "path": {"path": str, **_COMMON_KEYS},
    "repo": {
        "repo": str,
        "revision": str,
        "parts": list,
        **_FILE_KEYS,
        **_COMMON_KEYS,
    },
}
_PRESET_KEYS: dict[str, type] = {
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
    """The content of the file of names."""

    default: str | None = None
    """The name of the default preset or model; None if the user chose none."""

    aliases: Mapping[str, str] = field(default_factory=dict)
    """The names that aliases stand for, by alias."""


def user_presets_file() -> Path:
    """The path of the file of the user's own presets; it need not exist."""
    return platformdirs.user_config_path("localspec", appauthor=False) / "models.toml"


def names_file() -> Path:
    """The path of the file of names; it need not exist."""
    return user_presets_file().with_name("names.toml")


def load_presets() -> dict[str, Preset]:
    """All presets by name: the shipped ones in their order, then the user's.

    The user's presets replace shipped ones of the same name. If the user's file is malformed,
    its presets and those that they replace are left out, and a warning is logged.
    """
    text = ""
    presets = dict(_shipped_presets())
    try:
        text = users_text()
        return presets | read_presets(str(user_presets_file()), text, presets)
    except PresetError as error:
        _warn(f"{error}; your own presets are left out. {error.hint}")
        for line in text.split("\n"):
            header = header_of(line)
            if header:
                presets.pop(header[0], None)
        return presets


def user_presets() -> dict[str, Preset]:
    """The presets of the user's own file, by name.

    Raises PresetError, naming file, table and key, if it is malformed.
    """
    return read_presets(str(user_presets_file()), users_text(), _shipped_presets())


def users_text() -> str:
    """The text of the user's file of presets; "" without a file.

    Raises PresetError if the file cannot be read.
    """
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
    """The preset of that name, or the one that an alias of that name stands for.

    Raises UnknownPresetError if there is none, or PresetError if a file of the user's, which
    may have the name, is malformed.
    """
    preset = None
    if isinstance(name, str):
        preset = load_presets().get(resolve_alias(name))
    if preset is None:
        raise no_such_preset(name)
    return preset


def resolve_alias(name: str) -> str:
    """The name that an alias stands for; a name that is no alias is returned as it is.

    Raises PresetError if the name is no preset's, and the file of names is malformed.
    """
    if name in load_presets():
        return name
    return read_names().aliases.get(name, name)


def no_such_preset(name: object) -> PresetError:
    """The error for an unknown name.

    If the user's file of presets is malformed, the error for that file: it may have the name.
    Raises PresetError if the file of names is.
    """
    try:
        user_presets()
    except PresetError as file_error:
        return file_error
    known = [*load_presets(), *read_names().aliases]
    suggestion = did_you_mean(str(name), known)
    hint = "'localspec models' lists them; a file is named by its path, ending in .gguf."
    return UnknownPresetError(f"there is no preset {name!r}", suggestion + hint)


def as_preset(preset: str | Preset) -> Preset:
    """The preset itself, or the preset of that name. Raises what `find_preset` raises."""
    if isinstance(preset, Preset):
        return preset
    return find_preset(preset)


def check_free(name: str, *, is_alias: bool) -> None:
    """Check that a new name is valid and free.

    Args:
        name: The new name.
        is_alias: Whether it is an alias, which may replace an alias of that name.

    Raises:
        OptionError: The name is invalid.
        PresetError: A preset or an alias has the name, or a file of the user's is malformed.
    """
    if not PRESET_NAME.fullmatch(name):
        raise OptionError(f"{name!r} is not a valid name", "Use letters, digits, . and -.")
    user_presets()  # raises if the file is malformed
    if name in load_presets():
        raise PresetError(f"there is a preset {name!r} already", "Choose another name.")
    if is_alias:
        return
    model_name = read_names().aliases.get(name)
    if model_name:
        raise PresetError(
            f"{name!r} is an alias of {model_name}",
            f"Choose another name, or: localspec models alias {name} --clear",
        )


def common_servers(rpc: Sequence[str] | None, preset: Preset | None) -> tuple[str, ...]:
    """The addresses of the RPC servers that target and draft share.

    Args:
        rpc: The user's addresses; None to take the preset's. Raises OptionError if invalid.
        preset: The preset, if there is one.
    """
    if rpc is not None:
        return checked_addresses(rpc)
    if preset is None:
        return ()
    return preset.rpc


def read_names() -> Names:
    """Read the file of names; without a file, there are none.

    Raises PresetError if the file is malformed or cannot be read.
    """
    path = names_file()
    try:
        table = parse_toml(read_regular_text(path, "utf-8-sig"))
        default = table.get("default")
        aliases = table.get("aliases", {})
        names = list(aliases.values())
        if default is not None:
            names.append(default)
        if not all(isinstance(name, str) for name in names):
            raise ValueError("a name in it is not a string")
    except FileNotFoundError:
        return Names()
    except DAMAGES as error:
        raise PresetError(f"{path} cannot be read: {error}", "Correct or remove it.") from error
    return Names(default, aliases)


def change_names(change: Callable[[Names], Names]) -> None:
    """Rewrite the file of names, while other processes cannot change it.

    Raises what `read_names` and `change` raise, OptionError for a name that is not valid
    Unicode, or OSError.

    Args:
        change: Gives the new content for the present one.
    """
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
    """Lock a file for the block of a `with`: other processes that lock it wait.

    Makes the file's folder if there is none.
    """
    import filelock  # late: every command imports this module

    make_private_folder(path.parent)
    with filelock.FileLock(path.with_name(f".{path.name}.lock")):
        yield


def parse_toml(text: str) -> dict[str, Any]:
    """The keys and tables of a TOML text.

    Raises ValueError if it is malformed, RecursionError if it is nested too deeply.
    """
    return tomllib.loads(text)


def toml_of(tables: Table) -> str:
    """The TOML text of these keys and tables.

    Raises OptionError for a value that is not valid Unicode, as some paths are.
    """
    import tomli_w  # late: few commands write

    text = tomli_w.dumps(tables)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise OptionError(
            f"{text!r} is not valid Unicode, which a TOML file has to be",
            "Give the file or its folder a name of ordinary characters.",
        ) from None
    return text


def header_of(line: str) -> tuple[str, ...]:
    """The keys of a table's header, [a.b] as (a, b); empty if the line is no header."""
    header = re.fullmatch(r"\s*\[([^\[\]]+)\]\s*(#.*)?", line)
    if header is None:
        return ()
    keys = re.finditer(r'"([^"]*)"|([\w-]+)', header[1])
    return tuple(key[1] or key[2] for key in keys)


def read_presets(
    file_name: str,
    text: str,
    other_presets: Mapping[str, Preset],
) -> dict[str, Preset]:
    """The presets of a TOML text by name, in the order of the text.

    Args:
        file_name: The name of the file, for errors.
        text: The text.
        other_presets: Presets that `extends` may name, besides those further up in the text.

    Raises:
        PresetError: The text is malformed. The error names the file, the table and the key.
    """
    presets: dict[str, Preset] = {}
    try:
        for name, table in parse_toml(text).items():
            reader = _PresetReader(file_name, name)
            presets[name] = reader.preset(table, {**other_presets, **presets})
    except ValueError as error:  # a TOMLDecodeError, or a number with too many digits
        raise PresetError(f"{file_name}: {error}", "Correct the line.") from error
    except RecursionError:
        raise PresetError(f"{file_name}: it is nested too deeply", "Correct it.") from None
    return presets


class _PresetReader:
    """Reads one preset of a file. Every method raises PresetError for invalid input.

    In the methods, `where` is the path of a table within the preset's, for errors: ".target".

    Args:
        file_name: The name of the file, for errors.
        name: The name of the preset.
    """

    def __init__(self, file_name: str, name: str) -> None:
        self._file_name = file_name
        self._name = name

    def preset(self, table: Any, bases: Mapping[str, Preset]) -> Preset:
        """The preset that a table describes.

        Args:
            table: The value of the preset's name in the file.
            bases: The presets that the table may extend: it replaces some of their values.
        """
        if not isinstance(table, dict):
            raise self._error("", "is outside any preset")
        if not PRESET_NAME.fullmatch(self._name):
            raise self._error("", "is not a valid name for a preset")
        self._check_keys(table, _PRESET_KEYS, "")
        values: dict[str, Any] = {}
        if "extends" in table:
            if table["extends"] not in bases:
                raise self._error("", "extends: does not name a preset further up")
            base = bases[table["extends"]]
            for preset_field in dataclasses.fields(base):
                values[preset_field.name] = getattr(base, preset_field.name)
        values |= table
        values.pop("extends", None)
        values["name"] = self._name
        values |= self._models(table)
        if "sampling" in table:
            change = SamplingParams().changed
            values["sampling"] = self._construct(".sampling", change, table["sampling"])
        for key in ("description", "context_length", "target"):
            if key not in values:
                raise self._error("", f"lacks the key {key!r}")
        return self._construct("", Preset, **values)

    def _models(self, table: Table) -> dict[str, Any]:
        """The models of a preset's table by role; its adapters under "adapters"."""
        models: dict[str, Any] = {}
        for role in get_args(Role):
            if role in table:
                models[role] = self._model(table[role], f".{role}")
        if "adapters" in table:
            adapters = [self._adapter(adapter) for adapter in table["adapters"]]
            models["adapters"] = tuple(adapters)
        return models

    def _adapter(self, table: Any) -> Adapter:
        """The adapter of a table, which is that of a model with a scale."""
        where = ".adapters"
        if not isinstance(table, dict):
            raise self._error("", "adapters: each is a table with a path or a repo")
        model_table = dict(table)
        scale = model_table.pop("scale", USUAL_SCALE)
        model = self._model(model_table, where)
        return self._construct(where, Adapter, model, scale)

    def _model(self, table: Table, where: str) -> PresetModel:
        """The model of a table with one of the keys packaged, path and repo."""
        kinds = [kind for kind in _MODEL_KEYS if kind in table]
        if len(kinds) != 1:
            raise self._error(where, "needs one of: repo, path, packaged")
        kind = kinds[0]
        self._check_keys(table, _MODEL_KEYS[kind], where)
        common_values = {key: table.get(key, "") for key in _COMMON_KEYS}
        if kind == "packaged":
            return self._construct(where, PackagedModel, **{**table, **common_values})
        if kind == "path":
            # Not Path.expanduser, which raises for the home of an unknown user.
            path = os.path.expanduser(table["path"])
            return LocalModel(path=Path(path), **common_values)
        if ("file" in table) == ("parts" in table):
            raise self._error(where, "needs one of: file, parts")
        if "parts" in table:
            files = [self._part(part, table, where) for part in table["parts"]]
        else:
            files = [self._hub_file(table, table, where)]
        return self._construct(
            where,
            HubModel,
            files=tuple(files),
            **common_values,
        )

    def _part(self, part: Any, model_table: Table, where: str) -> HubFile:
        """The file of one table under "parts"."""
        if not isinstance(part, dict) or "file" not in part:
            raise self._error(where, "parts: each is a table with a 'file'")
        self._check_keys(part, _FILE_KEYS, where)
        return self._hub_file(part, model_table, where)

    def _hub_file(self, file_table: Table, model_table: Table, where: str) -> HubFile:
        """A file of the hub.

        Args:
            file_table: The table with the keys of the file.
            model_table: The table of its model, with the repository and the revision.
            where: The path of the model's table.
        """
        file_values = {key: file_table.get(key) for key in _FILE_KEYS}
        return self._construct(
            where,
            HubFile,
            repo=model_table["repo"],
            revision=model_table.get("revision"),
            **file_values,
        )

    def _check_keys(self, table: Table, key_types: Mapping[str, type], where: str) -> None:
        """Raise PresetError for an unknown key, or a value of the wrong type."""
        for key, value in table.items():
            if key not in key_types:
                hint = did_you_mean(keyword_for(key), key_types).strip()
                if not hint:
                    hint = f"Known keys: {', '.join(key_types)}."
                raise self._error(where, f"{key}: is not a key here", hint)
            key_type = key_types[key]
            has_type = isinstance(value, key_type)
            if isinstance(value, bool):
                has_type = key_type is bool  # a bool is an int, too
            elif key_type is float:
                has_type = isinstance(value, int | float)  # TOML has 1 for an int
            if not has_type:
                raise self._error(
                    where, f"{key}: is {value!r}, not of type {key_type.__name__}"
                )

    def _construct(
        self,
        where: str,
        constructor: Callable[..., Object],
        *args: Any,
        **kwargs: Any,
    ) -> Object:
        """What a constructor returns. Its OptionError becomes a PresetError."""
        try:
            return constructor(*args, **kwargs)
        except OptionError as error:
            raise self._error(where, str(error), error.hint) from error

    def _error(self, where: str, what: str, hint: str = _KEYS_HINT) -> PresetError:
        """The error for a table of the preset, with the file and the table in its text."""
        return PresetError(f"{self._file_name}: [{self._name}{where}] {what}", hint)
