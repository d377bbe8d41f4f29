"""Writes Medusa heads into a GGUF file: see `localspec/gguf_file/medusa.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray
from target_file import copy_tokenizer

Array = NDArray[np.float32]


@dataclass(frozen=True)
class HeadWeights:
    """Of one head. residuals: weight (width, width) and bias (width,) of each block.

    output: (tokens, width).
    """

    residuals: Sequence[tuple[Array, Array]]
    output: Array


def write_medusa(
    path: Path,
    target: Path,
    heads: Sequence[HeadWeights],
    *,
    tokens: NDArray[np.int64] | None = None,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F16,
) -> None:
    """Write the heads of the model in the file `target`, whose tokenizer is copied.

    tokens: ids of the rows of the outputs; None if there is a row for each.
    """
    writer = gguf.GGUFWriter(path, "medusa")
    copy_tokenizer(writer, target)
    writer.add_embedding_length(heads[0].output.shape[1])
    writer.add_block_count(len(heads))
    writer.add_uint32("medusa.residual_count", len(heads[0].residuals))
    for number, head in enumerate(heads):
        for place, (weight, bias) in enumerate(head.residuals):
            _add(writer, f"blk.{number}.residual.{place}.weight", weight, kind)
            _add(writer, f"blk.{number}.residual.{place}.bias", bias, kind)
        _add(writer, f"blk.{number}.output.weight", head.output, kind)
    if tokens is not None:
        writer.add_tensor("d2t", tokens)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(
    writer: gguf.GGUFWriter, name: str, values: Array, kind: gguf.GGMLQuantizationType
) -> None:
    writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
