"""Projector files (mmproj), which let a model see: checked, and found beside the model.

Such a file holds an encoder of pictures, and a projector from its rows to the model's width.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import ModelFileError, PairError
from localspec.gguf_file.header import Header, read_header

# Prefixes of the projector's own tensors, as opposed to the encoder's.
_PROJECTOR_PREFIXES = ("mm.", "resampler.", "adapter.", "v.qf", "qf")
NO_PROJECTOR = "none"  # as mmproj: do not even look into the target's folder
_PROJECTOR_NAME = re.compile(r"mmproj", re.IGNORECASE)
# Parts of a file's name that do not name a model: its part number, kind and type.
_NOT_MODEL_NAME = re.compile(
    r"-\d{5}-of-\d{5}|mmproj|[0-9]*bf16|f16|f32|(ud-)?i?q\d\w*|model|gguf",
    re.IGNORECASE,
)
_HELPER_NAME = re.compile(r"mmproj|draft|mtp|eagle|dflash|medusa", re.IGNORECASE)
_PREFERRED_TYPES = ("f16", "bf16", "q8_0", "f32")  # in file names, the best first


@dataclass(frozen=True, slots=True)
class ProjectorFacts:
    """What a projector's header says of it."""

    kind: str
    """Its type, as llama.cpp names it; empty if the header states none."""

    widths: frozenset[int]
    """The widths that its output rows may have: the header does not say which is right."""


def checked_projector(path: Path) -> Header:
    """The header of a projector's file. Raises ModelFileError as `check_projector` does."""
    header = read_header(path)
    check_projector(header)
    return header


def check_projector(header: Header) -> None:
    """Raise ModelFileError if the file is no projector, or is one for audio only."""
    path = header.path
    if header.architecture != "clip":
        stated = header.architecture or "none"
        raise ModelFileError(
            f"{path} is not a projector (its architecture is {stated!r}, not 'clip')",
            "Choose the model's projector; its file name usually begins with mmproj.",
        )
    picture_kind = projector_facts(header).kind
    audio_kind = header.metadata.get("clip.audio.projector_type")
    has_vision = header.metadata.get("clip.has_vision_encoder")
    has_audio = header.metadata.get("clip.has_audio_encoder") is True
    states_no_vision = has_vision is False or (has_audio and has_vision is not True)
    states_only_audio = not picture_kind and audio_kind
    if states_no_vision or states_only_audio:
        raise ModelFileError(
            f"{path} is a projector for audio only",
            "Choose a projector for images.",
        )


def projector_facts(header: Header) -> ProjectorFacts:
    """The facts of a projector, from its header."""
    kind = ""
    for key in ("clip.vision.projector_type", "clip.projector_type"):
        stated = header.metadata.get(key)
        if isinstance(stated, str):
            kind = stated
            break
    widths = {header.number("clip.vision.projection_dim")}
    for tensor in header.tensors:
        if tensor.name.startswith(_PROJECTOR_PREFIXES):
            widths.update(tensor.shape)
    return ProjectorFacts(kind, frozenset(widths))


def require_projector_of(target: Header, projector: Header) -> None:
    """Raise PairError if a projector's rows cannot be as wide as the target's embeddings."""
    width = target.number(f"{target.architecture}.embedding_length")
    if width not in projector_facts(projector).widths:
        stated = projector.number("clip.vision.projection_dim")
        raise PairError(
            f"{projector.path} is made for models of width {stated}, not {width}",
            "Choose the projector made for this model, or use none.",
        )


def projector_beside(target: Header) -> Path | None:
    """The path of the target's projector in the target's folder; None if there is none.

    Takes the first of `named_projectors` that is a projector for the target's width. A
    projector whose name names no model counts if the folder has no other model.
    """
    folder = target.path.parent
    try:
        files = [path.name for path in folder.glob("*.gguf")]
    except OSError:
        return None
    model_names = {_model_letters(name) for name in files if not _HELPER_NAME.search(name)}
    is_alone = model_names <= {_model_letters(target.path.name)}
    for name in named_projectors(target.path.name, files, is_alone=is_alone):
        path = folder / name
        try:
            require_projector_of(target, checked_projector(path))
        except (ModelFileError, PairError):
            continue
        return path
    return None


