"""What heads take from their target's GGUF file."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

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
