"""Writes small GGUF models with trained heads, random weights and another's tokenizer.

Keys and tensors as libllama's loaders of these architectures ask for them (src/models/). A
head and its target agree now and then: both follow the last token, and what their layers add
to its embedding is small.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np
from numpy.typing import NDArray

from gguf_maker import Weights
from hybrid_maker import (
    HEAD,
    HIDDEN,
    NUM_EXPERTS,
    NUM_LAYERS,
    WIDTH,
    experts,
    feed_forward,
    head_norms,
    keys_and_values,
    qwen35_attention,
    write_common,
    write_qwen35_trunk,
)
from model_writer import ModelWriter

# With a head inside or in a file of its own; and those whose head is another architecture:
# Gemma 4's assistant, and EAGLE-3.
INSIDE = ("qwen35", "glm4moe", "step35")
EAGLE = ("qwen3", "llama")
ALL = (*INSIDE, "gemma4")
# Layers that predict, in the model's own file.
NUM_HEADS = {"qwen35": 1, "glm4moe": 1, "step35": 3}
LAYERS_READ = [1, 2, 3]  # by EAGLE-3
NUM_DRAFTED = 700  # tokens that the head of llama knows
WINDOW = 8  # of the layers of step35 and gemma4 that look back at the last tokens only
_ASSISTANT_WIDTH = 32
# How far layers change what a token's embedding says: every other draft is the target's token.
_MIXING = 0.02
# The last matrices of a layer's parts: what they give is added to what goes on.
_ADDED = ("attn_output", "ssm_out", "ffn_down", "ffn_down_exps", "ffn_down_shexp")


def write_head_model(
    path: Path,
    tokenizer_of: Path,
    architecture: str,
    *,
    part: str = "whole",
) -> Path:
    """A model of four layers and its head, or a part of it.

    architecture: one of ALL. part: whole; trunk, which states a head that is not there; or
    head, the head's own file, whose weights are those that are in the whole. Of gemma4, qwen3
    and llama a trunk is whole. The head of qwen3 shares its target's table and output, that
    of llama has its own, and knows fewer tokens.
    """
    is_assistant = (architecture, part) == ("gemma4", "head")
    is_eagle = architecture in EAGLE and part == "head"
    own = "gemma4-assistant" if is_assistant else "eagle3" if is_eagle else architecture
    num_blocks = 2 if is_assistant else 1 if is_eagle else NUM_LAYERS + NUM_HEADS.get(own, 0)
    width = _ASSISTANT_WIDTH if is_assistant else WIDTH
    writer = ModelWriter(path, own)
    tokens = write_common(writer, tokenizer_of, num_blocks, width=width)
    weights = _PartOfWeights(writer, part if own in INSIDE else "whole")
    if is_eagle:
        _eagle3(writer, weights, tokens, shares=architecture == "qwen3")
    else:
        _WRITERS[own](writer, weights, tokens)
    if own in INSIDE:
        writer.add_uint32(f"{own}.nextn_predict_layers", num_blocks - NUM_LAYERS)
        weights.matrix("token_embd.weight", tokens, WIDTH)
        weights.matrix("output.weight", tokens, WIDTH)
        for layer in range(NUM_LAYERS, num_blocks):
            _nextn(weights, f"blk.{layer}.nextn")
    writer.finish()
    return path


def write_per_layer_model(path: Path, tokenizer_of: Path) -> Path:
    """A model like Gemma 4 E2B: each layer has an embedding of its own of each token.

    Of ten layers, as there, every fifth looks back at the whole text, and the last five share
    the caches of earlier ones.
    """
    num_layers, inputs = 10, 32
    writer = ModelWriter(path, "gemma4")
    tokens = write_common(writer, tokenizer_of, num_layers)
    weights = _PartOfWeights(writer, "whole")
    _gemma4_keys(writer, [layer % 5 < 4 for layer in range(num_layers)])
    writer.add_embedding_length_per_layer_input(inputs)
    writer.add_shared_kv_layers(5)
    weights.matrix("token_embd.weight", tokens, WIDTH)
    weights.matrix("per_layer_token_embd.weight", tokens, inputs * num_layers)
    weights.matrix("per_layer_model_proj.weight", inputs * num_layers, WIDTH)
    weights.constant("per_layer_proj_norm.weight", inputs)
    for layer in range(num_layers):
        block = f"blk.{layer}"
        _gemma4_layer(weights, block, WIDTH)
        _gemma4_keys_and_values(weights, block)
        weights.matrix(f"{block}.inp_gate.weight", inputs, WIDTH)
        weights.matrix(f"{block}.proj.weight", WIDTH, inputs)
        weights.constant(f"{block}.post_norm.weight", WIDTH)
    weights.constant("output_norm.weight", WIDTH)
    weights.constant("rope_freqs.weight", HEAD // 2)
    writer.finish()
    return path


class _PartOfWeights(Weights):
    """Weights of the trunk, of the head, or of both, which are the same in all of them."""

    def __init__(self, writer: ModelWriter, part: str) -> None:
        super().__init__(writer, 0)
        self._part = part

    def add(self, name: str, values: NDArray[np.float64]) -> None:
        if name.startswith("blk.") and self._part != "whole":
            of_head = int(name.split(".")[1]) >= NUM_LAYERS
            if of_head != (self._part == "head"):
                return
        super().add(name, values * (_MIXING if name.split(".")[-2] in _ADDED else 1.0))


def _nextn(weights: _PartOfWeights, block: str) -> None:
    """The token as it is, and a little of the target's row."""
    row = _MIXING * weights.random(WIDTH, WIDTH)
    weights.add(f"{block}.eh_proj.weight", np.concatenate([np.eye(WIDTH), row], axis=1))
    weights.constant(f"{block}.enorm.weight", WIDTH)
    weights.constant(f"{block}.hnorm.weight", WIDTH)
    weights.constant(f"{block}.shared_head_norm.weight", WIDTH)


