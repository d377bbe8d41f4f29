"""Files that let a model see: an encoder of pictures, and a projector to the model's width."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import ModelFileError, PairError
from localspec.gguf_file.header import Header, read_header

# Prefixes of the projector's own tensors, as opposed to the vision encoder's.
_BRIDGES = ("mm.", "resampler.", "adapter.", "v.qf", "qf")
NO_PROJECTOR = "none"  # as mmproj: do not even look into the target's folder
_SIGN = re.compile(r"mmproj", re.IGNORECASE)
# Parts of a file's name that do not name a model.
_WORDS = re.compile(
    r"-\d{5}-of-\d{5}|mmproj|[0-9]*bf16|f16|f32|(ud-)?i?q\d\w*|model|gguf",
    re.IGNORECASE,
)
_HELPERS = re.compile(r"mmproj|draft|mtp|eagle|dflash|medusa", re.IGNORECASE)
_BEST = ("f16", "bf16", "q8_0", "f32")  # types in file names, in order of preference


@dataclass(frozen=True, slots=True)
class ProjectorFacts:
    """The facts of a projector that its header states."""

    kind: str
    """Its type, as llama.cpp names it; empty if none is stated."""

    widths: frozenset[int]
    """The possible widths of its output rows."""


def checked_projector(path: Path) -> Header:
    """The header of a projector's file. Raises ModelFileError as `check_projector` does."""
    header = read_header(path)
    check_projector(header)
    return header


def check_projector(header: Header) -> None:
    """Raise ModelFileError if the file is no projector, or is one for audio only."""
    path = header.path
    if header.architecture != "clip":
        stated = header.architecture or "without an architecture"
        raise ModelFileError(
            f"{path} is not a projector (its architecture is {stated!r}, not 'clip')",
            "Choose the model's projector; its file name usually begins with mmproj.",
        )
    has_vision = header.metadata.get("clip.has_vision_encoder") is not False
    audio_kind = header.metadata.get("clip.audio.projector_type")
    picture_kind = projector_facts(header).kind
    if not picture_kind and audio_kind:  # whatever has_vision_encoder says
        has_vision = False
    if not has_vision:
        raise ModelFileError(
            f"{path} is a projector for audio only",
            "Choose a projector for images.",
        )


def projector_facts(header: Header) -> ProjectorFacts:
    """The kind and the widths that a projector's header states."""
    kind = ""
    for key in ("clip.vision.projector_type", "clip.projector_type"):
        stated = header.metadata.get(key)
        if isinstance(stated, str):
            kind = stated
            break
    widths = {header.number("clip.vision.projection_dim")}
    for tensor in header.tensors:
        if tensor.name.startswith(_BRIDGES):
            widths.update(tensor.shape)
    return ProjectorFacts(kind, frozenset(widths))


def require_projector_of(target: Header, projector: Header) -> None:
    """Raise PairError if a projector's output cannot be as wide as the target's embeddings."""
    width = target.number(f"{target.architecture}.embedding_length")
    if width not in projector_facts(projector).widths:  # the header states one of them
        stated = projector.number("clip.vision.projection_dim")
        raise PairError(
            f"{projector.path} is made for models of width {stated}, not {width}",
            "Choose the projector made for this model, or use none.",
        )


def projector_beside(target: Header) -> Path | None:
    """The projector in the target's folder, recognized by its name; None without a match.

    The name contains "mmproj". The rest of it, without a type such as F16, is a prefix of the
    target's name. An empty prefix counts only if the folder has no other model. Of several
    projectors, F16 is preferred.
    """
    folder = target.path.parent
    try:
        files = [path.name for path in folder.glob("*.gguf")]
    except OSError:
        return None
    models = {_own_letters(name) for name in files if not _HELPERS.search(name)}
    is_alone = models <= {_own_letters(target.path.name)}
    for name in named_projectors(target.path.name, files, is_alone=is_alone):
        try:
            require_projector_of(target, checked_projector(folder / name))
        except (ModelFileError, PairError):
            continue
        return folder / name
    return None


def named_projectors(model: str, files: Iterable[str], *, is_alone: bool) -> list[str]:
    """The files that are a model's projectors by their names, the preferred type first.

    Args:
        model: The model's file name.
        files: The names of files in its folder.
        is_alone: Whether a projector that names no model counts, too.
    """
    letters = _letters(Path(model).stem)
    found = []
    for name in files:
        if not _SIGN.search(name):
            continue
        prefix = _own_letters(name)
        if letters.startswith(prefix) and (prefix or is_alone):
            found.append(name)
    return sorted(found, key=_rank)


def _own_letters(name: str) -> str:
    """The letters and digits of a file's name, without its kind, type and part number."""
    return _letters(_WORDS.sub(" ", Path(name).stem))


def _letters(text: str) -> str:
    return re.sub("[^a-z0-9]", "", text.lower())


def _rank(name: str) -> tuple[int, str]:
    """The place of a projector in order of preference: by its type, then by its name."""
    lowered = name.lower()
    places = [place for place, kind in enumerate(_BEST) if kind in lowered]
    if "bf16" in lowered:  # f16 is in it, too
        return max(places), name
    return min(places, default=len(_BEST)), name


# Types whose output for a picture also depends on the number of pictures or tokens that come
# before it in the prompt.
_BY_POSITION = ("hunyuanvl", "deepseek4v")
_GEMMA_4 = ("gemma4v", "gemma4uv")
_GEMMA_4_CELLS = 1120  # libmtmd's maximum per picture


def require_free_of_position(header: Header) -> None:
    """Raise ModelFileError for a projector whose output depends on a picture's position."""
    kind = projector_facts(header).kind
    if kind in _BY_POSITION:
        raise ModelFileError(
            f"{header.path} is a projector of type {kind!r}, whose pictures depend on the "
            "prompt before them, which localspec does not support",
            "Choose another vision model.",
        )


def cells_at_once(header: Header) -> int:
    """The number of a picture's cells that have to be in one decode; 0 if it may be split.

    Some models attend without a causal mask within a picture: it must not be split.
    """
    kind = projector_facts(header).kind
    if kind in _GEMMA_4:
        return _GEMMA_4_CELLS
    if kind != "gemma3":
        return 0
    merged = header.number("clip.vision.projector.scale_factor") or 4
    patch = max(header.number("clip.vision.patch_size"), 1)
    return (header.number("clip.vision.image_size") // patch // merged) ** 2
