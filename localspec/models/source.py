"""The ways to name a model: a preset or alias, a path, and files of the hub.

Of the hub: hf:owner/repo/file.gguf, hf:owner/repo@revision/file.gguf, owner/repo:QUANT.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import OptionError, PresetError
from localspec.models.preset import (
    HEAD_SIGN,
    HubFile,
    HubModel,
    LocalModel,
    Model,
    Role,
    all_parts,
    is_repo,
)
from localspec.models.preset_file import PRESET_NAME
from localspec.models.presets import load_presets, no_such_preset, stands_for

_QUANTIZED = re.compile(r"(?:hf:)?([^/:\\]+/[^/:\\]+):([A-Za-z0-9_.-]+)")


@dataclass(frozen=True, slots=True)
class Quantized:
    """The model of a repository in one quantisation; which file that is, its list says.

    quantization: with "mtp-" in front it is the head beside the model.
    """

    repo: str
    quantization: str


def parse_source(text: str, role: Role) -> Model | Quantized:
    """What a person means by the name of a model.

    A path that exists is a path. role: which model of a preset its name stands for. What is
    nothing else is a path, too, unless it looks like a preset's name. Raises OptionError for
    what is no string and for hf: and no file, PresetError for a preset that has no such model,
    UnknownPresetError for a name that nothing has.
    """
    if not isinstance(text, str):
        raise OptionError(
            f"{text!r} names no model",
            "Give a string: a preset, a path, hf:owner/repo/file.gguf or owner/repo:Q4_K_M.",
        )
    if os.path.exists(text):
        return LocalModel(path=Path(text))
    presets, text = load_presets(), stands_for(text)
    if text in presets:
        model = presets[text].by_role().get(role)
        if model is None:
            inside = "; one inside the target's file needs none" if role == "head" else ""
            raise PresetError(
                f"preset {text!r} has no {role}", f"Name the {role}'s file{inside}."
            )
        return model
    named = _QUANTIZED.fullmatch(text)
    if named and is_repo(named[1]):
        is_named = role != "head" or named[2].startswith(HEAD_SIGN)
        return Quantized(named[1], named[2] if is_named else HEAD_SIGN + named[2])
    if not text.startswith("hf:"):
        if PRESET_NAME.fullmatch(text) and not text.lower().endswith(".gguf"):
            raise no_such_preset(text)
        return LocalModel(path=Path(text))
    owner, _, rest = text.removeprefix("hf:").partition("/")
    place, _, file = rest.partition("/")
    name, at, revision = place.partition("@")
    if not file:
        raise OptionError(
            f"{text!r} names no file", "Write hf:owner/repo/file.gguf or owner/repo:Q4_K_M."
        )
    repo = f"{owner}/{name}"
    return HubModel(
        files=tuple(
            HubFile(repo=repo, file=part, revision=revision if at else None)
            for part in all_parts(file)
        )
    )
