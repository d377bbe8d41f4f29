"""The tensors of a layer, by their names in the file, for each architecture."""

from __future__ import annotations

from shape_pair.shapes import Recurrence, Shape

Sizes = dict[str, tuple[int, ...]]  # (rows, columns) of a matrix, (length,) of a vector


def layer_tensors(shape: Shape, layer: int) -> tuple[Sizes, Sizes]:
    """The matrices that are quantised, and what stays float32.

    layer: counted from 0; num_layers is the head's.
    """
    recurrence = shape.recurrence
    attends = (
        recurrence is None
        or layer == shape.num_layers
        or (layer + 1) % recurrence.interval == 0
    )
    if recurrence is None or attends:
        matrices, vectors = _attention(shape)
    else:
        matrices, vectors = _delta_net(recurrence, shape.width)
    matrices |= _feed_forward(shape)
    second_norm = "post_attention_norm" if shape.architecture == "qwen35" else "ffn_norm"
    vectors |= {"attn_norm.weight": (shape.width,), f"{second_norm}.weight": (shape.width,)}
    if layer == shape.num_layers:
        matrices["nextn.eh_proj"] = (shape.width, 2 * shape.width)
        vectors |= {f"nextn.{part}norm.weight": (shape.width,) for part in "eh"}
    return matrices, vectors


def _attention(shape: Shape) -> tuple[Sizes, Sizes]:
    width, head = shape.width, shape.head_width
    queries, keys = shape.num_heads * head, shape.num_kv_heads * head
    gated = 2 if shape.architecture == "qwen35" else 1
    matrices: Sizes = {
        "attn_q": (gated * queries, width),
        "attn_k": (keys, width),
        "attn_v": (keys, width),
        "attn_output": (width, queries),
    }
    if shape.architecture == "llama":
        return matrices, {}
    if shape.architecture == "qwen2":
        return matrices, {f"attn_{part}.bias": (matrices[f"attn_{part}"][0],) for part in "qkv"}
    return matrices, {f"attn_{part}_norm.weight": (head,) for part in "qk"}


def _delta_net(sizes: Recurrence, width: int) -> tuple[Sizes, Sizes]:
    heads = sizes.num_value_heads
    matrices: Sizes = {
        "attn_qkv": (sizes.mixed, width),
        "attn_gate": (sizes.inner, width),
        "ssm_beta": (heads, width),
        "ssm_alpha": (heads, width),
        "ssm_out": (width, sizes.inner),
    }
    vectors: Sizes = {
        "ssm_conv1d.weight": (sizes.mixed, sizes.taps),
        "ssm_dt.bias": (heads,),
        "ssm_a": (heads,),
        "ssm_norm.weight": (sizes.head_width,),
    }
    return matrices, vectors


def _feed_forward(shape: Shape) -> Sizes:
    return {
        "ffn_gate": (shape.hidden, shape.width),
        "ffn_up": (shape.hidden, shape.width),
        "ffn_down": (shape.width, shape.hidden),
    }
