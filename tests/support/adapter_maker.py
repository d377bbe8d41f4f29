"""Writes LoRA adapters for the models of tests, and models with an adapter merged into them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import gguf
import numpy as np

_CHANGED = ("attn_q", "attn_v", "attn_output", "ffn_up", "ffn_down")
RANK = 4
ALPHA = 8.0


def write_adapter(
    path: Path,
    model: Path,
    *,
    seed: int = 0,
    strength: float = 0.3,
    architecture: str | None = None,
    kind: str = "adapter",
    form: str = "lora",
    alpha: float | int = ALPHA,
    calls: Collection[int] = (),
    changed: Collection[str] = _CHANGED,
    width_factor: int = 1,
    without: Collection[str] = (),
    beside: Mapping[str, tuple[int, int]] | None = None,
) -> Path:
    """A random adapter for a model.

    strength: of its changes. alpha: a float, or a whole number, which is stored as one. calls:
    tokens of an activated LoRA. changed: parts of the names of the weights that it changes.
    width_factor: times which its matrices are too wide. without: endings of tensors that are
    left out. beside: further tensors, with their shapes.
    """
    reader = gguf.GGUFReader(model)
    writer = gguf.GGUFWriter(path, architecture or architecture_of(reader))
    writer.add_type(kind)
    writer.add_string("adapter.type", form)
    if isinstance(alpha, float):
        writer.add_float32("adapter.lora.alpha", alpha)
    else:
        writer.add_uint32("adapter.lora.alpha", alpha)
    if calls:
        writer.add_array("adapter.alora.invocation_tokens", list(calls))
    for name, (first, second) in pairs_for(
        reader, seed, strength, changed, width_factor
    ).items():
        for ending, values in ((".lora_a", first), (".lora_b", second)):
            if ending not in without:
                writer.add_tensor(f"{name}{ending}", values)
    for name, shape in (beside or {}).items():
        writer.add_tensor(name, np.ones(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def architecture_of(reader: gguf.GGUFReader) -> str:
    """The model's."""
    return str(reader.fields["general.architecture"].contents())


def pairs_for(
    reader: gguf.GGUFReader,
    seed: int,
    strength: float,
    changed: Collection[str] = _CHANGED,
    width_factor: int = 1,
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The two matrices for each weight that is changed: (RANK, in) and (out, RANK)."""
    random = np.random.default_rng(seed)
    pairs = {}
    for tensor in reader.tensors:
        if len(tensor.shape) == 2 and any(f"{part}." in tensor.name for part in changed):
            num_in = int(tensor.shape[0]) * width_factor
            num_out = int(tensor.shape[1])
            first = random.standard_normal((RANK, num_in)) / np.sqrt(num_in)
            second = random.standard_normal((num_out, RANK)) * strength
            pairs[tensor.name] = (first.astype(np.float32), second.astype(np.float32))
    return pairs


def write_merged(
    path: Path, model: Path, adapters: Mapping[int, float], strength: float
) -> Path:
    """A model in F32 whose weights have adapters merged into them.

    adapters: by their seeds, and their scales. strength: as they were written with.
    """
    reader = gguf.GGUFReader(model)
    writer = gguf.GGUFWriter(path, architecture_of(reader))
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            kind = field.types[0]
            sub_kind = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, sub_kind)
    changes = {seed: pairs_for(reader, seed, strength) for seed in adapters}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        for seed, scale in adapters.items():
            if tensor.name in changes[seed]:
                first, second = changes[seed][tensor.name]
                values = values + scale * ALPHA / RANK * (second @ first)
        writer.add_tensor(tensor.name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
