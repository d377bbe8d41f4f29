"""Writes small models that see, with random weights: a language model, and its projector.

Keys and tensors of projectors as libmtmd's loader asks for them (tools/mtmd/clip.cpp).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gguf_maker import Value, Weights, add_keys, write_random_model, write_spm_tokenizer
from localspec.errors import OptionError
from localspec.llama.library import mtmd
from localspec.pictures.picture import Picture
from model_writer import ModelWriter

# A projector's kind → the language model it belongs to, and tokens that stand around pictures.
KINDS = {
    "gemma3": ("gemma3", ("<start_of_image>", "<end_of_image>")),
    "qwen2vl_merger": ("qwen2vl", ("<|vision_start|>", "<|vision_end|>")),
    "qwen3vl_merger": ("qwen3vl", ("<|vision_start|>", "<|vision_end|>")),
    "idefics3": (
        "llama",
        (
            "\n\n",
            "\n",
            "<fake_token_around_image>",
            "<global-img>",
            *(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)),
        ),
    ),
}
WIDTH, HIDDEN, HEADS, LAYERS = 64, 128, 2, 1  # of the projector
PATCH = 8
SIDE = dict.fromkeys(KINDS, 64) | {"idefics3": 32}  # of what is looked at at once
_IN_PARTS = ("qwen2vl_merger", "qwen3vl_merger")  # whose positions have parts
_MERGED = 2  # patches in a row that become one cell


def need_libmtmd() -> None:
    """Skip what shows pictures to a model where llama-cpp-python was built without."""
    try:
        mtmd()
    except OptionError as error:
        pytest.skip(f"libmtmd is missing: {error}")


def write_vision_pair(
    folder: Path, kind: str, *, side: int = 0, **shape: object
) -> tuple[Path, Path]:
    """A language model of 64 numbers and a projector of that kind, in a folder.

    side: of what it looks at at once, if not its usual one. shape: as for
    `write_random_model`.
    """
    architecture, _ = KINDS[kind]
    tokenizer = write_vision_tokenizer(folder, kind)
    extra: dict[str, object] = {}
    if kind in _IN_PARTS:
        extra[f"{architecture}.rope.dimension_sections"] = [4, 6, 6, 0]
    if kind == "qwen3vl_merger":  # a layer of the model reads rows of a layer of the projector
        extra["qwen3vl.n_deepstack_layers"] = 1
        shape.setdefault("num_layers", 2)  # libllama cannot do it in the last one
    extra |= shape.pop("extra", {})  # type: ignore[operator]
    model = write_random_model(
        folder / f"{kind}.gguf",
        tokenizer,
        architecture=architecture,
        extra=extra,
        **shape,  # type: ignore[arg-type]
    )
    return model, write_projector(folder / f"mmproj-{kind}.gguf", kind, side=side)


def write_vision_tokenizer(folder: Path, kind: str) -> Path:
    """A file with nothing but a tokenizer that has the tokens around pictures.

    Skips the test where no libmtmd could read pictures for a model with it.
    """
    need_libmtmd()
    path, _ = write_spm_tokenizer(
        folder / f"{kind}.tokenizer.gguf", (), control=(), user_defined=KINDS[kind][1]
    )
    return path


def write_projector(
    path: Path, kind: str, *, width: int = 64, side: int = 0, sees: bool = True
) -> Path:
    """A projector for a model of that width. side: as for `write_vision_pair`."""
    side = side or SIDE.get(kind, 64)
    writer = ModelWriter(path, "clip")
    add_keys(writer, {"clip.has_vision_encoder": sees, "clip.use_gelu": True})
    add_keys(writer, {"clip.projector_type": kind})
    stated: dict[str, Value] = {
        "embedding_length": WIDTH,
        "feed_forward_length": HIDDEN,
        "block_count": LAYERS,
        "attention.head_count": HEADS,
        "projection_dim": width,
        "image_size": side,
        "patch_size": PATCH,
        "projector.scale_factor": _MERGED,
        "preproc_image_size": 2 * side,
        "attention.layer_norm_epsilon": 1e-6,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    add_keys(writer, {f"clip.vision.{key}": value for key, value in stated.items()})
    weights = Weights(writer, 0)
    weights.matrix("v.patch_embd.weight", WIDTH, 3, PATCH, PATCH)
    if kind in _IN_PARTS:
        weights.matrix("v.patch_embd.weight.1", WIDTH, 3, PATCH, PATCH)
    if kind != "qwen2vl_merger":
        weights.constant("v.patch_embd.bias", WIDTH, value=0.1)
        weights.matrix("v.position_embd.weight", (side // PATCH) ** 2, WIDTH)
    for layer in range(LAYERS):
        _add_layer(weights, f"v.blk.{layer}", is_joined=kind == "qwen3vl_merger")
    for name in ("weight", "bias"):
        weights.constant(f"v.post_ln.{name}", WIDTH, value=float(name == "weight"))
    _add_merger(weights, kind, width)
    writer.finish()
    return path


def _add_layer(weights: Weights, block: str, *, is_joined: bool) -> None:
    """is_joined: whether what makes queries, keys and values is one matrix."""
    names = (
        ("attn_qkv", "attn_out") if is_joined else ("attn_q", "attn_k", "attn_v", "attn_out")
    )
    for name in names:
        rows = 3 * WIDTH if name == "attn_qkv" else WIDTH
        weights.matrix(f"{block}.{name}.weight", rows, WIDTH)
        weights.constant(f"{block}.{name}.bias", rows, value=0.01)
    for name in ("ln1", "ln2"):
        weights.constant(f"{block}.{name}.weight", WIDTH)
        weights.constant(f"{block}.{name}.bias", WIDTH, value=0.01)
    for name, rows, columns in (("ffn_up", HIDDEN, WIDTH), ("ffn_down", WIDTH, HIDDEN)):
        weights.matrix(f"{block}.{name}.weight", rows, columns)
        weights.constant(f"{block}.{name}.bias", rows, value=0.01)


def _add_merger(weights: Weights, kind: str, width: int) -> None:
    """What makes the model's rows of patches."""
    merged = WIDTH * _MERGED**2
    if kind == "gemma3":
        weights.constant("mm.soft_emb_norm.weight", WIDTH)
        weights.matrix("mm.input_projection.weight", WIDTH, width)
    elif kind == "idefics3":
        weights.matrix("mm.model.fc.weight", width, merged)
    else:
        if kind == "qwen3vl_merger":
            for name in ("weight", "bias"):
                weights.constant(f"v.deepstack.0.norm.{name}", merged, value=0.5)
            for name, rows in (("fc1", merged), ("fc2", width)):
                weights.matrix(f"v.deepstack.0.{name}.weight", rows, merged)
                weights.constant(f"v.deepstack.0.{name}.bias", rows, value=0.01)
        weights.matrix("mm.0.weight", merged, merged)
        weights.constant("mm.0.bias", merged, value=0.01)
        weights.matrix("mm.2.weight", width, merged)
        weights.constant("mm.2.bias", width, value=0.01)


def random_picture(seed: int, width: int = 64, height: int = 64) -> Picture:
    """One of random pixels."""
    random = np.random.default_rng(seed)
    return Picture(width, height, random.bytes(3 * width * height))
