"""Is this file a model we can run? Answered from its header, before libllama maps it."""

from __future__ import annotations

import re
from pathlib import Path

from localspec.errors import ModelFileError
from localspec.header import Header, read_header

_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_NOT_TEXT_MODELS = {
    "clip": "an image encoder",
    "t5encoder": "an encoder",
    "wavtokenizer-dec": "a vocoder",
}


def check_model_file(path: Path) -> Header:
    """The header of a text generation model, its other parts found beside it.

    Raises ModelFileError if the file is something else, or a part is missing.
    """
    header = read_header(path)
    _check_parts(header)
    if header.num_tensors == 0:
        raise ModelFileError(
            f"{path} holds a vocabulary and no weights", "Choose the file of the whole model."
        )
    kind = header.metadata.get("general.type", "model")
    if kind != "model":
        raise ModelFileError(
            f"{path} holds a {kind}, not a model", "Choose the model's own file."
        )
    architecture = header.architecture
    if architecture in _NOT_TEXT_MODELS:
        raise ModelFileError(
            f"{path} is {_NOT_TEXT_MODELS[architecture]}", "Choose a text generation model."
        )
    if (
        header.metadata.get(f"{architecture}.attention.causal") is False
        or header.number(f"{architecture}.pooling_type") > 0
    ):
        raise ModelFileError(f"{path} is an embedding model", "Choose a text generation model.")
    if header.metadata.get("tokenizer.ggml.model", "none") in ("none", "no_vocab"):
        raise ModelFileError(f"{path} has no tokenizer", "Convert it again with its tokenizer.")
    return header


def _check_parts(header: Header) -> None:
    """A split model is named by its first part; the others lie beside it."""
    count = header.number("split.count")
    if count <= 1:
        return
    named = _PART.search(header.path.name)
    if named is None or int(named[2]) != count:
        raise ModelFileError(
            f"{header.path} is one of {count} parts but is not named so",
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
    for part in parts[1:]:
        read_header(part)
