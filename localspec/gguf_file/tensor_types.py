"""Names of ggml's tensor types, by their number in a GGUF file (ggml.h, enum ggml_type)."""

from __future__ import annotations

from collections.abc import Mapping

_NAMES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1",
    10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS",
    17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S",
    23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M",
    30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0", 42: "Q2_0",
}  # fmt: skip


def type_name(kind: int) -> str:
    """The type's name; of one that is newer than this list, its number."""
    return _NAMES.get(kind, f"type {kind}")


def type_number(name: str) -> int:
    """The number of the type of that name, in any case."""
    return next(number for number, each in _NAMES.items() if each == name.upper())


# AMX kernels: bytes of a block with what is kept beside it, and of a block in the file.
_AMX = {
    "F16": 1.0, "Q4_0": 1.0, "Q4_1": 1.0, "Q8_0": 38 / 34, "Q4_K": 148 / 144,
    "Q5_K": 180 / 176, "Q6_K": 1.0, "IQ4_XS": 138 / 136,
}  # fmt: skip


def repacked_types(system_info: str) -> Mapping[str, float]:
    """Types that ggml's CPU backend repacks, in an order for its kernels.

    system_info: what libllama says of its build and this processor. Returns by name how many
    bytes one of the file becomes. Follows ggml_repack_get_optimal_repack_type in
    ggml-cpu/repack.cpp, supports_op in ggml-cpu/amx/amx.cpp and get_row_size in mmq.cpp there.
    """
    has = {part.strip() for part in system_info.replace(":", "|").split("|")}
    names: set[str] = set()
    if "REPACK = 1" in has and "AVX2 = 1" in has:
        names = {"Q4_0", "Q4_K", "IQ4_NL", "MXFP4"}
        if "AVX512 = 1" in has:
            names.add("Q2_K")
    elif "REPACK = 1" in has and "NEON = 1" in has and "DOTPROD = 1" in has:
        names = {"Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "IQ4_NL", "MXFP4", "Q1_0"}
    same = dict.fromkeys(names, 1.0)
    # AMX kernels are preferred to the others.
    return same | _AMX if "AMX_INT8 = 1" in has else same
