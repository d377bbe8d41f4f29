"""ggml's tensor types, as the package gguf knows them, and which of them the CPU repacks.

gguf is imported inside functions, so that a start of localspec does not wait for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

# Numbers of types (enum ggml_type).
F32 = 0
F16 = 1
INT64 = 27
BF16 = 30
_NEWER_TYPES = {42: "Q2_0"}  # libllama has it, gguf 0.19 does not


def type_name(kind: int) -> str:
    """The name of the type with that number in a file, such as "Q4_K"; "type N" if unknown."""
    from gguf.constants import GGMLQuantizationType

    try:
        return GGMLQuantizationType(kind).name
    except ValueError:
        return _NEWER_TYPES.get(kind, f"type {kind}")


def type_number(name: str) -> int:
    """The number of the type with that name, in upper or lower case.

    Raises KeyError if gguf does not know the name.
    """
    from gguf.constants import GGMLQuantizationType

    return GGMLQuantizationType[name.upper()].value


def bytes_per_value(name: str) -> float:
    """The mean size of a value of that type, with its share of the block's scales."""
    num_values, num_bytes = _block_size(name)
    return num_bytes / num_values


def _block_size(name: str) -> tuple[int, int]:
    """The number of values in a block of the type with that name, and the block's bytes."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    kind = GGMLQuantizationType(type_number(name))
    return GGML_QUANT_SIZES[kind]


_NO_WEIGHTS = ("I8", "I16", "I32", "I64", "F64")  # types that libllama cannot multiply with


def stored_bytes(kind: int, shape: Sequence[int]) -> int | None:
    """The bytes that a matrix takes in a file, without padding.

    Args:
        kind: The number of the matrix's type.
        shape: The matrix's shape, with the length of a row first.

    Returns:
        None if weights cannot have this type, or if a row is no whole number of blocks.
    """
    name = type_name(kind)
    if name in _NO_WEIGHTS:
        return None
    try:
        num_values, num_bytes = _block_size(name)
    except KeyError:  # gguf does not know the type
        return None
    row_length = shape[0]
    if row_length % num_values != 0:
        return None
    num_blocks = math.prod(shape) // num_values
    return num_blocks * num_bytes


# Types that AMX kernels repack: the bytes that each block grows by in memory.
_AMX_ADDED_BYTES = {
    "F16": 0, "Q4_0": 0, "Q4_1": 0, "Q8_0": 4, "Q4_K": 4, "Q5_K": 4, "Q6_K": 0, "IQ4_XS": 2,
}  # fmt: skip
# Types whose repacked kernels, other than AMX's, add in the same order for any number of rows.
_EVENLY_REPACKED = {"Q4_0", "IQ4_NL"}


def unevenly_repacked(system_info: str) -> set[str]:
    """The types that, once repacked, make a row's result depend on the size of its decode.

    Args:
        system_info: libllama's description of its build and this processor.
    """
    uneven = set(repacked_types(system_info))
    if "AMX_INT8 = 1" not in system_info:
        uneven -= _EVENLY_REPACKED
    return uneven


def repacked_types(system_info: str) -> Mapping[str, float]:
    """The types whose weights ggml's CPU backend reorders for its kernels, and their growth.

    Follows ggml_repack_get_optimal_repack_type in ggml-cpu/repack.cpp, supports_op in
    ggml-cpu/amx/amx.cpp and get_row_size in mmq.cpp there.

    Args:
        system_info: libllama's description of its build and this processor: entries such as
            "AVX2 = 1", between "|" or ":".

    Returns:
        For each type's name, the bytes in memory for one byte in the file.
    """
    entries = system_info.replace(":", "|").split("|")
    abilities = {entry.strip() for entry in entries}
    names: set[str] = set()
    if "REPACK = 1" in abilities:
        if "AVX2 = 1" in abilities:
            names = {"Q4_0", "Q4_K", "IQ4_NL", "MXFP4"}
            if "AVX512 = 1" in abilities:
                names.add("Q2_K")
        elif {"NEON = 1", "DOTPROD = 1"} <= abilities:
            names = {"Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "IQ4_NL", "MXFP4", "Q1_0"}
    growth = dict.fromkeys(names, 1.0)
    if "AMX_INT8 = 1" in abilities:  # ggml prefers AMX kernels to the others
        for name, num_added in _AMX_ADDED_BYTES.items():
            _, num_bytes = _block_size(name)
            growth[name] = (num_bytes + num_added) / num_bytes
    return growth