def _qwen35(writer: ModelWriter, weights: _PartOfWeights, tokens: int) -> None:
    write_qwen35_trunk(writer, weights)
    qwen35_attention(weights, f"blk.{NUM_LAYERS}")


class _Layers(NamedTuple):
    """What differs between models whose layers all attend."""

    second_norm: str = "ffn_norm"
    has_head_norms: bool = False
    has_gate: bool = False
    has_experts: bool = False


_ATTENDING = {
    "glm4moe": _Layers("post_attention_norm", has_experts=True),
    "step35": _Layers(has_head_norms=True, has_gate=True),
    "qwen3": _Layers(has_head_norms=True),
    "llama": _Layers(),
}


def _attending(writer: ModelWriter, weights: _PartOfWeights, tokens: int) -> None:
    made, num_heads = _ATTENDING[writer.arch], NUM_HEADS.get(writer.arch, 0)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count_kv(1)
    if made.has_experts:
        writer.add_leading_dense_block_count(1)
        writer.add_expert_count(NUM_EXPERTS)
        writer.add_expert_used_count(2)
        writer.add_expert_shared_count(1)
        writer.add_expert_feed_forward_length(HIDDEN)
    if writer.arch == "step35":
        writer.add_expert_feed_forward_length(HIDDEN)
        writer.add_sliding_window(WINDOW)
        # As in Step 3.5 every fourth layer sees everything, and no layer of the heads does.
        looks_back = [layer % 4 > 0 for layer in range(NUM_LAYERS)]
        writer.add_sliding_window_pattern(looks_back + [True] * num_heads)
    if not num_heads:
        weights.add("token_embd.weight", weights.random(tokens, WIDTH))
        weights.add("output.weight", weights.random(tokens, WIDTH))
    weights.constant("output_norm.weight", WIDTH)
    for layer in range(NUM_LAYERS + num_heads):
        block = f"blk.{layer}"
        weights.constant(f"{block}.attn_norm.weight", WIDTH)
        weights.constant(f"{block}.{made.second_norm}.weight", WIDTH)
        weights.matrix(f"{block}.attn_q.weight", 2 * HEAD, WIDTH)
        if made.has_gate:
            weights.matrix(f"{block}.attn_gate.weight", 2, WIDTH)
        keys_and_values(weights, block)
        if made.has_head_norms:
            head_norms(weights, block)
        if made.has_experts and layer:
            experts(weights, block)
        else:
            feed_forward(weights, block)


