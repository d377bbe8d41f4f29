"""LoRA adapters: files that change a model's weights while it computes, each by its scale.

Such a file has two small matrices for each weight that it changes, whose product is added to
the weight. libllama takes much of it for granted, and an assertion there ends the process: so
the file is compared with the model that it is for, before libllama sees either.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from localspec.errors import ModelFileError, OptionError, PairError
from localspec.gguf_file.header import FLOAT32, Header, Tensor, read_header
from localspec.gguf_file.shape import ModelShape
from localspec.gguf_file.tensor_types import stored_bytes, type_name

MOST_ADAPTERS = 16  # of a model
LARGEST_SCALE = 1000.0
SCALES = f"Give a number from {-LARGEST_SCALE:g} to {LARGEST_SCALE:g}."
USUAL_SCALE = 1.0

ADAPTED = ", with adapters"  # in a model's identity

# Endings of the names of the two matrices of a weight.
_FIRST = ".lora_a"
_SECOND = ".lora_b"
_LEFT_OUT = "_norm.weight"  # ending of the names of tensors that libllama passes over
_EMBEDDINGS = "token_embd.weight"
_OUTPUT = "output.weight"
_ALPHA = "adapter.lora.alpha"
_CALLS = "adapter.alora.invocation_tokens"
# libllama ends the process where weights of this type in a feed-forward layer have an adapter.
_UNSUITED = "NVFP4"
# libllama's graph of an architecture with recurrent states has room for 32 nodes for each
# tensor of the model. Here adapters may use 16 of them; each pair of matrices needs 6.
_NODES_PER_PAIR = 6
_NODES_PER_TENSOR = 16
_OTHER_MODEL = "Choose an adapter that was made for this very model."


class AdapterFile(NamedTuple):
    """An adapter that fits its model."""

    header: Header

    scale: float
    """The factor of its weights, unless an answer's options state another one."""

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self.header.path

    @property
    def title(self) -> str:
        """The file's name, and the scale if it is not the usual one."""
        if self.scale == USUAL_SCALE:
            return self.path.name
        return f"{self.path.name} ({self.scale:g})"


def checked_scale(scale: object) -> float:
    """A scale as libllama has it: in 32 bits. Raises OptionError for anything but a number."""
    is_number = isinstance(scale, int | float) and not isinstance(scale, bool)
    if not (is_number and abs(scale) <= LARGEST_SCALE):  # type: ignore[arg-type]
        raise OptionError(f"the scale of an adapter is {scale!r:.80}", SCALES)
    rounded: float = struct.unpack("<f", struct.pack("<f", scale))[0]
    return rounded


def adapted(contents: Sequence[str], scales: Sequence[float]) -> str:
    """The part of a model's identity that its adapters add; empty if all are left out.

    Args:
        contents: The digests of their files, as `FileContent.digest` has them.
        scales: Their scales, in the same order. An adapter with the scale 0, or without one, is
            left out.
    """
    used = []
    for content, scale in zip(contents, scales, strict=False):
        if scale != 0:
            used.append(f"{content} times {scale!r}")
    if used:
        return f"{ADAPTED} {', '.join(used)}"
    return ""


def is_adapted(identity: str, words: str) -> bool:
    """Whether the adapters in a model's identity are those of `adapted`."""
    if words:
        return words in identity
    return ADAPTED not in identity


def split_scale(text: str) -> tuple[str, float]:
    """File and scale of FILE or FILE=SCALE. Raises OptionError for a scale out of range."""
    file, _, number = text.rpartition("=")
    try:
        scale = float(number)
    except ValueError:
        return text, USUAL_SCALE  # there is no "=", or it is a part of the file's name
    if file:
        return file, checked_scale(scale)
    return text, USUAL_SCALE


def read_adapter(path: str | os.PathLike[str]) -> Header:
    """The header of an adapter's file.

    Raises:
        ModelFileError: There is no such file, it is damaged, or it is something else.
        OptionError: It is an activated LoRA.
    """
    header = read_header(Path(path))
    return checked_adapter(header)


def checked_adapter(header: Header) -> Header:
    """The header, as that of an adapter. Raises as `read_adapter`."""
    path = header.path
    metadata = header.metadata
    kind = metadata.get("general.type", "model")
    if kind != "adapter":
        raise ModelFileError(
            f"{path} is of type {kind!r}, not an adapter",
            "Choose a LoRA adapter's file; llama.cpp's convert_lora_to_gguf.py makes one.",
        )
    form = metadata.get("adapter.type")
    if form != "lora":
        raise ModelFileError(
            f"{path} is an adapter of type {form!r}, not 'lora'",
            "Choose a LoRA adapter; control vectors cannot be used.",
        )
    if _CALLS in metadata:
        raise OptionError(
            f"{path} is an activated LoRA (aLoRA): it counts only behind certain tokens of a "
            "prompt, which localspec cannot do",
            "Choose an adapter that always counts.",
        )
    faults = _faults(header)
    if faults:
        named = "; ".join(faults[:3])
        raise ModelFileError(f"{path} is damaged: {named}", "Download or convert it again.")
    return replace(header, parts=(header,))


