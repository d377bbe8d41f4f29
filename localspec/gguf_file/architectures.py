"""Architectures that libllama does not treat as plain decoders, and how it treats them.

After src/llama-arch.cpp and src/models/ of llama.cpp. An architecture has the name that model
files state in `general.architecture`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class HeadGraph(Enum):
    """How the head of an architecture is computed.

    libllama computes MTP layers by LLM_GRAPH_TYPE_DECODER_MTP.
    """

    NONE = "none"
    """There is no head, or it cannot be computed."""

    ONE_MTP = "one"
    """libllama computes one MTP layer; two or more would end the process."""

    MTP_CHAIN = "chain"
    """libllama computes MTP layers one after another; each drafts one token."""

    ASSISTANT = "shared"
    """libllama computes all MTP layers for each token; they read the keys and values of the
    target's last layers and have none of their own (Gemma 4)."""

    EAGLE3 = "layers"
    """EAGLE-3, by libllama: a layer that reads the inputs of some of the target's layers."""

    DFLASH = "block"
    """DFlash, by libllama: reads what EAGLE-3 reads, and drafts all tokens in one decode."""

    MEDUSA = "output"
    """Medusa, by localspec: a few matrix products with the input of the target's output
    layer."""


# Their architectures have no model, so every block in such a file belongs to the head.
HEADS_WITHOUT_MODEL = (HeadGraph.EAGLE3, HeadGraph.DFLASH, HeadGraph.MEDUSA)


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The properties of an architecture. A plain decoder has all the defaults."""

    has_state: bool = False
    """Some layers have a recurrent state."""

    is_recurrent: bool = False
    """All layers have a recurrent state."""

    has_snapshots: bool = False
    """libllama can keep the recurrent states of the last tokens, to go back to one
    (llm_arch_supports_rs_rollback)."""

    head_graph: HeadGraph = HeadGraph.NONE
    is_head: bool = False
    """Its files hold a head and no layers of a model."""

    head_of: str = ""
    """The architecture that its head drafts for; empty for its own."""

    has_output_rows_only: bool = False
    """A decode of its head gives rows only for tokens that are marked as outputs.

    libllama ends the process if such a head is asked for the rows of all tokens. Other heads
    give the rows of all tokens, and wrong rows if asked for those of outputs."""

    loaded_without_head: tuple[str, ...] = ()
    """Prefixes of names, after "blk.N.": tensors of an MTP layer that libllama loads even if
    the head is not loaded."""

    exposes_layer_inputs: bool = False
    """libllama gives the inputs of its layers; for other architectures it ends the process."""

    exposes_last_output: bool = False
    """libllama gives the output of its last layer, too."""


_PLAIN = Architecture()
_RECURRENT = Architecture(has_state=True, is_recurrent=True)
_HYBRID = Architecture(has_state=True)
_HYBRID_WITH_SNAPSHOTS = Architecture(has_state=True, has_snapshots=True)
_ONE_MTP = Architecture(head_graph=HeadGraph.ONE_MTP)
_HYBRID_WITH_MTP = replace(_HYBRID_WITH_SNAPSHOTS, head_graph=HeadGraph.ONE_MTP)
_EXPOSES_INPUTS = Architecture(exposes_layer_inputs=True)


def _exposing_layers(other: Architecture) -> Architecture:
    """The same architecture, with its layers' inputs and its last output given by libllama."""
    return replace(other, exposes_layer_inputs=True, exposes_last_output=True)


# Prefixes for `loaded_without_head`.
_TABLES = ("nextn.embed_tokens", "nextn.shared_head")
_FFN = ("ffn_gate", "ffn_up", "ffn_down", "exp_probs_b")
_ATTENTION = ("attn_q_norm", "attn_k_norm", "attn_gate")

_ONLY_EXPOSES_INPUTS = (
    "hunyuan-dense", "hunyuan_vl", "llama", "minimax-m2", "muse-glimmer", "nanbeige", "qwen3",
    "qwen3moe",
)  # fmt: skip

_SPECIAL = {
    **dict.fromkeys(("arwkv7", "mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7"), _RECURRENT),
    **dict.fromkeys(("falcon-h1", "granitehybrid", "jamba", "kimi-linear", "plamo2"), _HYBRID),
    **dict.fromkeys(("glm5-next", "kimi-k3"), _HYBRID_WITH_SNAPSHOTS),
    **dict.fromkeys(
        ("lfm2", "lfm2moe", "qwen4exp"),
        replace(_HYBRID_WITH_SNAPSHOTS, exposes_layer_inputs=True),
    ),
    **dict.fromkeys(("deepseek2", "deepseek32", "glm-dsa", "glm4moe"), _ONE_MTP),
    **dict.fromkeys(
        ("bailingmoe3", "nemotron_h_moe", "qwen35", "qwen35moe"),
        _exposing_layers(_HYBRID_WITH_MTP),
    ),
    **dict.fromkeys(_ONLY_EXPOSES_INPUTS, _EXPOSES_INPUTS),
    **dict.fromkeys(("gemma4", "gpt-oss"), _exposing_layers(_PLAIN)),
    "cohere2moe": replace(_ONE_MTP, loaded_without_head=_TABLES),
    "deepseek4": _exposing_layers(replace(_HYBRID_WITH_MTP, has_output_rows_only=True)),
    "dflash": Architecture(head_graph=HeadGraph.DFLASH, is_head=True),
    "eagle3": Architecture(head_graph=HeadGraph.EAGLE3, is_head=True),
    "gemma4-assistant": Architecture(
        head_graph=HeadGraph.ASSISTANT,
        is_head=True,
        head_of="gemma4",
        has_output_rows_only=True,
    ),
    "hy_v3": Architecture(
        head_graph=HeadGraph.MTP_CHAIN,
        loaded_without_head=(*_TABLES, *_FFN),
    ),
    "medusa": Architecture(head_graph=HeadGraph.MEDUSA, is_head=True),
    "mimo2": _exposing_layers(
        Architecture(head_graph=HeadGraph.MTP_CHAIN, has_output_rows_only=True)
    ),
    "minimax-01": replace(_HYBRID, exposes_layer_inputs=True),
    "nemotron_h": _exposing_layers(_HYBRID_WITH_SNAPSHOTS),
    "qwen3next": _exposing_layers(
        replace(_HYBRID_WITH_MTP, has_snapshots=False, has_output_rows_only=True)
    ),
    "step35": Architecture(
        head_graph=HeadGraph.MTP_CHAIN,
        has_output_rows_only=True,
        loaded_without_head=(*_TABLES, *_FFN, *_ATTENTION),
    ),
}


def architecture(name: str) -> Architecture:
    """The architecture of that name; a plain decoder if it is not listed above."""
    return _SPECIAL.get(name, _PLAIN)
