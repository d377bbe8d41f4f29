"""Files that let a model see: an encoder of pictures, and a projector to the model's width.

libmtmd takes their numbers for granted, so they are checked here first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import ModelFileError, PairError
from localspec.gguf_file.header import Header, Value, read_header
from localspec.gguf_file.projector_tensors import tensor_faults

# Kinds of encoders of pictures that llama.cpp knows (tools/mtmd/clip-impl.h).
_KINDS = (
    "mlp", "ldp", "ldpv2", "resampler", "adapter", "qwen2vl_merger", "qwen2.5vl_merger",
    "qwen3vl_merger", "ling3vl", "step3vl", "gemma3", "gemma3nv", "gemma4v", "gemma4uv",
    "phi4", "idefics3", "pixtral", "internvl", "llama4", "qwen2.5o", "lfm2", "kimivl",
    "paddleocr", "lightonocr", "cogvlm", "janus_pro", "dots_ocr", "dots3note_v",
    "deepseekocr", "deepseekocr2", "deepseek4v", "glm4v", "glm5v", "youtuvl", "yasa2",
    "kimik25", "nemotron_v2_vl", "exaone4_5", "hunyuanvl", "minicpmv4_6", "mimovl",
    "minimax_m3", "granite4_vision", "muse-glimmer",
)  # fmt: skip
# Without it libmtmd ends the process, but for those that do not begin with patches.
_PATCHES = "v.patch_embd.weight"
_WITHOUT_PATCHES = ("gemma3nv", "deepseekocr", "deepseekocr2", "dots3note_v")
_OF_ANY_SIZE = ("dots_ocr", "dots3note_v")  # whose pictures' size is stated as 0
_LEAST_HEAD = 4  # M-RoPE asserts that a quarter of a head is not nothing
# How the names of tensors begin behind the encoder's own.
_BRIDGES = ("mm.", "resampler.", "adapter.", "v.qf", "qf")
# The least and largest numbers that cannot end the process, of those that are stated.
_BOUNDS = {
    "image_size": (0, 2**14),
    "patch_size": (1, 2**10),
    "embedding_length": (1, 2**20),
    "feed_forward_length": (0, 2**24),
    "block_count": (0, 512),
    "attention.head_count": (0, 2**12),
    "projection_dim": (0, 2**20),
    "projector.scale_factor": (1, 64),
    "spatial_merge_size": (1, 64),
    "preproc_image_size": (1, 2**13),
    "attention.layer_norm_epsilon": (0, 1),
}
# Types of values as libmtmd asks for them; it ends the process for any other. GGUF's numbers.
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING = 4, 5, 6, 7, 8
_TYPES = {
    **dict.fromkeys(("general.name", "general.description", "clip.projector_type"), _STRING),
    **dict.fromkeys(
        ("has_vision_encoder", "has_audio_encoder", "has_gen_audio_encoder"), _BOOL
    ),
    **dict.fromkeys(("use_gelu", "use_silu"), _BOOL),
    **dict.fromkeys(("projector_type", "mm_patch_merge_type", "model_variant"), _STRING),
    **dict.fromkeys(("attention.layer_norm_epsilon", "swiglu_clamp"), _FLOAT32),
    **dict.fromkeys(
        (
            *("embedding_length", "feed_forward_length", "block_count", "projection_dim"),
            *("attention.head_count", "attention.head_count_kv", "attention.head_dim"),
            *("image_size", "image_min_pixels", "image_max_pixels", "preproc_min_tiles"),
            *("preproc_max_tiles", "preproc_image_size", "patch_size", "spatial_merge_size"),
            *("projector.scale_factor", "projector.query_side", "projector.window_side"),
            *("n_wa_pattern", "window_size", "minicpmv_query_num", "expert_used_count"),
            *("sam.head_count", "sam.block_count", "sam.embedding_length", "num_mel_bins"),
        ),
        _UINT32,
    ),
    "minicpmv_version": _INT32,
}
_TYPED = re.compile(r"clip\.(?:vision\.|audio\.|gen\.audio\.)?")
NO_PROJECTOR = "none"  # given as mmproj: not the one beside the target either
_SIGN = re.compile(r"mmproj", re.IGNORECASE)
_WORDS = re.compile(
    r"-\d{5}-of-\d{5}|mmproj|[0-9]*bf16|f16|f32|(ud-)?i?q\d\w*|model|gguf", re.IGNORECASE
)
_HELPERS = re.compile(r"mmproj|draft|mtp|eagle|dflash|medusa", re.IGNORECASE)
_BEST = ("f16", "bf16", "q8_0", "f32")  # types by name, the one to take first


@dataclass(frozen=True, slots=True)
class ProjectorFacts:
    """kind: llama.cpp's name of it. widths: those that its last layers could have."""

    kind: str
    widths: frozenset[int]


def checked_projector(path: Path) -> Header:
    """The header of a projector's file. Raises ModelFileError as `check_projector` does."""
    header = read_header(path)
    check_projector(header)
    return header


def check_projector(header: Header) -> None:
    """Raise ModelFileError if a header is of another file, damaged, or of one that is blind."""
    path = header.path
    if header.architecture != "clip":
        what = header.architecture or "without an architecture"
        raise ModelFileError(
            f"{path} is no projector (its architecture is {what!r}, not 'clip')",
            "Choose the file that lies beside the model; its name begins with mmproj.",
        )
    kind = projector_facts(header).kind
    if header.metadata.get("clip.has_vision_encoder") is False or (
        not kind and header.metadata.get("clip.audio.projector_type")
    ):
        raise ModelFileError(f"{path} hears and does not see", "Choose one for pictures.")
    if kind not in _KINDS:
        raise ModelFileError(
            f"{path} is a projector of the kind {kind!r}, which is not known",
            "It may be newer than this llama-cpp-python, or made for sound.",
        )
    for fault in (*_faults(header), *_lacks(header)):
        raise ModelFileError(f"{path} is damaged: {fault}", "Download or convert it again.")


