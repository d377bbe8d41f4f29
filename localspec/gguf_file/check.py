"""Checks by its header that a file is a model we can run, before libllama maps it."""

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

_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_NOT_TEXT_MODELS = {
    "clip": "an image encoder",
    "t5encoder": "an encoder",
    "wavtokenizer-dec": "a vocoder",
}
# The prefixes of the names of encoders' tensors (tools/mtmd/clip-impl.h); libllama's models
# have no such names.
_ENCODER_SIGNS = ("v.", "mm.", "a.", "vision", "resampler.")
_MAX_LAYERS = 512  # libllama's limit; estimates have an entry for each layer


def check_model_file(path: Path, *, embeds: bool = False) -> Header:
    """The header of a text generation model, with the tensors of all its parts.

    Args:
        path: The file; of a split model, its first part.
        embeds: Whether an embedding model is allowed, too. That it is one, libllama finds out.

    Raises:
        ModelFileError: If the file is something else or a part is missing.
    """
    first = read_header(path)
    parts = [first]
    try:
        for part in _other_parts(first):
            parts.append(read_header(part))
    except ModelNotFoundError as error:
        raise ModelFileError(
            f"{path} is the first of {first.number('split.count')} parts, and {error}",
            "Fetch all parts into one folder.",
        ) from error
    return check_parts(parts, embeds=embeds)


def check_embedder_file(path: Path) -> Header:
    """The header of a model that turns texts into vectors, or gives documents scores.

    Raises:
        ModelFileError: If the file is something else or a part is missing.
    """
    header = check_model_file(path, embeds=True)
    if not _pools(header):
        raise ModelFileError(
            f"{path} is not an embedding model: it does not say how a text becomes one vector",
            "Choose an embedding model, whose file has a pooling_type.",
        )
    return header


def _pools(header: Header) -> bool:
    """Whether the model makes one vector of a text's rows."""
    return header.number(f"{header.architecture}.pooling_type") > 0


def check_parts(parts: Sequence[Header], *, embeds: bool = False) -> Header:
    """The header of a model's first part, with the tensors of all parts.

    Raises what `check_model_file` raises.

    Args:
        parts: The headers of all files of the model.
        embeds: As in `check_model_file`.
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
    # Ollama stores some models with an encoder, which llama.cpp has in files of their own.
    names = [tensor.name for tensor in tensors]
    encoders = [name for name in names if name.startswith(_ENCODER_SIGNS)]
    if encoders:
        kind = "an image"
        if all(name.startswith("a.") for name in encoders):
            kind = "an audio"
        raise ModelFileError(
            f"{path} holds {kind} encoder beside its language model, as Ollama's files do",
            "llama.cpp needs them in two files: localspec download owner/repo:Q4_K_M.",
        )
    looks_ahead = header.metadata.get(f"{architecture}.attention.causal") is False
    shape = ModelShape(header)
    is_block_head = shape.architecture.head_graph is HeadGraph.BLOCK
    if not embeds and (_pools(header) or (looks_ahead and not is_block_head)):
        raise ModelFileError(
            f"{path} is an embedding model",
            "Choose a text generation model; load_embedder(MODEL) opens this one.",
        )
    if header.metadata.get("tokenizer.ggml.model", "none") in ("none", "no_vocab"):
        raise ModelFileError(f"{path} has no tokenizer", "Convert it again with its tokenizer.")
    _check_what_aborts(header, shape)
    return header


def _check_what_aborts(header: Header, shape: ModelShape) -> None:
    """Raise ModelFileError for faults with which libllama ends the process."""
    faults = []
    fewest = 1
    if shape.architecture.head_graph is HeadGraph.OUTPUT:  # Medusa heads are no layers
        fewest = 0
    if not fewest <= shape.num_blocks <= _MAX_LAYERS:
        faults.append(f"its block_count is {shape.num_blocks}, not {fewest} to {_MAX_LAYERS}")
    for key, value in header.metadata.items():
        if key.endswith("_epsilon") and isinstance(value, float):
            is_valid = 0 <= value < math.inf  # False for NaN, too
            if not is_valid:
                faults.append(f"its {key} is {value}, not 0 or more")
    words = [token for token in header.tokens if token]  # libllama names empty ones itself
    if len(set(words)) < len(words):
        faults.append("two of its tokens have the same text")
    if faults:
        raise ModelFileError(
            f"{header.path} is damaged: {'; '.join(faults)}",
            "Download or convert it again.",
        )


def _other_parts(header: Header) -> list[Path]:
    """The other parts of a split model, which lie in its folder."""
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
    parts = []
    for number in range(1, count + 1):
        name = f"{stem}-{number:05}-of-{count:05}.gguf"
        parts.append(header.path.with_name(name))
    own_number = int(named[1])
    if own_number != 1:
        raise ModelFileError(
            f"{header.path} is part {own_number} of {count}",
            f"Name {parts[0]}",
        )
    return parts[1:]
