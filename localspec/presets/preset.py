"""Presets: a target, perhaps a draft or a head, and where their files come from."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Literal, get_args

from localspec.errors import OptionError
from localspec.hub.hub_file import HubFile, HubModel
from localspec.rpc_address import checked_addresses
from localspec.sampling.params import SamplingParams

_MAX_LENGTH = 2**31 - 1  # llama.cpp counts tokens in 32 bits
OWN_PACKAGE = "localspec"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """A model file that comes with localspec, or in another Python package.

    packaged: the file's name. package: its Python package, as pip knows it. extra: the extra of
    localspec that installs this package. sha256: of the file, empty if it is not checked.
    """

    packaged: str
    package: str = OWN_PACKAGE
    extra: str = ""
    sha256: str = ""
    quantization: str
    license: str

    @property
    def path(self) -> Path:
        """The path of the file; there is none if its package is not installed or lacks it."""
        if self.package == OWN_PACKAGE:
            return Path(str(resources.files("localspec") / "demo" / self.packaged))
        from importlib import metadata  # not for the commands that need none

        with contextlib.suppress(metadata.PackageNotFoundError, ValueError):  # an empty name
            for file in metadata.files(self.package) or ():
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A target, what drafts for it, and the settings that the model's makers recommend.

    It has a name in a file of presets, or is made by an application and given to `load`,
    `explain` and `download` in place of a name.

    head: a trained head in a file of its own; one inside the target's file is not named.
    mmproj: the projector with which the target sees pictures. context_length: tokens it is
    opened with. max_context_length: tokens that all models were trained for, None if no source
    says. rpc: addresses of llama.cpp's RPC servers that hold layers of the target, too, each
    "host:port". embeds: whether the target turns texts into vectors, and answers nothing.
    unconfirmed: facts that only one source states, or none; empty if all are confirmed. Raises
    OptionError for an invalid model, context length or address.
    """

    name: str
    description: str = ""
    target: PresetModel
    draft: PresetModel | None = None
    head: PresetModel | None = None
    mmproj: PresetModel | None = None
    context_length: int
    max_context_length: int | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    rpc: tuple[str, ...] = ()
    notes: str = ""
    unconfirmed: str = ""
    embeds: bool = False

    def __post_init__(self) -> None:
        for role in get_args(Role):
            model = getattr(self, role)
            may_lack = role != "target" and model is None
            if not may_lack and not isinstance(model, HubModel | PackagedModel | LocalModel):
                raise OptionError(
                    f"the {role} of preset {self.name!r} is {model!r}",
                    "Give a HubModel or a LocalModel.",
                )
        check_length("context_length", self.context_length)
        if self.max_context_length is not None:
            check_length("max_context_length", self.max_context_length)
        object.__setattr__(self, "rpc", checked_addresses(self.rpc))

    @property
    def models(self) -> tuple[PresetModel, ...]:
        """The target, and the draft, the head and the projector if there are any."""
        return tuple(self.by_role().values())

    @property
    def needed(self) -> tuple[PresetModel, ...]:
        """All models but a projector on the hub, without which the target is blind."""
        named = self.by_role()
        if isinstance(self.mmproj, HubModel):
            del named["mmproj"]
        return tuple(named.values())

    def by_role(self) -> dict[Role, PresetModel]:
        """The models by their roles, the target first."""
        found = {role: getattr(self, role) for role in get_args(Role)}
        return {role: model for role, model in found.items() if model is not None}


def check_length(name: str, length: object) -> None:
    """Raise OptionError for an invalid number of tokens. name: of the argument."""
    if type(length) is not int or not 1 <= length <= _MAX_LENGTH:
        raise OptionError(f"{name} is {length!r}", f"Give 1 to {_MAX_LENGTH} tokens.")


def hub_files(models: Sequence[PresetModel]) -> list[HubFile]:
    """The models' files on the hub, each once."""
    files = [file for model in models if isinstance(model, HubModel) for file in model.files]
    return list(dict.fromkeys(files))