def projector_facts(header: Header) -> ProjectorFacts:
    """What a projector's header says."""
    names = ("clip.vision.projector_type", "clip.projector_type")
    kinds = [value for value in map(header.metadata.get, names) if isinstance(value, str)]
    bridges = [one for one in header.tensors if one.name.startswith(_BRIDGES)]
    widths = {size for one in bridges for size in one.shape}
    stated = header.number("clip.vision.projection_dim")
    return ProjectorFacts(kinds[0] if kinds else "", frozenset(widths | {stated}))


def require_projector_of(target: Header, projector: Header) -> None:
    """Raise PairError if its rows are not as wide as those that the target reads."""
    width = target.number(f"{target.architecture}.embedding_length")
    if width not in projector_facts(projector).widths:
        stated = projector.number("clip.vision.projection_dim")
        raise PairError(
            f"{projector.path} is made for models of width {stated}; that of "
            f"{target.path.name} is {width}",
            "Choose the projector of this very model, or leave it out.",
        )


def projector_beside(target: Header) -> Path | None:
    """The projector in the target's folder, known by its name; None if there is none.

    Its name has "mmproj" in it, and otherwise the beginning of the target's name; or nothing
    but a type, where the folder has no other model. Of several the one in half precision is
    taken.
    """
    folder = target.path.parent
    try:
        files = [each.name for each in folder.glob("*.gguf")]
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
    """The names of files that say that they are projectors of a model, the best type first.

    model: the name of its file. is_alone: whether one that names no model is meant for it.
    """
    letters, found = _letters(Path(model).stem), sorted(filter(_SIGN.search, files), key=_rank)
    owns = {name: _own_letters(name) for name in found}
    return [
        name for name in found if letters.startswith(owns[name]) and (owns[name] or is_alone)
    ]


def _own_letters(name: str) -> str:
    """What a file's name has besides its kind and its type."""
    return _letters(_WORDS.sub(" ", Path(name).stem))


def _letters(text: str) -> str:
    return re.sub("[^a-z0-9]", "", text.lower())


def _rank(name: str) -> tuple[int, str]:
    found = [number for number, kind in enumerate(_BEST) if kind in name.lower()]
    # bf16 has f16 in its name, too.
    return (max(found) if "bf16" in name.lower() else min(found, default=len(_BEST))), name


def _lacks(header: Header) -> Iterator[str]:
    names = {tensor.name for tensor in header.tensors}
    if not names:
        yield "it has no weights"
    elif _PATCHES not in names and projector_facts(header).kind not in _WITHOUT_PATCHES:
        yield f"it has no {_PATCHES}"
    else:
        yield from tensor_faults(header, projector_facts(header).kind)


def _faults(header: Header) -> Iterator[str]:
    for key, kind in header.kinds.items():
        wanted = _TYPES.get(_TYPED.sub("", key, count=1), kind)
        if kind != wanted:
            yield f"its {key} is a value of type {kind}, not {wanted}"
    for key, (least, most) in _BOUNDS.items():
        for value in _numbers(header.metadata.get(f"clip.vision.{key}")):
            if not least <= value <= most:  # written so that NaN is refused
                yield f"its {key} is {value}, not between {least} and {most}"
    merged = header.number("clip.vision.projector.scale_factor")
    if merged < 2 and projector_facts(header).kind == "idefics3":
        yield f"its scale_factor is {merged}, not 2 or more"
    yield from _wrong_heads(header)
    yield from _wrong_size(header)
    for key in ("image_mean", "image_std"):
        stated = header.metadata.get(f"clip.vision.{key}")
        if stated is not None and len(_numbers(stated)) != 3:
            yield f"its {key} has not three numbers"
    if 0 in _numbers(header.metadata.get("clip.vision.image_std")):
        yield "its image_std has a zero"


def _wrong_size(header: Header) -> Iterator[str]:
    """Of pictures."""
    key = "clip.vision.image_size"
    size, kind = header.number(key), projector_facts(header).kind
    if key in header.metadata and not size and kind not in _OF_ANY_SIZE:
        yield "its image_size is 0"
    patch = header.number("clip.vision.patch_size")
    if 0 < size < patch:
        yield f"its pictures of {size} pixels are smaller than a patch"
    row = size // max(patch, 1)
    merged = header.number("clip.vision.projector.scale_factor") or 4
    is_left_over = row % merged > 0 if kind == "gemma3" else merged > row and kind == "idefics3"
    if patch and is_left_over:
        yield f"its scale_factor is {merged}, of {row} patches in a row"


def _wrong_heads(header: Header) -> Iterator[str]:
    """Of attention; Gemma 4 12B has none, and no blocks."""
    key = "clip.vision.attention.head_count"
    width, heads = header.number("clip.vision.embedding_length"), header.number(key)
    is_width_stated = header.number("clip.vision.attention.head_dim") > 0  # of a head
    if heads and width % heads and not is_width_stated:
        yield f"its width of {width} cannot be divided among {heads} attention heads"
    elif heads and width // heads < _LEAST_HEAD and not is_width_stated:
        yield f"its width of {width} is {width // heads} for each of {heads} attention heads"
    if key in header.metadata and not heads and header.number("clip.vision.block_count"):
        yield "its attention.head_count is 0, though it has blocks"


def _numbers(value: Value) -> Sequence[float]:
    if isinstance(value, tuple):
        return value
    return (value,) if isinstance(value, int | float) else ()