def _gemma4(writer: ModelWriter, weights: _PartOfWeights, tokens: int) -> None:
    _gemma4_keys(writer, [True, True, True, False])
    writer.add_embedding_length_per_layer_input(0)
    weights.add("output.weight", _gemma4_output(weights, tokens) @ _narrowing())
    weights.matrix("token_embd.weight", tokens, WIDTH)
    for layer in range(NUM_LAYERS):
        _gemma4_layer(weights, f"blk.{layer}", WIDTH)
        _gemma4_keys_and_values(weights, f"blk.{layer}")
    weights.constant("output_norm.weight", WIDTH)
    weights.constant("rope_freqs.weight", HEAD // 2)


def _gemma4_assistant(writer: ModelWriter, weights: _PartOfWeights, tokens: int) -> None:
    """Two layers, which attend with the keys and values of the target's last two."""
    _gemma4_keys(writer, [True, False])
    writer.add_embedding_length_out(WIDTH)
    writer.add_uint32("gemma4-assistant.nextn_predict_layers", 2)
    weights.add("token_embd.weight", _gemma4_output(weights, tokens))
    row = _MIXING * weights.random(_ASSISTANT_WIDTH, WIDTH)
    weights.add("nextn.pre_projection.weight", np.concatenate([_narrowing(), row], axis=1))
    weights.matrix("nextn.post_projection.weight", WIDTH, _ASSISTANT_WIDTH)
    for layer in range(2):
        _gemma4_layer(weights, f"blk.{layer}", _ASSISTANT_WIDTH)
    weights.constant("output_norm.weight", _ASSISTANT_WIDTH)
    weights.constant("rope_freqs.weight", HEAD // 2)


def _gemma4_keys(writer: ModelWriter, looks_back: list[bool]) -> None:
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count_kv(1)
    writer.add_sliding_window(WINDOW)
    writer.add_sliding_window_pattern(looks_back)
    writer.add_key_length_swa(HEAD)
    writer.add_value_length_swa(HEAD)
    writer.add_rope_dimension_count_swa(HEAD)


def _gemma4_output(weights: _PartOfWeights, tokens: int) -> NDArray[np.float64]:
    """What the assistant reads its logits off with, in both files: the first that is drawn."""
    return weights.random(tokens, _ASSISTANT_WIDTH)


def _narrowing() -> NDArray[np.float64]:
    """From the target's width to the assistant's: (_ASSISTANT_WIDTH, WIDTH)."""
    square = np.random.default_rng(1).standard_normal((WIDTH, WIDTH))
    return np.linalg.qr(square)[0][:_ASSISTANT_WIDTH]


def _gemma4_keys_and_values(weights: _PartOfWeights, block: str) -> None:
    weights.matrix(f"{block}.attn_k.weight", HEAD, WIDTH)
    weights.matrix(f"{block}.attn_v.weight", HEAD, WIDTH)
    weights.constant(f"{block}.attn_k_norm.weight", HEAD)


def _gemma4_layer(weights: _PartOfWeights, block: str, width: int) -> None:
    """All but keys and values."""
    for name in ("attn_norm", "ffn_norm"):
        weights.constant(f"{block}.{name}.weight", width)
    for name in ("post_attention_norm", "post_ffw_norm"):  # of what is added
        weights.constant(f"{block}.{name}.weight", width, value=_MIXING)
    weights.matrix(f"{block}.attn_q.weight", 2 * HEAD, width)
    weights.matrix(f"{block}.attn_output.weight", width, 2 * HEAD)
    weights.constant(f"{block}.attn_q_norm.weight", HEAD)
    feed_forward(weights, block, width)
    weights.constant(f"{block}.layer_output_scale.weight", 1)


def _eagle3(writer: ModelWriter, weights: _PartOfWeights, tokens: int, *, shares: bool) -> None:
    """Of a target of the same seed. It looks at its last token, and says what it is."""
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count_kv(2)
    writer.add_array("eagle3.target_layers", LAYERS_READ)
    writer.add_uint32("eagle3.target_hidden_size", WIDTH)
    table, output = weights.random(tokens, WIDTH), weights.random(tokens, WIDTH)
    if not shares:
        writer.add_bool("eagle3.norm_before_residual", True)
        writer.add_bool("eagle3.norm_before_fc", True)
        known = np.sort(np.random.default_rng(2).permutation(tokens)[:NUM_DRAFTED])
        writer.add_tensor("d2t", known.astype(np.int64))
        weights.add("token_embd.weight", table)
        weights.add("output.weight", output[known])
        weights.constant("enc.output_norm.weight", 3 * WIDTH)
    weights.add("fc.weight", 0.5 * weights.random(WIDTH, 3 * WIDTH))
    weights.constant("output_norm.weight", WIDTH)
    block = "blk.0"
    weights.constant(f"{block}.attn_norm.weight", WIDTH)
    weights.constant(f"{block}.attn_norm_2.weight", WIDTH, value=0.2)
    weights.constant(f"{block}.ffn_norm.weight", WIDTH)
    identity = np.concatenate([np.eye(WIDTH), _MIXING * weights.random(WIDTH, WIDTH)], 1)
    for name in "qkv":
        weights.add(f"{block}.attn_{name}.weight", identity)
    weights.add(f"{block}.attn_output.weight", np.eye(WIDTH) / _MIXING)
    feed_forward(weights, block)


def write_medusa_heads(path: Path, target: Path, *, knows_some: bool = False) -> Path:
    """Medusa heads for a made target, which follows its last token: each looks one further.

    knows_some: of the target's tokens, by two residual blocks, in another type.
    """
    from convert_medusa import HeadWeights, write_medusa

    tensors = {one.name: one.data for one in gguf.GGUFReader(target).tensors}
    output = tensors["output.weight"].astype(np.float32)
    follows = np.argmax(tensors["token_embd.weight"] @ output.T, axis=1)
    width, random = output.shape[1], np.random.default_rng(3)
    known = np.sort(random.permutation(len(output))[:3000]) if knows_some else None
    heads = []
    for _ in range(4):
        further = np.zeros_like(output)
        np.add.at(further, follows, output)
        output = further
        residuals = [
            (
                random.normal(0, 0.1 / np.sqrt(width), (width, width)).astype(np.float32),
                random.normal(0, 0.1, width).astype(np.float32),
            )
            for _ in range(1 + knows_some)
        ]
        heads.append(HeadWeights(residuals, output if known is None else output[known]))
    kind = gguf.GGMLQuantizationType.BF16 if knows_some else gguf.GGMLQuantizationType.F32
    write_medusa(path, target, heads, tokens=known, kind=kind)
    return path


_WRITERS: dict[str, Callable[[ModelWriter, _PartOfWeights, int], None]] = {
    "qwen35": _qwen35,
    "gemma4": _gemma4,
    "gemma4-assistant": _gemma4_assistant,
    **dict.fromkeys(_ATTENDING, _attending),
}


Matrix = NDArray[np.float64]
BLOCK_SIZE, MASK = 8, 4000  # tokens at once, and the token of a mask
NUM_CANDIDATES = 4  # of a place of DFlash2
_NUM_LAYERS = 2


class BlockHead(NamedTuple):
    """A head to be made.

    kind: dflash, dspark or dflash2. num_known: tokens that it knows, with a table and an output
    of its own; 0 is all, with its target's. window: of its first layer; 0 is none. is_mrope:
    its positions have several parts. from_anchor: the first row of a block drafts (DSpark).
    is_causal: a place sees those before it only. mask: the token of its masks.
    """

    kind: str = "dflash"
    num_known: int = 0
    window: int = 0
    is_mrope: bool = False
    from_anchor: bool = True
    is_causal: bool = False
    mask: int = MASK


def write_block_head(path: Path, target: Path, made: BlockHead) -> Path:
    """A head of two layers for a made target.

    Behind most tokens that a text comes back to, its masks attend to the last token alone, so
    the first place is right; behind others they attend to what the head has read.
    """
    writer = ModelWriter(path, "dflash")
    tokens = write_common(writer, target, _NUM_LAYERS)
    _write_keys(writer, made)
    weights = Weights(writer, 0)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(target).tensors}
    table, output = (
        tensors[f"{name}.weight"].data.astype(np.float64) for name in ("token_embd", "output")
    )
    seen = _seen_by_masks(table, output, made.mask)
    if made.num_known:
        known = np.sort(np.random.default_rng(2).permutation(tokens)[: made.num_known])
        writer.add_tensor("d2t", known.astype(np.int64))
        weights.add("token_embd.weight", table)
        output = output[known]
        weights.add("output.weight", output)
    fused = np.random.default_rng(0).standard_normal((WIDTH, len(LAYERS_READ) * WIDTH))
    weights.add("fc.weight", fused - np.outer(seen, seen @ fused))
    weights.constant("enc.output_norm.weight", WIDTH)
    weights.constant("output_norm.weight", WIDTH)
    for layer in range(_NUM_LAYERS):
        _layer(weights, f"blk.{layer}")
    _attends_to_last(weights, "blk.0", table[made.mask], seen)
    _attends(weights, "blk.1")
    if made.kind == "dspark":
        writer.add_bool("dflash.sample_from_anchor", made.from_anchor)
        _dspark(weights, table, output)
    elif made.kind == "dflash2":
        _dflash2(writer, weights, tokens)
    writer.finish()
    return path


def _write_keys(writer: ModelWriter, made: BlockHead) -> None:
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count_kv(2)
    writer.add_mask_token_id(made.mask)
    writer.add_array("dflash.target_layers", LAYERS_READ)
    writer.add_uint32("dflash.block_size", BLOCK_SIZE)
    writer.add_bool("dflash.attention.causal", made.is_causal)
    if made.window:
        writer.add_sliding_window(made.window)
        writer.add_sliding_window_pattern([True, False])
    if made.is_mrope:
        writer.add_array("dflash.rope.dimension_sections", [HEAD // 2, 0, 0, 0])


def _seen_by_masks(table: Matrix, output: Matrix, mask: int) -> Matrix:
    """(WIDTH,) a direction in which most tokens of the target's cycles are, and masks not."""
    following = np.argmax(table @ output.T, axis=1)
    reached = np.arange(len(table))
    for _ in range(10):  # 1024 steps
        following = following[following]
        reached = np.unique(following[reached])
    tokens = np.concatenate([table[reached], 4.0 * table[mask][np.newaxis]])
    wanted = np.concatenate([np.ones(len(reached)), [-8.0]])
    found: Matrix = np.linalg.lstsq(tokens, wanted, rcond=None)[0]
    return found / np.linalg.norm(found)


def _layer(weights: Weights, block: str) -> None:
    """All but queries, keys and values."""
    weights.constant(f"{block}.attn_norm.weight", WIDTH)
    weights.constant(f"{block}.ffn_norm.weight", WIDTH)
    weights.matrix(f"{block}.ffn_gate.weight", HIDDEN, WIDTH)
    weights.matrix(f"{block}.ffn_up.weight", HIDDEN, WIDTH)
    down = np.random.default_rng(3).standard_normal((WIDTH, HIDDEN))
    weights.add(f"{block}.ffn_down.weight", 0.01 * down)


def _attends_to_last(weights: Weights, block: str, mask: Matrix, seen: Matrix) -> None:
    slow = np.zeros(2 * HEAD)  # numbers that a position hardly turns
    slow[HEAD // 2 - 1 :: HEAD // 2] = 1.0
    weights.add(f"{block}.attn_q.weight", np.outer(slow, mask))
    weights.add(f"{block}.attn_k.weight", np.outer(slow, seen))
    weights.add(f"{block}.attn_v.weight", np.eye(WIDTH))
    weights.add(f"{block}.attn_output.weight", np.eye(WIDTH))
    for name in ("attn_q_norm", "attn_k_norm"):
        weights.constant(f"{block}.{name}.weight", HEAD, value=2.0)


def _attends(weights: Weights, block: str) -> None:
    for name in "qkv":
        weights.matrix(f"{block}.attn_{name}.weight", 2 * HEAD, WIDTH)
    weights.add(f"{block}.attn_output.weight", 0.3 * np.eye(WIDTH))
    for name in ("attn_q_norm", "attn_k_norm"):
        weights.constant(f"{block}.{name}.weight", HEAD)


def _dspark(weights: Weights, table: Matrix, output: Matrix) -> None:
    """Each place is corrected towards what the target says behind the likeliest one before."""
    weights.add("markov_w1.weight", table)
    weights.add("markov_w2.weight", 16.0 * output)
    weights.matrix("conf_proj.weight", 1, 2 * WIDTH)
    weights.constant("conf_proj.bias", 1, value=0.5)


def _dflash2(writer: ModelWriter, weights: Weights, tokens: int) -> None:
    taps, group, rank = 2, 16, 8
    for key, value in (
        ("conv_kernel_size", taps),
        ("conv_group_size", group),
        ("selector_rank", rank),
        ("selector_top_k", NUM_CANDIDATES),
    ):
        writer.add_uint32(f"dflash.{key}", value)
    weights.matrix("selector_predecessor.weight", tokens, rank)
    weights.matrix("selector_successor.weight", tokens, rank)
    weights.matrix("selector_hidden.weight", rank, WIDTH)
    base = np.zeros((2, taps, WIDTH))
    base[:, 0] = 1.0
    base[:, 1] = 0.05
    for block in ("blk.0", "blk.1"):
        for part in ("attn", "ffn"):
            weights.add(f"{block}.{part}_conv_base", base)
            shape = (2 * taps * WIDTH // group, WIDTH)
            noise = np.random.default_rng(4).standard_normal(shape)
            weights.add(f"{block}.{part}_conv_proj.weight", 0.01 * noise)
