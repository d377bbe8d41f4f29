"""Checks a file's header for a model that localspec can run, before libllama opens the file."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from localspec.errors import ModelFileError, ModelNotFoundError
from localspec.gguf_file.architectures import HeadGraph
from localspec.gguf_file.header import Header, Tensor, read_header
from localspec.gguf_file.shape import ModelShape

_PART_NAME = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")  # ends the name of a split model's file
_NOT_TEXT_MODELS = {
    "clip": "an image encoder",
    "t5encoder": "an encoder",
    "wavtokenizer-dec": "a vocoder",
}
# Prefixes of the names of encoders' tensors (tools/mtmd/clip-impl.h); libllama's models have
# no such names.
_ENCODER_PREFIXES = ("v.", "mm.", "a.", "vision", "resampler.")
_MAX_LAYERS = 512  # libllama's limit; estimates of memory have an entry for each layer


def check_model_file(path: Path, *, embeds: bool = False) -> Header:
    """The header of a text generation model, with the tensors of all its parts.

    Args:
        path: The model's file, or the first file of a split model.
        embeds: Whether an embedding model is allowed, too.

    Raises:
        ModelFileError: If the file holds something else, is damaged, or a part is missing.
    """
    first = read_header(path)
    parts = [first]
    try:
        for part_path in _other_parts(first):
            parts.append(read_header(part_path))
    except ModelNotFoundError as error:
        raise ModelFileError(
            f"{path} is the first of {first.number('split.count')} parts, and {error}",
            "Fetch all parts into one folder.",
        ) from error
    return check_parts(parts, embeds=embeds)


def check_embedder_file(path: Path) -> Header:
    """The header of a model that turns texts into vectors, or scores documents.

    Raises:
        ModelFileError: If the file holds something else, is damaged, or a part is missing.
    """
    header = check_model_file(path, embeds=True)
    if not _is_pooling(header):
        raise ModelFileError(
            f"{path} is not an embedding model: it does not say how a text becomes one vector",
            "Choose an embedding model, whose file has a pooling_type.",
        )
    return header


def _is_pooling(header: Header) -> bool:
    """Whether the model makes one vector of the rows of all tokens, as embedding models do."""
    return header.number(f"{header.architecture}.pooling_type") > 0


def check_parts(parts: Sequence[Header], *, embeds: bool = False) -> Header:
    """The header of a model's first part, with the tensors of all parts.

    Args:
        parts: The headers of all files of the model, the first part first.
        embeds: Whether an embedding model is allowed, too.

    Raises:
        ModelFileError: If the files hold no model for text generation, or a damaged one.
    """
    tensors: list[Tensor] = []
    for part in parts:
        tensors += part.tensors
    header = replace(parts[0], tensors=tuple(tensors), parts=tuple(parts))
    path = header.path
    if not tensors:
        raise ModelFileError(
            f"{path} holds a vocabulary and no weights",
            "Choose the file of the whole model.",
        )
    kind = header.metadata.get("general.type", "model")
    if kind != "model":
        hint = "Choose the model's own file."
        if kind == "adapter":
            hint = "Choose the file of the model that it is for, and give it as adapters=[…]."
        raise ModelFileError(f"{path} is of type {kind!r}, not a model", hint)
    architecture = header.architecture
    if architecture in _NOT_TEXT_MODELS:
        raise ModelFileError(
            f"{path} is {_NOT_TEXT_MODELS[architecture]}",
            "Choose a text generation model.",
        )
    _require_no_encoder(header)
    shape = ModelShape(header)
    if not embeds and _is_embedding_model(header, shape):
        raise ModelFileError(
            f"{path} is an embedding model",
            "Choose a text generation model; load_embedder(MODEL) opens this one.",
        )
    tokenizer = header.metadata.get("tokenizer.ggml.model", "none")
    if tokenizer in ("none", "no_vocab"):
        raise ModelFileError(f"{path} has no tokenizer", "Convert it again with its tokenizer.")
    _require_no_abort(header, shape)
    return header


def _require_no_encoder(header: Header) -> None:
    """Raise ModelFileError for a file that also holds an encoder of images or audio.

    Ollama stores some models so; llama.cpp wants the encoder in a file of its own.
    """
    names = [tensor.name for tensor in header.tensors]
    encoders = [name for name in names if name.startswith(_ENCODER_PREFIXES)]
    if not encoders:
        return
    kind = "an image"
    if all(name.startswith("a.") for name in encoders):
        kind = "an audio"
    raise ModelFileError(
        f"{header.path} holds {kind} encoder beside its language model, as Ollama's files do",
        "llama.cpp needs them in two files: localspec download owner/repo:Q4_K_M.",
    )


def _is_embedding_model(header: Header, shape: ModelShape) -> bool:
    """Whether a model pools, or its tokens attend to later ones and it is no DFlash head."""
    if _is_pooling(header):
        return True
    is_causal = shape.value("attention.causal") is not False
    return not is_causal and shape.architecture.head_graph is not HeadGraph.DFLASH


def _require_no_abort(header: Header, shape: ModelShape) -> None:
    """Raise ModelFileError for a model at which libllama would end the process."""
    faults = []
    min_layers = 1
    if shape.architecture.head_graph is HeadGraph.MEDUSA:  # libllama does not open such a file
        min_layers = 0
    if not min_layers <= shape.num_blocks <= _MAX_LAYERS:
        allowed = f"{min_layers} to {_MAX_LAYERS}"
        faults.append(f"its block_count is {shape.num_blocks}, not {allowed}")
    for key, value in header.metadata.items():
        if key.endswith("_epsilon") and isinstance(value, float):
            is_valid = 0 <= value < math.inf  # False for NaN, too
            if not is_valid:
                faults.append(f"its {key} is {value}, not 0 or more")
    texts = [token for token in header.tokens if token]  # libllama replaces empty texts
    if len(set(texts)) < len(texts):
        faults.append("two of its tokens have the same text")
    if faults:
        raise ModelFileError(
            f"{header.path} is damaged: {'; '.join(faults)}",
            "Download or convert it again.",
        )


def _other_parts(header: Header) -> list[Path]:
    """The paths of a split model's files after the first; empty if it is not split.

    Raises ModelFileError unless the header's file is named as the first part.
    """
    count = header.number("split.count")
    if count <= 1:
        return []
    match = _PART_NAME.search(header.path.name)
    if match is None or int(match[2]) != count:
        raise ModelFileError(
            f"{header.path} is one of {count} parts but is not named as one",
            f"Rename the parts to …-00001-of-{count:05}.gguf and so on.",
        )
    stem = header.path.name[: match.start()]
    parts = []
    for number in range(1, count + 1):
        name = f"{stem}-{number:05}-of-{count:05}.gguf"
        parts.append(header.path.with_name(name))
    part_number = int(match[1])
    if part_number != 1:
        raise ModelFileError(
            f"{header.path} is part {part_number} of {count}",
            f"Name {parts[0]}",
        )
    return parts[1:]
