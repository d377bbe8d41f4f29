"""Loads libllama, which has to come before NumPy. No other module imports llama_cpp.

A libllama for CUDA may contain its own C++ library; after NumPy's, it ended the process. So
modules that need both import this one before all others. Nothing is initialised here: a fork
may load models.
"""

from __future__ import annotations

from typing import Any

from localspec.llama import binding
from localspec.llama.quirks import debugger
from localspec.llama.quirks.spinning import spinning_briefly

debugger.start_none()
with spinning_briefly(), binding.given_library() as library:
    import llama_cpp as llama_cpp
    from llama_cpp import Llama as Llama

binding.fit(llama_cpp.llama_cpp, library)


def load_mtmd() -> Any:
    """libmtmd. Raises what importing it raises, and EngineError if it does not fit."""
    from llama_cpp import mtmd_cpp

    binding.fit(mtmd_cpp, library)
    return mtmd_cpp
