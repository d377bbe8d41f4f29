"""LoRA adapters: files that change a model's weights while it computes, each by its scale.

An adapter has two small matrices A and B for each weight W that it changes: the model then
computes with W + scale * B A. libllama checks little of such a file, and one of its failed
assertions ends the process. So the file is compared with its model before libllama opens it.
"""

from __future__ import annotations

import ctypes
import math
import os
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
_SCALE_HINT = f"Give a number from {-LARGEST_SCALE:g} to {LARGEST_SCALE:g}."
USUAL_SCALE = 1.0

_IDENTITY_MARK = ", with adapters"  # begins the adapters' part of a model's identity

# Endings of tensor names: the two matrices of a weight, and tensors that libllama ignores.
_MATRIX_A = ".lora_a"
_MATRIX_B = ".lora_b"
_IGNORED = "_norm.weight"
_EMBEDDINGS = "token_embd.weight"
_OUTPUT = "output.weight"
_ALPHA_KEY = "adapter.lora.alpha"
_ALORA_KEY = "adapter.alora.invocation_tokens"
# libllama ends the process if an adapter changes a feed-forward weight of this type.
_UNSUPPORTED_FFN_TYPE = "NVFP4"
# libllama's graph of an architecture with recurrent states has room for 32 nodes for each
# tensor of the model. Here adapters may use 16 of them; each pair of matrices needs 6.
_NODES_PER_PAIR = 6
_NODES_PER_TENSOR = 16
_NUM_DIMENSIONS = 4  # of every tensor in ggml
_MAX_LISTED_FAULTS = 3  # in an error


class AdapterFile(NamedTuple):
    """An adapter that fits its model."""

    header: Header

    scale: float
    """The factor of its product B A, unless an answer's options state another scale."""

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self.header.path

    @property
    def title(self) -> str:
        """The file's name, followed by the scale in brackets if it is not 1."""
        if self.scale == USUAL_SCALE:
            return self.path.name
        return f"{self.path.name} ({self.scale:g})"


def checked_scale(scale: object) -> float:
    """The scale, rounded to the 32-bit float that libllama keeps.

    Raises OptionError unless it is a number from -LARGEST_SCALE to LARGEST_SCALE.
    """
    is_number = isinstance(scale, int | float) and not isinstance(scale, bool)
    if not (is_number and abs(scale) <= LARGEST_SCALE):  # type: ignore[arg-type]
        raise OptionError(f"the scale of an adapter is {scale!r:.80}", _SCALE_HINT)
    return ctypes.c_float(scale).value  # type: ignore[arg-type]


def adapters_identity(digests: Sequence[str], scales: Sequence[float]) -> str:
    """The text that a model's adapters add to its identity; "" if no adapter is used.

    Args:
        digests: A digest of each adapter's file, from `FileContent.digest`.
        scales: The adapters' scales, in the same order. An adapter with the scale 0 is not
            used, nor is an adapter beyond the end of `scales`.
    """
    used = []
    for digest, scale in zip(digests, scales, strict=False):
        if scale != 0:
            used.append(f"{digest} times {scale!r}")
    if used:
        return f"{_IDENTITY_MARK} {', '.join(used)}"
    return ""


def has_adapters(identity: str, adapters: str) -> bool:
    """Whether a model's identity names these adapters, or none if `adapters` is empty.

    Args:
        identity: The model's identity.
        adapters: The text from `adapters_identity`.
    """
    if adapters:
        return adapters in identity
    return _IDENTITY_MARK not in identity


def split_scale(text: str) -> tuple[str, float]:
    """The file and the scale of FILE=SCALE or FILE, whose scale is 1.

    Raises OptionError for a scale out of range.
    """
    file, _, number = text.rpartition("=")
    try:
        scale = float(number)
    except ValueError:
        return text, USUAL_SCALE  # there is no "=", or it is a part of the file's name
    if file:
        return file, checked_scale(scale)
    return text, USUAL_SCALE  # the file's name is a number


def read_adapter(path: str | os.PathLike[str]) -> Header:
    """The header of a LoRA adapter's file.

    Raises:
        ModelFileError: The file does not exist, is damaged, or is no LoRA adapter.
        OptionError: It is an activated LoRA (aLoRA).
    """
    header = read_header(Path(path))
    return checked_adapter(header)


def checked_adapter(header: Header) -> Header:
    """Check that a header is that of a usable LoRA adapter. Raises as `read_adapter`.

    Returns the header with its file as the only one of its `parts`.
    """
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
    if _ALORA_KEY in metadata:
        raise OptionError(
            f"{path} is an activated LoRA (aLoRA): it counts only behind certain tokens of a "
            "prompt, which localspec cannot do",
            "Choose an adapter that always counts.",
        )
    faults = _faults(header)
    if faults:
        listed = "; ".join(faults[:_MAX_LISTED_FAULTS])
        raise ModelFileError(f"{path} is damaged: {listed}", "Download or convert it again.")
    return replace(header, parts=(header,))


