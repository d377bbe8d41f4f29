"""Architectures that are not plain decoders, as libllama treats them.

From src/llama-arch.cpp and src/models/ of llama.cpp; the names are those in files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class HeadGraph(Enum):
    """How a head is computed, if it can be.

    libllama computes MTP layers by LLM_GRAPH_TYPE_DECODER_MTP.
    """

    NONE = "none"
    """It cannot be computed."""

    ONE = "one"
    """One MTP layer, by libllama; more of them would end the process."""

    CHAIN = "chain"
    """MTP layers, by libllama, each of which drafts one token."""

    SHARED = "shared"
    """MTP layers, by libllama, all at once, with the keys and values of the target's last
    layers."""

    LAYERS = "layers"
    """EAGLE-3, by libllama: a layer that reads the inputs of some of the target's layers."""

    BLOCK = "block"
    """DFlash, by libllama: as EAGLE-3, but all tokens of a draft in one decode."""

    OUTPUT = "output"
    """Medusa, by localspec: a few products with the input of the target's output layer."""


# Heads of an architecture that is no model's, so all of its blocks are the head's.
HEADS_APART = (HeadGraph.LAYERS, HeadGraph.BLOCK, HeadGraph.OUTPUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The properties of an architecture; the defaults hold for every one that is not listed."""

    has_state: bool = False
    """Some layers have a recurrent state."""

    is_recurrent: bool = False
    """All layers have a recurrent state."""

    has_snapshots: bool = False
    """libllama can keep the last states (llm_arch_supports_rs_rollback)."""

    head_graph: HeadGraph = HeadGraph.NONE
    is_head: bool = False
    """Its files hold a head and no layers of a model."""

    head_of: str = ""
    """The architecture that it drafts for, if not its own."""

    is_cropped: bool = False
    """A head's decode gives rows of its outputs only, and ends the process if asked for rows
    of all tokens; other heads give rows of all tokens, and wrong ones if asked for those of
    outputs."""

    loaded_anyway: tuple[str, ...] = ()
    """Prefixes of the names of those tensors of an MTP layer that are also loaded without the
    head."""

    gives_layers: bool = False
    """libllama gives the inputs of its layers; for other architectures it ends the process."""

    gives_last: bool = False
    """It also gives the output of the last layer."""


_PLAIN = Architecture()
_RECURRENT = Architecture(has_state=True, is_recurrent=True)
_HYBRID = Architecture(has_state=True)
_HYBRID_BACK = Architecture(has_state=True, has_snapshots=True)
_ONE = Architecture(head_graph=HeadGraph.ONE)
_ONE_HYBRID = replace(_HYBRID_BACK, head_graph=HeadGraph.ONE)
_GIVES = Architecture(gives_layers=True)


def _giving(other: Architecture) -> Architecture:
    """The architecture, with libllama giving the inputs of its layers and the last output."""
    return replace(other, gives_layers=True, gives_last=True)


_TABLES = ("nextn.embed_tokens", "nextn.shared_head")
_FFN = ("ffn_gate", "ffn_up", "ffn_down", "exp_probs_b")
_ATTENTION = ("attn_q_norm", "attn_k_norm", "attn_gate")
_GIVING_ONLY = (
    "hunyuan-dense", "hunyuan_vl", "llama", "minimax-m2", "muse-glimmer", "nanbeige", "qwen3",
    "qwen3moe",
)  # fmt: skip

_SPECIAL = {
    **dict.fromkeys(("arwkv7", "mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7"), _RECURRENT),
    **dict.fromkeys(("falcon-h1", "granitehybrid", "jamba", "kimi-linear", "plamo2"), _HYBRID),
    **dict.fromkeys(("glm5-next", "kimi-k3"), _HYBRID_BACK),
    **dict.fromkeys(("lfm2", "lfm2moe", "qwen4exp"), replace(_HYBRID_BACK, gives_layers=True)),
    **dict.fromkeys(("deepseek2", "deepseek32", "glm-dsa", "glm4moe"), _ONE),
    **dict.fromkeys(
        ("bailingmoe3", "nemotron_h_moe", "qwen35", "qwen35moe"),
        _giving(_ONE_HYBRID),
    ),
    **dict.fromkeys(_GIVING_ONLY, _GIVES),
    **dict.fromkeys(("gemma4", "gpt-oss"), _giving(_GIVES)),
    "cohere2moe": replace(_ONE, loaded_anyway=_TABLES),
    "deepseek4": _giving(replace(_ONE_HYBRID, is_cropped=True)),
    "dflash": Architecture(head_graph=HeadGraph.BLOCK, is_head=True),
    "eagle3": Architecture(head_graph=HeadGraph.LAYERS, is_head=True),
    "gemma4-assistant": Architecture(
        head_graph=HeadGraph.SHARED,
        is_head=True,
        head_of="gemma4",
        is_cropped=True,
    ),
    "hy_v3": Architecture(head_graph=HeadGraph.CHAIN, loaded_anyway=(*_TABLES, *_FFN)),
    "medusa": Architecture(head_graph=HeadGraph.OUTPUT, is_head=True),
    "mimo2": _giving(Architecture(head_graph=HeadGraph.CHAIN, is_cropped=True)),
    "minimax-01": replace(_HYBRID, gives_layers=True),
    "nemotron_h": _giving(_HYBRID_BACK),
    "qwen3next": _giving(replace(_ONE_HYBRID, has_snapshots=False, is_cropped=True)),
    "step35": Architecture(
        head_graph=HeadGraph.CHAIN,
        is_cropped=True,
        loaded_anyway=(*_TABLES, *_FFN, *_ATTENTION),
    ),
}


def architecture(name: str) -> Architecture:
    """The architecture of that name, whether it is listed or not."""
    return _SPECIAL.get(name, _PLAIN)
