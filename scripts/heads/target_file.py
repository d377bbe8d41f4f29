"""The parts of a target's GGUF file that heads use."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from localspec.errors import ModelFileError
from localspec.gguf_file.header import read_header
from localspec.gguf_file.shape import ModelShape

EMBEDDING = ("token_embd.weight",)
OUTPUT = ("output.weight", *EMBEDDING)  # many targets have one matrix for both


def read_tensor(target: Path, *names: str) -> NDArray[np.float32]:
    """The first of these tensors that the file has, in float32."""
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(target).tensors}
    tensor = next(tensors[name] for name in names if name in tensors)
    values: NDArray[np.float32] = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    return values.astype(np.float32)


def read_number(target: Path, key: str) -> float:
    """A number of the header, named without its architecture."""
    reader = gguf.GGUFReader(target)
    architecture = reader.fields["general.architecture"].contents()
    return float(reader.fields[f"{architecture}.{key}"].contents())


def copy_tokenizer(writer: gguf.GGUFWriter, target: Path) -> None:
    """Give the file in the making its target's tokens."""
    for key, field in gguf.GGUFReader(target).fields.items():
        if key.startswith("tokenizer."):
            items = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], items)


def layers_of(target: Path) -> tuple[int, ...]:
    """The layers whose inputs an EAGLE-3 head reads: as llama.cpp's converter chooses them.

    Empty if libllama does not give them for the target's architecture.
    """
    shape = ModelShape(read_header(target))
    if not shape.architecture.exposes_layer_inputs or shape.row_width != shape.width:
        return ()
    count = shape.num_layers
    return min(2, count - 1), count // 2, max(count - 3, 1)


def require_layers(target: Path) -> None:
    """Raise ModelFileError for a target that no EAGLE-3 head can be trained for."""
    if layers_of(target):
        return
    raise ModelFileError(
        f"{target.name} is of the architecture {read_header(target).architecture!r}: libllama "
        "gives nothing of its layers, of which an EAGLE-3 head reads three",
        "EAGLE-3 heads can be trained for llama, qwen3, gemma4, lfm2 and others of "
        "localspec/gguf_file/architectures.py.",
    )
