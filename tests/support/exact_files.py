"""Files whose decodes are exact in any process, whatever it has loaded before."""

from __future__ import annotations

from pathlib import Path

import llama_cpp
import pytest

import localspec
from localspec.errors import OptionError
from localspec.llama.library import system_info


def requantised(source: Path, path: Path, kind: int) -> Path:
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize, params.nthread = kind, True, 2
    assert llama_cpp.llama_model_quantize(str(source).encode(), str(path).encode(), params) == 0
    return path


def is_known_to_be_exact() -> bool:
    """Whether it was measured on processors like this one; on others a probe may say no."""
    return "AVX512 = 1" in system_info() and "AMX_INT8 = 1" not in system_info()


def exact_copy(source: Path, folder: Path) -> Path:
    """The model in Q8_0, which has no kernels that a process chooses once; skips without."""
    path = requantised(source, folder / "q8_0.gguf", llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0)
    try:
        with localspec.load(target=path, exact=True, draft_tokens=0) as engine:
            found = engine.exactness
    except OptionError as error:
        if is_known_to_be_exact():
            raise
        pytest.skip(f"this processor's kernels: {error}")
    if not found.all_sizes and not is_known_to_be_exact():
        pytest.skip(f"this processor's kernels: {found}")
    return path
