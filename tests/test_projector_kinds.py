"""Headers as published projectors of many kinds have them are taken for what they are.

Keys, numbers and shapes as llama.cpp's converters write them (conversion/, and
tools/mtmd/legacy-models/ for the older ones); of the weights one block and the projector.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple

import pytest
from vision_maker import write_projector_header

from localspec.errors import PairError
from localspec.gguf_file.projector import (
    cells_at_once,
    checked_projector,
    projector_facts,
    require_free_of_place,
    require_projector_of,
)
from localspec.preflight.memory import projector_memory

Shapes = dict[str, tuple[int, ...]]


class Published(NamedTuple):
    """A projector: its kind, and what it states.

    numbers: of image and patch in pixels, width, hidden width, blocks, heads, projection_dim.
    width: of the language model that it is for. block, projector: shapes of weights.
    """

    kind: str
    numbers: tuple[int, int, int, int, int, int, int]
    width: int
    block: Shapes
    projector: Shapes
    stated: dict[str, object]
    is_flat: bool = False  # whether patches are read by a matrix, not a convolution
    names_kind_by_sense: bool = False


def attention(width: int, *, joined: bool = False, biases: bool = True) -> Shapes:
    """Of a block."""
    parts = ["attn_qkv"] if joined else ["attn_q", "attn_k", "attn_v"]
    rows = 3 * width if joined else width
    shapes: Shapes = {f"{part}.weight": (rows, width) for part in parts}
    shapes["attn_out.weight"] = (width, width)
    if biases:
        shapes |= {f"{part}.bias": (rows,) for part in parts}
        shapes["attn_out.bias"] = (width,)
    return shapes


def with_norms(shapes: Shapes, width: int, *, biases: bool = True) -> Shapes:
    ends = ("weight", "bias") if biases else ("weight",)
    return shapes | {f"{name}.{end}": (width,) for name in ("ln1", "ln2") for end in ends}


def plain(width: int, hidden: int, *, joined: bool = False) -> Shapes:
    """A block as that of SigLIP or CLIP."""
    return with_norms(attention(width, joined=joined), width) | {
        "ffn_up.weight": (hidden, width),
        "ffn_up.bias": (hidden,),
        "ffn_down.weight": (width, hidden),
        "ffn_down.bias": (width,),
    }


def gated(width: int, hidden: int, *, joined: bool = False, biases: bool = False) -> Shapes:
    """A block with a gate, and norms without bias."""
    shapes = with_norms(attention(width, joined=joined, biases=biases), width, biases=False)
    shapes |= {f"ffn_{name}.weight": (hidden, width) for name in ("up", "gate")}
    return shapes | {"ffn_down.weight": (width, hidden)}


def linear(name: str, rows: int, columns: int, *, bias: bool = True) -> Shapes:
    shapes: Shapes = {f"{name}.weight": (rows, columns)}
    return shapes | ({f"{name}.bias": (rows,)} if bias else {})


def norm(name: str, width: int, *, bias: bool = True) -> Shapes:
    ends = ("weight", "bias") if bias else ("weight",)
    return {f"{name}.{end}": (width,) for end in ends}


PAIR_OF_PATCHES = {"v.patch_embd.weight.1": (1280, 3, 14, 14)}

PUBLISHED = {
    "Mistral Small 3.1": Published(
        "pixtral", (1540, 14, 1024, 4096, 24, 16, 5120), 5120, gated(1024, 4096),
        {
            **norm("v.pre_ln", 1024, bias=False), "v.token_embd.img_break": (5120,),
            **norm("mm.input_norm", 1024, bias=False),
            **linear("mm.patch_merger", 1024, 4096, bias=False),
            **linear("mm.1", 5120, 1024, bias=False), **linear("mm.2", 5120, 5120, bias=False),
        },
        {"use_silu": True, "vision.spatial_merge_size": 2},
    ),
    "InternVL3 2B": Published(
        "internvl", (448, 14, 1024, 4096, 24, 16, 1536), 1536,
        {**plain(1024, 4096), "ls1.weight": (1024,), "ls2.weight": (1024,)},
        {
            "v.class_embd": (1024,), "v.position_embd.weight": (1025, 1024),
            **norm("mm.model.mlp.0", 4096), **linear("mm.model.mlp.1", 1536, 4096),
            **linear("mm.model.mlp.3", 1536, 1536),
        },
        {
            "use_gelu": True, "vision.projector.scale_factor": 2,
            "vision.preproc_min_tiles": 1, "vision.preproc_max_tiles": 12,
        },
    ),
    "Qwen2.5-VL 3B": Published(
        "qwen2.5vl_merger", (560, 14, 1280, 3420, 32, 16, 2048), 2048,
        gated(1280, 3420, biases=True)
        | {"ffn_up.bias": (3420,), "ffn_gate.bias": (3420,), "ffn_down.bias": (1280,)},
        {
            **PAIR_OF_PATCHES, **norm("v.post_ln", 1280, bias=False),
            **linear("mm.0", 5120, 5120), **linear("mm.2", 2048, 5120),
        },
        {"use_silu": True, "vision.n_wa_pattern": 8},
    ),
    "Qwen2.5-Omni 7B, by senses": Published(
        "qwen2.5vl_merger", (560, 14, 1280, 3420, 32, 16, 3584), 3584,
        gated(1280, 3420, biases=True),
        {
            **PAIR_OF_PATCHES, **norm("v.post_ln", 1280, bias=False),
            **linear("mm.0", 5120, 5120), **linear("mm.2", 3584, 5120),
        },
        {
            "has_audio_encoder": True, "audio.projector_type": "qwen2a",
            "use_silu": True, "vision.n_wa_pattern": 8,
        },
        names_kind_by_sense=True,
    ),
    "MiniCPM-V 4.6": Published(
        "minicpmv4_6", (448, 14, 1152, 4304, 27, 16, 1024), 1024, plain(1152, 4304),
        {
            "v.position_embd.weight": (4900, 1152), **norm("v.post_ln", 1152),
            **norm("v.vit_merger.ln1", 1152), **linear("v.vit_merger.attn_q", 1152, 1152),
            **norm("mm.input_norm", 4608), **linear("mm.up", 4608, 4608),
            **linear("mm.down", 1024, 4608),
        },
        {"use_gelu": True, "vision.projector.scale_factor": 4},
    ),
}  # fmt: skip


@pytest.fixture(params=PUBLISHED)
def published(request):
    return PUBLISHED[request.param]


@pytest.fixture
def header(published, tmp_path):
    image, patch, width, hidden, blocks, heads, projection_dim = published.numbers
    sense = "vision." if published.names_kind_by_sense else ""
    stated = {
        "has_vision_encoder": True,
        f"{sense}projector_type": published.kind,
        "vision.image_size": image,
        "vision.patch_size": patch,
        "vision.embedding_length": width,
        "vision.feed_forward_length": hidden,
        "vision.block_count": blocks,
        "vision.attention.head_count": heads,
        "vision.attention.layer_norm_epsilon": 1e-6,
        "vision.projection_dim": projection_dim,
        "vision.image_mean": [0.48, 0.46, 0.41],
        "vision.image_std": [0.27, 0.26, 0.28],
    }
    flat = (width, 3 * patch**2)
    shapes = {
        "v.patch_embd.weight": flat if published.is_flat else (width, 3, patch, patch),
        **{f"v.blk.0.{name}": shape for name, shape in published.block.items()},
        **published.projector,
    }
    path = tmp_path / "mmproj.gguf"
    return checked_projector(write_projector_header(path, stated | published.stated, shapes))


def model_of(width):
    number = {"any.embedding_length": width}.get
    return SimpleNamespace(
        architecture="any", number=number, path=SimpleNamespace(name="model.gguf")
    )


def test_it_is_taken_with_its_own_model_and_no_other(published, header):
    assert projector_facts(header).kind == published.kind
    require_free_of_place(header)
    require_projector_of(model_of(published.width), header)
    with pytest.raises(PairError):
        require_projector_of(model_of(published.width + 64), header)


def test_what_it_takes_is_known(published, header):
    memory = projector_memory(header, 0)
    assert memory.weights_bytes > 0
    assert 2**20 < memory.compute_bytes < 2**34
    assert cells_at_once(header) == 0
