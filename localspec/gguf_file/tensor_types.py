"""ggml's tensor types, as gguf knows them, and which of them the processor repacks.

gguf is imported late: a start should not wait for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

F32 = 0
F16 = 1
INT64 = 27
BF16 = 30  # of ggml_type
_NEWER = {42: "Q2_0"}  # libllama has it, gguf 0.19 does not


def type_name(kind: int) -> str:
    """The name of a type by its number in a file; of an unknown one, the number."""
    from gguf.constants import GGMLQuantizationType

    try:
        return GGMLQuantizationType(kind).name
    except ValueError:
        return _NEWER.get(kind, f"type {kind}")


def type_number(name: str) -> int:
    """The number of a type by its name, in any case. Raises KeyError if gguf has none."""
    from gguf.constants import GGMLQuantizationType

    return GGMLQuantizationType[name.upper()].value


def bytes_per_value(name: str) -> float:
    """Bytes of a number in the type of that name, with its share of the block's scales."""
    num_values, num_bytes = _block(name)
    return num_bytes / num_values


def _block(name: str) -> tuple[int, int]:
    """Numbers in a block of the type, and its bytes."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    return GGML_QUANT_SIZES[GGMLQuantizationType(type_number(name))]


_NO_WEIGHTS = ("I8", "I16", "I32", "I64", "F64")  # types that libllama cannot multiply with


def stored_bytes(kind: int, shape: Sequence[int]) -> int | None:
    """Bytes of a matrix in a file, without padding.

    Args:
        kind: The number of its type.
        shape: The length of a row first.

    Returns:
        None if weights cannot have this type, or if a row does not end with a block.
    """
    name = type_name(kind)
    if name in _NO_WEIGHTS:
        return None
    try:
        num_values, num_bytes = _block(name)
    except KeyError:  # newer than gguf
        return None
    if shape[0] % num_values:
        return None
    return math.prod(shape) // num_values * num_bytes


# AMX kernels: additional bytes in memory for each block.
_AMX = {
    "F16": 0, "Q4_0": 0, "Q4_1": 0, "Q8_0": 4, "Q4_K": 4, "Q5_K": 4, "Q6_K": 0, "IQ4_XS": 2,
}  # fmt: skip
# Types whose repacked kernels add in the same order for one row and for several, unless they
# are AMX's.
_EVEN = {"Q4_0", "IQ4_NL"}


def unevenly_repacked(system_info: str) -> set[str]:
    """Types for which the rows of a decode depend on its size if they are repacked."""
    uneven = set(repacked_types(system_info))
    if "AMX_INT8 = 1" not in system_info:
        uneven -= _EVEN
    return uneven


def repacked_types(system_info: str) -> Mapping[str, float]:
    """Types whose weights ggml's CPU backend reorders for its kernels.

    Follows ggml_repack_get_optimal_repack_type in ggml-cpu/repack.cpp, supports_op in
    ggml-cpu/amx/amx.cpp and get_row_size in mmq.cpp there.

    Args:
        system_info: libllama's description of its build and this processor.

    Returns:
        By the names of the types: the bytes in memory for one byte of the file.
    """
    parts = system_info.replace(":", "|").split("|")
    has = {part.strip() for part in parts}
    names: set[str] = set()
    if "REPACK = 1" in has and "AVX2 = 1" in has:
        names = {"Q4_0", "Q4_K", "IQ4_NL", "MXFP4"}
        if "AVX512 = 1" in has:
            names.add("Q2_K")
    elif "REPACK = 1" in has and "NEON = 1" in has and "DOTPROD = 1" in has:
        names = {"Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "IQ4_NL", "MXFP4", "Q1_0"}
    growth = dict.fromkeys(names, 1.0)
    if "AMX_INT8 = 1" in has:  # AMX kernels are preferred to the others
        for name, num_added in _AMX.items():
            _, num_bytes = _block(name)
            growth[name] = (num_bytes + num_added) / num_bytes
    return growth
