"""Names of ggml's tensor types, by their number in a GGUF file (ggml.h, enum ggml_type)."""

from __future__ import annotations

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


def repacked_types(system_info: str) -> frozenset[str]:
    """Types that ggml's CPU backend stores anew, in an order for its kernels.

    system_info: what libllama says of its build and this processor. Follows
    ggml_repack_get_optimal_repack_type in ggml-cpu/repack.cpp, and supports_op in
    ggml-cpu/amx/amx.cpp.
    """
    has = {part.strip() for part in system_info.replace(":", "|").split("|")}
    amx = set()
    if "AMX_INT8 = 1" in has:
        amx = {"Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"}
    if "REPACK = 1" not in has:
        return frozenset(amx)
    if "AVX2 = 1" in has:
        wide = {"Q2_K"} if "AVX512 = 1" in has else set()
        return frozenset({"Q4_0", "Q4_K", "IQ4_NL", "MXFP4", *wide, *amx})
    if "NEON = 1" in has and "DOTPROD = 1" in has:
        return frozenset({"Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "IQ4_NL", "MXFP4", "Q1_0"})
    return frozenset()
