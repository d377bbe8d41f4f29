"""Converts published Medusa heads to a file for `--head`.

    pip install safetensors
    python scripts/heads/convert_medusa.py --heads medusa_lm_head.safetensors \\
        --target T.gguf --out heads.gguf

Reads the names of the paper's own training (`0.0.linear.weight`, `0.1.weight`) and those of
vLLM (`blocks.0.layers.0.weight`, `lm_heads.0.weight`, `token_map` where they know only some
tokens). `localspec/gguf_file/head_facts.py` says what the file is like.
The target is the GGUF file of the very model that the heads were trained for: its tokenizer is
copied, and localspec compares it. Most of a head is its output layer: --tokens N keeps that of
the N tokens that come first in the vocabulary, which are the frequent ones of most tokenizers.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors import deserialize

from target_file import copy_tokenizer

Array = NDArray[np.float32]
_WIDE = {"F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32}
_PAPER = re.compile(r"(?:medusa_heads?\.)?(\d+)\.(\d+)\.(?:linear\.)?(weight|bias)")
_VLLM_BLOCK = re.compile(r"(?:medusa_heads\.)?blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)")
_VLLM_OUTPUT = re.compile(r"(?:medusa_heads\.)?lm_heads\.(\d+)\.weight")


def read_safetensors(path: Path) -> dict[str, NDArray[np.generic]]:
    """Every tensor of a file; bfloat16 as float32."""
    tensors: dict[str, NDArray[np.generic]] = {}
    for name, info in deserialize(path.read_bytes()):
        data = bytes(info["data"])
        shape = info["shape"]
        if info["dtype"] == "BF16":
            wide = np.frombuffer(data, np.uint16).astype(np.uint32) << 16
            tensors[name] = wide.view(np.float32).reshape(shape)
        elif info["dtype"] in _WIDE:
            tensors[name] = np.frombuffer(data, _WIDE[info["dtype"]]).reshape(shape)
        else:
            raise ValueError(f"{name} of {path} is of type {info['dtype']}")
    return tensors


def heads_of(tensors: Mapping[str, NDArray[np.generic]]) -> list[HeadWeights]:
    """The heads in order. Raises ValueError for names that none of both has."""
    parts: dict[int, dict[tuple[int, str], Array]] = {}
    outputs: dict[int, Array] = {}
    for name, values in tensors.items():
        floats = values.astype(np.float32)
        if found := _VLLM_OUTPUT.fullmatch(name):
            outputs[int(found[1])] = floats
        elif found := _VLLM_BLOCK.fullmatch(name) or _PAPER.fullmatch(name):
            parts.setdefault(int(found[1]), {})[int(found[2]), found[3]] = floats
        elif name != "token_map":
            raise ValueError(f"{name} is no part of Medusa heads as they are published")
    heads = []
    for number in sorted(parts):
        of_head = parts[number]
        places = sorted({place for place, _ in of_head})
        if number not in outputs:  # the paper's own: the last of the row
            outputs[number] = of_head[places.pop(), "weight"]
        width = outputs[number].shape[1]
        residuals = [
            (
                of_head[place, "weight"],
                of_head.get((place, "bias"), np.zeros(width, np.float32)),
            )
            for place in places
        ]
        heads.append(HeadWeights(residuals, outputs[number]))
    if not heads:
        raise ValueError("there are no heads in it")
    return heads


@dataclass(frozen=True)
class HeadWeights:
    """The weights of a head. residuals: weight (width, width) and bias (width,) of each block.

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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--heads", type=Path, required=True, help="the .safetensors file")
    parser.add_argument("--target", type=Path, required=True, help="GGUF of their model")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=int, help="rows of each output to keep")
    options = parser.parse_args()
    tensors = read_safetensors(options.heads)
    try:
        heads = heads_of(tensors)
    except ValueError as error:
        sys.exit(f"{options.heads}: {error}")
    tokens = tensors.get("token_map")
    if tokens is None and options.tokens:
        tokens = np.arange(options.tokens)
    if tokens is not None:
        rows = slice(len(tokens))
        heads = [HeadWeights(head.residuals, head.output[rows]) for head in heads]
        tokens = tokens.astype(np.int64)
    write_medusa(options.out, options.target, heads, tokens=tokens)
    print(f"{options.out}: {len(heads)} heads, {len(heads[0].output)} tokens")


if __name__ == "__main__":
    main()