def named_projectors(model: str, files: Iterable[str], *, is_alone: bool) -> list[str]:
    """The files that are a model's projectors by their names, the preferred type first.

    The name of a projector contains "mmproj". Without that and the type, such as F16, the name
    is the beginning of the model's name.

    Args:
        model: The model's file name.
        files: The names of files in the model's folder.
        is_alone: Whether there is no other model: then a projector counts, too, if what remains
            of its name, such as 4B, is anywhere in the model's, or if nothing remains. It comes
            after those whose names begin as the model's.
    """
    whole_letters = _letters(Path(model).stem)
    model_letters = _model_letters(model)
    named = []
    others = []
    for name in files:
        if not _PROJECTOR_NAME.search(name):
            continue
        part = _model_letters(name)
        begins_name = whole_letters.startswith(part) or model_letters.startswith(part)
        if part and begins_name:
            named.append(name)
        elif is_alone and re.search(rf"(?<!\d){part}", whole_letters):  # 4B is not in 14B
            others.append(name)
    return [*sorted(named, key=_preference), *sorted(others, key=_preference)]


def _model_letters(name: str) -> str:
    """The letters and digits in a file's name that name its model.

    Without "mmproj", the type of the weights, the number of a part, "model" and "gguf".
    """
    model_name = _NOT_MODEL_NAME.sub(" ", Path(name).stem)
    return _letters(model_name)


def _letters(text: str) -> str:
    """The ASCII letters, in lower case, and the digits of a text."""
    return re.sub("[^a-z0-9]", "", text.lower())


def _preference(name: str) -> tuple[int, str]:
    """A sort key for projectors: the place of the type in `_PREFERRED_TYPES`, then the name."""
    lowered = name.lower()
    if "bf16" in lowered:  # f16 is a part of it
        return _PREFERRED_TYPES.index("bf16"), name
    for place, kind in enumerate(_PREFERRED_TYPES):
        if kind in lowered:
            return place, name
    return len(_PREFERRED_TYPES), name


# Types whose output for a picture also depends on the number of pictures or tokens that come
# before it in the prompt.
_POSITION_DEPENDENT = ("hunyuanvl", "deepseek4v")
_GEMMA_4 = ("gemma4v", "gemma4uv")
_GEMMA_4_CELLS = 1120  # libmtmd's maximum for a picture
_GEMMA_3_MERGED = 4  # libmtmd's default


def require_free_of_position(header: Header) -> None:
    """Raise ModelFileError for a projector whose output depends on a picture's position."""
    kind = projector_facts(header).kind
    if kind in _POSITION_DEPENDENT:
        raise ModelFileError(
            f"{header.path} is a projector of type {kind!r}, whose pictures depend on the "
            "prompt before them, which localspec does not support",
            "Choose another vision model.",
        )


def cells_at_once(header: Header) -> int:
    """The number of a picture's cells that have to be in one decode; 0 if any split is right.

    Some models attend without a causal mask within a picture, so all of its cells, its entries
    in the KV cache, have to be decoded at once.
    """
    kind = projector_facts(header).kind
    if kind in _GEMMA_4:
        return _GEMMA_4_CELLS
    if kind != "gemma3":
        return 0
    # A picture is a square; each cell holds a square of patches, which are squares of pixels.
    num_merged = header.number("clip.vision.projector.scale_factor") or _GEMMA_3_MERGED
    patch_size = max(header.number("clip.vision.patch_size"), 1)  # it is 0 if not stated
    patches_per_side = header.number("clip.vision.image_size") // patch_size
    cells_per_side = patches_per_side // num_merged
    return cells_per_side * cells_per_side
