"""Headers as published projectors of many kinds have them are taken for what they are.

Keys, numbers and shapes as llama.cpp's converters write them (conversion/, and
tools/mtmd/legacy-models/ for the older ones); of the weights one block and the projector.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
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
    "Pixtral 12B": Published(
        "pixtral", (1024, 16, 1024, 4096, 24, 16, 5120), 5120, gated(1024, 4096),
        {
            **norm("v.pre_ln", 1024, bias=False), "v.token_embd.img_break": (5120,),
            **linear("mm.1", 5120, 1024), **linear("mm.2", 5120, 5120),
        },
        {"use_silu": True},
    ),
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
    "Llama 4 Scout": Published(
        "llama4", (336, 14, 1408, 5632, 34, 16, 5120), 5120, plain(1408, 5632),
        {
            "v.class_embd": (1408,), "v.position_embd.weight": (577, 1408),
            **norm("v.pre_ln", 1408), **norm("v.post_ln", 1408),
            **linear("mm.model.mlp.1", 4096, 5632, bias=False),
            **linear("mm.model.mlp.2", 4096, 4096, bias=False),
            **linear("mm.model.fc", 5120, 4096, bias=False),
        },
        {"use_gelu": True, "vision.projector.scale_factor": 2},
        is_flat=True,
    ),
    "Qwen2-VL 2B, converted in its first days": Published(
        "qwen2vl_merger", (560, 14, 1280, 0, 32, 16, 1536), 1536, plain(1280, 5120),
        {
            **PAIR_OF_PATCHES, **norm("v.post_ln", 1280),
            **linear("mm.0", 5120, 5120), **linear("mm.2", 1536, 5120),
        },
        {"has_text_encoder": False, "has_qwen2vl_merger": True, "use_silu": False},
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
    "Qwen2.5-Omni 3B": Published(
        "qwen2.5o", (560, 14, 1280, 3420, 32, 16, 2048), 2048,
        gated(1280, 3420, biases=True),
        {
            **PAIR_OF_PATCHES, **norm("v.post_ln", 1280, bias=False),
            **linear("mm.0", 5120, 5120), **linear("mm.2", 2048, 5120),
            "a.conv1d.1.weight": (1280, 128, 3), "a.conv1d.1.bias": (1280, 1),
            "a.position_embd.weight": (1500, 1280),
            "a.blk.0.attn_k.weight": (1280, 1280), **linear("a.blk.0.attn_q", 1280, 1280),
            **linear("mm.a.fc", 2048, 1280),
        },
        {
            "has_audio_encoder": True, "use_silu": True, "vision.n_wa_pattern": 8,
            "audio.num_mel_bins": 128, "audio.embedding_length": 1280,
        },
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
    "MiniCPM-V 2.6": Published(
        "resampler", (448, 14, 1152, 4304, 26, 16, 0), 3584, plain(1152, 4304),
        {
            "v.position_embd.weight": (4900, 1152), **norm("v.post_ln", 1152),
            "resampler.query": (64, 3584), "resampler.pos_embed_k": (4900, 3584),
            **linear("resampler.kv", 3584, 1152, bias=False),
            **linear("resampler.proj", 3584, 3584, bias=False),
            **linear("resampler.attn.q", 3584, 3584), **linear("resampler.attn.k", 3584, 3584),
            **linear("resampler.attn.v", 3584, 3584),
            **linear("resampler.attn.out", 3584, 3584),
            **norm("resampler.ln_q", 3584), **norm("resampler.ln_kv", 3584),
            **norm("resampler.ln_post", 3584),
        },
        {
            "has_text_encoder": False, "has_minicpmv_projector": True, "use_gelu": True,
            "minicpmv_version": np.int32(3),
        },
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
    "LFM2-VL 1.6B": Published(
        "lfm2", (256, 16, 1152, 4304, 26, 16, 2048), 2048, plain(1152, 4304),
        {
            "v.position_embd.weight": (256, 1152), **norm("v.post_ln", 1152),
            **norm("mm.input_norm", 4608), **linear("mm.1", 2560, 4608),
            **linear("mm.2", 2048, 2560),
        },
        {"use_gelu": True, "vision.projector.scale_factor": 2},
    ),
    "GLM-4.1V 9B": Published(
        "glm4v", (336, 14, 1536, 13696, 24, 12, 4096), 4096,
        gated(1536, 4096, joined=True),
        {
            "v.patch_embd.weight.1": (1536, 3, 14, 14),
            "v.position_embd.weight": (576, 1536), **norm("v.norm_embd", 1536, bias=False),
            **norm("v.post_ln", 1536, bias=False),
            "mm.patch_merger.weight": (4096, 1536, 2, 2), "mm.patch_merger.bias": (4096,),
            **linear("mm.model.fc", 4096, 4096, bias=False), **norm("mm.post_norm", 4096),
            **linear("mm.up", 13696, 4096, bias=False),
            **linear("mm.gate", 13696, 4096, bias=False),
            **linear("mm.down", 4096, 13696, bias=False),
        },
        {"use_silu": True, "vision.spatial_merge_size": 2},
    ),
    "GLM-Edge-V 2B": Published(
        "adapter", (672, 14, 1152, 4304, 27, 16, 0), 2048, plain(1152, 4304),
        {
            "v.position_embd.weight": (2304, 1152),
            "adapter.boi": (2048,), "adapter.eoi": (2048,),
            "adapter.conv.weight": (1152, 1152, 2, 2), "adapter.conv.bias": (1152,),
            **linear("adapter.linear.linear", 2048, 1152, bias=False),
            **norm("adapter.linear.norm1", 2048),
            **linear("adapter.linear.dense_h_to_4h", 6144, 2048, bias=False),
            **linear("adapter.linear.gate", 6144, 2048, bias=False),
            **linear("adapter.linear.dense_4h_to_h", 2048, 6144, bias=False),
        },
        {"has_text_encoder": False, "has_glm_projector": True, "use_gelu": True},
    ),
    "Kimi-VL A3B": Published(
        "kimivl", (896, 14, 1152, 4304, 27, 16, 2048), 2048, plain(1152, 4304),
        {
            "v.position_embd.weight": (4096, 1152), **norm("v.post_ln", 1152),
            **norm("mm.input_norm", 1152), **linear("mm.1", 4608, 4608),
            **linear("mm.2", 2048, 4608),
        },
        {"use_gelu": True, "vision.projector.scale_factor": 2},
    ),
    "one whose heads are wider than a share of its width": Published(
        "muse-glimmer", (896, 14, 1408, 5632, 2, 10, 4096), 4096,
        gated(1408, 5632)
        | {f"attn_{part}.weight": (1280, 1408) for part in "qkv"}
        | {"attn_out.weight": (1408, 1280)},
        {**linear("mm.0", 4096, 5632, bias=False), **linear("mm.2", 4096, 4096, bias=False)},
        {"vision.attention.head_dim": 128, "vision.spatial_merge_size": 2},
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