def _faults(header: Header) -> list[str]:
    """The faults of an adapter's file that do not depend on its model, in words."""
    faults = []
    if header.kinds.get(_ALPHA, FLOAT32) != FLOAT32:
        faults.append(f"its {_ALPHA} is not a 32-bit float")
    alpha = header.metadata.get(_ALPHA, 1.0)
    if isinstance(alpha, float) and not math.isfinite(alpha):
        faults.append(f"its {_ALPHA} is {alpha}")
    if not header.tensors:
        faults.append("it has no weights")
    faults += _faults_of_tensors(header)
    for weight, pair in _pairs(header).items():
        if len(pair) < 2:
            faults.append(f"{weight} has one of its two matrices")
    return faults


def _faults_of_tensors(header: Header) -> list[str]:
    """Duplicate names, and tensors that are no adapter's or incomplete, in words."""
    faults = []
    names = set()
    for tensor in header.tensors:
        if tensor.name in names:
            faults.append(f"it has two tensors {tensor.name}")
        names.add(tensor.name)
        if not tensor.name.endswith((_FIRST, _SECOND, _LEFT_OUT)):
            faults.append(f"{tensor.name} is no tensor of an adapter")
        num_bytes = stored_bytes(tensor.kind, tensor.shape)
        if num_bytes is None:
            faults.append(f"{tensor.name} is of type {type_name(tensor.kind)}, no adapter's")
        elif tensor.offset + num_bytes > header.size_bytes:
            faults.append(f"{tensor.name} reaches beyond the end of the file")
    return faults


def changed_weights(header: Header) -> list[str]:
    """The names of the weights that an adapter changes."""
    return list(_pairs(header))


def _pairs(header: Header) -> dict[str, dict[str, Tensor]]:
    """The matrices of each weight that an adapter changes, by their endings."""
    pairs: dict[str, dict[str, Tensor]] = {}
    for tensor in header.tensors:
        for ending in (_FIRST, _SECOND):
            if tensor.name.endswith(ending):
                weight = tensor.name.removesuffix(ending)
                pair = pairs.setdefault(weight, {})
                pair[ending] = tensor
    return pairs


def check_adapters(adapters: Sequence[Header], target: Header) -> None:
    """Raise PairError if one of these adapters is not for this model.

    Args:
        adapters: Headers from `read_adapter`.
        target: The header from `check_model_file`.
    """
    for adapter in adapters:
        why_not = adapter_misfit(adapter, target)
        if why_not:
            raise PairError(
                f"{adapter.path} is no adapter for {target.path.name}: {why_not}",
                _OTHER_MODEL,
            )
    num_pairs = sum(len(_pairs(adapter)) for adapter in adapters)
    most = len(target.tensors) * _NODES_PER_TENSOR // _NODES_PER_PAIR
    if ModelShape(target).architecture.has_state and num_pairs > most:
        raise PairError(
            f"the adapters change {num_pairs} weights of {target.path.name}; libllama has room "
            f"for {most}",
            "Use fewer adapters at once.",
        )


def adapter_misfit(adapter: Header, target: Header) -> str:
    """Why an adapter is not for this model, in words; empty if it is."""
    if adapter.architecture != target.architecture:
        made_for = adapter.architecture or "none"
        return f"it is for the architecture {made_for!r}, not {target.architecture!r}"
    weights = target.by_name()
    shape = ModelShape(target)
    for name, pair in _pairs(adapter).items():
        weight = weights.get(name)
        if weight is None:
            return f"the model has no {name}"
        if shape.is_head_tensor(name):
            return f"it changes {name}, which belongs to the model's head"
        if type_name(weight.kind) == _UNSUITED and ".ffn_" in name:
            return f"libllama takes no adapter for weights of type {_UNSUITED}, as {name} is"
        if name == _EMBEDDINGS and _OUTPUT not in weights:
            return (
                f"it changes {name}, which is the model's output layer, too, and libllama "
                "cannot do that"
            )
        why_not = _shape_misfit(name, weight, pair)
        if why_not:
            return why_not
    return ""


def _shape_misfit(name: str, weight: Tensor, pair: Mapping[str, Tensor]) -> str:
    """Why the product of two matrices cannot be added to a weight, in words, or ""."""
    inner, outer, *experts = _padded(weight.shape)
    first_in, first_out, *first_experts = _padded(pair[_FIRST].shape)
    second_in, second_out, *second_experts = _padded(pair[_SECOND].shape)
    if name == _EMBEDDINGS:  # its first matrix has a row for each token
        first_rank = first_in
        fits = (first_out, second_out) == (outer, inner)
    else:
        first_rank = first_out
        fits = (first_in, second_out) == (inner, outer)
    have_same_rank = first_rank == second_in
    have_same_experts = first_experts == second_experts == experts
    if fits and have_same_rank and have_same_experts:
        return ""
    shapes = " and ".join(_in_words(matrix.shape) for matrix in pair.values())
    return f"its matrices for {name} are {shapes}, and the weight is {_in_words(weight.shape)}"


def _padded(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape with all four dimensions that ggml has."""
    return (*shape, 1, 1, 1)[:4]


def _in_words(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