def _faults(header: Header) -> list[str]:
    """What is wrong with an adapter's file, whatever its model: a sentence for each fault."""
    faults = []
    if header.kinds.get(_ALPHA_KEY, FLOAT32) != FLOAT32:
        faults.append(f"its {_ALPHA_KEY} is not a 32-bit float")
    alpha = header.metadata.get(_ALPHA_KEY, 1.0)
    if isinstance(alpha, float) and not math.isfinite(alpha):
        faults.append(f"its {_ALPHA_KEY} is {alpha}")
    if not header.tensors:
        faults.append("it has no weights")
    faults += _tensor_faults(header)
    for weight, pair in _pairs(header).items():
        if len(pair) < 2:
            faults.append(f"{weight} has one of its two matrices")
    return faults


def _tensor_faults(header: Header) -> list[str]:
    """What is wrong with an adapter's tensors: a sentence for each fault.

    A fault is a name that two tensors have, a name or type that no adapter's tensor has, or a
    tensor that reaches beyond the end of the file.
    """
    faults = []
    names = set()
    for tensor in header.tensors:
        name = tensor.name
        if name in names:
            faults.append(f"it has two tensors {name}")
        names.add(name)
        if not name.endswith((_MATRIX_A, _MATRIX_B, _IGNORED)):
            faults.append(f"{name} is no tensor of an adapter")
        num_bytes = stored_bytes(tensor.kind, tensor.shape)
        if num_bytes is None:
            faults.append(f"{name} is of type {type_name(tensor.kind)}, no adapter's")
        elif tensor.offset + num_bytes > header.size_bytes:
            faults.append(f"{name} reaches beyond the end of the file")
    return faults


def changed_weights(header: Header) -> list[str]:
    """The names of the model's weights that an adapter changes."""
    return list(_pairs(header))


def _pairs(header: Header) -> dict[str, dict[str, Tensor]]:
    """An adapter's matrices by the name of the weight that they change, then by ending.

    A damaged adapter may have only one matrix of a pair.
    """
    pairs: dict[str, dict[str, Tensor]] = {}
    for tensor in header.tensors:
        for ending in (_MATRIX_A, _MATRIX_B):
            if tensor.name.endswith(ending):
                weight = tensor.name.removesuffix(ending)
                pair = pairs.setdefault(weight, {})
                pair[ending] = tensor
    return pairs


def check_adapters(adapters: Sequence[Header], target: Header) -> None:
    """Raise PairError if an adapter does not fit the model, or if they are too many for it.

    Args:
        adapters: Headers from `read_adapter`.
        target: The model's header, from `check_model_file`.
    """
    num_pairs = 0
    for adapter in adapters:
        misfit = _adapter_misfit(adapter, target)
        if misfit:
            raise PairError(
                f"{adapter.path} is no adapter for {target.path.name}: {misfit}",
                "Choose an adapter that was made for this very model.",
            )
        num_pairs += len(_pairs(adapter))
    if not ModelShape(target).architecture.has_state:
        return
    max_pairs = len(target.tensors) * _NODES_PER_TENSOR // _NODES_PER_PAIR
    if num_pairs > max_pairs:
        raise PairError(
            f"the adapters change {num_pairs} weights of {target.path.name}; libllama has room "
            f"for {max_pairs}",
            "Use fewer adapters at once.",
        )


def _adapter_misfit(adapter: Header, target: Header) -> str:
    """Why an adapter cannot change this model, in words; "" if it can."""
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
        if ".ffn_" in name and type_name(weight.kind) == _UNSUPPORTED_FFN_TYPE:
            return (
                f"libllama takes no adapter for weights of type {_UNSUPPORTED_FFN_TYPE}, "
                f"as {name} is"
            )
        if name == _EMBEDDINGS and _OUTPUT not in weights:
            return (
                f"it changes {name}, which is the model's output layer, too, and libllama "
                "cannot do that"
            )
        misfit = _shape_misfit(name, weight, pair)
        if misfit:
            return misfit
    return ""


def _shape_misfit(name: str, weight: Tensor, pair: Mapping[str, Tensor]) -> str:
    """Why the product B A cannot be added to a weight, in words; "" if it can.

    A shape begins with the length of a row. A weight of the shape (inputs, outputs) takes
    A (inputs, rank) and B (rank, outputs). The embeddings (width, tokens) take
    A (rank, tokens) and B (rank, width). Each expert has matrices of its own.
    """
    inputs, outputs, *experts = _four_dimensions(weight.shape)
    a_row, a_rows, *a_experts = _four_dimensions(pair[_MATRIX_A].shape)
    b_row, b_rows, *b_experts = _four_dimensions(pair[_MATRIX_B].shape)
    if name == _EMBEDDINGS:
        a_rank = a_row
        product_fits = a_rows == outputs and b_rows == inputs
    else:
        a_rank = a_rows
        product_fits = a_row == inputs and b_rows == outputs
    have_same_rank = a_rank == b_row
    have_same_experts = a_experts == b_experts == experts
    if product_fits and have_same_rank and have_same_experts:
        return ""
    pair_shapes = " and ".join(_shape_text(matrix.shape) for matrix in pair.values())
    weight_shape = _shape_text(weight.shape)
    return f"its matrices for {name} are {pair_shapes}, and the weight is {weight_shape}"


def _four_dimensions(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape with ones added up to ggml's four dimensions."""
    num_missing = _NUM_DIMENSIONS - len(shape)
    return shape + (1,) * num_missing


def _shape_text(shape: tuple[int, ...]) -> str:
    """The shape as in "64 x 128"."""
    return " x ".join(map(str, shape))
