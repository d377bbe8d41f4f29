"""Checks by its header that a file is a model we can run, before libllama maps it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from localspec.errors import ModelFileError, ModelNotFoundError
from localspec.gguf_file.architectures import HeadGraph
from localspec.gguf_file.head_widths import faulty_states, faulty_widths
from localspec.gguf_file.header import Header, Value, read_header
from localspec.gguf_file.shape import ModelShape
from localspec.gguf_file.tensor_types import NOT_MULTIPLIED, type_name

_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_NOT_TEXT_MODELS = {
    "clip": "an image encoder",
    "t5encoder": "an encoder",
    "wavtokenizer-dec": "a vocoder",
}
# How names of encoders' tensors begin in GGUF files (tools/mtmd/clip-impl.h); libllama's
# models have no such names.
_ENCODER_SIGNS = ("v.", "mm.", "a.", "vision", "resampler.")
# The least and largest numbers that libllama asserts, or computes with unchecked.
_BOUNDS = {
    "block_count": (1, 512),
    "context_length": (1, 2**31 - 1),
    "embedding_length": (1, 2**24),
    "attention.head_count": (0, 2**16),
    "attention.head_count_kv": (0, 2**16),
    "attention.layer_norm_epsilon": (0.0, 1.0),
    "attention.layer_norm_rms_epsilon": (0.0, 1.0),
    "attention.group_norm_epsilon": (0.0, 1.0),
    "expert_count": (0, 1024),
    "pooling_type": (0, 4),
}
# In names of tensors that hold ids of tokens or experts.
_TABLES = ("d2t", "t2d", "tid2eid")
_ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")


def check_model_file(path: Path) -> Header:
    """The header of a text generation model, with the tensors of all its parts.

    Raises ModelFileError if the file is something else, a part is missing, or its numbers or
    its vocabulary would end the process inside libllama.
    """
    return check_parts(_all_parts(path))


def check_embedder_file(path: Path) -> Header:
    """The same for a model that may embed texts; whether it does, libllama finds out."""
    return check_parts(_all_parts(path), embeds=True)


def _all_parts(path: Path) -> list[Header]:
    first = read_header(path)
    try:
        return [first, *(read_header(part) for part in _other_parts(first))]
    except ModelNotFoundError as error:
        raise ModelFileError(
            f"{path} is the first of {first.number('split.count')} parts, and {error}",
            "Fetch all parts into one folder.",
        ) from error


def check_parts(parts: Sequence[Header], *, embeds: bool = False) -> Header:
    """The header of a model's first part, with the tensors of all parts.

    Raises ModelFileError as `check_model_file` does.
    """
    tensors = tuple(tensor for part in parts for tensor in part.tensors)
    header = replace(parts[0], tensors=tensors, parts=tuple(parts))
    path = header.path
    if not tensors:
        raise ModelFileError(
            f"{path} holds a vocabulary and no weights", "Choose the file of the whole model."
        )
    kind = header.metadata.get("general.type", "model")
    if kind != "model":
        raise ModelFileError(
            f"{path} is of type {kind!r}, not a model", "Choose the model's own file."
        )
    architecture = header.architecture
    if architecture in _NOT_TEXT_MODELS:
        raise ModelFileError(
            f"{path} is {_NOT_TEXT_MODELS[architecture]}", "Choose a text generation model."
        )
    _check_text_alone(header)
    if not embeds:
        _check_generates(header)
    if header.metadata.get("tokenizer.ggml.model", "none") in ("none", "no_vocab"):
        raise ModelFileError(f"{path} has no tokenizer", "Convert it again with its tokenizer.")
    for faults in (
        *(_faulty_numbers, _faulty_heads, _faulty_parts, _faulty_tokens, faulty_states),
        _faulty_weights,
    ):
        for fault in faults(header):
            raise ModelFileError(f"{path} is damaged: {fault}", "Download or convert it again.")
    _check_stated_head(header)
    return header


def _check_generates(header: Header) -> None:
    """Raise ModelFileError for an embedding model."""
    looks_ahead = header.metadata.get(f"{header.architecture}.attention.causal") is False
    is_block_head = ModelShape(header).architecture.head_graph is HeadGraph.BLOCK
    if (looks_ahead and not is_block_head) or header.number(
        f"{header.architecture}.pooling_type"
    ) > 0:
        raise ModelFileError(
            f"{header.path} is an embedding model",
            "Choose a text generation model; load_embedder(MODEL) opens this one.",
        )


def _check_text_alone(header: Header) -> None:
    """Raise ModelFileError if there is an encoder in the language model's file.

    Ollama stores some models that way. llama.cpp, which has encoders in files of their own,
    refuses the file because of tensors that it does not expect.
    """
    beside = [one.name for one in header.tensors if one.name.startswith(_ENCODER_SIGNS)]
    if beside:
        kind = "an audio" if all(name.startswith("a.") for name in beside) else "an image"
        raise ModelFileError(
            f"{header.path} holds {kind} encoder beside its language model ({len(beside)} "
            f"tensors, the first is {beside[0]}), as Ollama's files do: llama.cpp refuses "
            "such a file",
            "Use the language model by itself, as repositories of the hub have it beside "
            "an mmproj file: localspec download owner/repo:Q4_K_M.",
        )


def _faulty_numbers(header: Header) -> Iterator[str]:
    """What is wrong with the numbers of the model's shape."""

    def stated(key: str) -> Value:
        return header.metadata.get(f"{header.architecture}.{key}")

    for key, (least, largest) in _BOUNDS.items():
        for number in _numbers(stated(key)):
            if not least <= number <= largest:  # written so that NaN is refused
                yield f"its {key} is {number}, not between {least} and {largest}"
    scaling = stated("rope.scaling.type")
    if isinstance(scaling, str) and scaling not in _ROPE_SCALINGS:
        yield f"its rope.scaling.type is {scaling!r}, not one of {', '.join(_ROPE_SCALINGS)}"


