"""Loads libllama, which has to be loaded before NumPy. No other module imports llama_cpp.

A libllama for CUDA may contain a C++ library of its own, and ended the process when NumPy had
loaded another one before. So modules that need both libraries import this module before all
others. Nothing is initialised here, so a fork of this process can still load models.
"""

from __future__ import annotations

from typing import Any

from localspec.llama import binding
from localspec.llama.quirks import debugger
from localspec.llama.quirks.spinning import spinning_briefly

debugger.prevent_start()
with spinning_briefly(), binding.chosen_library() as library:
    import llama_cpp as llama_cpp
    from llama_cpp import Llama as Llama

binding.fit(llama_cpp.llama_cpp, library)


def load_mtmd() -> Any:
    """Import llama_cpp's module for libmtmd, and return it.

    Raises what the import raises, and EngineError if the library does not fit.
    """
    from llama_cpp import mtmd_cpp

    binding.fit(mtmd_cpp, library)
    return mtmd_cpp
