"""Writes small GGUF models with random weights and somebody else's tokenizer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from model_writer import ModelWriter, Stated

Value = bool | int | float | str | list[int] | list[float] | list[str]
_LETTERS = ("▁", *"abcdefghijklmnopqrstuvwxyz<>/:.!")
_BASE = ("<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *_LETTERS)


class Weights:
    """Adds tensors to a file. quantization: the type of those with rows."""

    def __init__(self, writer: ModelWriter, seed: int, quantization: str = "F32") -> None:
        self._writer = writer
        self._random = np.random.default_rng(seed)
        self._kind = gguf.GGMLQuantizationType[quantization]

    def matrix(self, name: str, *shape: int) -> None:
        """A random one, the length of a row last."""
        self.add(name, self.random(*shape))

    def random(self, *shape: int) -> NDArray[np.float64]:
        """What `matrix` would add."""
        return self._random.standard_normal(shape) / np.sqrt(shape[-1])

    def constant(self, name: str, *shape: int, value: float = 1.0) -> None:
        """All of one value."""
        self.add(name, np.full(shape, value))

    def add(self, name: str, values: NDArray[np.float64]) -> None:
        """These values."""
        kind = self._kind if values.ndim > 1 else gguf.GGMLQuantizationType.F32
        self._writer.quantized(name, values.astype(np.float32), kind)


def write_random_model(
    path: Path,
    tokenizer_of: Path,
    *,
    architecture: str = "llama",
    width: int = 64,
    num_layers: int = 1,
    context_length: int = 2048,
    seed: int = 0,
    quantization: str = "F32",
    num_experts: int = 0,
    num_padding: int = 0,
    replace_tokens: dict[int, str] | None = None,
    drop: tuple[str, ...] = (),
    extra: Mapping[str, Value] | None = None,
    beside: tuple[str, ...] = (),
) -> Path:
    """A model of `num_layers` layers of `width`, random and so unrelated to any other.

    architecture: llama, qwen3, qwen2vl, qwen3vl, mamba, or gemma3, which has a sliding window
    if `extra` states one. Labels of a classifier there give it an output layer for them.
    quantization: of the matrices. num_experts: in each layer, of which a token takes two; 0
    for a dense model.
    num_padding: ids added after the vocabulary. replace_tokens: ids given another text. drop:
    metadata keys to leave out. extra: to add, or to state instead. beside: names of further
    tensors.
    """
    writer = ModelWriter(path, architecture)
    tokens = copy_tokenizer(
        writer, tokenizer_of, num_padding=num_padding, replace_tokens=replace_tokens, drop=drop
    )
    num_heads, hidden = width // 32, 2 * width
    stated = Stated(
        context_length=context_length,
        width=width,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        hidden=hidden,
        head_width=32 if architecture == "gemma3" else None,
        num_turned=32,
        epsilon=1e-5,
    )
    writer.describe(stated)
    add_keys(writer, extra or {})
    if num_experts:
        writer.add_expert_count(num_experts)
        writer.add_expert_used_count(2)

    weights = Weights(writer, seed, quantization)
    weights.matrix("token_embd.weight", tokens, width)
    weights.constant("output_norm.weight", width)
    weights.matrix("output.weight", tokens, width)
    if labels := (extra or {}).get(f"{architecture}.classifier.output_labels"):
        weights.matrix("cls.output.weight", len(labels), width)
    for layer in range(num_layers):
        block = f"blk.{layer}"
        weights.constant(f"{block}.attn_norm.weight", width)
        if architecture == "mamba":
            _add_mamba_layer(weights, block, width)
        else:
            _add_attention_layer(weights, architecture, block, width)
            _add_feed_forward(weights, block, width, num_experts)
    for name in beside:
        weights.constant(name, width)
    if architecture == "mamba":
        writer.add_ssm_conv_kernel(4)
        writer.add_ssm_inner_size(2 * width)
        writer.add_ssm_state_size(16)
        writer.add_ssm_time_step_rank(4)
    writer.finish()
    return path


def add_keys(writer: ModelWriter, values: Mapping[str, Value]) -> None:
    """Add these to a header, numbers in 32 bits."""
    adders: dict[type, Callable[..., None]] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    for key, value in values.items():
        adders[type(value)](key, value)


def write_blurred(path: Path, model: Path, noise: float) -> Path:
    """A copy of a model of IQ4_NL that agrees with it the less often the larger the noise is.

    noise: standard deviation of the factors by which blocks of its weights are off.
    """
    random = np.random.default_rng(0)
    path.write_bytes(model.read_bytes())
    for tensor in gguf.GGUFReader(path, "r+").tensors:
        if tensor.tensor_type == gguf.GGMLQuantizationType.IQ4_NL:
            # A block is a scale of 2 bytes and 32 weights of 4 bits.
            scales = tensor.data.reshape(-1, 18)[:, :2]
            exact = np.ascontiguousarray(scales).view(np.float16)
            factors = 1 + noise * random.standard_normal(exact.shape)
            scales[:] = (exact * factors).astype(np.float16).view(np.uint8)
    return path


def _add_attention_layer(weights: Weights, architecture: str, block: str, width: int) -> None:
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        weights.matrix(f"{block}.{name}.weight", width, width)
    weights.constant(f"{block}.ffn_norm.weight", width)
    if architecture in ("gemma3", "qwen3", "qwen3vl"):
        for name in ("attn_q_norm", "attn_k_norm"):
            weights.constant(f"{block}.{name}.weight", 32)
    if architecture == "gemma3":
        for name in ("post_attention_norm", "post_ffw_norm"):
            weights.constant(f"{block}.{name}.weight", width)


def _add_feed_forward(weights: Weights, block: str, width: int, num_experts: int) -> None:
    kind, experts = ("_exps", (num_experts,)) if num_experts else ("", ())
    if num_experts:
        weights.matrix(f"{block}.ffn_gate_inp.weight", num_experts, width)
    for name in ("gate", "up"):
        weights.matrix(f"{block}.ffn_{name}{kind}.weight", *experts, 2 * width, width)
    weights.matrix(f"{block}.ffn_down{kind}.weight", *experts, width, 2 * width)


def _add_mamba_layer(weights: Weights, block: str, width: int) -> None:
    inner, state, rank = 2 * width, 16, 4
    weights.matrix(f"{block}.ssm_in.weight", 2 * inner, width)
    weights.matrix(f"{block}.ssm_conv1d.weight", inner, 4)
    weights.constant(f"{block}.ssm_conv1d.bias", inner)
    weights.matrix(f"{block}.ssm_x.weight", rank + 2 * state, inner)
    weights.matrix(f"{block}.ssm_dt.weight", inner, rank)
    weights.constant(f"{block}.ssm_dt.bias", inner)
    weights.constant(f"{block}.ssm_a", inner, state, value=-1.0)
    weights.constant(f"{block}.ssm_d", inner)
    weights.matrix(f"{block}.ssm_out.weight", width, inner)


def copy_tokenizer(
    writer: ModelWriter,
    source: Path,
    *,
    num_padding: int = 0,
    replace_tokens: dict[int, str] | None = None,
    drop: tuple[str, ...] = (),
) -> int:
    """Copy every tokenizer field of `source`; the number of tokens written."""
    num_tokens = 0
    replace_tokens = replace_tokens or {}
    stat = source.stat()
    for key, (value, kinds) in _tokenizer_of(source, stat.st_mtime_ns, stat.st_size).items():
        if key in drop:
            continue
        if key == "tokenizer.ggml.tokens":
            value = [replace_tokens.get(i, text) for i, text in enumerate(value)]
            value += [f"[PAD{len(value) + i}]" for i in range(num_padding)]
            num_tokens = len(value)
        elif key == "tokenizer.ggml.token_type":
            value = list(value) + [int(gguf.TokenType.UNUSED)] * num_padding
        elif key == "tokenizer.ggml.scores":
            value = list(value) + [0.0] * num_padding
        _add_field(writer, key, value, kinds)
    return num_tokens


def _add_field(
    writer: ModelWriter, key: str, value: Any, kinds: list[gguf.GGUFValueType]
) -> None:
    writer.add_key_value(key, value, kinds[0], kinds[1] if len(kinds) > 1 else None)


@functools.lru_cache(maxsize=8)
def _tokenizer_of(
    source: Path, _changed_ns: int, _num_bytes: int
) -> dict[str, tuple[Any, list[gguf.GGUFValueType]]]:
    """Values and types of its fields: gguf takes 0.2 s to read those of the demo."""
    return {
        key: (field.contents(), field.types)
        for key, field in gguf.GGUFReader(source).fields.items()
        if key.startswith("tokenizer.")
    }


def write_spm_model(
    path: Path, *, more: tuple[str, ...] = (), **kinds: tuple[str, ...]
) -> Path:
    """A random model with a small vocabulary of SentencePiece's kind, as Llama 2 had it.

    It begins texts with a space, and spells in bytes what has no token: the letters do.
    more, kinds: as for `write_spm_tokenizer`.
    """
    tokenizer, _ = write_spm_tokenizer(path.with_suffix(".tokenizer.gguf"), more, **kinds)
    return write_random_model(path, tokenizer)


def write_scripted_model(
    path: Path,
    script: dict[str, str],
    *,
    control: tuple[str, ...] = (),
    user_defined: tuple[str, ...] = (),
    template: str | None = None,
) -> Path:
    """A model that says after each token what the script has there, else its end token.

    Layers add nothing to an embedding of one number, and the output looks for the one that
    follows. Vocabulary as for `write_spm_model`, without a space before texts, and with the
    script's tokens.
    """
    named = {*control, *user_defined, *_BASE}
    more = dict.fromkeys(text for text in (*script, *script.values()) if text not in named)
    tokenizer, tokens = write_spm_tokenizer(
        path.with_suffix(".tokenizer.gguf"),
        tuple(more),
        control=control,
        user_defined=user_defined,
        space_prefix=False,
    )
    width = -(-len(tokens) // 64) * 64
    follows = np.full(len(tokens), tokens.index("</s>"))
    for text, following in script.items():
        follows[tokens.index(text)] = tokens.index(following)
    embedding = np.eye(len(tokens), width, dtype=np.float32)
    output = np.zeros((len(tokens), width), dtype=np.float32)
    output[follows, np.arange(len(tokens))] = 1
    writer = ModelWriter(path, "llama")
    copy_tokenizer(writer, tokenizer)
    if template is not None:
        writer.add_chat_template(template)
    stated = Stated(
        context_length=2048,
        width=width,
        num_layers=1,
        num_heads=width // 64,
        num_kv_heads=width // 64,
        hidden=64,
        num_turned=64,
        epsilon=1e-5,
    )
    finish_follower(writer, stated, embedding, output)
    return path


def finish_follower(
    writer: ModelWriter,
    stated: Stated,
    embedding: NDArray[np.float32],
    output: NDArray[np.float32],
) -> None:
    """Write a model whose one layer adds nothing: the output finds the token that follows."""
    writer.describe(stated)
    writer.add_tensor("token_embd.weight", embedding)
    writer.add_tensor("output.weight", output)
    width, hidden = stated.width, stated.hidden
    inner = stated.num_heads * stated.head_width if stated.head_width else width
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(width, dtype=np.float32))
    for name, *shape in (
        *((f"attn_{kind}", inner, width) for kind in ("q", "k", "v")),
        ("attn_output", width, inner),
        *((f"ffn_{kind}", hidden, width) for kind in ("gate", "up")),
        ("ffn_down", width, hidden),
    ):
        writer.add_tensor(f"blk.0.{name}.weight", np.zeros(shape, dtype=np.float32))
    writer.finish()


def write_spm_tokenizer(
    path: Path,
    more: tuple[str, ...],
    *,
    control: tuple[str, ...] = (),
    user_defined: tuple[str, ...] = (),
    space_prefix: bool = True,
) -> tuple[Path, list[str]]:
    """A file with nothing but a tokenizer, and its tokens.

    more: further tokens, the first of them the likeliest.
    control, user_defined: further tokens of these types, after all others.
    """
    tokens = [*_BASE, *more, *control, *user_defined]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (len(_LETTERS) + len(more))]
    kinds += [3] * len(control) + [4] * len(user_defined)
    writer = ModelWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_scores([-float(rank) for rank in range(len(tokens))])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(space_prefix)
    writer.finish()
    return path, tokens


def with_template(
    source: Path, path: Path, template: str, tool_template: str | None = None
) -> Path:
    """`source` with another chat template, and perhaps one for tools."""
    reader = gguf.GGUFReader(source)
    writer = ModelWriter(path, _architecture(reader))
    _copy_fields(writer, reader, apart=("tokenizer.chat_template",))
    writer.add_chat_template(template)
    if tool_template is not None:
        named = {"name": "tool_use", "template": tool_template}
        writer.add_chat_template([named])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.finish()
    return path


def _copy_fields(
    writer: ModelWriter,
    reader: gguf.GGUFReader,
    *,
    apart: tuple[str, ...] = (),
    new_ids: NDArray[np.int64] | None = None,
) -> None:
    """What a file states, but for its version and what is apart. new_ids: by old id."""
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", *apart):
            continue
        value = field.contents()
        if new_ids is not None and key.endswith("_token_id"):
            value = int(new_ids[value])
        _add_field(writer, key, value, field.types)


def split_model(source: Path, folder: Path, *, in_first: tuple[str, ...] = ()) -> Path:
    """`source` as two parts in `folder`; the path of the first.

    in_first: names of the tensors in the first part; every other tensor, if none is named.
    """
    reader = gguf.GGUFReader(source)
    if not in_first:
        in_first = tuple(tensor.name for tensor in reader.tensors[::2])
    for number in (0, 1):
        path = folder / f"split-0000{1 + number}-of-00002.gguf"
        writer = ModelWriter(path, _architecture(reader))
        if number == 0:
            _copy_fields(writer, reader)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", 2)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in reader.tensors:
            if (tensor.name in in_first) == (number == 0):
                writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.finish()
    return folder / "split-00001-of-00002.gguf"


def _architecture(reader: gguf.GGUFReader) -> str:
    return str(reader.fields["general.architecture"].contents())
