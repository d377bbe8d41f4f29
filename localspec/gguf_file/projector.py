"""What a projector asks of the model that reads its rows."""

from __future__ import annotations

from localspec.errors import ModelFileError
from localspec.gguf_file.header import Header
from localspec.gguf_file.projector_check import projector_facts

# Where rows of a picture follow from more than the picture: how many come before it in a
# prompt, or how many tokens.
_BY_PLACE = ("hunyuanvl", "deepseek4v")
_GEMMA_4, _GEMMA_4_CELLS = ("gemma4v", "gemma4uv"), 1120  # that libmtmd makes at most


def require_free_of_place(header: Header) -> None:
    """Raise ModelFileError for a projector whose rows depend on where a picture stands."""
    kind = projector_facts(header).kind
    if kind in _BY_PLACE:
        raise ModelFileError(
            f"{header.path} is a projector of {kind!r}, whose pictures depend on what comes "
            "before them, which localspec does not follow",
            "Choose another model that sees.",
        )


def cells_at_once(header: Header) -> int:
    """How many cells of a picture a model has to read at once; 0 where any number will do.

    Where each cell attends to all others of its picture, they belong to one decode.
    """
    kind = projector_facts(header).kind
    if kind in _GEMMA_4:
        return _GEMMA_4_CELLS
    if kind != "gemma3":
        return 0
    merged = header.number("clip.vision.projector.scale_factor") or 4
    patch = max(header.number("clip.vision.patch_size"), 1)
    return (header.number("clip.vision.image_size") // patch // merged) ** 2