def _faulty_heads(header: Header) -> Iterator[str]:
    """Numbers of attention heads that do not divide each other."""
    stated = f"{header.architecture}.attention."
    heads = _numbers(header.metadata.get(f"{stated}head_count"))
    kv_heads = _numbers(header.metadata.get(f"{stated}head_count_kv"))
    pairs = zip(heads, kv_heads, strict=False)  # libllama itself refuses other lengths
    one_for_all = 1 in (len(heads), len(kv_heads))
    for head, kv_head in product(heads, kv_heads) if one_for_all else pairs:
        if kv_head > 0 and head % kv_head:
            yield f"its {head} attention heads cannot share {kv_head} of keys and values"
    width = header.number(f"{header.architecture}.embedding_length")
    by_width = len(heads) == 1 and f"{stated}key_length" not in header.metadata
    if by_width and heads[0] > 0 and width % heads[0]:
        yield f"its width of {width} cannot be divided among {heads[0]} attention heads"
    if heads:
        yield from faulty_widths(header, int(heads[0]))


def _faulty_parts(header: Header) -> Iterator[str]:
    """Numbers of parts that exceed the whole."""
    count = ModelShape(header).most
    if count("nextn_predict_layers") > count("block_count"):
        yield f"{count('nextn_predict_layers')} of its {count('block_count')} layers are of MTP"
    experts, used = count("expert_count"), count("expert_used_count")
    groups, groups_used = count("expert_group_count"), count("expert_group_used_count")
    if header.architecture.startswith("hunyuan") and experts <= 1:
        return  # libllama treats it as a model without experts
    if used > experts or (experts > 0 and used == 0):
        yield f"it uses {used} of its {experts} experts"
    if groups > 0 and (groups >= experts or experts % groups):
        yield f"its {experts} experts are in {groups} groups"
    if groups > 1 and not 0 < groups_used < groups:
        yield f"it uses {groups_used} of its {groups} groups of experts"


def _faulty_tokens(header: Header) -> Iterator[str]:
    """What is wrong with the vocabulary."""
    named = [token for token in header.tokens if token]  # libllama names empty ones itself
    tokens = set(named)
    if len(tokens) < len(named):
        yield f"{len(named) - len(tokens)} of its tokens are duplicates"
    if header.metadata["tokenizer.ggml.model"] == "llama":
        # Text without a token of its own is spelled in bytes.
        missing = [
            byte
            for byte in range(256)
            if b"<0x%02X>" % byte not in tokens and bytes([byte]) not in tokens
        ]
        if missing:
            yield f"its vocabulary lacks {len(missing)} bytes, the first is 0x{missing[0]:02X}"


def _faulty_weights(header: Header) -> Iterator[str]:
    """Weights of types with which libllama's products end the process."""
    for tensor in header.tensors:
        is_table = any(sign in tensor.name for sign in _TABLES)
        if tensor.kind in NOT_MULTIPLIED and not is_table:
            yield f"its {tensor.name} is of the type {type_name(tensor.kind)}"


def _check_stated_head(header: Header) -> None:
    """Raise ModelFileError if libllama would not find the tensors of stated MTP layers."""
    shape = ModelShape(header)
    if shape.num_head_layers == 0 or not shape.architecture.is_head_required:
        return
    needed = f"blk.{shape.num_layers}.nextn.eh_proj.weight"
    if all(tensor.name != needed for tensor in header.tensors):
        raise ModelFileError(
            f"{header.path} states {shape.num_head_layers} MTP layers and lacks their tensors: "
            f"llama.cpp does not load such a file of {header.architecture!r}",
            "Choose a file with its MTP layers, or one that was converted without (--no-mtp).",
        )


def _numbers(value: Value) -> tuple[int | float, ...]:
    """A number of the header, or the numbers of an array."""
    if isinstance(value, tuple):
        return value
    return (value,) if isinstance(value, int | float) else ()


def _other_parts(header: Header) -> list[Path]:
    """The other parts of a split model, which lie beside the first."""
    count = header.number("split.count")
    if count <= 1:
        return []
    named = _PART.search(header.path.name)
    if named is None or int(named[2]) != count:
        raise ModelFileError(
            f"{header.path} is one of {count} parts but is not named as one",
            f"Rename the parts to …-00001-of-{count:05}.gguf and so on.",
        )
    stem = header.path.name[: named.start()]
    parts = [
        header.path.with_name(f"{stem}-{n:05}-of-{count:05}.gguf") for n in range(1, count + 1)
    ]
    if int(named[1]) != 1:
        raise ModelFileError(
            f"{header.path} is part {int(named[1])} of {count}", f"Name {parts[0]}"
        )
    return parts[1:]
